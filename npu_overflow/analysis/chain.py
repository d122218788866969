"""Where an operator's overflow comes from: the verdict, and the operator whose output it read."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple

from npu_overflow.analysis.entries import Opened
from npu_overflow.analysis.state import State
from npu_overflow.analysis.statistics import Facts
from npu_overflow.dump.reader import open_operator
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError

__all__ = ["find_producers", "judge", "verdict"]

#: index of an operator, place of its output
Maker = Tuple[int, int]


def judge(state: State) -> None:
    """The verdict of every operator."""
    for opened in state.operators:
        absorbed = opened.host is not None and opened.host.role == "absorbed"
        found = "absorbed" if absorbed else verdict(opened.inputs, opened.outputs)
        state.verdicts.append(found)


def verdict(inputs: Optional[Sequence[Facts]], outputs: Optional[Sequence[Facts]]) -> str:
    """The verdict from the states of an operator's tensors.

    Args:
        inputs, outputs: None where the operator's dump is missing, unreadable or was not opened.

    Returns:
        "computed_here", "inherited", "internal", "padding_only" or "unknown".
    """
    if inputs is None or outputs is None:
        return "unknown"
    if any(facts.state == "overflow" for facts in inputs):
        return "inherited"
    both = [facts.state for facts in (*inputs, *outputs)]
    if "unknown" in both or not both:
        return "unknown"
    if "overflow" in both:
        return "computed_here"
    return "padding_only" if "padding" in both else "internal"


def find_producers(state: State) -> None:
    """For each inherited operator the earlier one whose output it read: same dtype, shape, bytes.

    Only equal figures make a candidate, and only candidates are read again, so that the tensors
    need not be held.
    """
    makers: Dict[Tuple[Any, ...], List[Maker]] = {}
    for index, opened in enumerate(state.operators):
        if state.verdicts[index] == "inherited":
            maker = _maker(state.operators, index, makers)
            if maker is not None:
                state.made_by[index] = maker
        for place, facts in enumerate(opened.outputs or ()):
            if facts.state == "overflow":
                makers.setdefault(_figures(opened, facts), []).append((index, place))


def _figures(opened: Opened, facts: Facts) -> Tuple[Any, ...]:
    """What equal tensors have in common, besides run and device."""
    summary = facts.summary
    extremes = repr((summary.min, summary.max, summary.mean))  # NaN is no number, and equals none
    counts = (summary.nan, summary.pos_inf, summary.neg_inf, summary.overflow_in_padding)
    kind = (summary.dtype, summary.shape, summary.bytes)
    return (opened.found.device, kind, extremes, counts, facts.numbers.at_max)


def _maker(
    operators: Sequence[Opened], index: int, makers: Dict[Tuple[Any, ...], List[Maker]]
) -> Optional[int]:
    """The nearest earlier operator that made an overflowing input of ``operators[index]``; one of
    the same step comes first."""
    reader = operators[index]
    step = reader.found.entry.place.data_index

    def other_step(maker: Maker) -> bool:
        return operators[maker[0]].found.entry.place.data_index != step

    for place, facts in enumerate(reader.inputs or ()):
        if facts.state != "overflow":
            continue
        for maker, output in sorted(makers.get(_figures(reader, facts), [])[::-1], key=other_step):
            read, made = (
                _tensor(reader, "inputs", place),
                _tensor(operators[maker], "outputs", output),
            )
            if _same(read, made):
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
