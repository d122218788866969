"""Across the steps of a run: a persistent culprit stands out from a passer-by."""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from npu_overflow.analysis.opening import Opened
from npu_overflow.analysis.rules import is_backward
from npu_overflow.analysis.selection import AI_CORES

__all__ = ["Before", "before_each", "first_of", "in_steps"]


def first_of(operators: Sequence[Opened]) -> Optional[int]:
    """Index of the primary finding among entries in order, or None where there is nothing to blame.

    The first entry of an AI Core, else the first of any kind. On a tree of the host collector the entry marked as the culprit, else
    the first that was not absorbed.
    """
    candidates = [index for index, opened in enumerate(operators) if opened.host is None or opened.host.role != "absorbed"]
    for wanted in (_is_primary, lambda opened: True):
        for index in candidates:
            if wanted(operators[index]):
                return index
    return None


def _is_primary(opened: Opened) -> bool:
    if opened.host is not None:
        return opened.host.role == "culprit"
    return opened.core in AI_CORES


def in_steps(operators: Sequence[Opened], train_steps: Sequence[Optional[int]]) -> List[Tuple[int, int]]:
    """For each entry: (steps in which its operator overflowed, steps in which it was the first).

    Args:
        operators: all entries in order.
        train_steps: training step of each entry, None where it isn't known; then data_index tells steps of one graph apart.
    """
    steps: Dict[Any, List[int]] = {}
    for index, opened in enumerate(operators):
        steps.setdefault(_step(opened, train_steps[index]), []).append(index)
    seen: Dict[Any, Set[Any]] = {}
    first: Dict[Any, Set[Any]] = {}
    for step, members in steps.items():
        for index in members:
            seen.setdefault(_who(operators, index), set()).add(step)
        leader = first_of([operators[index] for index in members])
        if leader is not None:
            first.setdefault(_who(operators, members[leader]), set()).add(step)
    return [(len(seen[who]), len(first.get(who, ()))) for who in (_who(operators, index) for index in range(len(operators)))]


class Before(NamedTuple):
    """What happened in the same step before an entry.

    Args:
        forward_clean: no operator of the forward pass overflowed; harmless ones don't count.
        all_read: the outputs of all entries before it are known.
    """

    forward_clean: bool
    all_read: bool


def before_each(operators: Sequence[Opened], verdicts: Sequence[str]) -> List[Before]:
    """For each entry, what the entries before it in its step say."""
    states: Dict[Any, Before] = {}
    result = []
    for opened, word in zip(operators, verdicts):
        step = opened.found.graph + (opened.found.entry.place.data_index,)
        before = states.get(step, Before(True, True))
        result.append(before)
        phase = opened.host.phase if opened.host is not None else None
        harmless = word in ("absorbed", "padding_only") or is_backward(opened.op_type, opened.op_name, phase)
        states[step] = Before(before.forward_clean and harmless, before.all_read and opened.outputs is not None and word != "unknown")
    return result


def _step(opened: Opened, train_step: Optional[int]) -> Any:
    place = opened.found.entry.place
    if train_step is not None:
        return (train_step,)
    return (place.model_name, place.model_id, place.data_index)


def _who(operators: Sequence[Opened], index: int) -> Any:
    """The operator; an unknown one is only itself."""
    return operators[index].key or index
