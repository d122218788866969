"""Reports of many ranks as one: operators of all in order, each with its rank, and the rank that overflowed first."""
from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Dict, List, Optional, Sequence, Tuple

from npu_overflow.errors import UsageError
from npu_overflow.report import texts
from npu_overflow.report.model import LossScale, Operator, Problem, Remark, Report

__all__ = ["merge"]

#: clocks of machines agree to about this, microseconds
CLOSE = 10_000
#: ranks that a sentence lists
_MOST_LISTED = 16


def merge(reports: Sequence[Report]) -> Report:
    """One report of several.

    Order: by training step where every operator has one (ranks train in step, and their clocks can differ), else by time; operators without
    either come last. The primary finding is the earliest of the reports' own.

    Args:
        reports: of different ranks; one that is given twice counts once. A report without a rank gets its place in the list.

    Raises:
        UsageError: there is none.
    """
    given = [report for number, report in enumerate(reports) if report not in reports[:number]]
    if not given:
        raise UsageError("merge.nothing")
    root = _root([report.path for report in given])
    ranked = [(number if report.rank is None else report.rank, report) for number, report in enumerate(given)]
    members = _operators(ranked, root)
    in_step = all(operator.train_step is not None for _, operator in members)
    order = sorted(range(len(members)), key=lambda index: _key(members[index][1], in_step))
    operators = tuple(members[index][1] for index in order)
    firsts = [position for position, index in enumerate(order) if members[index][0]]
    first = firsts[0] if firsts else None
    main = given[0] if first is None else next(report for rank, report in ranked if rank == operators[first].rank)
    return Report(
        path=root,
        version=main.version,
        run=main.run if all(report.run == main.run for report in given) else None,
        mode=main.mode,
        records=sum(report.records for report in given),
        rank=None if first is None else operators[first].rank,
        world_size=max([len(given)] + [report.world_size or 1 for report in given]),
        host=main.host,
        first_index=first,
        operators=operators,
        problems=_problems(given, root),
        remarks=_remarks(ranked, operators, firsts) + _own_remarks(given),
        loss_scale=_loss_scale(given),
        reason=None if first is not None else next((report.reason for report in given if report.reason), None),
    )


def _operators(ranked: Sequence[Tuple[int, Report]], root: str) -> List[Tuple[bool, Operator]]:
    """(whether it is its report's primary finding, operator with its rank and with files relative to ``root``), each once."""
    result: List[Tuple[bool, Operator]] = []
    seen: Dict[Any, int] = {}
    for rank, report in ranked:
        for index, operator in enumerate(report.operators):
            owner = rank if operator.rank is None else operator.rank
            moved = replace(operator, rank=owner, dump_file=_file(report, operator.dump_file, root), record_file=_file(report, operator.record_file, root))
            is_first = index == report.first_index
            # ranks that share a folder list each other's operators
            key = (owner, moved.record_file, moved.dump_file, moved.timestamp, moved.task_id, moved.stream_id, moved.context_id, moved.thread_id, moved.op_name)
            if key in seen:
                if is_first:
                    result[seen[key]] = (True, moved)
                continue
            seen[key] = len(result)
            result.append((is_first, moved))
    return result


def _key(operator: Operator, in_step: bool) -> Tuple[Any, ...]:
    step = operator.train_step if in_step and operator.train_step is not None else 0
    stamp = operator.timestamp
    return (step, stamp is None, stamp or 0, operator.rank or 0)


def _root(paths: Sequence[str]) -> str:
    try:
        return os.path.commonpath(paths) or "."
    except ValueError:  # absolute and relative ones, or several drives
        return "."


def _file(report: Report, name: Optional[str], root: str) -> Optional[str]:
    if name is None:
        return None
    path = os.path.join(report.path, name)
    if root != "." and path.startswith(root.rstrip(os.sep) + os.sep):
        path = path[len(root.rstrip(os.sep)) + 1 :]
    return path.replace(os.sep, "/")


def _problems(reports: Sequence[Report], root: str) -> Tuple[Problem, ...]:
    found: Dict[Any, Problem] = {}
    for report in reports:
        for problem in report.problems:
            moved = replace(problem, file=_file(report, problem.file, root) or problem.file)
            found.setdefault((moved.file, moved.reason, moved.code, repr(moved.values)), moved)
    return tuple(found.values())


def _remark(code: str, **values: Any) -> Remark:
    return Remark(texts.say(code, "en", **values), code, values)


def _remarks(ranked: Sequence[Tuple[int, Report]], operators: Sequence[Operator], firsts: Sequence[int]) -> Tuple[Remark, ...]:
    """Which rank was first, which others had a finding, and whether their clocks can tell."""
    quiet = sorted(rank for rank, report in ranked if report.first is None)
    found = []
    if firsts:
        culprit = operators[firsts[0]]
        with_finding = sorted({operators[index].rank or 0 for index in firsts})
        found.append(_remark("merge.first", rank=culprit.rank, count=len(with_finding), ranks=_listed(with_finding)))
        for index in firsts[1:]:
            other = operators[index]
            if other.rank != culprit.rank and other.train_step == culprit.train_step and _close(culprit, other):
                found.append(_remark("merge.close", one=culprit.rank, other=other.rank))
                break
    if quiet:
        found.append(_remark("merge.quiet", count=len(quiet), ranks=_listed(quiet)))
    return tuple(found)


def _close(one: Operator, other: Operator) -> bool:
    return one.timestamp is not None and other.timestamp is not None and abs(one.timestamp - other.timestamp) < CLOSE


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_LISTED]))
    return shown + (", …" if len(ranks) > _MOST_LISTED else "")


def _own_remarks(reports: Sequence[Report]) -> Tuple[Remark, ...]:
    found: Dict[Any, Remark] = {}
    for report in reports:
        for remark in report.remarks:
            found.setdefault((remark.text, remark.code, repr(remark.values)), remark)
    return tuple(found.values())


def _loss_scale(reports: Sequence[Report]) -> Optional[LossScale]:
    known = [report.loss_scale for report in reports if report.loss_scale is not None]
    if not known:
        return None
    names = dict.fromkeys(name for item in known for name in item.optimizers)
    return LossScale(
        drops=max((item.drops for item in known), key=len),
        rate=max((item.rate for item in known if item.rate is not None), default=None),
        optimizers=tuple(names),
        # ranks train in step: overflow was judged frequent when the first of them did so
        trigger_step=min((item.trigger_step for item in known if item.trigger_step is not None), default=None),
        kept_steps=tuple(sorted({step for item in known for step in item.kept_steps})),
    )
