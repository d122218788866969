"""Each rule fires where it should, and is silent where it should."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Tuple

import numpy as np
import pytest
from dump_trees import CLEAN, INF, PINNED, tensor_of

from npu_overflow import messages
from npu_overflow.analysis.known_types import is_known
from npu_overflow.analysis.rules import RULES, Case, advise, is_backward
from npu_overflow.analysis.statistics import Facts, summarize
from npu_overflow.report.model import Operator
from npu_overflow.report.story import advice_text


def read(values: Any, dtype: str = "float16", mode: str = "inf_nan", **more: Any) -> Facts:
    stored = np.asarray(values, None if dtype == "bfloat16" else dtype)
    return summarize(tensor_of(stored, dtype, **more), mode)


def case(op_type: str = "Mul", verdict: str = "computed_here", inputs: Any = (CLEAN,), outputs: Any = (INF,), **more: Any) -> Case:
    def sides(items: Any) -> Tuple[Facts, ...]:
        return tuple(item if isinstance(item, Facts) else read(item, item.dtype.name, more.get("mode", "inf_nan")) for item in items)

    return Case(op_type, more.pop("op_name", "model/x"), more.pop("core", "AIV"), verdict, inputs=sides(inputs), outputs=sides(outputs), **more)


HALF = read([1.0, np.inf])
FULL = read([1.0, np.inf], "float32")
BFLOAT = read(np.array([0x7F80, 0x3F80], np.uint16), "bfloat16")
BIG_BFLOAT = read(np.array([0x7000, 0x3F80], np.uint16), "bfloat16")
EMPTY_HALF = read(np.empty(0, np.float16))
PADDED = read(np.pad(CLEAN, ((0, 14), (0, 14)), constant_values=np.inf).reshape(1, 1, 16, 16), format="FRACTAL_NZ", original_shape=(2, 2))
MASKED = np.array([[-np.inf, -np.inf], [1, 2]], np.float16)
GRADIENT = "gradient_tape/model/fc/MatMul"

FIRES = [
    ("padding", case("Log", "padding_only", outputs=[PADDED])),
    ("integer_status", case("Add", "internal", bits=0x10, core="AI Core")),
    ("integer_status", case("AddN", bits=0x110, core="AI Core")),
    ("mask_constant", case("Cast", inputs=[np.array([0, -1e9], np.float32)])),
    ("mask_constant", case("Add", "inherited", inputs=[np.array([0, -np.inf], np.float16)], dumped_producer=False)),
    ("mask_constant", case("Add", inputs=[np.array([0, np.finfo(np.float32).min], np.float32)])),
    ("mask_constant", case("Add", inputs=[np.array([0, -65504], np.float16)])),
    ("mask_constant", case("Mul", inputs=[np.array([0, 2e9], np.float32)])),
    ("log_or_reciprocal", case("Log", inputs=[np.array([1, 0], np.float16)])),
    ("log_or_reciprocal", case("Log", inputs=[np.array([1, -1], np.float16)])),
    ("log_or_reciprocal", case("Reciprocal", inputs=[np.array([1, 1e-5], np.float16)])),
    ("log_or_reciprocal", case("RealDiv", inputs=[CLEAN, np.array([1, 0], np.float16)])),
    ("log_or_reciprocal", case("SqrtGrad", inputs=[np.array([0.0], np.float16), CLEAN])),
    ("log_or_reciprocal", case("RsqrtGrad", inputs=[np.array([100.0], np.float16), CLEAN])),
    ("log_or_reciprocal", case("Log1p", inputs=[np.array([0.5, -1.0], np.float16)])),
    ("log_or_reciprocal", case("Atanh", inputs=[np.array([0.5, 1.0], np.float16)])),
    ("dot_product", case("Conv2DBackpropInput", phase="forward", inputs=[CLEAN, np.array([300.0], np.float16)])),
    ("weights_lost", case("ReadVariableOp", "inherited", inputs=[INF], origin="variable", origin_detail={"name": "dense/kernel:0", "element": [0, 1]})),
    ("weights_lost", case("MatMul", "inherited", inputs=[INF], host=True, origin="variable")),
    ("masked_row", case("SoftmaxV2", "inherited", inputs=[MASKED], outputs=[np.array([[np.nan, np.nan], [0.5, 0.5]], np.float16)])),
    ("masked_row", case("LogSoftmax", "inherited", inputs=[MASKED], outputs=[np.array([np.nan], np.float16)], dumped_producer=True)),
    ("power", case("Square", inputs=[np.array([1, 300.0], np.float16)])),
    ("power", case("Pow", inputs=[np.array([50.0], np.float16), np.array([3.0], np.float16)])),
    ("power", case("Gelu", "internal", inputs=[np.array([41.0], np.float16)], outputs=[CLEAN])),
    ("power", case("SquaredDifference", inputs=[np.array([200.0], np.float16), np.array([-200.0], np.float16)])),
    ("optimizer_float16", case("ResourceApplyAdam", inputs=[np.array([0.1], np.float16)])),
    (
        "optimizer_float16",
        case("RealDiv", op_name="adam/truediv_1", host=True, inputs=[np.zeros(1, np.float16)]),
    ),
    ("optimizer_float16", case("ApplyMomentumD", "internal", inputs=[np.array([0.1], np.float16)], outputs=[CLEAN])),
    ("dot_product", case("BatchMatMulV2")),
    ("dot_product", case("Conv2D", "computed_here", inputs=[np.array([300.0], np.float16), CLEAN])),
    ("sum_range", case("ReduceSumD")),
    ("sum_range", case("AddV2")),
    ("sum_range", case("ScatterNd")),
    ("product_range", case("Mul", inputs=[np.array([300.0], np.float16), np.array([300.0], np.float16)])),
    ("product_range", case("ReduceProdD", inputs=[np.array([300.0, 300.0], np.float16)])),
    ("mean_range", case("ReduceMeanD", inputs=[np.array([40000.0, 40000.0], np.float16)])),
    ("mean_range", case("AvgPoolV2", inputs=[np.array([40000.0, 40000.0], np.float16)])),
    ("log_or_reciprocal", case("Pow", inputs=[np.array([0.0, 1.0], np.float16), np.array([-1.0], np.float16)])),
    ("log_or_reciprocal", case("Pow", inputs=[np.array([1e-3], np.float16), np.array([-2.0], np.float16)])),
    ("log_or_reciprocal", case("Pow", inputs=[np.array([-2.0], np.float16), np.array([0.5], np.float16)], outputs=[np.array([np.nan], np.float16)])),
    ("exponent", case("Exp", inputs=[np.array([1, 11.2], np.float16)])),
    ("exponent", case("Cosh", inputs=[np.array([1, -12.0], np.float16)])),
    ("cube_accumulation", case("MatMulV2", bits=0x400, core="AI Core")),
    ("reduction_inside", case("AvgPoolV2", "internal", outputs=[CLEAN])),
    ("reduction_inside", case("ReduceMeanD", "internal", outputs=[CLEAN])),
    ("reduction_inside", case("LayerNorm", "internal", outputs=[CLEAN])),
    ("weight_range", case("Cast", inputs=[np.array([0, -3e9], np.float32)], variables={"input.0": "fc/kernel"})),
    ("cast_range", case("Cast", inputs=[np.array([1, 70000], np.float32)])),
    ("cast_range", case("TransData", inputs=[np.array([1, 70000], np.float32)])),
    ("cast_range", case("AddN", bits=0x100, core="AI Core")),
    ("atomic_add", case("AddN", core="L2 Atomic Add")),
    ("atomic_add", case("AddN", core="DHA Atomic Add")),
    ("constant_input", case("Mul", "inherited", inputs=[INF], dumped_producer=False)),
    ("scale_at_floor", case("MatMul", loss_scale=1.0)),
    ("scale_at_floor", case("MatMul", loss_scale=0.5)),
    ("gradient_scale", case("MatMul", op_name=GRADIENT, forward_clean=True)),
    ("gradient_scale", case("Conv2DBackpropInput", forward_clean=True, loss_scale=1024.0)),
    ("gradient_scale", case("Cast", phase="backward", forward_clean=True)),
    ("gradient_scale", case("Cast", phase="backward", forward_clean=True, loss_scale=1.0, cured_by_scale=True)),
    ("keep_float32", case("MatMul")),
    ("keep_float32", case("MatMul", "internal", outputs=[CLEAN])),
    ("keep_float32", case("Cast", outputs=[read(np.array([0x6F], np.uint8), "uint8"), HALF])),
    ("custom_operator", case("MyFancyKernel")),
    ("ask_support", case("MatMul", outputs=[FULL])),
    ("ask_support", case("MatMul", "unknown", outputs=[CLEAN])),
]

SILENT = [
    ("padding", case("Log", "computed_here")),
    ("padding", case("Log", "internal", outputs=[CLEAN])),
    ("integer_status", case("Add", bits=0x20, core="AI Core")),
    ("integer_status", case("Add", bits=0)),
    ("mask_constant", case("Add", inputs=[np.array([0, -1e4], np.float16)])),
    ("mask_constant", case("Cast", inputs=[np.array([0, -3e9], np.float32)], variables={"input.0": "fc/kernel"})),
    ("mask_constant", case("Cast", inputs=[np.array([0, 3e9], np.float32)], variables={"input.0": "fc/kernel"})),
    ("mask_constant", case("Mul", "inherited", inputs=[PINNED], dumped_producer=True, mode="saturation")),
    ("mask_constant", case("Mul", inputs=[np.array([0, -2000000000], np.int32)])),
    ("mask_constant", case("Mul", "inherited", inputs=[np.array([np.nan, -np.inf], np.float16)], dumped_producer=False)),
    ("log_or_reciprocal", case("Log", inputs=[np.array([1, 1e-3], np.float16)])),
    ("log_or_reciprocal", case("Log1p", inputs=[np.array([0.0, -0.5], np.float16)])),
    ("log_or_reciprocal", case("Atanh", inputs=[np.array([0.0, 0.99], np.float16)])),
    ("dot_product", case("Conv2DBackpropInput", op_name=GRADIENT, inputs=[CLEAN, np.array([300.0], np.float16)])),
    ("mask_constant", case("Mul", inputs=[BIG_BFLOAT, BIG_BFLOAT], outputs=[BFLOAT])),
    ("log_or_reciprocal", case("RealDiv", inputs=[np.array([0.0], np.float16), CLEAN])),
    ("log_or_reciprocal", case("Reciprocal", inputs=[np.array([-1.0], np.float16)])),
    ("log_or_reciprocal", case("Mul", inputs=[np.array([0.0], np.float16)])),
    ("log_or_reciprocal", case("Log", "inherited", inputs=[np.array([0.0, np.inf], np.float16)])),
    ("log_or_reciprocal", case("RsqrtGrad", inputs=[np.array([10.0], np.float16), CLEAN])),
    ("log_or_reciprocal", case("Pow", inputs=())),
    ("weights_lost", case("MatMul", "inherited", inputs=[INF], host=True, origin="data")),
    ("weights_lost", case("MatMul")),
    ("masked_row", case("Softmax", "inherited", inputs=[MASKED], outputs=[np.array([[0.0, 1.0], [0.5, 0.5]], np.float16)])),
    ("masked_row", case("Softmax", "inherited", inputs=[np.array([np.nan, -np.inf], np.float16)], outputs=[np.array([np.nan], np.float16)])),
    ("masked_row", case("SoftmaxGrad", "inherited", inputs=[MASKED], outputs=[np.array([np.nan], np.float16)])),
    ("masked_row", case("Mul", "inherited", inputs=[MASKED], outputs=[np.array([np.nan], np.float16)])),
    ("power", case("Square", inputs=[np.array([1, 200.0], np.float16)])),
    ("power", case("Square", inputs=[np.array([1, 300.0], np.float32)], outputs=[FULL])),
    ("power", case("Pow", inputs=[np.array([50.0], np.float16), np.array([-3.0], np.float16)])),
    ("power", case("Mul", inputs=[np.array([1, 300.0], np.float16)])),
    ("optimizer_float16", case("ResourceApplyAdam", inputs=[np.array([0.1], np.float32)], outputs=())),
    ("optimizer_float16", case("Mul")),
    ("optimizer_float16", case("RealDiv", op_name="net/adam/truediv", host=True)),
    ("dot_product", case("MatMul", op_name=GRADIENT)),
    ("dot_product", case("MatMul", bits=0x400, core="AI Core")),
    ("dot_product", case("MatMul", outputs=[FULL])),
    ("dot_product", case("MatMul", "internal", outputs=[CLEAN])),
    ("dot_product", case("Mul")),
    ("sum_range", case("ReduceSumD", outputs=[FULL])),
    ("sum_range", case("Sum", op_name=GRADIENT)),
    ("sum_range", case("Sum", "inherited", inputs=[INF])),
    ("product_range", case("Mul", op_name=GRADIENT)),
    ("product_range", case("Mul", "inherited", inputs=[INF])),
    ("product_range", case("Mul", outputs=[FULL])),
    ("product_range", case("Mul", "internal", outputs=[CLEAN])),
    ("mean_range", case("Mean", op_name=GRADIENT)),
    ("mean_range", case("Mean", "internal", outputs=[CLEAN])),
    ("mean_range", case("MaxPool")),
    ("mean_range", case("Mean", outputs=[BFLOAT])),
    ("log_or_reciprocal", case("Pow", inputs=[np.array([-300.0, 0.0], np.float16), np.array([2.0], np.float16)])),
    ("log_or_reciprocal", case("Pow", inputs=[np.array([0.1], np.float16), np.array([-2.0], np.float16)])),
    ("weights_lost", case("MatMul", "absorbed", inputs=[INF], host=True, origin="variable")),
    ("constant_input", case("MatMul", "inherited", inputs=[INF], host=True, dumped_producer=False, origin="variable")),
    ("exponent", case("Exp", inputs=[np.array([1, 11.0], np.float16)])),
    ("exponent", case("Exp", inputs=[np.array([1, -300.0], np.float16)])),
    ("exponent", case("Exp", inputs=[np.array([1, 12.0], np.float32)], outputs=[FULL])),
    ("exponent", case("Mul", inputs=[np.array([1, 12.0], np.float16)])),
    ("cube_accumulation", case("MatMulV2", bits=0x20, core="AI Core")),
    ("reduction_inside", case("MaxPool", "internal", outputs=[CLEAN])),
    ("reduction_inside", case("AvgPool")),
    ("weight_range", case("Cast", inputs=[np.array([1, 70000], np.float32)])),
    ("weight_range", case("Mul", inputs=[np.array([1, 70000], np.float32)], variables={"input.0": "fc/kernel"})),
    ("weight_range", case("Cast", outputs=[FULL], variables={"input.0": "fc/kernel"})),
    ("cast_range", case("Cast", inputs=[np.array([0, -3e9], np.float32)], variables={"input.0": "fc/kernel"})),
    ("cast_range", case("Cast", outputs=[FULL])),
    ("cast_range", case("Mul", bits=0x20, core="AI Core")),
    ("atomic_add", case("AddN", core="AI Core")),
    ("constant_input", case("Mul", "inherited", inputs=[INF], dumped_producer=True)),
    ("constant_input", case("Mul", "inherited", inputs=[INF], dumped_producer=None)),
    ("constant_input", case("Mul")),
    ("scale_at_floor", case("MatMul", loss_scale=2.0)),
    ("scale_at_floor", case("MatMul", loss_scale=1.0, cured_by_scale=True)),
    ("scale_at_floor", case("MatMul")),
    ("gradient_scale", case("MatMul", op_name=GRADIENT, forward_clean=False)),
    ("gradient_scale", case("MatMul", op_name="model/gradient_boosting/MatMul", phase="forward", forward_clean=True)),
    ("gradient_scale", case("MatMul", op_name="model/fc/MatMul", forward_clean=True)),
    ("gradient_scale", case("MatMul", op_name=GRADIENT, forward_clean=True, loss_scale=1.0)),
    ("gradient_scale", case("MatMul", op_name=GRADIENT, forward_clean=True, loss_scale=1024.0, cured_by_scale=False)),
    ("keep_float32", case("MatMul", outputs=[FULL])),
    ("keep_float32", case("MatMul", outputs=[BFLOAT])),
    ("keep_float32", case("IdentityN", outputs=[BFLOAT, EMPTY_HALF])),
    ("keep_float32", case("MatMul", "inherited", inputs=[INF])),
    ("custom_operator", case("MatMulV2")),
    ("custom_operator", case("ReduceSumD")),
    ("custom_operator", case("_FusedMatMul")),
    ("custom_operator", case("MyFancyKernel", "absorbed")),
    ("ask_support", case("MatMul")),
    ("ask_support", case("Mul", "inherited", inputs=[INF], dumped_producer=True)),
]


@pytest.mark.parametrize(("code", "given"), FIRES, ids=["%s-%s-%d" % (code, given.op_type, place) for place, (code, given) in enumerate(FIRES)])
def test_fires(code: str, given: Case) -> None:
    codes, evidence = advise(given)
    assert code in codes
    assert set(evidence) == set(codes)


@pytest.mark.parametrize(("code", "given"), SILENT, ids=["%s-%s-%d" % (code, given.op_type, place) for place, (code, given) in enumerate(SILENT)])
def test_is_silent(code: str, given: Case) -> None:
    assert code not in advise(given)[0]


def test_every_rule_is_tried_both_ways() -> None:
    every = {rule.code for rule in RULES} | {"ask_support"}
    assert {code for code, _ in FIRES} == {code for code, _ in SILENT} == every


@pytest.mark.parametrize("language", messages.LANGUAGES)
@pytest.mark.parametrize(("code", "given"), FIRES, ids=["%s-%d" % (code, place) for place, (code, _) in enumerate(FIRES)])
def test_the_sentences_take_the_evidence(code: str, given: Case, language: str) -> None:
    codes, evidence = advise(given)
    operator = Operator(op_type=given.op_type, op_name=given.op_name, core=given.core, advice=codes, evidence=evidence)
    sentence = advice_text(operator, code, language)
    assert messages.known("advice.%s.title" % code)
    # a value that is missing leaves the sentence unfilled, with its braces doubled
    assert "{{" not in sentence and "{tensor}" not in sentence and "{value}" not in sentence and "{op_type}" not in sentence


def test_the_most_specific_comes_first() -> None:
    assert advise(case("Exp", inputs=[np.array([1, 20.0], np.float16)]))[0] == ("exponent", "keep_float32")
    assert advise(case("Cast", inputs=[np.array([0, -1e9], np.float32)]))[0] == ("mask_constant", "cast_range", "keep_float32")
    assert advise(case("Cast", inputs=[np.array([0, 2e9], np.float32)]))[0] == ("cast_range", "mask_constant", "keep_float32")


def test_the_committed_table_is_printed() -> None:
    script = Path(__file__).resolve().parent.parent / "rule_table.py"
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout
    assert all("| %s |" % rule.code in done.stdout for rule in RULES)


def test_a_gradient_that_does_not_fit_its_cast_is_a_matter_of_the_scale() -> None:
    backward = case("Cast", inputs=[np.array([70000], np.float32)], op_name="gradient_tape/net/hot/Cast/Cast", forward_clean=True, loss_scale=65536.0)
    assert advise(backward)[0] == ("gradient_scale", "cast_range", "keep_float32")
    at_one = case("Cast", inputs=[np.array([70000], np.float32)], op_name="gradient_tape/net/hot/Cast/Cast", forward_clean=True, loss_scale=1.0)
    assert advise(at_one)[0] == ("cast_range", "scale_at_floor", "keep_float32")


def test_a_square_by_pow_is_no_logarithm() -> None:
    """A negative or a 0 among what is squared says nothing."""
    squared = case("Pow", inputs=[np.array([-300.0, 0.0, 500.0], np.float16), np.array([2.0], np.float16)])
    assert advise(squared)[0] == ("power", "keep_float32")


def test_evidence_points_at_the_element() -> None:
    _, evidence = advise(case("Exp", inputs=[np.array([1, 20.0], np.float16)]))
    assert evidence["keep_float32"]["tensor"] == "output.0"
    assert (evidence["keep_float32"]["element"], evidence["keep_float32"]["value"]) == ([0, 1], float("inf"))
    assert (evidence["exponent"]["tensor"], evidence["exponent"]["value"]) == ("input.0", 20.0)


def test_absorbed_needs_no_advice() -> None:
    assert advise(case("MyFancyKernel", "absorbed", loss_scale=1.0)) == ((), {})


@pytest.mark.parametrize(
    ("op_type", "op_name", "backward"),
    [
        ("SqrtGrad", "x", True),
        ("LayerNormXBackpropV2", "x", True),
        ("ReluGradV2", "x", True),
        ("MatMul", "gradients/dense/MatMul_grad/MatMul", True),
        ("MatMul", "gradient_tape/model/dense/MatMul_1", True),
        ("MatMul", "gradient_tape_model_dense_MatMul_1", True),
        ("MatMul", "model/upgrade/MatMul", False),
        ("Gradual", "model/x", False),
        (None, None, False),
    ],
)
def test_backward_by_name(op_type: Any, op_name: Any, backward: bool) -> None:
    assert is_backward(op_type, op_name, None) is backward
    assert is_backward(op_type, op_name, "forward") is False
    assert is_backward(op_type, op_name, "backward") is True


def test_known_types() -> None:
    known = ["MatMul", "BatchMatMulV2", "ReduceSumD", "FusedMulAdd", "HcomAllReduce", "Softmax", "FusedBatchNormGradV3", "CudnnRNN", "XlaEinsum"]
    assert [name for name in known if not is_known(name)] == ["XlaEinsum"]
    assert not is_known("MyFancyKernel") and not is_known("")


@pytest.mark.parametrize("name", ["x", None])
def test_of_a_value_that_comes_with_the_batch_no_operator_is_to_blame(name: Any) -> None:
    found = case("Cast", core="CPU", inputs=[np.array([1, 70000], np.float32)], origin="data", origin_detail={"name": name, "element": [1], "value": 70000.0})
    codes, evidence = advise(found)
    text = advice_text(Operator(op_type="Cast", op_name="m/body/Cast", core="CPU", advice=codes, evidence=evidence), "cast_range", "en")
    assert codes[0] == "cast_range"
    assert text.startswith('The value comes with the batch ("%s"): ' % (name or "batch")) and "operator" not in text


def test_on_a_cpu_the_fix_is_that_of_keras() -> None:
    for core, expected in (("CPU", False), ("GPU", False), ("AIV", True)):
        operator = Operator(op_type="MatMul", op_name="fc/MatMul", core=core)
        assert ("npu.global_options" in advice_text(operator, "keep_float32", "en")) is expected
