"""The chain of an overflow: from the operator that made it through those that read it, and how it
spreads over steps, devices and ranks."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Set, Tuple

from npu_overflow.report.model import Operator, Report

__all__ = ["Link", "Share", "Spread", "chain", "spread"]

#: links of a chain that are drawn, and how deep
MOST_LINKS, MOST_DEPTH = 40, 12


@dataclass(frozen=True)
class Link:
    """One operator of a chain.

    Args:
        index: its place among the report's operators.
        depth: links from the first one.
        times: entries of the same operator with the same maker, in other steps or on other devices.
    """

    index: int
    depth: int
    times: int = 1


def chain(report: Report, most: int = MOST_LINKS) -> Tuple[List[Link], int]:
    """The operators that the primary finding's overflow went through, each after its maker; and how
    many were left out.

    It begins above the finding where that one inherited the value from another operator of the
    dump.
    """
    if report.first_index is None:
        return [], 0
    start = _origin(report)
    children: Dict[str, List[int]] = {}
    for index, operator in enumerate(report.operators):
        if operator.inherited_from is not None and index != start:
            children.setdefault(operator.inherited_from, []).append(index)
    links: List[Link] = []
    total = 0
    waiting: List[Tuple[int, int, int]] = [(start, 0, 1)]
    done: Set[Optional[str]] = set()
    while waiting:
        index, depth, times = waiting.pop()
        total += 1
        if len(links) < most:
            links.append(Link(index, min(depth, MOST_DEPTH), times))
        name = report.operators[index].op_name
        if name is None or name in done:
            continue
        done.add(name)
        grouped: Dict[Tuple[Optional[str], Optional[str]], List[int]] = {}
        for child in children.get(name, ()):
            grouped.setdefault(
                (report.operators[child].op_type, report.operators[child].op_name), []
            ).append(child)
        waiting.extend(
            (members[0], depth + 1, len(members)) for members in reversed(list(grouped.values()))
        )
    return links, total - len(links)


def _origin(report: Report) -> int:
    """Index of the operator that the finding's value comes from, as far up as the dump tells."""
    assert report.first_index is not None
    by_name: Dict[Optional[str], int] = {}
    for index, operator in enumerate(report.operators):
        by_name.setdefault(operator.op_name, index)
    index, seen = report.first_index, {report.first_index}
    while report.operators[index].inherited_from is not None:
        above = by_name.get(report.operators[index].inherited_from)
        if above is None or above in seen:
            break
        seen.add(above)
        index = above
    return index


@dataclass(frozen=True)
class Share:
    """One operator over all steps: how often it overflowed, how often it was the first, and where.
    """

    operator: Operator
    entries: int
    devices: Tuple[int, ...]
    ranks: Tuple[int, ...]


@dataclass(frozen=True)
class Spread:
    """How an overflow spreads.

    Args:
        operators: one for each operator, those that were first in most steps before the others.
        steps: different steps with an overflow.
        devices, ranks: (number, entries, the operator that overflowed first there).
    """

    operators: Tuple[Share, ...]
    steps: int
    devices: Tuple[Tuple[int, int, Operator], ...]
    ranks: Tuple[Tuple[int, int, Operator], ...]


def spread(report: Report) -> Spread:
    """Which operators overflowed in how many steps, on which devices and ranks. Harmless (absorbed)
    entries don't count."""
    members: Dict[Tuple[Optional[str], Optional[str]], List[Operator]] = {}
    steps = set()
    found = [operator for operator in report.operators if operator.verdict != "absorbed"]
    for operator in found:
        members.setdefault((operator.op_type, _as_in_files(operator.op_name)), []).append(operator)
        steps.add(
            (operator.train_step,)
            if operator.train_step is not None
            else (None, operator.model_id, operator.step)
        )
    shares = []
    for group in members.values():
        shown = max(group, key=lambda operator: operator.inputs is not None)
        shares.append(Share(shown, len(group), _numbers(group, "device"), _numbers(group, "rank")))
    shares.sort(key=lambda share: (-share.operator.steps_first, -share.operator.steps_seen))
    return Spread(tuple(shares), len(steps), _places(found, "device"), _places(found, "rank"))


def _as_in_files(name: Optional[str]) -> Optional[str]:
    """A name as files spell it: of an operator that was not opened nothing else is known."""
    return None if name is None else re.sub(r"[./\\ ]", "_", name)


def _numbers(group: Sequence[Operator], name: str) -> Tuple[int, ...]:
    return tuple(
        sorted(
            {getattr(operator, name) for operator in group if getattr(operator, name) is not None}
        )
    )


def _places(operators: Sequence[Operator], name: str) -> Tuple[Tuple[int, int, Operator], ...]:
    """(number, entries, first operator) of each device or rank."""
    counts: Dict[int, List[Operator]] = {}
    for operator in operators:
        value = getattr(operator, name)
        if value is not None:
            counts.setdefault(value, []).append(operator)
    return tuple((number, len(group), group[0]) for number, group in sorted(counts.items()))
