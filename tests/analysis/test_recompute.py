"""One operator in float32 from its dumped inputs, against float64 and on the sample trees."""
from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_overflow.analysis.recompute import (
    _FORMULAS,
    Recomputed,
    recompute,
    recompute_tensors,
)
from npu_overflow.dump.reader import open_dump
from npu_overflow.errors import DumpFormatError

CORPUS = Path(__file__).parents[1] / "data" / "corpus"
HALF = 65504.0


def some(*shape: int, scale: float = 1.0) -> Any:
    random = np.random.RandomState(sum(shape))
    return (random.randn(*shape) * scale).astype(np.float16)


def of(op_type: str, inputs: Sequence[Any], exact: Any) -> Optional[Recomputed]:
    with np.errstate(over="ignore"):
        return recompute(op_type, inputs, np.asarray(exact).astype(np.float16), HALF)


A, B = some(6, 5), some(5, 7)
WIDE = [array.astype(np.float64) for array in (A, B)]
POSITIVE = np.abs(A) + np.float16(0.1)


@pytest.mark.parametrize(
    "op_type, inputs, exact",
    [
        ("MatMul", [A, B], WIDE[0] @ WIDE[1]),
        ("MatMulV2", [A.T, B.T], WIDE[0] @ WIDE[1]),
        ("MatMulV2", [A, B, B[0]], WIDE[0] @ WIDE[1] + WIDE[1][0]),
        ("BatchMatMul", [np.stack([A, A]), B], np.stack([WIDE[0] @ WIDE[1]] * 2)),
        ("MatMul", [A[:5], B[:, :5]], WIDE[0][:5] @ WIDE[1][:, :5]),  # square: elements choose
        ("Add", [A, A[0]], WIDE[0] + WIDE[0][0]),
        ("BiasAdd", [A, A[0]], WIDE[0] + WIDE[0][0]),
        ("Sub", [A, A[:1]], WIDE[0] - WIDE[0][0]),
        ("Mul", [A, A], WIDE[0] ** 2),
        ("RealDiv", [A, POSITIVE], WIDE[0] / POSITIVE.astype(np.float64)),
        ("Pow", [POSITIVE, A], POSITIVE.astype(np.float64) ** WIDE[0]),
        ("Square", [A], WIDE[0] ** 2),
        ("Exp", [A], np.exp(WIDE[0])),
        ("Log", [POSITIVE], np.log(POSITIVE.astype(np.float64))),
        ("Sqrt", [POSITIVE], np.sqrt(POSITIVE.astype(np.float64))),
        ("Rsqrt", [POSITIVE], POSITIVE.astype(np.float64) ** -0.5),
        ("Reciprocal", [POSITIVE], 1 / POSITIVE.astype(np.float64)),
        ("Cast", [A.astype(np.float32)], WIDE[0]),
        ("ReduceSumD", [A], WIDE[0].sum(axis=1)),
        ("Sum", [A, np.array([-1])], WIDE[0].sum(axis=-1, keepdims=True)),
        ("Mean", [A[:5]], WIDE[0][:5].mean(axis=0)),  # square: elements choose
    ],
)
def test_the_largest_output_is_that_of_float64(op_type: str, inputs: List[Any], exact: Any) -> None:
    found = of(op_type, inputs, exact)
    assert found is not None and found.finite and found.fits
    assert found.largest == pytest.approx(np.abs(exact).max(), rel=1e-4)


@pytest.mark.parametrize("stride, same", [(1, True), (2, True), (1, False), (2, False)])
@pytest.mark.parametrize("channels_first", [False, True])
def test_convolution(stride: int, same: bool, channels_first: bool) -> None:
    image, kernel = some(2, 9, 9, 3), some(3, 3, 3, 4)
    wide = image.astype(np.float64)
    if same:
        wide = np.pad(wide, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="constant")
    places = range(0, wide.shape[1] - 2, stride)
    exact = np.stack(
        [
            np.stack(
                [
                    np.einsum("nhwc,hwco->no", wide[:, y : y + 3, x : x + 3], kernel.astype(float))
                    for x in places
                ],
                axis=1,
            )
            for y in places
        ],
        axis=1,
    )
    largest = np.abs(exact).max()
    if channels_first:
        image, exact, kernel = (
            image.transpose(0, 3, 1, 2), exact.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1)
        )  # fmt: skip
    found = of("Conv2D", [image, kernel], exact)
    assert found is not None and found.largest == pytest.approx(largest, rel=1e-4)


def test_softmax_and_layer_norm_stay_in_range() -> None:
    large = some(4, 6, scale=9000.0)
    wide = large.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    found = of("SoftmaxV2", [large], powers / powers.sum(axis=1, keepdims=True))
    assert found == Recomputed(1.0, True, True)
    ones = np.ones(6, np.float16)
    exact = (wide - wide.mean(axis=1, keepdims=True)) / wide.std(axis=1, keepdims=True)
    found = of("LayerNorm", [large, ones, 0 * ones], exact)
    assert found is not None and found.fits
    assert found.largest == pytest.approx(np.abs(exact).max(), rel=1e-3)


def test_what_does_not_fit_and_what_is_not_finite() -> None:
    assert of("Square", [np.float16([300.0, 2.0])], [9e4, 4.0]) == Recomputed(90000.0, True, False)
    zero = np.float16([0.0, 2.0])
    assert of("Reciprocal", [zero], [np.inf, 0.5]) == Recomputed(0.5, False, False)


@pytest.mark.parametrize(
    "op_type, inputs, shape",
    [
        ("Unheard", [A], (6, 5)),
        ("MatMul", [A, A], (6, 7)),
        ("MatMul", [A, A[0]], (6,)),
        ("Add", [A, B], (6, 5)),
        ("Add", [A], (6, 5)),
        ("Sum", [A, np.array([9])], (6,)),
        ("Sum", [some(*[2] * 9)], (2,)),
        ("Softmax", [A], (5, 6)),
        ("Conv2D", [A, B], (6, 7)),
        ("Exp", [], (1,)),
        ("Exp", [A.astype(np.complex64)], (6, 5)),
        ("Exp", [A[:0]], (0, 5)),
        ("MatMul", [np.zeros((4096, 4096), np.float16)] * 2, (4096, 4096)),  # too much work
        ("MatMul", [A[:5], B[:, :5]], (5, 5)),  # the transposes differ, and no element tells
    ],
)
def test_no_answer(op_type: str, inputs: List[Any], shape: Any) -> None:
    assert recompute(op_type, inputs, np.full(shape, np.inf, np.float16), HALF) is None
    assert recompute(op_type, inputs, np.zeros(shape, np.int32), None) is None


def test_sample_trees() -> None:
    """Most of their tensors are made up: only what a formula explains gets an answer."""
    found = {}
    for path in sorted(CORPUS.glob("*/dump/**/*.*.*.*.*")):
        try:
            dump = open_dump(str(path))
        except DumpFormatError:
            continue
        op_type = path.name.split(".")[0]
        result = recompute_tensors(op_type, dump.inputs, dump.outputs)
        if result is not None and op_type == "Log":
            exact = np.log(dump.inputs[0].original().astype(np.float64))
            given = dump.outputs[0].original()
            np.testing.assert_allclose(given, exact, rtol=2e-3, atol=2e-3)
            assert result.largest == pytest.approx(np.abs(exact).max(), rel=1e-4)
            found[path.relative_to(CORPUS).parts[0]] = result.fits
    assert found == {"padding_only_nz": True}


SHAPES = st.lists(st.sampled_from([0, 1, 2, 3]), max_size=5).map(tuple)
DTYPES = st.sampled_from([np.float16, np.float32, np.int32, np.int64, np.uint8, np.bool_])
VALUES = st.sampled_from([-(2**31), -1, 0, 1, 300])


@settings(max_examples=400, deadline=None)
@given(
    op_type=st.sampled_from(sorted(_FORMULAS)),
    inputs=st.lists(st.tuples(SHAPES, DTYPES, VALUES), max_size=4),
    shape=SHAPES,
)
def test_any_shapes_and_types_of_a_dump(op_type: str, inputs: Any, shape: Any) -> None:
    """A dump can claim anything: there is an answer or none."""
    with np.errstate(all="ignore"):
        arrays = [np.full(own, value).astype(dtype) for own, dtype, value in inputs]
    found = recompute(op_type, arrays, np.full(shape, np.inf, np.float16), HALF)
    assert found is None or (found.largest >= 0.0 and (found.finite or not found.fits))


def test_a_bias_added_to_a_scalar() -> None:
    one = np.ones((), np.float16)
    assert recompute("BiasAdd", [one, np.ones(1, np.float16)], one, HALF) is None
