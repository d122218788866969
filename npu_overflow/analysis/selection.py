"""Which parts of which records become entries of the report, and in which order."""
from __future__ import annotations

import heapq
import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.folder import Folder
from npu_overflow.dump.layout import Tree
from npu_overflow.dump.names import Entry, Place
from npu_overflow.dump.record import Part, read_record
from npu_overflow.errors import DumpFormatError

__all__ = ["AI_CORES", "Found", "Selection", "close_clocks", "in_order", "read_records"]

AI_CORES = ("AI Core", "AIC", "AIV")

#: first entries of two devices closer than this (microseconds) could have happened the other way round
CLOSE = 10_000


@dataclass(frozen=True)
class Found:
    """One part of a record that reports an overflow.

    Args:
        entry: the record file; of a dump without a record, the dump file.
        part: what the record says; None for a dump without a record.
        layout: "old", "magic", or "" without a record.
    """

    entry: Entry
    part: Optional[Part]
    layout: str = ""

    @property
    def graph(self) -> Tuple[Any, ...]:
        """What a data_index compares within: run, device, model name and model id."""
        place = self.entry.place
        return (place.run, place.device, place.model_name, place.model_id)

    @property
    def device(self) -> Tuple[Any, ...]:
        """Run and device: what has one clock."""
        return (self.entry.place.run, self.entry.place.device)


@dataclass
class Selection:
    """What the records of a tree say; ``remarks`` are (path, code, values).

    Args:
        read: records that were read: all, or those up to the entries that were asked for.
        interrupted: reading was ended before.
    """

    found: List[Found] = field(default_factory=list)
    problems: List[FileProblem] = field(default_factory=list)
    remarks: List[Tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    read: int = 0
    interrupted: bool = False


def read_records(
    tree: Tree, step: Callable[[int, int], None] = lambda done, total: None, enough: Optional[int] = None, interruptible: bool = False
) -> Selection:
    """Read the records of ``tree``; entries come in order. A bad record is a problem and nothing else.

    Args:
        step: called with (records read, records in all).
        enough: entries from the first one of an AI Core on, after which the rest is left unread; None reads all.
        interruptible: an interrupt (Ctrl-C) ends it with what was read.
    """
    result = Selection()
    try:
        _read(result, tree, step, enough)
    except KeyboardInterrupt:
        if not interruptible:
            raise
        result.interrupted = True
    return result


def _read(result: Selection, tree: Tree, step: Callable[[int, int], None], enough: Optional[int]) -> None:
    total = tree.record_count
    entries = None if enough is None else _lazily_in_order(tree)
    if entries is None:
        ordered, result.problems = in_order(tree.records)
        entries = iter(ordered)
    for entry in entries:
        step(result.read, total)
        _take(result, entry)
        if enough is not None and _from_the_first(result.found) >= enough:
            break


def _take(result: Selection, entry: Entry) -> None:
    result.read += 1
    try:
        record = read_record(entry.path)
    except DumpFormatError as error:
        result.problems.append(FileProblem.of(entry.path, error))
        return
    result.problems.extend(FileProblem(entry.path, code, values) for code, values in record.problems)
    result.remarks.extend((entry.path, code, values) for code, values in record.remarks)
    result.found.extend(Found(entry, part, record.layout) for part in record.parts)


def _from_the_first(found: List[Found]) -> int:
    """Entries from the first of an AI Core on; 0 where there is none."""
    for index, item in enumerate(found):
        if item.part is not None and item.part.core in AI_CORES:
            return len(found) - index
    return 0


def _lazily_in_order(tree: Tree) -> Optional[Iterator[Entry]]:
    """The records as ``in_order`` has them, each parsed when it is its turn; None where clocks were set, which takes all of them."""
    streams = []
    graphs: Dict[Tuple[Any, ...], List[Tuple[int, int, int]]] = {}
    for folder in tree.folders.values():
        times = folder.by_time()
        place = folder.place
        if not times:
            continue
        if place.data_index is not None:
            graphs.setdefault(place[:4], []).append((place.data_index, times[0][0], times[-1][0]))
        streams.append(_stream(times, folder))
    for steps in graphs.values():
        steps.sort()
        if any(last > first for (_, _, last), (_, first, _) in zip(steps, steps[1:])):
            return None
    return (folder.record(path) for _, _, path, folder in heapq.merge(*streams))


def _stream(times: List[Tuple[int, str]], folder: Folder) -> Iterator[Tuple[int, Tuple[Any, ...], str, Folder]]:
    order = _order_of(folder.place)
    return ((time, order, path, folder) for time, path in times)


def in_order(entries: Sequence[Entry]) -> Tuple[List[Entry], List[FileProblem]]:
    """Records by time; data_index breaks ties and wins where the two disagree within one graph of one device (the clock was set).

    There the records of the graph are put in order of data_index within the places that they hold together.

    Returns:
        the records, and one problem for each graph whose clock was set.
    """
    ordered = sorted(entries, key=lambda entry: (entry.name.timestamp, _order_of(entry.place), entry.path))
    graphs: Dict[Tuple[Any, ...], List[int]] = {}
    for position, entry in enumerate(ordered):
        if entry.place.data_index is not None:
            graphs.setdefault(entry.place[:4], []).append(position)
    problems = []
    for positions in graphs.values():
        members = [ordered[position] for position in positions]
        by_step = sorted(members, key=_data_index)
        if by_step == members:
            continue
        for position, entry in zip(positions, by_step):
            ordered[position] = entry
        problems.append(_clock_set(members))
    return ordered, problems


def _order_of(place: Place) -> Tuple[Any, ...]:
    """What breaks ties of time."""
    return (place.data_index is None, place.data_index or 0, place.run or "", -1 if place.device is None else place.device)


def _data_index(entry: Entry) -> int:
    return entry.place.data_index or 0


def _clock_set(members: List[Entry]) -> FileProblem:
    """The problem of a graph's folder; names the first step that seems to lie before the one that preceded it."""
    later = earlier = members[0]
    for one, two in zip(members, members[1:]):
        if _data_index(two) < _data_index(one):
            later, earlier = one, two
            break
    folder = os.path.dirname(os.path.dirname(members[0].path))
    return FileProblem(folder, "problem.clock_set", {"step": _data_index(later), "before": _data_index(earlier)})


def close_clocks(found: List[Found]) -> List[Any]:
    """Devices whose first entries lie so close together that their clocks can't say which came first; [] where there are none."""
    firsts: Dict[Tuple[Any, ...], int] = {}
    for item in found:
        time = item.entry.name.timestamp
        firsts[item.device] = min(time, firsts.get(item.device, time))
    by_time = sorted(firsts.items(), key=lambda pair: pair[1])
    close = []
    for (one, first), (two, second) in zip(by_time, by_time[1:]):
        if second - first <= CLOSE:
            close += [device for device in (one[1], two[1]) if device not in close]
    return close
