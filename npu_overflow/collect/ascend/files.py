"""The dump files of this process on disk: found by their steps, measured, and deleted without ever
touching anything else.

A device writes ``{dump_path}/{time}/{device_id}/{model_name}/{model_id}/{data_index}/``. A *unit*
is what belongs together: one data_index folder, or a single file where the levels are missing
(operators run one by one).
"""
from __future__ import annotations

import contextlib
import os
import stat
import time
from dataclasses import dataclass, field
from typing import Dict, Iterator, List, Optional, Tuple

from npu_overflow.dump.layout import place_of
from npu_overflow.dump.names import is_time_folder, parse_name
from npu_overflow.dump.reader import open_dump
from npu_overflow.dump.record import read_record
from npu_overflow.errors import DumpFormatError

__all__ = ["OwnFiles", "Unit", "process_started"]

_MAPPING = "mapping.csv"
_MOST_DEPTH = 8
_DIRECTORY = (
    os.O_RDONLY
    | getattr(os, "O_DIRECTORY", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


@dataclass
class Unit:
    """Dump files of one step of one graph.

    Args:
        parts: names of the folders below the dump path, and of the file where the unit is a single
            one.
        single: whether it is a single file.
        stamp: earliest time among its files, microseconds since the epoch.
        names: file name -> bytes.
        step: (first, last) training step of the look it belongs to, None until a look has covered
            it.
        kept: never deleted again.
        settled: it did not grow between two looks.
        earlier: of a training before this one in the same process.
    """

    parts: Tuple[str, ...]
    single: bool = False
    stamp: int = 0
    names: Dict[str, int] = field(default_factory=dict)
    step: Optional[Tuple[int, int]] = None
    kept: bool = False
    settled: bool = False
    earlier: bool = False

    @property
    def bytes(self) -> int:
        return sum(self.names.values())

    @property
    def records(self) -> int:
        """Overflow records in it."""
        return sum(1 for name in self.names if _kind(name) == "record")

    @property
    def folder(self) -> str:
        """Its folder, relative to the time folder."""
        return "/".join(self.parts[1:-1] if self.single else self.parts[1:])

    @property
    def data_index(self) -> Optional[int]:
        return place_of(os.sep.join(("", *self.parts))).data_index if not self.single else None


class OwnFiles:
    """Dump files that one device of one process writes below ``dump_path``.

    Args:
        dump_path: absolute path as configured; links in it are the user's own and are followed,
            links below it never.
        device: its id, the name of a folder.
    """

    def __init__(self, dump_path: str, device: int) -> None:
        self.dump_path = dump_path
        self.device = device
        self.units: Dict[Tuple[str, ...], Unit] = {}
        self._since = time.strftime("%Y%m%d%H%M%S", time.localtime(process_started() - 2))
        self._foreign = set(self._time_folders())
        self._run: Optional[str] = None
        self.certain = True

    @property
    def run(self) -> Optional[str]:
        """Name of the time folder of this process, once the device has made it.

        A folder is named by the time when its process started. One that bears an earlier time is
        another's; where the clock of the names can't be compared (another time zone), only one that
        was not there at first is ours.
        """
        if self._run is None:
            mine = [name for name in self._time_folders() if self._is_mine(name)]
            new = [name for name in mine if name not in self._foreign]
            late = [name for name in mine if name[:14] >= self._since]
            found = [name for name in new if name in late] or new or late
            self._run = min(found) if found else None
            # the same device of another machine can write to a shared path: then nothing is deleted
            self.certain = len(found) < 2
        return self._run

    def scan(self) -> List[Unit]:
        """Look for files; the units that were not known before. Listing stops at units that are
        known: ``refresh`` looks into those."""
        if self.run is None:
            return []
        found = [unit for unit in self._walk((self.run, str(self.device))) if unit.stamp]
        for unit in found:
            self.units[unit.parts] = unit
        return found

    def refresh(self, unit: Unit) -> None:
        """Count the files of a unit anew: they grow while training goes on."""
        before = unit.names
        folder = unit.parts[:-1] if unit.single else unit.parts
        try:
            with self._opened(folder) as handle:
                names = [unit.parts[-1]] if unit.single else os.listdir(handle)
                unit.names = dict(self._sized(handle, names))
        except OSError:
            unit.names = {}
        unit.settled = bool(before) and before == unit.names

    def is_whole(self, unit: Unit) -> bool:
        """Whether every file of a unit is complete, and a record has its operator's dump beside it.
        """
        self.refresh(unit)
        kinds = [_kind(name) for name in unit.names]
        if not unit.single and "record" in kinds and "dump" not in kinds:
            return False
        folder = os.path.join(self.dump_path, *(unit.parts[:-1] if unit.single else unit.parts))
        return all(_whole(os.path.join(folder, name)) for name in unit.names)

    def delete(self, unit: Unit) -> None:
        """Delete the dump files of a unit, and its folder where nothing else is in it; nothing
        where the run is not certain to be ours.

        Every folder on the way is opened relative to the one above and never through a link, so
        that only what lies below the dump path can be reached; only regular files with the names of
        dumps go.
        """
        if not self.certain:
            unit.kept = True
            return
        self.units.pop(unit.parts, None)
        folder = unit.parts[:-1] if unit.single else unit.parts
        with contextlib.suppress(OSError):
            with self._opened(folder) as handle:
                names = [unit.parts[-1]] if unit.single else os.listdir(handle)
                for name in _deletable(handle, names):
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=handle)
            if not unit.single:
                with self._opened(folder[:-1]) as above:
                    os.rmdir(folder[-1], dir_fd=above)

    def _time_folders(self) -> List[str]:
        try:
            with os.scandir(self.dump_path) as entries:
                return [
                    entry.name
                    for entry in entries
                    if is_time_folder(entry.name) and entry.is_dir(follow_symlinks=False)
                ]
        except OSError:
            return []

    def _is_mine(self, name: str) -> bool:
        try:
            return stat.S_ISDIR(
                os.lstat(os.path.join(self.dump_path, name, str(self.device))).st_mode
            )
        except OSError:
            return False

    def _walk(self, parts: Tuple[str, ...]) -> Iterator[Unit]:
        """Units below a folder that are not known yet."""
        waiting = [parts]
        while waiting:
            folder = waiting.pop()
            step_level = place_of(os.sep.join(("", *folder))).data_index is not None
            if step_level:
                if folder not in self.units:
                    unit = Unit(folder)
                    self.refresh(unit)
                    unit.stamp = self._stamp(unit)
                    yield unit
                continue
            try:
                with os.scandir(os.path.join(self.dump_path, *folder)) as entries:
                    listed = [
                        (entry.name, entry.is_dir(follow_symlinks=False))
                        for entry in entries
                        if not entry.name.startswith(".")
                    ]
            except OSError:
                continue
            for name, is_folder in listed:
                if is_folder and len(folder) < _MOST_DEPTH:
                    waiting.append((*folder, name))
                elif (
                    not is_folder and (*folder, name) not in self.units and _kind(name) is not None
                ):
                    unit = Unit((*folder, name), single=True)
                    self.refresh(unit)
                    unit.stamp = self._stamp(unit)
                    yield unit

    def _stamp(self, unit: Unit) -> int:
        """Earliest time of the unit's files by name; 0 while there is none."""
        stamps = [name.timestamp for name in map(parse_name, unit.names) if name is not None]
        return min(stamps) if stamps else 0

    @contextlib.contextmanager
    def _opened(self, folder: Tuple[str, ...]) -> Iterator[int]:
        """A handle of a folder below the dump path, reached without a link."""
        handle = os.open(self.dump_path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            for part in folder:
                if part in ("", ".", "..") or "/" in part:
                    raise OSError("not a name")
                below = os.open(part, _DIRECTORY, dir_fd=handle)
                os.close(handle)
                handle = below
            yield handle
        finally:
            os.close(handle)

    def _sized(self, handle: int, names: List[str]) -> Iterator[Tuple[str, int]]:
        for name in names:
            if _kind(name) is None and not name.isdigit():
                continue
            with contextlib.suppress(OSError):
                found = os.stat(name, dir_fd=handle, follow_symlinks=False)
                if stat.S_ISREG(found.st_mode):
                    yield name, found.st_size


def process_started() -> float:
    """When this process started, seconds since the epoch; where the system does not tell, when this
    is asked first."""
    try:
        with open("/proc/self/stat", encoding="ascii", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="ascii", errors="replace") as file:
            booted = next(int(line.split()[1]) for line in file if line.startswith("btime"))
        return booted + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, StopIteration, AttributeError):
        return _FIRST_SEEN


_FIRST_SEEN = time.time()


def _kind(name: str) -> Optional[str]:
    parsed = parse_name(name)
    return None if parsed is None else parsed.kind


def _deletable(handle: int, names: List[str]) -> List[str]:
    """Regular files that a device writes: dumps, records, statistics; hashed names only beside the
    mapping that explains them."""
    mapped = _MAPPING in names
    chosen = []
    for name in names:
        by_name = _kind(name) is not None or (
            mapped and (name == _MAPPING or (name.isdigit() and name.isascii() and len(name) <= 20))
        )
        with contextlib.suppress(OSError):
            if by_name and stat.S_ISREG(
                os.stat(name, dir_fd=handle, follow_symlinks=False).st_mode
            ):
                chosen.append(name)
    return chosen


def _whole(path: str) -> bool:
    try:
        if _kind(os.path.basename(path)) == "record":
            read_record(path)
            return True
        return open_dump(path).problem is None
    except (DumpFormatError, OSError):
        return False
