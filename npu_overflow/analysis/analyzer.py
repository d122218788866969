"""From a dump tree to a report: which operator overflowed first, why, and what to do."""
from __future__ import annotations

import functools
import os
from collections import deque
from dataclasses import replace
from typing import Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from npu_overflow.analysis import opening, runfacts
from npu_overflow.analysis.chain import producers
from npu_overflow.analysis.growing import Growing
from npu_overflow.analysis.headroom import headroom_of
from npu_overflow.analysis.opening import Opened, Sizes
from npu_overflow.analysis.operators import Context, operator_of
from npu_overflow.analysis.progress import Progress
from npu_overflow.analysis.recompute import recomputed
from npu_overflow.analysis.remarks import of_records, remarks_of
from npu_overflow.analysis.selection import AI_CORES, Found, Selection, read_records
from npu_overflow.analysis.sentences import english, fillable
from npu_overflow.analysis.steps import before_each, first_of, in_steps
from npu_overflow.analysis.verdict import verdict
from npu_overflow.analysis.workers import Workers
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.layout import Tree, place_of
from npu_overflow.dump.replay_info import ReplayInfo
from npu_overflow.dump.scan import find
from npu_overflow.errors import PathError, UsageError
from npu_overflow.report.model import Operator, Problem, Remark, Report, Trial
from npu_overflow.training.manifest import Manifest, read_manifests
from npu_overflow.version import __version__

__all__ = ["MODES", "analyze"]

MODES = ("saturation", "inf_nan")

#: up to here all records are read, whatever is asked for: it takes no time
_FEW_RECORDS = 500
#: times that operators are left out because they grow, and others are opened in their place
_MOST_TURNS = 4

#: tensors of open dumps, and what the host collector wrote of them, that are held in memory: about 1 kB each
_MOST_HELD = 50_000


def analyze(
    path: str = "precision_data/overflow/dump",
    *,
    run: Optional[str] = None,
    limit: Optional[int] = None,
    mode: Optional[str] = None,
    progress: Union[bool, Progress] = False,
    every_record: bool = False,
    processes: int = 1,
    fetch: Optional[Callable[[str], None]] = None,
) -> Report:
    """Find the operators that overflowed, the first of them, and why.

    Args:
        path: a dump tree's root, any folder in it, or one file of it.
        run: name of a time folder, or "all"; None takes the newest run.
        limit: operators that are opened, the first finding and those after it before others; None opens all. Of thousands of
            records only those are read that this takes; ``records`` counts all, and a remark says so.
        mode: "saturation" or "inf_nan", where neither a manifest says it nor the records are right.
        processes: that may count large tensors at once. More than 1 forks this process, where that is safe: on Linux, without threads or
            TensorFlow.
        every_record: read all records even where ``limit`` takes few, to know in how many steps an operator overflowed.
        progress: say on standard error how far it is; an interrupt (Ctrl-C) then ends it with what was found so far. A ``Progress`` says it
            elsewhere or in another language.
        fetch: called with the path of a dump before it is opened, to bring it there; raises DumpFormatError where it can't.

    Returns:
        the report. Damaged files are its ``problems``, never an exception.

    Raises:
        UsageError: a mode or limit that is not accepted.
        PathError: nothing to analyze there, or no such run.
    """
    if mode is not None and mode not in MODES:
        raise UsageError("option.choice", name="mode", value=repr(mode), accepted=", ".join(map(repr, MODES)))
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
        raise UsageError("option.whole", name="limit", value=repr(limit), least=0)
    path = os.fspath(path)
    followed = progress if isinstance(progress, Progress) else Progress(progress)
    tree = _find(path, None if progress is False else lambda files: followed.step("progress.listing", files))
    facts = runfacts.read_run_facts(tree)
    selected = tree.select(run, facts.run_ids)
    selected, left_out = (selected, 0) if run is not None else runfacts.collected_only(selected, facts)
    analysis = _Analysis(path, selected, facts, limit, mode, followed, progress is not False)
    analysis.every_record = every_record
    analysis.fetch = fetch
    analysis.workers = Workers(processes)
    if left_out:
        analysis.remarks.append(("remark.sporadic", {"count": left_out}))
    return analysis.report()


def _find(path: str, step: Optional[Callable[[int], None]]) -> Tree:
    """The tree; a folder that holds nothing but manifests is an empty one (a collection that found nothing)."""
    try:
        return find(path, step)
    except PathError:
        if os.path.isdir(path) and read_manifests(path):
            return Tree(os.path.abspath(path))
        raise


class _Analysis:
    """One analysis on its way from the tree to the report."""

    def __init__(
        self, path: str, tree: Tree, facts: runfacts.RunFacts, limit: Optional[int], mode: Optional[str], progress: Progress, interruptible: bool
    ) -> None:
        self.path = path
        self.tree = tree
        self.facts = facts
        self.limit = limit
        self.given_mode = mode
        self.progress = progress
        self.interruptible = interruptible
        self.every_record = False
        self.workers = Workers()
        self.fetch: Optional[Callable[[str], None]] = None
        self.growing = Growing()
        self.remarks: List[Tuple[str, Mapping[str, Any]]] = []
        self.problems: List[FileProblem] = list(tree.problems) + list(facts.problems)
        runs = {folder.place.run for folder in tree.folders.values() if folder.record_count}
        # a time folder without records tells its run by its manifest alone
        manifests = facts.of_runs(runs or {tree.run or max(facts.by_run, default=None)})
        device = place_of(tree.root).device
        # several ranks can share a time folder
        self.manifests = [item for item in manifests if item.device == device] or manifests

    def report(self) -> Report:
        """Do it all."""
        if self.tree.interrupted:
            self._interrupted("remark.interrupted.listing")
        selection = self._select()
        operators, first = self._whole(self._operators(selection))
        verdicts = [self._verdict(opened) for opened in operators]
        made_by = producers(operators, [index for index, word in enumerate(verdicts) if word == "inherited"])
        context = self._context(operators, verdicts, made_by)
        result = [operator_of(context, index) for index in range(len(operators))]
        if first is not None and not self.growing.paths:
            result[first] = replace(result[first], trials=self._trials(operators[first], result[first]))
        for opened in operators:
            self.problems.extend(opened.problems)
        self._growing()
        self.remarks.extend(of_records(selection.remarks, self._relative))
        self.remarks.extend(remarks_of(context))
        self._unfinished()
        host_core = next((opened.host.core for opened in operators if opened.host is not None), None)
        ranked = self.manifests[0] if len(self.manifests) == 1 else None
        return Report(
            path=self.path,
            version=__version__,
            run=self.tree.run,
            mode=self._report_mode(operators, first),
            records=self.tree.record_count,
            rank=ranked.rank if ranked else None,
            world_size=self.manifests[0].world_size if self.manifests else None,
            host=runfacts.host_of(self.manifests, host_core),
            first_index=first,
            operators=tuple(result),
            problems=self._listed_problems(),
            remarks=self._listed_remarks(),
            loss_scale=runfacts.loss_scale_of(self.manifests),
            headroom=headroom_of(
                sorted(runfacts.folders_of(self.tree).values()),
                result,
                host_core is not None or self._is_of_host(),
            ),
            reason=None if first is not None else next((manifest.reason for manifest in self.manifests if manifest.reason), None),
        )

    def _trials(self, opened: Opened, first: Operator) -> Tuple[Trial, ...]:
        """What was tried on the culprit; on a dump of the NPU, that operator alone in float32."""
        made_here = first.verdict in ("computed_here", "internal")
        if opened.host is not None or first.core not in AI_CORES or not made_here:
            return first.trials
        return recomputed(first.op_type or "", opened.candidates)

    # -- entries

    def _select(self) -> Selection:
        single = self.tree.single
        total = self.tree.record_count
        # on a tree of the host collector the culprit is the one that is marked as such, wherever it stands
        some = self._few_are_enough(total)
        step = functools.partial(self.progress.step, "progress.records")
        selection = read_records(self.tree, step, (self.limit or 1) if some else None, self.interruptible)
        if selection.interrupted:
            self._interrupted("remark.interrupted.records", done=selection.read, total=total)
        elif selection.read < total:
            self.remarks.append(("remark.first_records", {"read": selection.read, "total": total}))
        self.growing.note_records(selection.problems)
        self.problems.extend(selection.problems)
        if single is not None and single.name.kind != "record":
            found = [item for item in selection.found if self._is_dump_of(item, single.path)]
            selection.found = found or [Found(single, None)]
        return selection

    def _is_of_host(self) -> bool:
        return any(manifest.collector == "host" for manifest in self.manifests)

    def _few_are_enough(self, total: int) -> bool:
        # on a tree of the host collector the culprit is the one that is marked as such, wherever it stands
        return bool(self.limit) and not self.every_record and total > _FEW_RECORDS and self.tree.single is None and not self._is_of_host()

    def _interrupted(self, code: str, **values: Any) -> None:
        """The user waits no longer: of what is known only the first finding is opened."""
        self.remarks.append((code, values))
        self.limit = 1 if self.limit is None else min(1, self.limit)

    def _is_dump_of(self, found: Found, path: str) -> bool:
        candidates = opening.candidates_of(self.tree, found)
        return any(entry.path == path for entry in candidates[:1]) or (
            any(entry.path == path for entry in candidates) and candidates[0].name.op_name == _name_of(candidates, path)
        )

    def _operators(self, selection: Selection) -> List[Opened]:
        return [Opened(found, opening.candidates_of(self.tree, found)) for found in selection.found]

    def _whole(self, operators: List[Opened]) -> Tuple[List[Opened], Optional[int]]:
        """The operators, read as far as they are to be shown, without those whose files were still growing; and the index of the first finding."""
        for _ in range(_MOST_TURNS):
            try:
                self._look_at_hosts(operators)
            except KeyboardInterrupt:
                if not self.interruptible:
                    raise
                self._interrupted("remark.interrupted.listing")
            first = first_of(operators)
            self._open(operators, first)
            grown = {id(opened) for opened in self.growing.operators()}
            if not grown:
                break
            operators = [opened for opened in operators if id(opened) not in grown]
        return operators, first_of(operators)

    def _look(self, opened: Opened) -> None:
        """Open an operator's dump, once."""
        if opened.looked:
            return
        opening.look(opened, self.fetch)
        if self.fetch is None:
            self.growing.note(opened)

    def _look_at_hosts(self, operators: Sequence[Opened]) -> None:
        """On a tree of the host collector each operator's own file says what it is: open all, without reading tensors."""
        runs: Dict[Optional[str], List[Opened]] = {}
        for opened in operators:
            runs.setdefault(opened.found.entry.place.run, []).append(opened)
        for members in runs.values():
            if not self._is_host(members):
                continue
            held = 0
            for opened in members:
                self._look(opened)
                if opened.dump is not None:
                    held += sum(map(len, (opened.dump.inputs, opened.dump.outputs, opened.dump.others, opened.dump.host or ())))
                    held += len(opened.host.tensors) if opened.host is not None else 0
                    if held > _MOST_HELD:  # opened once more when its turn comes
                        opening.let_go(opened)
                        opened.looked = False
            cores = [opened.host.core for opened in members if opened.host is not None]
            for opened in members:
                if opened.host is None:
                    opened.host = ReplayInfo(core=cores[0] if cores else "CPU")

    def _is_host(self, members: Sequence[Opened]) -> bool:
        manifest = self.facts.of_entry(members[0].found.entry)
        if manifest is not None and manifest.collector is not None:
            return manifest.collector == "host"
        for opened in members[:5]:
            if opened.candidates:
                self._look(opened)
            if opened.dump is not None:
                return opened.host is not None
        return False

    # -- tensors

    def _open(self, operators: Sequence[Opened], first: Optional[int]) -> None:
        """Read the operators that are to be shown."""
        order = _opening_order(len(operators), first)
        chosen = order if self.limit is None else order[: self.limit]
        begun: Deque[Callable[[], None]] = deque()
        sizes = Sizes([operators[index] for index in chosen], self.fetch is not None)
        done = 0
        try:
            for index in chosen:
                opened = operators[index]
                self._look(opened)
                begun.append(opening.count_tensors(opened, self._mode(opened), self.workers))
                while len(begun) > self.workers.ahead or (begun and index == chosen[-1]):
                    self.progress.step("progress.operators", done, len(chosen), sizes.of_first(done), sizes.all)
                    begun.popleft()()
                    done += 1
        except KeyboardInterrupt:
            if not self.interruptible:
                raise
            self._interrupted("remark.interrupted", done=done, total=len(chosen))
            self.limit = 0
        finally:
            self.workers.end()

    def _mode(self, opened: Opened) -> Optional[str]:
        """Overflow mode of one entry: the manifest's, the user's, else as the record's layout tells."""
        manifest = self.facts.of_entry(opened.found.entry)
        if manifest is not None and manifest.mode is not None:
            return manifest.mode
        if opened.host is not None:
            return "inf_nan"
        if self.given_mode is not None:
            return self.given_mode
        return {"old": "saturation", "magic": "inf_nan"}.get(opened.found.layout)

    def _report_mode(self, operators: Sequence[Opened], first: Optional[int]) -> Optional[str]:
        recorded = next((manifest.mode for manifest in self.manifests if manifest.mode), self.given_mode)
        found = self._mode(operators[first or 0]) if operators else recorded
        if self.given_mode is not None and found != self.given_mode:
            self.remarks.append(("remark.mode_known", {"mode": found, "given": self.given_mode}))
        return found

    def _verdict(self, opened: Opened) -> str:
        if opened.host is not None and opened.host.role == "absorbed":
            return "absorbed"
        return verdict(opened.inputs, opened.outputs)

    # -- what else is known

    def _context(self, operators: Sequence[Opened], verdicts: Sequence[str], made_by: Mapping[int, int]) -> Context:
        manifests = [self.facts.of_entry(opened.found.entry) for opened in operators]
        train_steps = [_train_step(opened, manifest) for opened, manifest in zip(operators, manifests)]
        drops = [manifest.drops[-1] for manifest in self.manifests if manifest.drops]
        return Context(
            operators=operators,
            verdicts=verdicts,
            made_by=made_by,
            modes=[self._mode(opened) for opened in operators],
            mode_is_known=[bool(self.given_mode or (manifest is not None and manifest.mode)) for manifest in manifests],
            ranks=[manifest.rank if manifest is not None else None for manifest in manifests],
            train_steps=train_steps,
            steps=in_steps(operators, train_steps),
            before=before_each(operators, verdicts),
            loss_scale=min((after for _, _, after in drops), default=None),
            relative=self._relative,
        )

    def _growing(self) -> None:
        """Say what was still being written, once, instead of what was wrong with it."""
        self.growing.records()
        grown = self.growing.paths
        if grown:
            self.problems = [problem for problem in self.problems if problem.path not in grown]
            self.remarks.append(("remark.growing", {"count": len(grown), "file": self._relative(min(grown))}))

    def _unfinished(self) -> None:
        """Files that were never renamed into place: their step was not finished, and what is in them is not shown."""
        steps: Set[str] = set()
        for path in self.tree.unfinished:
            step = place_of(os.path.dirname(path)).data_index
            steps.add("?" if step is None else str(step))
        for step_text in sorted(steps):
            self.remarks.append(("remark.unfinished", {"step": step_text}))

    def _relative(self, path: str) -> str:
        """As the report names files: relative to the tree, with "/"."""
        root = self.tree.root.rstrip(os.sep) + os.sep
        inside = path[len(root):] if path.startswith(root) else os.path.relpath(path, self.tree.root)
        return inside.replace(os.sep, "/")

    def _listed_problems(self) -> Tuple[Problem, ...]:
        """By file, each once, even where several entries share a file."""
        result: Dict[Tuple[str, str, str], Problem] = {}
        for item in sorted(self.problems, key=lambda item: item.path):
            values = dict(item.values)
            problem = Problem(self._relative(item.path), english(item.code, **values), item.code, values)
            result.setdefault((problem.file, problem.reason, item.code), problem)
        return tuple(result.values())

    def _listed_remarks(self) -> Tuple[Remark, ...]:
        remarks = self.remarks + [(code, fillable(values)) for manifest in self.manifests for code, values in manifest.remarks]
        result: Dict[Tuple[str, str, str], Remark] = {}
        for code, values in remarks:
            remark = Remark(english(code, **values), code, dict(values))
            result.setdefault((remark.text, code, repr(remark.values)), remark)
        return tuple(result.values())


def _name_of(candidates: Sequence[Any], path: str) -> Optional[str]:
    return next((entry.name.op_name for entry in candidates if entry.path == path), None)


def _opening_order(count: int, first: Optional[int]) -> List[int]:
    """Indices in the order in which they are worth opening: from the first finding on, then backwards from it."""
    start = first or 0
    return list(range(start, count)) + list(range(start - 1, -1, -1))


def _train_step(opened: Opened, manifest: Optional[Manifest]) -> Optional[int]:
    if opened.host is not None and opened.host.train_step is not None:
        return opened.host.train_step
    entry = opened.found.entry
    index = entry.place.data_index
    if manifest is None or index is None:
        return index if opened.host is not None else None
    if manifest.folder_steps:  # several graphs: most trees have none
        step = manifest.folder_steps.get(runfacts.in_time_folder(os.path.dirname(entry.path), entry.place.run) or "")
        if step is not None:
            return step
    return manifest.train_steps.get(index, index if opened.host is not None else None)
