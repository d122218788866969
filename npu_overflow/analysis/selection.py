"""Which parts of which records become entries of the report, and in which order."""
from __future__ import annotations

import heapq
import os
from dataclasses import replace
from typing import Any, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from npu_overflow.analysis.entries import AI_CORES, Found, Opened
from npu_overflow.analysis.runfacts import RunFacts, in_time_folder
from npu_overflow.analysis.state import State
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.folder import Folder
from npu_overflow.dump.layout import Tree, place_of
from npu_overflow.dump.names import Entry, Place
from npu_overflow.dump.record import read_record
from npu_overflow.errors import DumpFormatError

__all__ = ["close_clocks", "in_order", "match_dumps", "read_records", "select_run"]

#: up to here all records are read, whatever is asked for: it takes no time
_FEW_RECORDS = 500
#: first entries of two devices closer than this (microseconds) could have happened the other way
CLOSE = 10_000


# -- the run


def select_run(state: State) -> None:
    """Narrow the tree to the run that is asked for, the newest one to its last collection; a file,
    or the folder of one graph, that was asked for is never narrowed."""
    state.tree = tree = state.tree.select(state.run, state.facts.run_ids)
    place = place_of(tree.root)
    if state.run is None and tree.single is None and place.model_name is None:
        state.tree = _last_collection(tree, state.facts)
        left_out = tree.record_count - state.tree.record_count
        if left_out:
            state.remarks.append(("remark.sporadic", {"count": left_out}))
    folders = state.tree.folders.values()
    runs = {folder.place.run for folder in folders if folder.record_count}
    # a time folder without records tells its run by its manifest alone
    found = state.facts.of_runs(runs or {tree.run or max(state.facts.by_run, default=None)})
    # several ranks can share a time folder
    state.manifests = [item for item in found if item.device == place.device] or found
    state.problems += tree.problems + state.facts.problems
    if tree.interrupted:
        state.interrupted("remark.interrupted.listing")


def _last_collection(tree: Tree, facts: RunFacts) -> Tree:
    """Without the records of sporadic overflow that still lie beside those of the last one."""
    kept_by: Dict[int, Set[str]] = {}  # what each manifest says: thousands of folders ask

    def was_kept(folder: Folder) -> bool:
        manifest = facts.of_place(folder.place)
        inside = in_time_folder(folder.path, folder.place.run)
        if manifest is None or manifest.kept_folders is None or inside is None:
            return True
        if id(manifest) not in kept_by:
            kept_by[id(manifest)] = set(manifest.kept_folders)
        return inside in kept_by[id(manifest)]

    folders = {
        path: folder if was_kept(folder) else folder.with_records(())
        for path, folder in tree.folders.items()
    }
    return replace(tree, folders=folders)


# -- the records


def read_records(state: State) -> None:
    """Read the records; entries come in order. A bad record is a problem and nothing else.

    Where thousands are there and few are asked for, only those from the first one of an AI Core on
    that it takes.
    """
    total, read = state.tree.record_count, 0
    enough = state.limit if _few_are_enough(state, total) else None
    problems: List[FileProblem] = []
    try:
        entries = None if enough is None else _lazily_in_order(state.tree)
        if entries is None:
            ordered, problems = in_order(state.tree.records)
            entries = iter(ordered)
        for entry in entries:
            state.progress.step("progress.records", read, total)
            read += 1
            problems += _read(state, entry)
            if enough is not None and _from_the_first(state.found) >= enough:
                break
    except KeyboardInterrupt:
        state.interrupted("remark.interrupted.records", done=read, total=total)
    else:
        if read < total:
            state.remarks.append(("remark.first_records", {"read": read, "total": total}))
    state.growing.note_records(problems)
    state.problems += problems


def _few_are_enough(state: State, total: int) -> bool:
    # on a tree of the host collector the culprit is the one that is marked, wherever it stands
    few = total <= _FEW_RECORDS or state.tree.single is not None
    return bool(state.limit) and not (state.every_record or few or state.is_of_host)


def _read(state: State, entry: Entry) -> List[FileProblem]:
    try:
        record = read_record(entry.path)
    except DumpFormatError as error:
        return [FileProblem.of(entry.path, error)]
    state.record_remarks += [(entry.path, code, values) for code, values in record.remarks]
    state.found += [Found(entry, part, record.layout) for part in record.parts]
    return [FileProblem(entry.path, code, values) for code, values in record.problems]


def _from_the_first(found: List[Found]) -> int:
    """Entries from the first of an AI Core on; 0 where there is none."""
    for index, item in enumerate(found):
        if item.part is not None and item.part.core in AI_CORES:
            return len(found) - index
    return 0


def match_dumps(state: State) -> None:
    """The operators that the records mean, each with the files that can be its dump; where one dump
    is asked for, its own only."""
    operators = [Opened(found, _candidates_of(state.tree, found)) for found in state.found]
    single = state.tree.single
    if single is not None and single.name.kind != "record":
        path = single.path
        operators = [opened for opened in operators if _is_of(opened, path)]
        operators = operators or [Opened(Found(single, None), [single])]
    state.operators = operators


def _candidates_of(tree: Tree, found: Found) -> Sequence[Entry]:
    part = found.part
    if part is None:
        return [found.entry]
    return tree.dumps_of(
        found.entry, part.task_id, part.stream_id, part.context_id, part.thread_id
    )


def _is_of(opened: Opened, path: str) -> bool:
    """Whether the file is the operator's dump, or that of the same operator at another time."""
    names = [entry.name.op_name for entry in opened.candidates if entry.path == path]
    return bool(names) and names[0] == opened.candidates[0].name.op_name


# -- their order


def _lazily_in_order(tree: Tree) -> Optional[Iterator[Entry]]:
    """The records as ``in_order`` has them, each parsed when it is its turn; None where clocks were
    set, which takes all of them."""
    streams = []
    graphs: Dict[Tuple[Any, ...], List[Tuple[int, int, int]]] = {}
    for folder in tree.folders.values():
        times = folder.by_time()
        place = folder.place
        if not times:
            continue
        if place.data_index is not None:
            step = (place.data_index, times[0][0], times[-1][0])
            graphs.setdefault(place[:4], []).append(step)
        streams.append(_stream(times, folder))
    for steps in graphs.values():
        steps.sort()
        if any(last > first for (_, _, last), (_, first, _) in zip(steps, steps[1:])):
            return None
    return (folder.record(path) for _, _, path, folder in heapq.merge(*streams))


def _stream(
    times: List[Tuple[int, str]], folder: Folder
) -> Iterator[Tuple[int, Tuple[Any, ...], str, Folder]]:
    order = _order_of(folder.place)
    return ((time, order, path, folder) for time, path in times)


def in_order(entries: Sequence[Entry]) -> Tuple[List[Entry], List[FileProblem]]:
    """Records by time; data_index breaks ties and wins where the two disagree within one graph of
    one device (the clock was set).

    There the records of the graph are put in order of data_index within the places that they hold
    together.

    Returns:
        the records, and one problem for each graph whose clock was set.
    """
    ordered = sorted(
        entries, key=lambda entry: (entry.name.timestamp, _order_of(entry.place), entry.path)
    )
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
    device = -1 if place.device is None else place.device
    return (place.data_index is None, place.data_index or 0, place.run or "", device)


def _data_index(entry: Entry) -> int:
    return entry.place.data_index or 0


def _clock_set(members: List[Entry]) -> FileProblem:
    """The problem of a graph's folder: the first step that seems to lie before the one before."""
    later, earlier = next(
        pair for pair in zip(members, members[1:]) if _data_index(pair[1]) < _data_index(pair[0])
    )
    values = {"step": _data_index(later), "before": _data_index(earlier)}
    folder = os.path.dirname(os.path.dirname(members[0].path))
    return FileProblem(folder, "problem.clock_set", values)


def close_clocks(found: List[Found]) -> List[Any]:
    """Devices whose first entries lie so close together that their clocks can't say which came
    first; [] where there are none."""
    firsts: Dict[Tuple[Any, ...], int] = {}
    for item in found:
        time = item.entry.name.timestamp
        firsts[item.device] = min(time, firsts.get(item.device, time))
    by_time = sorted(firsts.items(), key=lambda pair: pair[1])
    close: List[Any] = []
    for (one, first), (two, second) in zip(by_time, by_time[1:]):
        if second - first <= CLOSE:
            close += [device for device in (one[1], two[1]) if device not in close]
    return close
