"""The chain from the culprit on: where an input that holds an overflow value is the output of an operator before it."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from npu_overflow.analysis.opening import Opened
from npu_overflow.analysis.statistics import Facts
from npu_overflow.dump.reader import open_operator
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError

__all__ = ["producers"]

Maker = Tuple[int, int]


def producers(operators: Sequence[Opened], inherited: Sequence[int]) -> Dict[int, int]:
    """Index of an ``inherited`` entry -> index of the earlier entry whose output it read: same dtype, shape and bytes.

    Only equal figures make a candidate, and only candidates are read again, so that the tensors need not be held.

    Args:
        operators: all entries in order.
        inherited: indices of those to explain.
    """
    wanted = set(inherited)
    makers: Dict[Tuple[Any, ...], List[Maker]] = {}
    result: Dict[int, int] = {}
    for index, opened in enumerate(operators):
        if index in wanted:
            maker = _maker(operators, index, makers)
            if maker is not None:
                result[index] = maker
        for place, facts in enumerate(opened.outputs or ()):
            if facts.state == "overflow":
                makers.setdefault(_figures(opened, facts), []).append((index, place))
    return result


def _figures(opened: Opened, facts: Facts) -> Tuple[Any, ...]:
    """What equal tensors have in common, besides run and device."""
    summary = facts.summary
    counts = (summary.nan, summary.pos_inf, summary.neg_inf, summary.overflow_in_padding, facts.numbers.at_max)
    return opened.found.device + (summary.dtype, summary.shape, summary.bytes, repr(summary.min), repr(summary.max), repr(summary.mean)) + counts


def _maker(operators: Sequence[Opened], index: int, makers: Dict[Tuple[Any, ...], List[Maker]]) -> Optional[int]:
    """The nearest earlier entry that made an overflowing input of ``operators[index]``; one of the same step comes first."""
    reader = operators[index]
    step = reader.found.entry.place.data_index
    for place, facts in enumerate(reader.inputs or ()):
        if facts.state != "overflow":
            continue
        earlier = reversed(makers.get(_figures(reader, facts), []))
        for maker, output in sorted(earlier, key=lambda pair: operators[pair[0]].found.entry.place.data_index != step):
            if _same(_tensor(reader, "inputs", place), _tensor(operators[maker], "outputs", output)):
                return maker
    return None


def _tensor(opened: Opened, side: str, place: int) -> Optional[Tensor]:
    """One tensor of an operator, its file opened once more."""
    try:
        tensors = getattr(open_operator(opened.candidates), side)
    except DumpFormatError:
        return None
    return tensors[place] if place < len(tensors) else None


def _same(one: Optional[Tensor], two: Optional[Tensor]) -> bool:
    if one is None or two is None or one.statistics is not None or two.statistics is not None:
        return False
    try:
        return one.same_bytes(two)
    except DumpFormatError:
        return False
