"""Files that are still being written while they are analyzed: what is half there is left out and
said."""
from __future__ import annotations

import os
import time
from typing import Callable, List, Optional, Sequence, Set, Tuple

from npu_overflow.analysis.entries import Opened
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

Stamp = Optional[Tuple[int, int]]


class Growing:
    """Remembers what was not whole when it was read, and tells which of it was growing."""

    def __init__(self) -> None:
        self.paths: Set[str] = set()
        self._records: List[Tuple[str, Stamp]] = []
        self._operators: List[Tuple[Opened, str, Stamp]] = []
        self._paused = False

    def note_records(self, problems: Sequence[FileProblem]) -> None:
        """Records that could not be read."""
        self._records += [(problem.path, _stamp(problem.path)) for problem in problems[:_MOST]]

    def note(self, opened: Opened) -> None:
        """An operator whose dump is damaged, cut or missing."""
        if opened.problems and len(self._operators) < _MOST:
            path = opened.dump_file or opened.found.entry.path
            self._operators.append((opened, path, _stamp(path)))

    def records(self) -> None:
        """Add the records that grew since to ``paths``; asked once."""
        self.paths |= {
            path for path, before in self._records if self._grew(path, before, _is_record)
        }

    def operators(self) -> List[Opened]:
        """Operators whose dump grew, or came, since; asked once each."""
        changed: List[Opened] = []
        for opened, path, before in self._operators:
            if self._grew(path, before, _is_dump) if opened.candidates else _came(opened):
                self.paths.add(path)
                changed.append(opened)
        self._operators = []
        return changed

    def _grew(self, path: str, before: Stamp, is_whole: Callable[[str], bool]) -> bool:
        if before is None:
            return False
        if _stamp(path) == before and not self._paused and not is_whole(path) and _lately(path):
            self._paused = True  # once in an analysis
            time.sleep(_PAUSE)
        return _stamp(path) != before or is_whole(path)


def _came(opened: Opened) -> bool:
    """Whether a dump that was not listed lies beside its record by now."""
    entry, part = opened.found.entry, opened.found.part
    folder = os.path.dirname(entry.path)
    if part is None or not _lately(folder):
        return False
    ids = (part.task_id, part.stream_id, part.context_id, part.thread_id)
    try:
        return bool(find(folder).dumps_of(entry, *ids))
    except NpuOverflowError:
        return False


def _stamp(path: str) -> Stamp:
    try:
        state = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return state.st_size, state.st_mtime_ns


def _lately(path: str) -> bool:
    stamp = _stamp(path)
    return stamp is not None and abs(time.time() - stamp[1] / 1e9) < _LATELY


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
