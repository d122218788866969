"""Is every element of an eager tensor finite? Asked of each float output of a replayed step, so it
must be cheap.

On the CPU the tensor's own memory is read through an integer view: no copy, and the same speed for
float16, bfloat16 and float32 (numpy's and TensorFlow's float16 tests are 5 to 100 times slower, by
version). On an accelerator a run only asks: one reduction on the device for each tensor. All
answers are read at once at its end, and the next run knows them.
"""
from __future__ import annotations

from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Tuple

from npu_overflow.collect.replay import tensorflow as private

__all__ = ["Asked", "Known", "all_finite", "first_bad", "is_float", "numbers_of", "repaired"]

# storage type and exponent mask: all exponent bits set means Inf or NaN (IEEE 754; bfloat16 is the
# upper half of float32)
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
    bits = view.reshape(-1).view(layout[0])
    mask = bits.dtype.type(layout[1])
    starts = range(0, bits.size, _CHUNK)
    return not any(((bits[i : i + _CHUNK] & mask) == mask).any() for i in starts)


def _asked_of_device(tensor: Any) -> Any:
    """A tensor on the device that says whether every element of ``tensor`` is finite."""
    kind = tensor.dtype.as_datatype_enum
    if tensor.dtype.is_complex:
        real = tensor.dtype.real_dtype.as_datatype_enum
        tensor = private.run_op("ComplexAbs", [tensor], ("T", kind, "Tout", real), 1)[0]
        kind = real
    finite = private.run_op("IsFinite", [tensor], ("T", kind), 1)[0]
    axes = private.range_of(len(tensor.shape))
    attrs = ("keep_dims", False, "Tidx", axes.dtype.as_datatype_enum)
    return private.run_op("All", [finite, axes], attrs, 1)[0]


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


def repaired(tensor: Any) -> Any:
    """The tensor with ±1 in place of Inf and NaN: small enough to do no new harm, large enough to
    divide by."""
    import numpy as np
    import tensorflow as tf

    if not is_float(tensor):
        return tensor
    values = tensor.numpy()
    wide = values.astype(np.float32) if values.dtype.kind not in "fc" else values
    signs = np.where(np.isinf(wide) & (wide.real < 0), -1.0, 1.0)
    with tf.device(tensor.device):
        finite = np.where(np.isfinite(wide), wide, signs).astype(values.dtype)
        return tf.constant(finite, tensor.dtype)


def _chunks(values: Any) -> Iterator[Tuple[int, Any]]:
    """A numpy array in float64, a part at a time, with where each begins; bfloat16 and such know no
    other way to it than float32."""
    import numpy as np

    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        part = part.astype(np.float32) if part.dtype.kind not in "fiub" else part
        yield start, part.astype(np.float64)


def first_bad(values: Any, limit: float = float("inf")) -> Optional[Tuple[Tuple[int, ...], float]]:
    """Index and value of the first element of a numpy array that is NaN, or whose magnitude is at
    least ``limit``."""
    import numpy as np

    for start, part in _chunks(values):
        where = np.flatnonzero(~(np.abs(part) < limit))
        if where.size:
            at = np.unravel_index(int(start + where[0]), values.shape) if values.ndim else ()
            return tuple(int(i) for i in at), float(part[where[0]])
    return None


def numbers_of(tensor: Any) -> Dict[str, Any]:
    """Counts, extremes and mean of an eager tensor that is too large to keep, and its first bad
    element; empty where it has no floats."""
    import numpy as np

    if not is_float(tensor) or tensor.dtype.is_complex:
        return {}
    values = private.host_view(tensor)
    values = tensor.numpy() if values is None else values
    counts = dict.fromkeys(("nan", "pos_inf", "neg_inf"), 0)
    lows, highs, total, finite_count = [], [], 0.0, 0
    for _, part in _chunks(values):
        ordered, finite = part[~np.isnan(part)], part[np.isfinite(part)]
        counts["nan"] += part.size - ordered.size
        counts["pos_inf"] += int((part == np.inf).sum())
        counts["neg_inf"] += int((part == -np.inf).sum())
        lows += [float(ordered.min())] if ordered.size else []
        highs += [float(ordered.max())] if ordered.size else []
        total, finite_count = total + float(finite.sum()), finite_count + finite.size
    bad = first_bad(values)
    return {
        **counts,
        "min": min(lows, default=None),
        "max": max(highs, default=None),
        "mean": total / finite_count if finite_count else None,
        "first_overflow": None if bad is None else {"index": list(bad[0]), "value": bad[1]},
    }
