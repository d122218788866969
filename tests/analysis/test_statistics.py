"""Summaries of tensors: modes, valid regions, first overflow element, types."""
from __future__ import annotations

import math
from typing import Any, Tuple

import numpy as np
import pytest
from dump_trees import CLEAN, INF, PINNED, tensor_of

from npu_overflow.analysis.statistics import summarize, with_statistics
from npu_overflow.dump.replay_info import read_statistics
from npu_overflow.dump.tensor import Tensor


def test_inf_nan_mode() -> None:
    facts = summarize(tensor_of(INF), "inf_nan")
    summary = facts.summary
    assert facts.state == "overflow"
    assert (summary.pos_inf, summary.saturated, summary.max, summary.min) == (1, 0, math.inf, 0.5)
    assert summary.first_overflow == {"index": [0, 1], "value": math.inf}
    assert summary.mean == (1 + 0.5 + 4) / 3
    assert summary.headroom_log2 == math.log2(65504 / 4)


def test_saturation_mode() -> None:
    facts = summarize(tensor_of(PINNED), "saturation")
    assert (facts.state, facts.summary.saturated) == ("overflow", 2)
    assert facts.summary.first_overflow == {"index": [0, 1], "value": -65504.0}
    assert isinstance(facts.summary.max, float) and facts.summary.headroom_log2 == 0.0


def test_the_largest_value_is_ordinary_in_inf_nan_mode() -> None:
    facts = summarize(tensor_of(PINNED), "inf_nan")
    assert (facts.state, facts.summary.saturated, facts.summary.first_overflow, facts.numbers.at_max) == ("clean", 0, None, 2)


def test_inf_is_an_overflow_in_either_mode() -> None:
    assert {summarize(tensor_of(INF), mode).state for mode in ("saturation", "inf_nan", None)} == {"overflow"}


@pytest.mark.parametrize(
    ("dtype", "codes", "saturation", "inf_nan"),
    [
        ("bfloat16", [0x7F7F, 0x3F80], "overflow", "clean"),
        ("bfloat16", [0xFF80, 0x3F80], "overflow", "overflow"),
        ("hifloat8", [0x6E], "overflow", "clean"),
        ("hifloat8", [0xEF], "overflow", "overflow"),
        ("float8_e5m2", [0x7B], "overflow", "clean"),
        ("float8_e4m3fn", [0x7E], "overflow", "clean"),
        ("float8_e4m3fn", [0x7F], "overflow", "overflow"),
        ("float8_e8m0", [0xFF], "overflow", "overflow"),
        ("float8_e8m0", [0x01], "clean", "clean"),
        ("uint8", [255], "clean", "clean"),
        ("bool", [1], "clean", "clean"),
    ],
)
def test_overflow_values_by_type(dtype: str, codes: Any, saturation: str, inf_nan: str) -> None:
    stored = np.array(codes, np.uint16 if dtype == "bfloat16" else np.uint8)
    assert summarize(tensor_of(stored, dtype), "saturation").state == saturation
    assert summarize(tensor_of(stored, dtype), "inf_nan").state == inf_nan


@pytest.mark.parametrize("part", ["float16", "float32", "float64"])
def test_complex_numbers_are_judged_on_their_parts(part: str) -> None:
    dtype = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}[part]
    stored = np.array([1, 2, 3, -np.inf, np.nan, 6], part)
    facts = summarize(tensor_of(stored, dtype, shape=(3,)), "inf_nan")
    summary = facts.summary
    assert (summary.min, summary.max, summary.mean, summary.nan, summary.neg_inf) == (None, None, None, 1, 1)
    assert summary.first_overflow == {"index": [1], "value": -math.inf}


def test_the_first_overflow_lies_past_the_first_piece() -> None:
    values = np.ones((3, 1 << 17), np.float32)
    values[2, 5] = np.nan
    values[2, 9] = np.inf
    first = summarize(tensor_of(values), "inf_nan").summary.first_overflow
    assert first is not None and first["index"] == [2, 5] and math.isnan(first["value"])


def nc1hwc0(channels: int, padding: float) -> Tuple[np.ndarray, np.ndarray]:
    """(device tensor, user's NHWC tensor) with ``channels`` of 32, the rest filled."""
    user = np.arange(2 * 3 * 4 * channels).reshape(2, 3, 4, channels).astype(np.float16) / 16
    device = np.full((2, 2, 3, 4, 16), padding, np.float16)
    for channel in range(channels):
        device[:, channel // 16, :, :, channel % 16] = user[..., channel]
    return device, user


def test_padding_counts_apart() -> None:
    device, user = nc1hwc0(20, np.inf)
    facts = summarize(tensor_of(device, format="NC1HWC0", original_shape=user.shape), "inf_nan")
    assert facts.state == "padding"
    assert facts.summary.overflow_in_padding == 2 * 3 * 4 * 12
    assert (facts.summary.pos_inf, facts.summary.max, facts.summary.first_overflow) == (0, float(user.max()), None)
    assert facts.summary.mean == pytest.approx(float(user.astype(np.float64).mean()), rel=1e-12)


def test_the_first_overflow_is_first_as_the_user_counts() -> None:
    device, user = nc1hwc0(20, 0.0)
    # in storage order channel 19 at (0, 0, 1) comes after channel 2 at (0, 2, 3); for the user it is the other way round
    device[0, 0, 2, 3, 2] = np.inf
    device[0, 1, 0, 1, 3] = -np.inf
    summary = summarize(tensor_of(device, format="NC1HWC0", original_shape=user.shape), "inf_nan").summary
    assert summary.first_overflow == {"index": [0, 0, 1, 19], "value": -math.inf}


def test_integers_leave_the_padding_out_too() -> None:
    device, user = nc1hwc0(20, 0.0)
    stored = np.where(device == 0, 99, 1).astype(np.int32)
    facts = summarize(tensor_of(stored, format="NC1HWC0", original_shape=user.shape), "inf_nan")
    assert facts.summary.overflow_in_padding == 0
    assert facts.state == "clean"


def test_an_unknown_layout_counts_as_valid_and_says_so() -> None:
    device, _ = nc1hwc0(20, np.inf)
    facts = summarize(tensor_of(device, format="NC1HWC0", original_shape=(7, 7)), "inf_nan")
    assert (facts.state, facts.remark, facts.summary.overflow_in_padding) == ("overflow", "region.no_fit", 0)


@pytest.mark.parametrize(
    ("dtype", "note", "state"),
    [
        ("float16", "cut", "unknown"),
        ("float16", "missing", "unknown"),
        ("float16", "no_data", "clean"),
        ("int32", "cut", "clean"),
        ("bool", "missing", "clean"),
        ("string", "not_decoded", "clean"),
        ("resource", "not_decoded", "clean"),
        ("int4", "not_decoded", "clean"),
        ("variant", "not_decoded", "unknown"),
        ("float4_e2m1", "not_decoded", "unknown"),
        ("type 99", "not_decoded", "unknown"),
    ],
)
def test_what_cannot_be_read(dtype: str, note: str, state: str) -> None:
    facts = summarize(Tensor("input", 3, 0, dtype, "ND", (4,), bytes=8, note=note), "inf_nan")
    assert (facts.state, facts.summary.note, facts.summary.index, facts.summary.max) == (state, note, 3, None)


def test_empty_and_scalar() -> None:
    empty = summarize(tensor_of(np.empty((0, 3), np.float16)), "inf_nan")
    assert (empty.state, empty.summary.max, empty.summary.mean, empty.summary.headroom_log2) == ("clean", None, None, None)
    scalar = summarize(tensor_of(np.array(np.nan, np.float32)), "inf_nan").summary
    assert scalar.first_overflow is not None and scalar.first_overflow["index"] == []


@pytest.mark.parametrize(
    ("given", "mode", "state", "figures"),
    [
        ({"min": -1.0, "max": 2.0, "nan": 0, "pos_inf": 0, "neg_inf": 0}, "inf_nan", "clean", (0, 0, 0, 0)),
        ({"min": -1.0, "max": math.inf, "nan": 0, "pos_inf": 3, "neg_inf": 0}, "inf_nan", "overflow", (0, 3, 0, 0)),
        ({"min": -1.0, "max": 65504.0}, "saturation", "overflow", (0, 0, 0, 1)),
        ({"min": -1.0, "max": 65504.0}, "inf_nan", "clean", (0, 0, 0, 0)),
        ({"min": math.nan, "max": math.nan}, "inf_nan", "overflow", (1, 0, 0, 0)),
        ({"nan": 2}, "inf_nan", "overflow", (2, 0, 0, 0)),
        ({}, "inf_nan", "unknown", (0, 0, 0, 0)),
        ({"nan": math.inf, "max": 10**400}, "inf_nan", "overflow", (0, 1, 0, 0)),
        ({"nan": "x", "max": [1]}, "inf_nan", "unknown", (0, 0, 0, 0)),
    ],
)
def test_statistics_made_by_others(given: Any, mode: str, state: str, figures: Any) -> None:
    tensor = Tensor("output", 0, 2, "float16", "ND", (4,), statistics=given)
    facts = with_statistics(tensor, mode, read_statistics(given))
    summary = facts.summary
    assert facts.state == state
    assert (summary.nan, summary.pos_inf, summary.neg_inf, summary.saturated) == figures


def test_clean_is_clean() -> None:
    facts = summarize(tensor_of(CLEAN), "saturation")
    assert (facts.state, facts.summary.first_overflow, facts.remark) == ("clean", None, None)
    assert facts.summary.histogram == {"low": -1, "counts": [1, 1, 1, 1]}
