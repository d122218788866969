"""Opening the operators' dumps: the host collector's marks, which of them first, their tensors."""
from __future__ import annotations

import contextlib
import os
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Callable, Deque, Dict, List, Mapping, Optional, Sequence

from npu_overflow.analysis.entries import Opened, first_of
from npu_overflow.analysis.state import State
from npu_overflow.analysis.statistics import Facts, unread, with_statistics
from npu_overflow.analysis.workers import Workers
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.names import Entry
from npu_overflow.dump.reader import open_operator
from npu_overflow.dump.replay_info import ReplayInfo, TensorStatistics, read_replay_info
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError

__all__ = ["Sizes", "count_tensors", "look", "open_operators"]

#: times that operators are left out because they grow, and others are opened in their place
_MOST_TURNS = 4
#: tensors of open dumps, and what the host collector wrote of them, that are held in memory: about
#: 1 kB each
_MOST_HELD = 50_000


def open_operators(state: State) -> None:
    """Read the operators as far as they are to be shown, leave out those whose files were still
    growing, and say which is the first finding."""
    for _ in range(_MOST_TURNS):
        try:
            _look_at_hosts(state)
        except KeyboardInterrupt:
            state.interrupted("remark.interrupted.listing")
        state.first = first_of(state.operators)
        _count(state)
        grown = set(state.growing.operators())
        if not grown:
            break
        state.operators = [opened for opened in state.operators if opened not in grown]
        state.first = first_of(state.operators)


# -- the host collector's marks


def _look_at_hosts(state: State) -> None:
    """On a tree of the host collector each operator's own file says what it is: open all, without
    reading tensors."""
    runs: Dict[Optional[str], List[Opened]] = {}
    for opened in state.operators:
        runs.setdefault(opened.found.entry.place.run, []).append(opened)
    for members in runs.values():
        if not _is_host(state, members):
            continue
        held = 0
        for opened in members:
            _look_once(state, opened)
            held += _held_by(opened)
            if opened.dump is not None and held > _MOST_HELD:
                _let_go(opened)
                opened.looked = False  # opened once more when its turn comes
        core = next((opened.host.core for opened in members if opened.host is not None), "CPU")
        for opened in members:
            opened.host = opened.host or ReplayInfo(core=core)


def _is_host(state: State, members: Sequence[Opened]) -> bool:
    manifest = state.facts.of_place(members[0].found.entry.place)
    if manifest is not None and manifest.collector is not None:
        return manifest.collector == "host"
    for opened in members[:5]:
        if opened.candidates:
            _look_once(state, opened)
        if opened.dump is not None:
            return opened.host is not None
    return False


def _held_by(opened: Opened) -> int:
    """What stays in memory of an open dump."""
    dump, host = opened.dump, opened.host
    if dump is None:
        return 0
    parts = (dump.inputs, dump.outputs, dump.others, dump.host or (), host.tensors if host else ())
    return sum(map(len, parts))


def _look_once(state: State, opened: Opened) -> None:
    if not opened.looked:
        look(opened, state.fetch)
        if state.fetch is None:
            state.growing.note(opened)


def look(opened: Opened, fetch: Optional[Callable[[str], None]] = None) -> None:
    """Open the operator's dump without reading its tensors. A missing or damaged one becomes a
    problem.

    Args:
        fetch: brings a file before it is opened.
    """
    part = opened.found.part
    opened.looked = True
    if not opened.candidates:
        values = {} if part is None else {"task": part.task_id, "stream": part.stream_id}
        path = opened.found.entry.path
        opened.problems.append(FileProblem(path, "problem.no_dump", values))
        return
    try:
        if fetch is not None:
            _fetch(opened.candidates, fetch)
        opened.dump = dump = open_operator(opened.candidates)
    except DumpFormatError as error:
        opened.problems.append(FileProblem.of(opened.candidates[0].path, error))
        return
    opened.full_name = dump.op_name or None
    opened.statistics = any(t.statistics is not None for t in dump.inputs + dump.outputs)
    if dump.problem is not None:
        opened.problems.append(dump.problem)
    if dump.host is not None:
        opened.host = read_replay_info(dump.host)


def _fetch(candidates: Sequence[Entry], fetch: Callable[[str], None]) -> None:
    """The file that will be opened, and those that can hold the other half of a collective."""
    fetch(candidates[0].path)
    first = candidates[0].name
    for path, name, _ in candidates[1:]:
        if (name.kind, name.op_type, name.op_name) == (first.kind, first.op_type, first.op_name):
            with contextlib.suppress(DumpFormatError):
                fetch(path)


# -- tensors


def _count(state: State) -> None:
    """Count the tensors of the operators that are to be shown: the first finding and those after it
    come first, then backwards from it."""
    first, count = state.first or 0, len(state.operators)
    order = [*range(first, count), *reversed(range(first))]
    chosen = [state.operators[index] for index in order[: state.limit]]
    begun: Deque[Callable[[], None]] = deque()
    sizes = Sizes(chosen, unknown=state.fetch is not None)
    done = 0

    def finish(ahead: int) -> None:
        nonlocal done
        while len(begun) > ahead:
            read, every = sizes.of_first(done), sizes.all
            state.progress.step("progress.operators", done, len(chosen), read, every)
            begun.popleft()()
            done += 1

    try:
        for opened in chosen:
            _look_once(state, opened)
            begun.append(count_tensors(opened, state.mode_of(opened), state.workers))
            finish(state.workers.ahead)
        finish(0)
    except KeyboardInterrupt:
        state.interrupted("remark.interrupted", done=done, total=len(chosen))
        state.limit = 0
    finally:
        state.workers.end()


def count_tensors(opened: Opened, mode: Optional[str], workers: Workers) -> Callable[[], None]:
    """Begin to read the tensors of a dump that was opened by ``look``; what is returned waits for
    them and lets go of the dump."""
    dump = opened.dump
    if dump is None:
        return lambda: None
    given = opened.host.tensors if opened.host is not None else {}
    begun = [
        [(tensor, _begin(tensor, mode, given, workers)) for tensor in side]
        for side in (dump.inputs, dump.outputs)
    ]

    def finish() -> None:
        opened.inputs, opened.outputs = (
            tuple(_facts(tensor, count, opened) for tensor, count in side) for side in begun
        )
        _let_go(opened)

    return finish


def _begin(
    tensor: Tensor, mode: Optional[str], given: Mapping[str, TensorStatistics], workers: Workers
) -> Callable[[], Facts]:
    known = given.get("%s.%d" % (tensor.side, tensor.index))
    if known is not None:
        return partial(with_statistics, tensor, mode, known)
    return workers.count(tensor, mode)


def _facts(tensor: Tensor, count: Callable[[], Facts], opened: Opened) -> Facts:
    try:
        return count()
    except DumpFormatError as error:
        path = opened.dump.path if opened.dump is not None else opened.found.entry.path
        opened.problems.append(FileProblem.of(path, error))
        return unread(tensor, "cut")


def _let_go(opened: Opened) -> None:
    """Keep nothing in memory that grows with the header of the dump."""
    opened.dump = None
    if opened.host is not None and opened.host.tensors:
        opened.host = replace(opened.host, tensors={})


class Sizes:
    """Bytes of the dumps that are to be read, asked for only when somebody wants to know how long
    it takes.

    Args:
        operators: in the order in which they are read.
        unknown: the files have yet to be brought, so their sizes say nothing.
    """

    def __init__(self, operators: Sequence[Opened], unknown: bool = False) -> None:
        self._operators = operators
        self._sums: Optional[List[int]] = [0] * (len(operators) + 1) if unknown else None

    def all(self) -> int:
        """Bytes of all of them; 0 where that is not known."""
        return self._counted()[-1]

    def of_first(self, count: int) -> Callable[[], int]:
        """Bytes of the first ``count``, when that is asked for."""
        return lambda: self._counted()[count]

    def _counted(self) -> List[int]:
        if self._sums is None:
            self._sums = [0]
            for opened in self._operators:
                path, size = opened.dump_file, 0
                with contextlib.suppress(OSError):
                    size = 0 if path is None else os.stat(path, follow_symlinks=False).st_size
                self._sums.append(self._sums[-1] + size)
        return self._sums
