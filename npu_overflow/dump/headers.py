"""From a header to tensors: which bytes of the file belong to whom, and what is missing."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from npu_overflow.dump import codes
from npu_overflow.dump.envelope import Envelope, Source, untrusted_json
from npu_overflow.dump.tensor import Tensor

__all__ = ["Trouble", "tensors_of"]

Shape = Tuple[int, ...]
Trouble = Optional[Tuple[str, Mapping[str, Any]]]


class _Bytes(NamedTuple):
    """Where one tensor's bytes lie: how many are there, and a note where that says more than their
    number."""

    source: Union[Source, bytes, None]
    offset: int
    have: int
    note: Optional[str]


def tensors_of(
    envelope: Envelope, thread_id: Optional[int], host: Optional[Mapping[str, Any]]
) -> Tuple[Dict[str, List[Tensor]], Trouble]:
    """The tensors of a file by side ("input", "output", "buffer", "space").

    Args:
        envelope: the opened file.
        thread_id: of the file's name: which slice an FFTS+ file holds.
        host: the host collector's JSON, which explains tensors that it cut on purpose.

    Returns:
        the tensors, and (code, values) of what is wrong with the file, or None.
    """
    message = envelope.message
    items = [
        (side, index, item)
        for side in ("input", "output", "buffer", "space")
        for index, item in enumerate(getattr(message, side))
    ]
    places, trouble = _places(envelope, [item for _, _, item in items])
    slices = _slices(message, thread_id)
    meant = host.get("tensors") if host is not None else None
    sides: Dict[str, List[Tensor]] = {"input": [], "output": [], "buffer": [], "space": []}
    for (side, index, item), place in zip(items, places):
        if side in ("buffer", "space"):
            note = place.note or ("not_decoded" if place.have == item.size else "cut")
            sides[side].append(
                Tensor(
                    side,
                    index,
                    0,
                    "undefined",
                    "",
                    (),
                    None,
                    place.have,
                    item.size,
                    note,
                    source=place.source,
                    offset=place.offset,
                )
            )
            continue
        tensor = _tensor(side, index, item, place, slices.get(side, {}).get(index))
        if (
            tensor.note == "cut"
            and trouble is None
            and not (isinstance(meant, dict) and "%s.%d" % (side, index) in meant)
        ):
            needed = codes.bytes_needed(tensor.dtype, codes.elements(tensor.shape))
            trouble = (
                "dump.tensor_short",
                {"tensor": "%s.%d" % (side, index), "needed": needed, "bytes": tensor.bytes},
            )
        sides[side].append(tensor)
    return sides, trouble


def _places(envelope: Envelope, items: List[Any]) -> Tuple[List[_Bytes], Trouble]:
    """Where the bytes of all tensors lie, in the order of the file."""
    here = envelope.file_size - envelope.data_start
    if here == 0 and any(item.data for item in items):
        return [_Bytes(item.data, 0, len(item.data), None) for item in items], None
    total = sum(item.size for item in items)
    null = [hasattr(item, "address") and item.address == 0 and item.size > 0 for item in items]
    addressed = any(hasattr(item, "address") and item.address != 0 for item in items)
    skipped = sum(item.size for item, is_null in zip(items, null) if is_null)
    if here < total and addressed and here == total - skipped:
        return _in_a_row(envelope, items, null), None
    places = _in_a_row(envelope, items, [False] * len(items))
    if here == total:
        return places, None
    values = {"bytes": envelope.file_size, "expected": envelope.data_start + total}
    if here > total:
        return places, ("dump.excess", values)
    if addressed and any(null):
        # a cut file whose writer may have skipped null tensors: from the first of them on, no
        # position is sure
        unsure = null.index(True)
        places[unsure:] = [
            _Bytes(None, 0, 0, "missing" if item.size else None) for item in items[unsure:]
        ]
    return places, ("dump.cut", values)


def _in_a_row(envelope: Envelope, items: List[Any], left_out: List[bool]) -> List[_Bytes]:
    places = []
    at = envelope.data_start
    for item, out in zip(items, left_out):
        if out:
            places.append(_Bytes(None, 0, 0, "no_data"))
            continue
        have = max(0, min(item.size, envelope.file_size - at))
        places.append(
            _Bytes(envelope.source, at, have, "missing" if have == 0 < item.size else None)
        )
        at += item.size
    return places


def _tensor(
    side: str, index: int, item: Any, place: _Bytes, piece: Optional[Tuple[Shape, Shape]]
) -> Tensor:
    shape: Shape = tuple(item.shape.dim)
    original = tuple(item.original_shape.dim) if item.HasField("original_shape") else None
    dtype = codes.data_type_name(item.data_type)
    whole: Optional[Shape] = None
    start: Optional[Shape] = None
    if (
        piece is not None
        and len(piece[0]) == len(shape)
        and all(low + length <= size for low, length, size in zip(piece[1], piece[0], shape))
    ):
        whole, shape, start = shape, piece[0], piece[1]
    named = None
    if side == "output" and item.HasField("original_op"):
        named = codes.format_name(item.original_op.format)
    return Tensor(
        side,
        index,
        item.data_type,
        dtype,
        codes.format_name(item.format),
        shape,
        original,
        place.have,
        item.size,
        place.note or _note(dtype, shape, place.have, item.size),
        named,
        item.sub_format,
        item.address,
        whole,
        start,
        source=place.source,
        offset=place.offset,
    )


def _note(dtype: str, shape: Shape, have: int, size: int) -> Optional[str]:
    """What to say of a tensor that has ``have`` of the bytes that its header promises."""
    count = codes.elements(shape)
    needed = codes.bytes_needed(dtype, count)
    if needed is None:
        return "cut" if have < size else "not_decoded"
    if have < needed:
        return "cut" if have else "no_data"
    return None if count == 0 or dtype in codes.DECODED else "not_decoded"


def _slices(message: Any, thread_id: Optional[int]) -> Dict[str, Dict[int, Tuple[Shape, Shape]]]:
    """Lengths and first indices of this thread's slices by side and index, of an FFTS+ operator
    that was cut into threads."""
    if thread_id is None or not message.attr or b"threadMode" not in message.attr[0].value:
        return {}
    facts = untrusted_json(message.attr[0].value)
    if facts is None or facts.get("threadMode") is not True:
        return {}
    found: Dict[str, Dict[int, Tuple[Shape, Shape]]] = {}
    for side in ("input", "output"):
        threads = facts.get(side + "_tensor_slice")
        tensors = (
            threads[thread_id] if isinstance(threads, list) and thread_id < len(threads) else None
        )
        if isinstance(tensors, list):
            pieces = {index: _slice(axes) for index, axes in enumerate(tensors)}
            found[side] = {index: piece for index, piece in pieces.items() if piece is not None}
    return found


def _slice(axes: Any) -> Optional[Tuple[Shape, Shape]]:
    """(lengths, first indices) of [{"lower": …, "higher": …}, …], or None where it is no such list.
    """
    lengths, starts = [], []
    for axis in axes if isinstance(axes, list) else [None]:
        low, high = (
            (axis.get("lower"), axis.get("higher")) if isinstance(axis, dict) else (None, None)
        )
        if type(low) is not int or type(high) is not int or not 0 <= low <= high:
            return None
        lengths.append(high - low)
        starts.append(low)
    return tuple(lengths), tuple(starts)
