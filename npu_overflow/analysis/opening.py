"""An entry's operator: which file is its dump, what it is called, what stands in its tensors."""
from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Callable, List, Mapping, Optional, Sequence, Tuple

from npu_overflow.analysis.selection import Found
from npu_overflow.analysis.statistics import Facts, unread, with_statistics
from npu_overflow.analysis.workers import Workers
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.layout import Tree
from npu_overflow.dump.names import Entry
from npu_overflow.dump.reader import OperatorDump, open_operator
from npu_overflow.dump.replay_info import ReplayInfo, TensorStatistics, read_replay_info
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError

__all__ = ["Opened", "Sizes", "candidates_of", "count_tensors", "let_go", "look"]


@dataclass
class Opened:
    """One entry and what is known of its operator so far.

    Args:
        found: the entry.
        candidates: files that can be its dump, best first.
        looked: its dump was opened, or that was tried.
        dump: the open dump, between ``look`` and ``count_tensors``.
        full_name: the operator's name inside the dump.
        statistics: its dump is a statistics file, which holds no elements.
        host: what the host collector wrote, or None.
        inputs, outputs: facts of the tensors; None before they are counted.
        problems: what is wrong with its files.
    """

    found: Found
    candidates: Sequence[Entry] = ()
    looked: bool = False
    dump: Optional[OperatorDump] = None
    full_name: Optional[str] = None
    statistics: bool = False
    host: Optional[ReplayInfo] = None
    inputs: Optional[Tuple[Facts, ...]] = None
    outputs: Optional[Tuple[Facts, ...]] = None
    problems: List[FileProblem] = field(default_factory=list)

    @property
    def op_type(self) -> Optional[str]:
        """From the file name (only there the type stands), or from the host collector."""
        if self.host is not None and self.host.op_type:
            return self.host.op_type
        return self.candidates[0].name.op_type or None if self.candidates else None

    @property
    def op_name(self) -> Optional[str]:
        """The full name where the dump was opened, else as the file name has it."""
        if self.host is not None and self.host.op_name:
            return self.host.op_name
        if self.full_name:
            return self.full_name
        return self.candidates[0].name.op_name or None if self.candidates else None

    @property
    def key(self) -> Optional[Tuple[str, str]]:
        """The operator across steps, from names alone, so that it doesn't matter which were opened; None where nothing is known."""
        name = self.candidates[0].name if self.candidates else None
        return (name.op_type, name.op_name) if name is not None else None

    @property
    def dump_file(self) -> Optional[str]:
        """Absolute path of the dump, damaged ones included."""
        return self.candidates[0].path if self.candidates else None

    @property
    def core(self) -> str:
        """Who reports it: a core of the NPU, or "CPU" or "GPU"."""
        if self.host is not None:
            return self.host.core
        return self.found.part.core if self.found.part is not None else ""


def candidates_of(tree: Tree, found: Found) -> Sequence[Entry]:
    """Files that can be the dump of an entry, best first."""
    part = found.part
    if part is None:
        return [found.entry]
    return tree.dumps_of(found.entry, part.task_id, part.stream_id, part.context_id, part.thread_id)


class Sizes:
    """Bytes of the dumps that are to be read, asked for only when somebody wants to know how long it takes.

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
                path = opened.dump_file
                try:
                    size = 0 if path is None else os.stat(path, follow_symlinks=False).st_size
                except OSError:
                    size = 0
                self._sums.append(self._sums[-1] + size)
        return self._sums


def look(opened: Opened, fetch: Optional[Callable[[str], None]] = None) -> None:
    """Open the operator's dump without reading its tensors. A missing or damaged one becomes a problem.

    Args:
        fetch: brings a file before it is opened.
    """
    part = opened.found.part
    opened.looked = True
    if not opened.candidates:
        values = {} if part is None else {"task": part.task_id, "stream": part.stream_id}
        opened.problems.append(FileProblem(opened.found.entry.path, "problem.no_dump", values))
        return
    path = opened.candidates[0].path
    try:
        if fetch is not None:
            _bring(opened.candidates, fetch)
        opened.dump = open_operator(opened.candidates)
    except DumpFormatError as error:
        opened.problems.append(FileProblem.of(path, error))
        return
    opened.full_name = opened.dump.op_name or None
    opened.statistics = any(tensor.statistics is not None for tensor in opened.dump.inputs + opened.dump.outputs)
    if opened.dump.problem is not None:
        opened.problems.append(opened.dump.problem)
    if opened.dump.host is not None:
        opened.host = read_replay_info(opened.dump.host)


def _bring(candidates: Sequence[Entry], fetch: Callable[[str], None]) -> None:
    """The file that will be opened, and those that can hold the other half of a collective."""
    fetch(candidates[0].path)
    for entry in candidates[1:]:
        if (entry.name.kind, entry.name.op_type, entry.name.op_name) == (candidates[0].name.kind, candidates[0].name.op_type, candidates[0].name.op_name):
            with contextlib.suppress(DumpFormatError):
                fetch(entry.path)


def count_tensors(opened: Opened, mode: Optional[str], workers: Workers) -> Callable[[], None]:
    """Begin to read the tensors of a dump that was opened by ``look``; what is returned waits for them and lets go of the dump."""
    dump = opened.dump
    if dump is None:
        return lambda: None
    given = opened.host.tensors if opened.host is not None else {}
    begun = [[_begin(tensor, mode, given, workers) for tensor in side] for side in (dump.inputs, dump.outputs)]

    def finish() -> None:
        opened.inputs, opened.outputs = (tuple(_facts(tensor, count, opened) for tensor, count in side) for side in begun)
        let_go(opened)

    return finish


def let_go(opened: Opened) -> None:
    """Keep nothing in memory that grows with the header of the dump."""
    opened.dump = None
    if opened.host is not None and opened.host.tensors:
        opened.host = replace(opened.host, tensors={})


def _begin(
    tensor: Tensor, mode: Optional[str], given: Mapping[str, TensorStatistics], workers: Workers
) -> Tuple[Tensor, Callable[[], Facts]]:
    known = given.get("%s.%d" % (tensor.side, tensor.index))
    if known is not None:
        return tensor, partial(with_statistics, tensor, mode, known)
    return tensor, workers.count(tensor, mode)


def _facts(tensor: Tensor, count: Callable[[], Facts], opened: Opened) -> Facts:
    try:
        return count()
    except DumpFormatError as error:
        path = opened.dump.path if opened.dump is not None else opened.found.entry.path
        opened.problems.append(FileProblem.of(path, error))
        return unread(tensor, "cut")
