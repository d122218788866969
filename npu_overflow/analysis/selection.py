"""Which parts of which records become entries of the report, and in which order."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from npu_overflow.dump.layout import Entry, FileProblem, Tree
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
    """What the records of a tree say; ``remarks`` are (path, code, values)."""

    found: List[Found] = field(default_factory=list)
    problems: List[FileProblem] = field(default_factory=list)
    remarks: List[Tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)


def read_records(tree: Tree, step: Callable[[int, int], None] = lambda done, total: None) -> Selection:
    """Read every record of ``tree``; entries come in order. A bad record is a problem and nothing else.

    Args:
        step: called with (records read, records in all).
    """
    result = Selection()
    for number, entry in enumerate(tree.records):
        step(number, len(tree.records))
        try:
            record = read_record(entry.path)
        except DumpFormatError as error:
            result.problems.append(FileProblem.of(entry.path, error))
            continue
        result.problems.extend(FileProblem(entry.path, code, values) for code, values in record.problems)
        result.remarks.extend((entry.path, code, values) for code, values in record.remarks)
        result.found.extend(Found(entry, part, record.layout) for part in record.parts)
    result.found, clock_set = in_order(result.found)
    result.problems.extend(clock_set)
    return result


def in_order(found: List[Found]) -> Tuple[List[Found], List[FileProblem]]:
    """Entries by time; data_index breaks ties and wins where the two disagree within one graph of one device (the clock was set).

    There the entries of the graph are put in order of data_index within the places that they hold together.

    Returns:
        the entries, and one problem for each graph whose clock was set.
    """
    ordered = sorted(found, key=_by_time)
    graphs: Dict[Tuple[Any, ...], List[int]] = {}
    for position, item in enumerate(ordered):
        if item.entry.place.data_index is not None:
            graphs.setdefault(item.graph, []).append(position)
    problems = []
    for positions in graphs.values():
        members = [ordered[position] for position in positions]
        by_step = sorted(members, key=_data_index)
        if by_step == members:
            continue
        for position, item in zip(positions, by_step):
            ordered[position] = item
        problems.append(_clock_set(members))
    return ordered, problems


def _by_time(item: Found) -> Tuple[Any, ...]:
    place = item.entry.place
    unknown = place.data_index is None
    return (item.entry.name.timestamp, unknown, place.data_index or 0, place.run or "", -1 if place.device is None else place.device, item.entry.path)


def _data_index(item: Found) -> int:
    return item.entry.place.data_index or 0


def _clock_set(members: List[Found]) -> FileProblem:
    """The problem of a graph's folder; names the first step that seems to lie before the one that preceded it."""
    later = earlier = members[0]
    for one, two in zip(members, members[1:]):
        if _data_index(two) < _data_index(one):
            later, earlier = one, two
            break
    folder = os.path.dirname(os.path.dirname(members[0].entry.path))
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
