"""Where dump files lie: ``{dump_path}/{time}/{device_id}/{model_name}/{model_id}/{data_index}/``,
with levels that can be missing."""
from __future__ import annotations

import datetime
import os
from dataclasses import dataclass, field, replace
from typing import Dict, List, Mapping, Optional, Set

from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.folder import Folder
from npu_overflow.dump.names import TIME_DIGITS, Entry, Place, is_time_folder
from npu_overflow.errors import PathError

__all__ = ["Tree", "place_of"]

#: processes of one job start within this many seconds of each other
_NEIGHBOURS_SECONDS = 60


def _is_number(level: str) -> bool:
    return level.isdigit() and level.isascii() and len(level) <= 20


def place_of(folder: str) -> Place:
    """The levels of an absolute folder path. Without a time folder only the full form of the levels
    below it is believed."""
    levels = [level for level in folder.split(os.sep) if level]
    times = [position for position, level in enumerate(levels) if is_time_folder(level)]
    if not times:
        tail = levels[-4:]
        if len(tail) == 4 and [_is_number(level) for level in tail] == [True, False, True, True]:
            return Place(None, int(tail[0]), tail[1], int(tail[2]), int(tail[3]))
        return Place()
    run, below = levels[times[-1]], levels[times[-1] + 1 :]
    device = int(below.pop(0)) if below and _is_number(below[0]) else None
    # a graph's name is no number, unless three levels are left
    name = below.pop(0) if below and (not _is_number(below[0]) or len(below) > 2) else None
    numbers = [int(level) if _is_number(level) else None for level in below[:2]] + [None, None]
    return Place(run, device, name, numbers[0], numbers[1])


@dataclass(frozen=True)
class Tree:
    """The files under a path, or those of one run.

    Args:
        root: absolute folder that was searched (of a single file: its folder).
        folders: by path, those that hold records, dumps or statistics files.
        problems: files whose name can't be read, special files, links that leave the tree, folders
            that can't be listed.
        runs: names of the time folders that hold records or dumps, sorted as text.
        unfinished: absolute paths of files that were never renamed into place (``.{name}.part``).
        run: newest time folder of a selected run; None before ``select`` or where there is none.
        single: the file that was asked for, where the path was one file. A record: ``records``
            holds it alone. A dump: ``records`` holds all records of its folder.
        interrupted: the search was ended before all folders were listed.
    """

    root: str
    folders: Dict[str, Folder] = field(default_factory=dict)
    problems: List[FileProblem] = field(default_factory=list)
    runs: List[str] = field(default_factory=list)
    unfinished: List[str] = field(default_factory=list)
    run: Optional[str] = None
    single: Optional[Entry] = None
    interrupted: bool = False

    @property
    def record_count(self) -> int:
        """Overflow records."""
        return sum(folder.record_count for folder in self.folders.values())

    @property
    def records(self) -> List[Entry]:
        """Overflow records, in no promised order; a long list on a large tree."""
        return [entry for folder in self.folders.values() for entry in folder.records]

    @property
    def dumps(self) -> List[Entry]:
        """Operators' dumps and statistics files, in no promised order; a long list on a large tree.
        """
        return [entry for folder in self.folders.values() for entry in folder.dumps]

    def select(
        self, run: Optional[str] = None, run_ids: Optional[Mapping[str, str]] = None
    ) -> Tree:
        """The files of one run.

        Args:
            run: None for the newest run, "all", or the name of a time folder.
            run_ids: time folder -> run id, from manifests. Folders that share the id of the chosen
                one belong to its run; without an id those do that started up to 60 s before it and
                whose devices are others.

        Raises:
            PathError: no time folder of that name.
        """
        if run is not None and run != "all" and run not in self.runs:
            raise PathError("path.no_run", run=run, known=", ".join(self.runs) or "-")
        if run == "all" or not self.runs:
            return replace(self, run=self.runs[-1] if self.runs else None)
        newest = self.runs[-1] if run is None else run
        chosen = self._together(newest, run_ids or {})
        return replace(
            self,
            folders={
                path: folder for path, folder in self.folders.items() if folder.place.run in chosen
            },
            problems=[
                problem
                for problem in self.problems
                if place_of(os.path.dirname(problem.path)).run in chosen | {None}
            ],
            unfinished=[
                path for path in self.unfinished if place_of(os.path.dirname(path)).run in chosen
            ],
            runs=sorted(chosen),
            run=max(chosen),
        )

    def _together(self, newest: str, run_ids: Mapping[str, str]) -> Set[str]:
        """The time folders of the run of ``newest``."""
        own = run_ids.get(newest)
        chosen = {newest} | {
            run for run in self.runs if own is not None and run_ids.get(run) == own
        }
        if own is not None:
            return chosen
        devices: Dict[str, Set[Optional[int]]] = {}
        for folder in self.folders.values():
            if folder.place.run is not None:
                devices.setdefault(folder.place.run, set()).add(folder.place.device)
        taken = set(devices.get(newest, ()))
        start = _seconds(newest)
        for run in reversed(self.runs):
            began = _seconds(run)
            near = (
                start is not None
                and began is not None
                and 0 <= start - began <= _NEIGHBOURS_SECONDS
            )
            if run < newest and near and run not in run_ids and not taken & devices[run]:
                chosen.add(run)
                taken |= devices[run]
        return chosen

    def dumps_of(
        self,
        entry: Entry,
        task_id: int,
        stream_id: int,
        context_id: Optional[int] = None,
        thread_id: Optional[int] = None,
    ) -> List[Entry]:
        """Dumps that can be the operator's of a record, best first (at most 16); ids are those
        INSIDE the record.

        Same folder and ids; context and thread where both sides have them (0 in a record can mean
        none); where nothing matches, the low 16 bits of the task id; among several the nearest in
        time; a dump before statistics of the same time.
        """
        folder = self.folders.get(os.path.dirname(entry.path))
        if folder is None:
            return []
        found = folder.index.nearest(
            entry.name.timestamp, task_id, stream_id, context_id, thread_id
        )
        if not found and task_id > 0xFFFF:
            found = folder.index.nearest(
                entry.name.timestamp, task_id & 0xFFFF, stream_id, context_id, thread_id
            )
        return found


def _seconds(run: str) -> Optional[float]:
    """When a time folder was made, or None where its name is no date."""
    try:
        month, day, hour, minute, second = (
            int(run[at : at + 2]) for at in range(4, TIME_DIGITS, 2)
        )
        began = datetime.datetime(int(run[:4]), month, day, hour, minute, second)
    except ValueError:
        return None
    return (began - datetime.datetime(1970, 1, 1)).total_seconds()
