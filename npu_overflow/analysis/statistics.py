"""What stands in one tensor of a dump: one pass, bounded memory, exact counts."""
from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Mapping, Optional, Tuple

import numpy as np

from npu_overflow.analysis.counting import CHUNK, Numbers
from npu_overflow.analysis.kinds import Kind, kind_of, may_overflow
from npu_overflow.dump.regions import Region
from npu_overflow.dump.replay_info import TensorStatistics, read_statistics
from npu_overflow.dump.tensor import Tensor
from npu_overflow.jsonform import Number
from npu_overflow.report.model import TensorSummary

__all__ = ["Facts", "summarize", "unread", "with_statistics"]

NOTHING = Numbers()


@dataclass(frozen=True)
class Facts:
    """A tensor's summary and what verdict and rules need beside it.

    Args:
        summary: as in the report.
        state: "overflow" (the valid region holds an overflow value), "padding" (only the padding
            does), "clean", or "unknown" (it could hold one, and can't be read).
        numbers: of the valid region; all None where there are no values.
        largest: MAX of the type, or None where it is no float.
        remark: why the whole tensor had to count as valid (a code of ``messages``), or None.
    """

    summary: TensorSummary
    state: str
    numbers: Numbers = NOTHING
    largest: Optional[float] = None
    remark: Optional[str] = None


def summarize(tensor: Tensor, mode: Optional[str]) -> Facts:
    """Count a tensor's values.

    Args:
        tensor: of an open dump.
        mode: "saturation" or "inf_nan"; None counts as "inf_nan".

    Raises:
        DumpFormatError: the file went away or shrank meanwhile.
    """
    if tensor.statistics is not None:
        return with_statistics(tensor, mode, read_statistics(tensor.statistics))
    kind = kind_of(tensor.dtype)
    if tensor.note is not None or kind is None:
        return unread(tensor, tensor.note or "not_decoded")
    region = tensor.valid() if kind.is_float or _padded(tensor) else None
    inside, outside, first_at = _count(
        tensor, kind, None if region is None or region.whole else region, mode
    )
    in_padding = _overflows(outside, mode)
    overflow = _overflows(inside, mode) if kind.is_float else 0
    summary = TensorSummary(
        **_identity(tensor),
        **_figures(inside, kind, mode),
        overflow_in_padding=in_padding,
        first_overflow=_first(tensor, kind, region, mode, first_at) if overflow else None,
    )
    state = "overflow" if overflow else ("padding" if in_padding else "clean")
    return Facts(summary, state, inside, kind.largest, None if region is None else region.remark)


def unread(tensor: Tensor, note: str) -> Facts:
    """Facts of a tensor whose values can't be read: empty ones and those that hold no floats leave
    nothing open."""
    state = "unknown" if note != "no_data" and may_overflow(tensor.dtype) else "clean"
    kind = kind_of(tensor.dtype)
    return Facts(
        TensorSummary(**_identity(tensor), note=note), state, largest=kind.largest if kind else None
    )


def with_statistics(tensor: Tensor, mode: Optional[str], given: TensorStatistics) -> Facts:
    """Facts from statistics that somebody else made: a .csv dump, or what a replay kept of a cut
    tensor."""
    kind = kind_of(tensor.dtype)
    largest = kind.largest if kind else None
    low, high, mean = given.min, given.max, given.mean
    extremes = [float(value) for value in (low, high) if value is not None]
    counts = {name: _whole(getattr(given, name)) for name in ("count", "nan", "pos_inf", "neg_inf")}
    numbers = Numbers(
        elements=counts["count"] or 0,
        nan=int(any(math.isnan(value) for value in extremes))
        if counts["nan"] is None
        else counts["nan"],
        pos_inf=counts["pos_inf"] or int(math.inf in extremes),
        neg_inf=counts["neg_inf"] or int(-math.inf in extremes),
        at_max=sum(abs(value) == largest for value in set(extremes)),
        minimum=None if low is None or low != low else low,
        maximum=None if high is None or high != high else high,
        mean=None if mean is None else float(mean),
        largest=max((abs(value) for value in extremes if math.isfinite(value)), default=None),
    )
    overflow = _overflows(numbers, mode) if largest is not None else 0
    known = bool(extremes) or None not in (counts["nan"], counts["pos_inf"], counts["neg_inf"])
    state = (
        "overflow"
        if overflow
        else ("clean" if known or not may_overflow(tensor.dtype) else "unknown")
    )
    summary = TensorSummary(
        **_identity(tensor),
        **_figures(numbers, kind, mode),
        first_overflow=asdict(given.first_overflow) if overflow and given.first_overflow else None,
        note=tensor.note if known or tensor.note else "no_data",
    )
    return Facts(summary, state, numbers, largest)


def _whole(number: Optional[Number]) -> Optional[int]:
    """A count from outside, or None where it is none."""
    return int(number) if number is not None and 0 <= number < 2**64 else None


def _identity(tensor: Tensor) -> Mapping[str, Any]:
    """What a tensor is, whatever stands in it."""
    return {
        "index": tensor.index,
        "dtype": tensor.dtype,
        "format": tensor.format,
        "shape": tuple(tensor.shape),
        "original_shape": None if tensor.original_shape is None else tuple(tensor.original_shape),
        "bytes": tensor.bytes,
    }


def _figures(numbers: Numbers, kind: Optional[Kind], mode: Optional[str]) -> Mapping[str, Any]:
    """The counts and extremes of a summary. Complex numbers have no order and no mean here."""
    ordered = kind is None or kind.parts == 1
    return {
        "min": numbers.minimum if ordered else None,
        "max": numbers.maximum if ordered else None,
        "mean": numbers.mean if ordered else None,
        "nan": numbers.nan,
        "pos_inf": numbers.pos_inf,
        "neg_inf": numbers.neg_inf,
        "saturated": numbers.at_max if mode == "saturation" else 0,
        "headroom_log2": _headroom(numbers.largest, kind),
        "histogram": numbers.histogram,
    }


def _headroom(largest: Optional[float], kind: Optional[Kind]) -> Optional[float]:
    """log2(MAX / largest finite magnitude); None for non-floats, zeros and empty tensors."""
    if kind is None or kind.largest is None or not largest:
        return None
    return math.log2(kind.largest) - math.log2(largest)


def _overflows(numbers: Numbers, mode: Optional[str]) -> int:
    """How many overflow values were counted."""
    return (
        numbers.nan
        + numbers.pos_inf
        + numbers.neg_inf
        + (numbers.at_max if mode == "saturation" else 0)
    )


def _padded(tensor: Tensor) -> bool:
    """Whether the device's shape differs from the user's, so that extremes must leave the padding
    out."""
    return tensor.original_shape is not None and tuple(tensor.original_shape) != tuple(tensor.shape)


def _count(
    tensor: Tensor, kind: Kind, region: Optional[Region], mode: Optional[str]
) -> Tuple[Numbers, Numbers, int]:
    """Numbers of the valid elements and of the padding (``region`` None: all are valid), and where
    the piece with the first valid overflow value starts."""
    inside, outside = kind.counter(), kind.counter()
    start, first_at = 0, -1
    for chunk in tensor.chunks(kind.chunk):
        stored = kind.stored(chunk)
        elements = len(stored) // kind.parts
        mask = None if region is None else region.mask(start, elements)
        if mask is None:
            inside.add(stored)
        else:
            if kind.parts > 1:
                mask = np.repeat(mask, kind.parts)
            inside.add(stored[mask])
            outside.add(stored[~mask])
        if first_at < 0 and inside.overflows(mode == "saturation"):
            first_at = start
        start += elements
    return inside.numbers(), outside.numbers() if region is not None else NOTHING, max(first_at, 0)


def _first(
    tensor: Tensor, kind: Kind, region: Optional[Region], mode: Optional[str], start: int
) -> Optional[Mapping[str, Any]]:
    """Index and value of the first overflow element, as the user counts: in the original shape
    where that is known. None of the elements before ``start`` is one."""
    best: Optional[Tuple[int, int, float]] = None
    for chunk in tensor.chunks(CHUNK, start):
        stored = kind.stored(chunk)
        elements = len(stored) // kind.parts
        bad = kind.bad(stored, mode)
        if bad.any():
            found = _first_of(bad, kind, region, start)
            if found is not None and (best is None or found[0] < best[0]):
                rank, position = found
                item = (position - start) * kind.parts
                best = (
                    rank,
                    position,
                    kind.value(stored[item + int(np.argmax(bad[item : item + kind.parts]))]),
                )
                if region is None or region.whole:
                    break
        start += elements
    if best is None or region is None:
        return None
    return {"index": [int(place) for place in region.original_index(best[1])], "value": best[2]}


def _first_of(
    bad: Any, kind: Kind, region: Optional[Region], start: int
) -> Optional[Tuple[int, int]]:
    """(rank in the user's order, position in storage order) of the first valid bad element of a
    piece."""
    if region is None or region.whole:
        position = start + int(np.argmax(bad)) // kind.parts
        return position, position
    elements = bad.reshape(-1, kind.parts).any(axis=1)
    mask = region.mask(start, len(elements))
    positions = np.flatnonzero(elements if mask is None else elements & mask) + start
    if not len(positions):
        return None
    ranks = region.original_flat(positions.astype(np.int64))
    least = int(np.argmin(ranks))
    return int(ranks[least]), int(positions[least])
