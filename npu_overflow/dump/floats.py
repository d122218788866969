"""Floats that numpy lacks: bfloat16 and the 8-bit ones, decoded by tables computed from their
definitions."""
from __future__ import annotations

from typing import Dict

import numpy as np

from npu_overflow.dump.codes import COMPLEX

__all__ = ["TABLES", "decode"]


def _minifloat(exponent_bits: int, mantissa_bits: int, bias: int) -> np.ndarray:
    """The 256 values of a sign, exponent, mantissa format, its special codes not yet set."""
    table = np.zeros(256, dtype=np.float64)
    for code in range(256):
        mantissa = (code & ((1 << mantissa_bits) - 1)) / 2.0**mantissa_bits
        exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
        value = (
            (1 + mantissa) * 2.0 ** (exponent - bias) if exponent else mantissa * 2.0 ** (1 - bias)
        )
        table[code] = -value if code & 0x80 else value
    return table


def _e5m2() -> np.ndarray:
    table = _minifloat(5, 2, 15)
    for sign in (0, 0x80):
        table[sign | 0x7C] = -np.inf if sign else np.inf
        table[sign | 0x7D : (sign | 0x7F) + 1] = np.nan
    return table


def _e4m3fn() -> np.ndarray:
    table = _minifloat(4, 3, 7)
    table[[0x7F, 0xFF]] = np.nan
    return table


def _e8m0() -> np.ndarray:
    table = 2.0 ** (np.arange(256, dtype=np.float64) - 127)
    table[0xFF] = np.nan
    return table


def _hifloat8() -> np.ndarray:
    table = np.array([_hifloat8_value(code) for code in range(256)], dtype=np.float64)
    table[[0x00, 0x80, 0x6F, 0xEF]] = (0.0, np.nan, np.inf, -np.inf)
    return table


#: prefix, its bits, the exponent bits that follow
_HIFLOAT8_PREFIXES = ((0b11, 2, 4), (0b10, 2, 3), (0b01, 2, 2), (0b001, 3, 1), (0b0001, 4, 0))


def _hifloat8_value(code: int) -> float:
    """One code: a sign, a prefix of two to four bits that tells how many exponent bits follow, the
    exponent, the mantissa."""
    sign = -1.0 if code & 0x80 else 1.0
    found = [
        (length, exponent_bits)
        for prefix, length, exponent_bits in _HIFLOAT8_PREFIXES
        if (code & 0x7F) >> (7 - length) == prefix
    ]
    if not found:
        return sign * 2.0 ** ((code & 7) - 23)
    length, exponent_bits = found[0]
    mantissa_bits = 7 - length - exponent_bits
    mantissa = 1 + (code & ((1 << mantissa_bits) - 1)) / 2.0**mantissa_bits
    field = code >> mantissa_bits & ((1 << exponent_bits) - 1)
    if exponent_bits == 0:
        return sign * mantissa
    top = 1 << (exponent_bits - 1)
    # the top bit is the exponent's sign; the magnitude has an implicit 1 in its place
    exponent = -(field | top) if field & top else field | top
    return sign * mantissa * 2.0**exponent


#: type -> float32 value of each of the 256 codes
TABLES: Dict[str, np.ndarray] = {
    "float8_e5m2": _e5m2().astype(np.float32),
    "float8_e4m3fn": _e4m3fn().astype(np.float32),
    "float8_e8m0": _e8m0().astype(np.float32),
    "hifloat8": _hifloat8().astype(np.float32),
}


def decode(items: np.ndarray, dtype: str) -> np.ndarray:
    """Storage items as numbers, flat.

    Args:
        items: as ``Tensor.chunks`` gives them (uint16 for bfloat16, uint8 for 8-bit floats and
            bool, two parts a complex element).
        dtype: name of the data type.

    Returns:
        float32 for bfloat16 and 8-bit floats, bool, complex64 or complex128 for complex types;
        other types as they are.
    """
    if dtype in TABLES:
        values: np.ndarray = TABLES[dtype][items]
        return values
    if dtype == "bfloat16":
        return (items.astype(np.uint32) << 16).view(np.float32)
    if dtype == "bool":
        truth: np.ndarray = items != 0
        return truth
    if dtype in COMPLEX:
        parts = items.astype(np.float32 if dtype == "complex32" else items.dtype.newbyteorder("="))
        return parts.view(np.complex128 if dtype == "complex128" else np.complex64)
    return items
