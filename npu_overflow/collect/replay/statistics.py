"""Numbers of a tensor that is too large to keep."""
from __future__ import annotations

from typing import Any, Dict

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.finite import first_bad, is_float

__all__ = ["numbers_of"]

_CHUNK = 1 << 16  # elements converted at a time


def numbers_of(tensor: Any) -> Dict[str, Any]:
    """Counts, extremes and mean of an eager tensor, and its first bad element; empty where it has no floats."""
    import numpy as np

    if not is_float(tensor) or tensor.dtype.is_complex:
        return {}
    values = private.host_view(tensor)
    values = tensor.numpy() if values is None else values
    flat = values.reshape(-1)
    counts = {"nan": 0, "pos_inf": 0, "neg_inf": 0}
    low, high, total, finite_count = np.inf, -np.inf, 0.0, 0
    ordered_count = 0
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK].astype(np.float64)
        nan, inf = np.isnan(part), np.isinf(part)
        counts["nan"] += int(nan.sum())
        counts["pos_inf"] += int((inf & (part > 0)).sum())
        counts["neg_inf"] += int((inf & (part < 0)).sum())
        ordered, finite = part[~nan], part[~(nan | inf)]
        if ordered.size:
            low, high = min(low, float(ordered.min())), max(high, float(ordered.max()))
        ordered_count += ordered.size
        total, finite_count = total + float(finite.sum()), finite_count + finite.size
    bad = first_bad(values)
    return {
        **counts,
        "min": low if ordered_count else None,
        "max": high if ordered_count else None,
        "mean": total / finite_count if finite_count else None,
        "first_overflow": None if bad is None else {"index": list(bad[0]), "value": bad[1]},
    }
