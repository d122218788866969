"""Floats that numpy lacks, against the definitions and against other arithmetic."""
from __future__ import annotations

import numpy as np
import pytest

from npu_overflow.dump import codes, floats


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x00, 0.0), (0x08, 1.0), (0x0F, 1.875), (0x10, 2.0), (0x18, 0.5), (0x20, 4.0), (0x40, 16.0), (0x60, 256.0), (0x7F, 1.5 * 2.0**-15),
        (0x6E, 32768.0), (0x6F, np.inf), (0xEF, -np.inf), (0x01, 2.0**-22), (0x07, 2.0**-16), (0x88, -1.0), (0x81, -(2.0**-22)), (0xEE, -32768.0),
    ],
)  # fmt: skip
def test_hifloat8_check_values(code: int, value: float) -> None:
    assert floats.TABLES["hifloat8"][code] == value


def test_hifloat8_has_one_zero_one_nan_and_no_value_twice() -> None:
    table = floats.TABLES["hifloat8"]
    assert np.isnan(table[0x80]) and int(np.isnan(table).sum()) == 1
    assert np.count_nonzero(table == 0) == 1
    finite = table[np.isfinite(table)]
    assert len(set(finite.tolist())) == finite.size == 253
    assert float(np.abs(finite).max()) == codes.MAX["hifloat8"]


def test_hifloat8_is_symmetric() -> None:
    table = floats.TABLES["hifloat8"]
    for code in range(1, 128):
        assert table[code] == -table[code | 0x80]


def test_float8_e5m2_is_the_high_byte_of_float16() -> None:
    high = (np.arange(256, dtype=np.uint16) << 8).view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(floats.TABLES["float8_e5m2"], high)


def test_float8_e4m3fn() -> None:
    table = floats.TABLES["float8_e4m3fn"]
    assert [code for code in range(256) if np.isnan(table[code])] == [0x7F, 0xFF]
    assert not np.isinf(table).any() and table[0x7E] == 448.0 and table[0x01] == 2.0**-9 and table[0x38] == 1.0 and table[0xB8] == -1.0


def test_float8_e8m0() -> None:
    table = floats.TABLES["float8_e8m0"]
    assert table[127] == 1.0 and table[0] == 2.0**-127 and table[254] == 2.0**127 and np.isnan(table[255])


def test_bfloat16_is_the_high_half_of_float32() -> None:
    items = np.array([0x3F80, 0xC010, 0x7F80, 0xFF80, 0x7F7F, 0x7FC0], dtype=np.uint16)
    values = floats.decode(items, "bfloat16")
    assert values.dtype == np.float32
    assert values[:5].tolist() == [1.0, -2.25, np.inf, -np.inf, codes.MAX["bfloat16"]] and np.isnan(values[5])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_largest_values_are_numpys(dtype: str) -> None:
    assert codes.MAX[dtype] == float(np.finfo(dtype).max)


def test_the_numbers_of_types_and_formats() -> None:
    numbers = codes.DATA_TYPE_NUMBERS
    expected = {"float32": 1, "bool": 11, "complex64": 16, "bfloat16": 27, "complex32": 32, "hifloat8": 33, "float8_e8m0": 36, "float4_e1m2": 40}
    assert {name: numbers[name] for name in expected} == expected and len(numbers) == 41
    formats = codes.FORMAT_NUMBERS
    expected = {"NC1HWC0": 3, "FRACTAL_Z": 4, "HWCN": 16, "C1HWNCoC0": 25, "FRACTAL_NZ": 29, "NDC1HWC0": 32, "NCL": 47, "C1HWC0": 49, "MAX": 255}
    assert {name: formats[name] for name in expected} == expected
    assert codes.data_type_name(999) == "type 999" and codes.format_name(999) == "999"


def test_which_types_can_hold_an_overflow_value() -> None:
    assert codes.could_overflow("float16") and codes.could_overflow("float4_e2m1") and codes.could_overflow("type 99")
    assert not any(codes.could_overflow(dtype) for dtype in ("int32", "bool", "string", "qint8", "int4", "uint1"))
    assert set(codes.DATA_TYPE_NUMBERS) == codes.DECODED | codes.UNDECODED
