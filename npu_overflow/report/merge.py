"""Reports of many ranks as one: operators of all in order, each with its rank, and the rank that
overflowed first.

Reports come one after the other and go again: what stays are the first operators and counts, so
that memory grows with what is shown and not with ranks.
"""
from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import dataclass, replace
from typing import Any, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from npu_overflow import messages
from npu_overflow.errors import DumpFormatError, UsageError
from npu_overflow.report.json_text import parsed, restore_part
from npu_overflow.report.merge_parts import First, Ranks, Seen, Some
from npu_overflow.report.model import LossScale, Operator, Problem, Remark, Report, TensorSummary

__all__ = ["Merging", "merge"]

#: clocks of machines agree to about this, microseconds
CLOSE = 10_000
#: ranks that a sentence lists
_MOST_LISTED = 16
#: findings of other ranks that are compared with the first one
_MOST_FIRSTS = 64
_MOST_PROBLEMS, _MOST_REMARKS, _MOST_NAMES, _MOST_STEPS = 1000, 200, 200, 10_000


def merge(reports: Iterable[Report], most: Optional[int] = None) -> Report:
    """One report of several.

    Order: by training step where every operator has one (ranks train in step, and their clocks can
        differ), else by time; operators without
    either come last. The primary finding is the earliest of the reports' own.

    Args:
        reports: of different ranks; one that is given twice counts once. A report without a rank
            gets its place in the list.
        most: operators that are kept: the first so many of those that stand at or after their own
            report's finding, and of the others; None keeps all.

    Raises:
        UsageError: there is none.
    """
    merging = Merging(most)
    for report in reports:
        merging.add(report)
    return merging.report()


class _Held(NamedTuple):
    """An operator, the path that its files are relative to, what its report says of the run, and
    the JSON of its tensors where it has none yet."""

    operator: Operator
    path: str
    version: str
    mode: Optional[str]
    host: Optional[Mapping[str, Any]]
    tensors: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class _Tensors:
    """What a report's JSON says of an operator's tensors."""

    inputs: Optional[Tuple[TensorSummary, ...]] = None
    outputs: Optional[Tuple[TensorSummary, ...]] = None


_TENSORS = ("inputs", "outputs")


class _Order:
    """What is kept under one order of all operators."""

    def __init__(self, most: Optional[int]) -> None:
        self.from_finding: First[_Held] = First(most)
        self.others: First[_Held] = First(most)
        self.findings: First[_Held] = First(None if most is None else max(most, _MOST_FIRSTS))

    def kept(self) -> List[Tuple[Any, Any, _Held]]:
        """All of them in order, each once, the primary finding always among them."""
        found = {
            name: (key, name, held)
            for key, name, held in self.others.items()
            + self.findings.items()[:1]
            + self.from_finding.items()
        }
        return sorted(found.values(), key=lambda entry: entry[0])


class Merging:
    """Reports on their way into one, see ``merge``."""

    def __init__(self, most: Optional[int] = None) -> None:
        self.count = 0
        self._most = most
        self._by_time = _Order(most)
        self._by_step: Optional[_Order] = _Order(most)
        self._seen = Seen()
        self._with_finding, self._quiet = Ranks(), Ranks()
        self._operators = self._records = self._world_size = 0
        self._root: Optional[str] = None
        self._runs: List[Optional[str]] = []
        self._main: Optional[Report] = None
        self._reason: Optional[str] = None
        self._problems: Some[Tuple[str, Problem]] = Some(None if most is None else _MOST_PROBLEMS)
        self._remarks: Some[Remark] = Some(None if most is None else _MOST_REMARKS)
        self._scale: Optional[LossScale] = None

    def add_json(self, text: str, digest: bytes) -> None:
        """Take one more report, as JSON: tensors of operators that are not kept are never made.

        Raises:
            DumpFormatError: it is no report.
        """
        data = parsed(text)
        operators = data.get("operators") if isinstance(data, dict) else None
        if not isinstance(operators, list) or not all(isinstance(item, dict) for item in operators):
            self.add(Report.from_dict(data), digest)  # which says what is wrong
            return
        tensors = [
            {name: item.pop(name) for name in _TENSORS if item.get(name) is not None}
            for item in operators
        ]
        self.add(Report.from_dict(data), digest, tensors)

    def add(
        self,
        report: Report,
        digest: Optional[bytes] = None,
        tensors: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """Take one more report.

        Args:
            digest: tells whether it came already; None makes one of its content.
            tensors: JSON of the tensors of its operators, where they are not in it.
        """
        if not self._seen.first_time(
            digest or hashlib.sha256(report.to_json().encode("utf-8", "backslashreplace")).digest()
        ):
            return
        rank = self.count if report.rank is None else report.rank
        self.count += 1
        self._records += report.records
        self._world_size = max(self._world_size, report.world_size or 1)
        self._root = report.path if self._root is None else _root(self._root, report.path)
        if report.run not in self._runs[:2]:
            self._runs.append(report.run)
        if self._main is None:
            self._main = replace(report, operators=(), problems=(), remarks=(), first_index=None)
        self._reason = self._reason or report.reason
        self._scale = _both(self._scale, report.loss_scale)
        if report.first is None:
            self._quiet.add(rank)
        for index, operator in enumerate(report.operators):
            self._take(report, rank, index, operator, tensors[index] if tensors else None)
        for problem in report.problems:
            self._problems.add(
                (report.path, problem.file, problem.reason, problem.code, repr(problem.values)),
                (report.path, problem),
            )
        for remark in report.remarks:
            self._remarks.add((remark.text, remark.code, repr(remark.values)), remark)

    def _take(
        self,
        report: Report,
        rank: int,
        index: int,
        operator: Operator,
        tensors: Optional[Mapping[str, Any]],
    ) -> None:
        self._operators += 1
        owner = rank if operator.rank is None else operator.rank
        is_finding = index == report.first_index
        if is_finding:
            self._with_finding.add(owner)
        if operator.train_step is None:
            self._by_step = None
        at_or_after = report.first_index is not None and index >= report.first_index
        wanted: List[Tuple[Any, First[_Held]]] = []
        for order, in_step in ((self._by_time, False), (self._by_step, True)):
            if order is not None:
                key = _key(operator, owner, in_step)
                places = [order.from_finding if at_or_after else order.others] + (
                    [order.findings] if is_finding else []
                )
                wanted += [(key, place) for place in places if place.wants(key)]
        if not wanted:
            return
        held = _Held(
            replace(operator, rank=owner),
            report.path,
            report.version,
            report.mode,
            report.host,
            tensors,
        )
        files = [
            None if name is None else os.path.join(report.path, name)
            for name in (operator.record_file, operator.dump_file)
        ]
        # ranks that share a folder list each other's operators
        name = (
            owner,
            *files,
            operator.timestamp,
            operator.task_id,
            operator.stream_id,
            operator.context_id,
            operator.thread_id,
            operator.op_name,
        )
        for key, place in wanted:
            place.add(key, name, held)

    def report(self) -> Report:
        """The report of all that were added; more can be added afterwards.

        Raises:
            UsageError: none was.
        """
        if self._main is None or self._root is None:
            raise UsageError("merge.nothing")
        order = self._by_time if self._by_step is None else self._by_step
        kept = order.kept()
        findings = [(name, held) for _, name, held in order.findings.items()]
        first = next(
            (
                index
                for index, (_, name, _) in enumerate(kept)
                if findings and name == findings[0][0]
            ),
            None,
        )
        root = self._root or "."
        main = self._main if first is None else findings[0][1]
        return Report(
            path=root,
            version=main.version,
            run=self._runs[0] if len(self._runs) == 1 else None,
            mode=main.mode,
            records=self._records,
            rank=None if first is None else findings[0][1].operator.rank,
            world_size=max(self.count, self._world_size),
            host=main.host,
            first_index=first,
            operators=tuple(_moved(held, root) for _, _, held in kept),
            problems=tuple(
                replace(problem, file=_file(path, problem.file, root) or problem.file)
                for path, problem in self._problems.items()
            ),
            remarks=self._own_remarks([held.operator for _, held in findings], len(kept))
            + tuple(self._remarks.items()),
            loss_scale=self._scale,
            reason=None if first is not None else self._reason,
        )

    def _own_remarks(self, findings: Sequence[Operator], kept: int) -> Tuple[Remark, ...]:
        """Which rank was first, which others had a finding, whether their clocks can tell, and what
        was left out."""
        found = []
        if findings:
            culprit, ranks = findings[0], self._with_finding.sorted()
            found.append(
                _remark("merge.first", rank=culprit.rank, count=len(ranks), ranks=_listed(ranks))
            )
            for other in findings[1:]:
                if (
                    other.rank != culprit.rank
                    and other.train_step == culprit.train_step
                    and _close(culprit, other)
                ):
                    found.append(_remark("merge.close", one=culprit.rank, other=other.rank))
                    break
        quiet = self._quiet.sorted()
        if quiet:
            found.append(_remark("merge.quiet", count=len(quiet), ranks=_listed(quiet)))
        if self._most is not None and self._operators > kept and kept >= self._most:
            found.append(_remark("merge.left_out", kept=kept, count=self._operators))
        if self._problems.left_out:
            found.append(
                _remark(
                    "merge.problems_left_out", kept=_MOST_PROBLEMS, count=self._problems.left_out
                )
            )
        if self._remarks.left_out:
            found.append(
                _remark("merge.remarks_left_out", kept=_MOST_REMARKS, count=self._remarks.left_out)
            )
        return tuple(found)


def _key(operator: Operator, rank: int, in_step: bool) -> Tuple[Any, ...]:
    step = operator.train_step if in_step and operator.train_step is not None else 0
    stamp = operator.timestamp
    return (step, stamp is None, stamp or 0, rank)


def _moved(held: _Held, root: str) -> Operator:
    """The operator with its files relative to ``root``."""
    operator = held.operator
    if held.tensors:
        # damaged ones: the operator itself is still worth showing
        with contextlib.suppress(DumpFormatError):
            tensors = restore_part(_Tensors, held.tensors, "operators")
            operator = replace(operator, inputs=tensors.inputs, outputs=tensors.outputs)
    return replace(
        operator,
        dump_file=_file(held.path, operator.dump_file, root),
        record_file=_file(held.path, operator.record_file, root),
    )


def _root(one: str, other: str) -> str:
    """What two paths have in common; "" where that is nothing that a path could be relative to."""
    try:
        return os.path.commonpath([one, other])
    except ValueError:  # absolute and relative ones, or several drives
        return ""


def _file(folder: str, name: Optional[str], root: str) -> Optional[str]:
    if name is None:
        return None
    path = os.path.join(folder, name)
    if root != "." and path.startswith(root.rstrip(os.sep) + os.sep):
        path = path[len(root.rstrip(os.sep)) + 1 :]
    return path.replace(os.sep, "/")


def _remark(code: str, **values: Any) -> Remark:
    return Remark(messages.say(code, "en", **values), code, values)


def _close(one: Operator, other: Operator) -> bool:
    return (
        one.timestamp is not None
        and other.timestamp is not None
        and abs(one.timestamp - other.timestamp) < CLOSE
    )


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_MOST_LISTED]))
    return shown + (", …" if len(ranks) > _MOST_LISTED else "")


def _both(one: Optional[LossScale], other: Optional[LossScale]) -> Optional[LossScale]:
    """The longest history, the highest rate, the first trigger, all names and kept steps."""
    if one is None or other is None:
        return one or other
    names = list(one.optimizers) + [name for name in other.optimizers if name not in one.optimizers]
    return LossScale(
        drops=max((one.drops, other.drops), key=len),
        rate=max((rate for rate in (one.rate, other.rate) if rate is not None), default=None),
        optimizers=tuple(names[:_MOST_NAMES]),
        # ranks train in step: overflow was judged frequent when the first of them did so
        trigger_step=min(
            (step for step in (one.trigger_step, other.trigger_step) if step is not None),
            default=None,
        ),
        kept_steps=tuple(sorted({*one.kept_steps, *other.kept_steps})[:_MOST_STEPS]),
    )
