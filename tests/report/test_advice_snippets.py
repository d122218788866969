"""The code in the advice can be copied: it compiles, and what is TensorFlow's gives the promised finite numbers on a CPU."""
from __future__ import annotations

import ast
import json
import sys
import textwrap
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest

from npu_overflow import messages
from npu_overflow.messages.advice import TEXTS

#: stand-ins for what the sentences put in
VALUES = {"op_type": "MatMul", "op_name": "net/fc/MatMul"}


class _Any(Dict[str, str]):
    def __missing__(self, key: str) -> str:
        return VALUES.get(key, "1")


def snippets(key: str, language: str) -> List[str]:
    """The blocks of code in one advice, in order."""
    blocks: List[List[str]] = [[]]
    for line in TEXTS[key][messages.LANGUAGES.index(language)].format_map(_Any()).split("\n"):
        if line.startswith("    "):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return [textwrap.dedent("\n".join(block)) for block in blocks if block]


ADVICE = sorted(
    key for key in TEXTS if key.count(".") == 1 or key.endswith((".host", ".scores"))
)
WITH_CODE = [key for key in ADVICE if snippets(key, "en")]


def test_both_languages_show_the_same_code() -> None:
    def code(key: str, language: str) -> List[str]:
        shown = snippets(key, language)
        return [block if block.startswith("{") else ast.dump(ast.parse(block)) for block in shown]  # comments are translated

    assert len(WITH_CODE) > 12
    assert {key: code(key, "zh") for key in ADVICE} == {key: code(key, "en") for key in ADVICE}


@pytest.mark.parametrize("key", WITH_CODE)
def test_the_code_is_code(key: str) -> None:
    for block in snippets(key, "en"):
        assert json.loads(block) if block.startswith("{") else compile(block, key, "exec")


@pytest.mark.parametrize("key", WITH_CODE)
@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_no_line_of_code_is_wider_than_a_terminal(key: str, language: str) -> None:
    """Of 80 columns, where 7 are the margin."""
    from npu_overflow.report.flow import cells

    assert [line for block in snippets(key, language) for line in block.split("\n") if cells(line) > 73] == []


def test_the_list_for_ascend_is_what_mixlist_writes() -> None:
    from npu_overflow.analysis.artefacts import merge_mixlist

    assert json.loads(snippets("advice.keep_float32", "en")[0]) == json.loads(merge_mixlist(None, ["MatMul"])[0])


def half(*values: float) -> Any:
    import tensorflow as tf

    return tf.constant([values], tf.float16)


def run(key: str, number: int = 0, **names: Any) -> Dict[str, Any]:
    """The names after a block was executed."""
    import tensorflow as tf

    space: Dict[str, Any] = dict({"tf": tf, "keras": tf.keras}, **names)
    exec(compile(snippets("advice." + key, "en")[number].replace("Dense(...,", "Dense(3,"), key, "exec"), space)
    return space


def finite(value: Any) -> bool:
    return bool(np.isfinite(np.asarray(value, np.float64)).all())


def _masked_row() -> bool:
    import tensorflow as tf

    found = run("masked_row", scores=half(3.0, 2.0), mask=tf.constant([[False, False]]))["scores"]
    return found.dtype == tf.float16 and finite(tf.nn.softmax(found)) and not finite(tf.nn.softmax(half(-np.inf, -np.inf)))


def _mask_constant() -> bool:
    import tensorflow as tf

    found = run("mask_constant", scores=half(3.0, 2.0), mask=half(1.0, 0.0))["scores"]
    return finite(found) and finite(tf.nn.softmax(found)) and float(tf.nn.softmax(found)[0, 1]) == 0.0


def _log() -> bool:
    import tensorflow as tf

    return finite(run("log_or_reciprocal", x=half(0.0, 1.0))["y"]) and not finite(tf.math.log(half(0.0, 1.0) + 2.98e-8))


def _exponent() -> bool:
    import tensorflow as tf

    return finite(run("exponent", x=half(12.0, 90.0))["y"]) and not finite(tf.exp(half(12.0, 90.0)))


def _power() -> bool:
    return float(run("power", x=half(300.0, 300.0))["y"]) == 90000.0


def _cast_range() -> bool:
    import tensorflow as tf

    wide = tf.constant([7e4, -1e9], tf.float32)
    return finite(tf.cast(run("cast_range", x=wide)["x"], tf.float16)) and not finite(tf.cast(wide, tf.float16))


def _weight_range() -> bool:
    return float(run("weight_range")["optimizer"].clipnorm) == 1.0


def _dot_product() -> bool:
    import tensorflow as tf

    d = 64
    q = k = tf.fill([1, d], tf.constant(40.0, tf.float16))
    return finite(run("dot_product.scores", q=q, k=k, d=d)["scores"]) and not finite(tf.matmul(q, k, transpose_b=True) / tf.sqrt(tf.cast(d, q.dtype)))


def _sum_range() -> bool:
    return float(run("sum_range", per_example=half(6e4, 6e4))["loss"]) == float(np.float16(6e4))


def _product_range() -> bool:
    return float(run("product_range", a=half(300.0), b=half(400.0), scale=0.125)["y"][0, 0]) == 15000.0


def _mean_range() -> bool:
    found = run("mean_range", x=half(6e4, 6e4))["y"]
    return found.dtype == np.float16 and float(found[0]) == float(np.float16(6e4))


def _reduction_inside() -> bool:
    return float(run("reduction_inside", x=half(4e4, 4e4), n=2)["y"]) == float(np.float16(4e4))


def _constant_input() -> bool:
    import tensorflow as tf

    run("constant_input", x=half(1.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="features"):
        run("constant_input", x=half(np.nan))
    return True


def _weights_lost() -> bool:
    import tensorflow as tf

    return type(run("weights_lost", optimizer=tf.keras.optimizers.SGD(0.1))["optimizer"]).__name__.startswith("LossScaleOptimizer")


def _optimizer_float16() -> bool:
    import tensorflow as tf

    get = getattr(tf.keras.mixed_precision, "global_policy", None) or tf.keras.config.dtype_policy
    before = get()
    try:
        run("optimizer_float16")
        layer = tf.keras.layers.Dense(2)
        layer.build((None, 3))
        return bool(get().name == "mixed_float16" and str(tf.as_dtype(layer.kernel.dtype).name) == "float32")
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def _keep_float32_host() -> bool:
    """The layer works in float32, and the expression too; both sit in a model of the policy mixed_float16."""
    import tensorflow as tf

    layers: Dict[str, Any] = {}

    class Keras:
        class layers:
            @staticmethod
            def Dense(*given: Any, **more: Any) -> Any:
                layers["dense"] = tf.keras.layers.Dense(*given, **more)

    run("keep_float32.host", keras=Keras)
    wide = layers["dense"](half(300.0, 300.0))
    small = run("keep_float32.host", 1, x=half(300.0), f=lambda x: tf.square(x) * 1e-3)["y"]
    return wide.dtype == tf.float32 and small.dtype == tf.float16 and finite(small) and not finite(tf.square(half(300.0)) * 1e-3)


def _ask_support_host() -> bool:
    return float(run("ask_support.host")["optimizer"].clipnorm) == 1.0


RUNS: Dict[str, Callable[[], bool]] = {
    "masked_row": _masked_row, "mask_constant": _mask_constant, "log_or_reciprocal": _log, "exponent": _exponent, "power": _power, "cast_range": _cast_range,
    "weight_range": _weight_range, "dot_product.scores": _dot_product, "sum_range": _sum_range,
    "product_range": _product_range, "mean_range": _mean_range, "reduction_inside": _reduction_inside,
    "constant_input": _constant_input, "weights_lost": _weights_lost, "optimizer_float16": _optimizer_float16, "keep_float32.host": _keep_float32_host,
    "ask_support.host": _ask_support_host,
}  # fmt: skip


def test_every_advice_with_code_is_run() -> None:
    assert {"advice." + key for key in RUNS} | {"advice.keep_float32"} == set(WITH_CODE)


@pytest.mark.tensorflow
@pytest.mark.parametrize("key", sorted(RUNS))
def test_the_code_does_what_it_promises(key: str) -> None:
    assert RUNS[key]()


def test_the_code_for_ascend_sets_what_the_device_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the double of the vendor's adapter, which knows the options by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parent.parent / "fake_npu_device"))
    space: Dict[str, Any] = {}
    calls: List[Tuple[str, Any]] = []

    class Options:
        def __setattr__(self, name: str, value: Any) -> None:
            calls.append((name, value))

    class Npu:
        options = Options()

        def global_options(self) -> Options:
            return self.options

    space["npu"] = Npu()
    exec(compile(snippets("advice.keep_float32", "en")[1], "options", "exec"), space)
    assert calls == [("precision_mode_v2", "mixed_float16"), ("modify_mixlist", "ops_info.json")]
    try:
        import npu_device
    except ImportError:
        return  # the double needs TensorFlow
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "npu_device"]:
            del sys.modules[name]
    space.update(npu=npu_device, layer=abs, x=-2)
    exec(compile(snippets("advice.keep_float32", "en")[2], "scope", "exec"), space)
    assert space["y"] == 2 and hasattr(npu_device.global_options(), "modify_mixlist") and hasattr(npu_device.global_options(), "precision_mode_v2")
