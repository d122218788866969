"""How the values of each data type are counted, and which of them are overflow values."""
from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Union

import numpy as np

from npu_overflow.analysis.counting import (
    CHUNK,
    CODES_CHUNK,
    CodeCounter,
    FloatCounter,
    IntegerCounter,
)
from npu_overflow.dump import codes, floats

__all__ = ["Kind", "is_low_precision", "kind_of", "may_overflow"]

Counter = Union[CodeCounter, FloatCounter, IntegerCounter]

#: complex types are judged on their parts
_PARTS = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}

_tables: Dict[str, Any] = {}


class Kind(NamedTuple):
    """How one data type is counted.

    Args:
        part: the type of one stored number: the type itself, or that of the parts of a complex
            type.
        parts: stored numbers an element.
        table: value of each bit pattern for types of at most 16 bits, float64; None for others.
        largest: MAX of the type, or None where it is no float.
    """

    part: str
    parts: int
    table: Any
    largest: Optional[float]

    @property
    def is_float(self) -> bool:
        """Whether values of this type can overflow."""
        return self.largest is not None

    @property
    def chunk(self) -> int:
        """Elements that are best counted at once."""
        return CODES_CHUNK if self.table is not None else CHUNK

    def counter(self) -> Counter:
        """A fresh counter."""
        if self.table is not None:
            return CodeCounter(self.table, self.largest)
        if self.part in ("float32", "float64"):
            return FloatCounter(int(self.part[5:]))
        return IntegerCounter(boolean=self.part == "bool")

    def stored(self, chunk: Any) -> Any:
        """``chunk`` as the counter takes it: bit patterns for types with a table."""
        if self.table is None:
            return chunk
        return chunk.view(np.uint16 if len(self.table) > 256 else np.uint8)

    def value(self, item: Any) -> float:
        """The number that one item of ``stored`` means."""
        return float(self.table[int(item)] if self.table is not None else item)

    def bad(self, stored: Any, mode: Optional[str]) -> Any:
        """Which items hold an overflow value in ``mode``: a bool each."""
        if self.table is None:
            return overflow_values(stored, self.largest, mode)
        return overflow_values(self.table, self.largest, mode).take(stored)


def overflow_values(values: Any, largest: Optional[float], mode: Optional[str]) -> Any:
    """Where ``values`` overflowed: Inf and NaN, in saturation mode ±MAX too (an Inf that was fed in
    there is beyond MAX)."""
    bad = ~np.isfinite(values)
    if mode == "saturation" and largest is not None:
        bad |= np.abs(values) == largest
    return bad


def kind_of(dtype: str) -> Optional[Kind]:
    """How ``dtype`` is counted, or None for a type that is not decoded."""
    part = _PARTS.get(dtype, dtype)
    if part not in codes.DECODED:
        return None
    return Kind(part, 2 if dtype in _PARTS else 1, _table(part), codes.MAX.get(part))


def may_overflow(dtype: str) -> bool:
    """Whether a tensor of this type, if it can't be read, could hold an overflow value: not
    integers, bools, strings and handles."""
    return codes.could_overflow(dtype) and dtype != "resource"


def is_low_precision(dtype: str) -> bool:
    """float16 or narrower. bfloat16 is not: it has the range of float32."""
    part = _PARTS.get(dtype, dtype)
    return part in ("float16", "hifloat8") or part.startswith(("float8_", "float6_", "float4_"))


def _table(part: str) -> Any:
    """float64 value of each bit pattern, or None for wider types and integers."""
    if part not in _tables:
        _tables[part] = _made(part)
    return _tables[part]


def _made(part: str) -> Any:
    with np.errstate(all="ignore"):
        if part == "float16":
            return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float64)
        if part == "bfloat16":
            return (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32).astype(np.float64)
        if part == "hifloat8" or part.startswith("float8_"):
            return np.asarray(floats.TABLES[part], dtype=np.float64)
    return None
