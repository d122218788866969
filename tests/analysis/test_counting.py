"""Counts, extremes and means against plain numpy and ``math.fsum``."""
from __future__ import annotations

import math
from typing import Any, Dict, List

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_overflow.analysis.counting import CodeCounter, FloatCounter, IntegerCounter, Numbers
from npu_overflow.analysis.kinds import kind_of

_WIDTH = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "hifloat8": 1, "float8_e5m2": 1, "float8_e4m3fn": 1, "float8_e8m0": 1}


def counted(dtype: str, stored: Any, piece: int = 7) -> Numbers:
    kind = kind_of(dtype)
    assert kind is not None
    counter = kind.counter()
    for start in range(0, len(stored), piece):
        counter.add(kind.stored(stored[start : start + piece]))
    return counter.numbers()


def as_numbers(dtype: str, stored: Any) -> List[float]:
    kind = kind_of(dtype)
    assert kind is not None
    return [kind.value(item) for item in kind.stored(stored)]


def by_hand(values: List[float]) -> Dict[str, Any]:
    ordered = [value for value in values if not math.isnan(value)]
    finite = [value for value in ordered if math.isfinite(value)]
    magnitudes = [abs(value) for value in finite if value]
    return {
        "elements": len(values),
        "nan": len(values) - len(ordered),
        "pos_inf": values.count(math.inf),
        "neg_inf": values.count(-math.inf),
        "zeros": finite.count(0.0),
        "negatives": sum(value < 0 for value in ordered),
        "minimum": min(ordered, default=None),
        "maximum": max(ordered, default=None),
        "largest": max(map(abs, finite), default=None),
        "smallest": min(magnitudes, default=None),
    }


def check(dtype: str, stored: Any, piece: int) -> None:
    got = counted(dtype, stored, piece)
    values = as_numbers(dtype, stored)
    expected = by_hand(values)
    assert {name: getattr(got, name) for name in expected} == expected
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        assert got.mean is None
    else:
        # an exact sum of scaled values: fsum itself can overflow on float64
        exact = math.fsum(value / 4096 for value in finite) / len(finite) * 4096
        assert got.mean is not None
        assert math.isclose(got.mean, exact, rel_tol=1e-12, abs_tol=1e-300 if dtype == "float64" else 0.0)
    exponents = sorted(math.frexp(abs(value))[1] - 1 for value in finite if value)
    if not exponents:
        assert got.histogram is None
    else:
        low = exponents[0]
        assert got.histogram == {"low": low, "counts": [exponents.count(place) for place in range(low, exponents[-1] + 1)]}


@pytest.mark.parametrize("dtype", sorted(_WIDTH))
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_bit_pattern(dtype: str, data: Any) -> None:
    width = _WIDTH[dtype]
    raw = data.draw(st.binary(max_size=40 * width).map(lambda content: content[: len(content) // width * width]))
    stored = np.frombuffer(raw, {"float16": "<f2", "bfloat16": "<u2", "float32": "<f4", "float64": "<f8"}.get(dtype, "u1"))
    check(dtype, stored, data.draw(st.integers(1, 9)))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_many_values_with_every_special_one(dtype: str) -> None:
    random = np.random.RandomState(5)
    stored = (random.standard_normal(9000) * 100).astype(dtype)
    stored[random.randint(0, 9000, 40)] = [np.nan, np.inf, -np.inf, 0.0, -0.0, np.finfo(dtype).max, np.finfo(dtype).min, np.finfo(dtype).tiny / 4] * 5
    check(dtype, stored, 4000)


def test_mean_survives_cancellation() -> None:
    """The sum of 60000 values near 3e38 that cancel but for a small rest."""
    stored = np.concatenate([np.full(30000, 3e38, np.float32), np.full(30000, -3e38, np.float32), np.array([1.5], np.float32)])
    assert counted("float32", stored, 1 << 15).mean == 1.5 / 60001


def test_at_max_counts_both_signs() -> None:
    stored = np.array([65504, -65504, 65472, np.inf], np.float16)
    assert counted("float16", stored).at_max == 2
    largest = np.finfo(np.float32).max
    assert counted("float32", np.array([largest, -largest, 1, np.nan, largest], np.float32), 2).at_max == 3


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers(dtype: str) -> None:
    info = np.iinfo(dtype)
    stored = np.array([info.min, info.max, info.max, 0, 3], dtype)
    counter = IntegerCounter()
    counter.add(stored[:2])
    counter.add(stored[2:])
    got = counter.numbers()
    assert (got.minimum, got.maximum) == (int(info.min), int(info.max))
    assert got.mean == (int(info.min) + 2 * int(info.max) + 3) / 5


def test_booleans_have_true_and_false() -> None:
    counter = IntegerCounter(boolean=True)
    counter.add(np.array([0, 1], np.uint8))
    assert counter.numbers().minimum is False
    assert counter.numbers().maximum is True


def test_nothing_counted() -> None:
    kind = kind_of("float16")
    assert kind is not None
    for counter in (CodeCounter(kind.table, 65504.0), FloatCounter(32), FloatCounter(64), IntegerCounter()):
        assert counter.numbers() == Numbers()


@given(st.lists(st.integers(0, 5), max_size=4))
def test_small_pieces_count_as_one_large_piece(sizes: Any) -> None:
    kind = kind_of("float16")
    assert kind is not None
    pieces = [np.arange(1000 * size, dtype=np.uint16) * np.uint16(13) for size in sizes]
    apart, together = kind.counter(), kind.counter()
    for piece in pieces:
        apart.add(piece)
    together.add(np.concatenate([np.empty(0, np.uint16), *pieces]))
    for saturation in (False, True):
        assert apart.overflows(saturation) == together.overflows(saturation)
    assert apart.numbers() == together.numbers()
