"""Is every element of an eager tensor finite? Asked of each float output of a replayed step, so it must be cheap.

On the CPU the tensor's own memory is read through an integer view: no copy, and the same speed for float16, bfloat16 and float32
(numpy's and TensorFlow's float16 tests are 5 to 100 times slower, by version). On an accelerator a run only asks: one reduction on
the device for each tensor. All answers are read at once at its end, and the next run knows them.
"""
from __future__ import annotations

from typing import Any, FrozenSet, List, Optional, Tuple

from npu_overflow.collect.replay import tensorflow as private

__all__ = ["Asked", "Known", "all_finite", "first_bad", "is_float"]

# storage type and exponent mask: all exponent bits set means Inf or NaN (IEEE 754; bfloat16 is the upper half of float32)
_EXPONENT = {
    "float16": ("<u2", 0x7C00),
    "bfloat16": ("<u2", 0x7F80),
    "float32": ("<u4", 0x7F800000),
    "float64": ("<u8", 0x7FF0000000000000),
    "complex64": ("<u4", 0x7F800000),
    "complex128": ("<u8", 0x7FF0000000000000),
}
_CHUNK = 1 << 15  # elements a pass: the temporaries stay in the cache


def is_float(tensor: Any) -> bool:
    """Whether the tensor's type can hold Inf or NaN in a way that is understood here."""
    return tensor.dtype.name in _EXPONENT


def all_finite(tensor: Any) -> bool:
    """Whether no element of an eager tensor is Inf or NaN. Types without such values are finite."""
    layout = _EXPONENT.get(tensor.dtype.name)
    if layout is None:
        return True
    view = private.host_view(tensor)
    if view is None:
        return bool(_asked_of_device(tensor).numpy())
    if not view.size:
        return True
    bits = view.reshape(-1).view(layout[0])
    mask = bits.dtype.type(layout[1])
    return not any(((bits[start : start + _CHUNK] & mask) == mask).any() for start in range(0, bits.size, _CHUNK))


def _asked_of_device(tensor: Any) -> Any:
    """A tensor on the device that says whether every element of ``tensor`` is finite."""
    kind = ("T", tensor.dtype.as_datatype_enum)
    if tensor.dtype.is_complex:
        tensor = private.run_op("ComplexAbs", [tensor], (*kind, "Tout", tensor.dtype.real_dtype.as_datatype_enum), 1)[0]
        kind = ("T", tensor.dtype.as_datatype_enum)
    finite = private.run_op("IsFinite", [tensor], kind, 1)[0]
    axes = private.range_of(len(tensor.shape))
    return private.run_op("All", [finite, axes], ("keep_dims", False, "Tidx", axes.dtype.as_datatype_enum), 1)[0]


class Asked:
    """The first run on an accelerator: takes everything there for finite, and asks."""

    def __init__(self) -> None:
        self._keys: List[Any] = []
        self._answers: List[Any] = []

    def __call__(self, tensor: Any, key: Any) -> bool:
        if not is_float(tensor) or private.host_view(tensor) is not None:
            return all_finite(tensor)
        self._keys.append(key)
        self._answers.append(_asked_of_device(tensor))
        return True

    def answers(self) -> Known:
        """Everything that was asked for, in one read."""
        if not self._answers:
            return Known(frozenset())
        kind = ("N", len(self._answers), "T", self._answers[0].dtype.as_datatype_enum, "axis", 0)
        found = private.run_op("Pack", self._answers, kind, 1)[0].numpy()
        return Known(frozenset(key for key, finite in zip(self._keys, found) if not finite))


class Known:
    """A run whose answers have been read."""

    def __init__(self, bad: FrozenSet[Any]) -> None:
        self._bad = bad

    def __call__(self, tensor: Any, key: Any) -> bool:
        if not is_float(tensor) or private.host_view(tensor) is not None:
            return all_finite(tensor)
        return key not in self._bad


def first_bad(values: Any, limit: Optional[float] = None) -> Optional[Tuple[Tuple[int, ...], float]]:
    """Index and value of the first element of a numpy array that is not finite, or whose magnitude is at least ``limit``."""
    import numpy as np

    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        if part.dtype.kind not in "fiub":  # bfloat16 and such: numpy has no arithmetic of its own for them
            part = part.astype(np.float32)
        part = part.astype(np.float64)
        with np.errstate(invalid="ignore"):
            bad = ~np.isfinite(part) if limit is None else ~(np.abs(part) < limit)
        where = np.flatnonzero(bad)
        if where.size:
            at = int(start + where[0])
            index = tuple(int(i) for i in np.unravel_index(at, values.shape)) if values.ndim else ()
            return index, float(part[where[0]])
    return None
