"""Files that are still being written while they are analyzed: what is half there is left out and said."""
from __future__ import annotations

import os
import time
from typing import Callable, List, Optional, Sequence, Set, Tuple

from npu_overflow.analysis.opening import Opened
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.reader import open_dump
from npu_overflow.dump.record import read_record
from npu_overflow.dump.scan import find, name_of
from npu_overflow.errors import NpuOverflowError

__all__ = ["Growing"]

#: a file that was written to so lately can be growing; a slow writer is given this long to show it
_LATELY = 3.0
_PAUSE = 0.25
#: damaged files that are looked at again
_MOST = 500

State = Optional[Tuple[int, int]]


class Growing:
    """Remembers what was not whole when it was read, and tells at the end which of it was growing."""

    def __init__(self) -> None:
        self.paths: Set[str] = set()
        self._records: List[Tuple[str, State]] = []
        self._operators: List[Tuple[Opened, str, State]] = []
        self._paused = False

    def note_records(self, problems: Sequence[FileProblem]) -> None:
        """Records that could not be read."""
        self._records += [(problem.path, _state(problem.path)) for problem in problems[:_MOST]]

    def note(self, opened: Opened) -> None:
        """An operator whose dump is damaged, cut or missing."""
        if opened.problems and len(self._operators) < _MOST:
            path = opened.dump_file or opened.found.entry.path
            self._operators.append((opened, path, _state(path)))

    def records(self) -> Set[str]:
        """Paths of records that grew since; asked once."""
        changed = {path for path, before in self._records if self._grew(path, before, _is_record)}
        self.paths |= changed
        self._records = []
        return changed

    def operators(self) -> List[Opened]:
        """Operators whose dump grew, or came, since; asked once each."""
        changed: List[Opened] = []
        for opened, path, before in self._operators:
            if (opened.candidates and self._grew(path, before, _is_dump)) or (not opened.candidates and self._came(opened)):
                self.paths.add(path)
                changed.append(opened)
        self._operators = []
        return changed

    def _grew(self, path: str, before: State, is_whole: Callable[[str], bool]) -> bool:
        if before is None:
            return False
        if _state(path) == before and not is_whole(path) and _lately(path) and not self._paused:
            self._pause()
        return _state(path) != before or is_whole(path)

    def _came(self, opened: Opened) -> bool:
        """Whether a dump that was not listed lies beside its record by now."""
        part, folder = opened.found.part, os.path.dirname(opened.found.entry.path)
        if part is None or not _lately(folder):
            return False
        try:
            return bool(find(folder).dumps_of(opened.found.entry, part.task_id, part.stream_id, part.context_id, part.thread_id))
        except NpuOverflowError:
            return False

    def _pause(self) -> None:
        """Once in an analysis, and only where something was written to a moment ago."""
        self._paused = True
        time.sleep(_PAUSE)


def _state(path: str) -> State:
    try:
        state = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def _lately(path: str) -> bool:
    try:
        return abs(time.time() - os.stat(path, follow_symlinks=False).st_mtime) < _LATELY
    except OSError:
        return False


def _is_record(path: str) -> bool:
    try:
        return not read_record(path).problems
    except NpuOverflowError:
        return False


def _is_dump(path: str) -> bool:
    try:
        return open_dump(path, name_of(path)).problem is None
    except NpuOverflowError:
        return False

