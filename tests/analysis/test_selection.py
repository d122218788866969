"""Which records, in which order."""
from __future__ import annotations

import os
from typing import Any, Dict, List, Tuple

from hypothesis import given
from hypothesis import strategies as st

from npu_overflow.analysis.entries import Found
from npu_overflow.analysis.selection import _lazily_in_order, close_clocks, in_order
from npu_overflow.dump.folder import Folder
from npu_overflow.dump.layout import Tree
from npu_overflow.dump.names import Entry, Name, Place, record_name
from npu_overflow.dump.record import Part


def found(time: int, data_index: Any = 0, device: int = 0, model: str = "g", run: str = "20240517093010", label: str = "r") -> Found:
    name = Name("record", "Opdebug", "Node_OpDebug", 1, 5, time)
    path = "/dump/%s/%d/%s/1/%s/%s" % (run, device, model, data_index, label)
    return Found(Entry(path, name, Place(run, device, model, 1, data_index)), Part("AIV", 1))


def order(items: List[Found]) -> Tuple[List[Tuple[int, Any]], List[str]]:
    ordered, problems = in_order([item.entry for item in items])
    return [(entry.name.timestamp, entry.place.data_index) for entry in ordered], [problem.code for problem in problems]


def test_by_time() -> None:
    assert order([found(30, 1), found(10, 0), found(20, 1)]) == ([(10, 0), (20, 1), (30, 1)], [])


def test_data_index_breaks_ties() -> None:
    assert order([found(10, 4), found(10, 2)]) == ([(10, 2), (10, 4)], [])


def test_the_step_wins_where_the_clock_was_set() -> None:
    assert order([found(10, 5), found(20, 4), found(30, 6)]) == ([(20, 4), (10, 5), (30, 6)], ["problem.clock_set"])


def test_the_problem_names_the_graph_and_the_steps() -> None:
    _, problems = in_order([found(10, 5).entry, found(20, 4).entry])
    assert problems[0].path == "/dump/20240517093010/0/g/1"
    assert problems[0].values == {"step": 5, "before": 4}


def test_other_graphs_keep_their_places() -> None:
    items = [found(10, 5, model="a"), found(15, 9, model="b"), found(20, 4, model="a"), found(25, 1, device=1)]
    ordered, problems = in_order([item.entry for item in items])
    assert [(entry.place.model_name, entry.place.data_index) for entry in ordered] == [("a", 4), ("b", 9), ("a", 5), ("g", 1)]
    assert len(problems) == 1


def test_steps_of_different_graphs_do_not_compare() -> None:
    assert order([found(10, 9, model="a"), found(20, 1, model="b")])[1] == []
    assert order([found(10, 9, device=0), found(20, 1, device=1)])[1] == []
    assert order([found(10, 9, run="20240517093010"), found(20, 1, run="20240517093020")])[1] == []


def test_records_without_a_step_go_by_time() -> None:
    assert order([found(20, None), found(10, 3), found(15, None)]) == ([(10, 3), (15, None), (20, None)], [])


def test_close_clocks() -> None:
    assert close_clocks([found(0, device=0), found(10_000, device=1)]) == [0, 1]
    assert close_clocks([found(0, device=0), found(10_001, device=1)]) == []
    assert close_clocks([found(0, device=0), found(50_000, device=1), found(50_001, device=0)]) == []
    assert close_clocks([found(0, device=3)]) == []
    assert close_clocks([]) == []


@given(st.lists(st.tuples(st.integers(0, 50), st.sampled_from([(0, "a"), (0, "b"), (1, "a")]), st.integers(0, 3)), max_size=30))
def test_one_at_a_time_in_the_same_order(items: List[Any]) -> None:
    folders: Dict[str, Folder] = {}
    for number, (time, (device, model), data_index) in enumerate(items):
        entry = found(1000 * data_index + time, data_index, device, model, label=record_name(number, 5, 1000 * data_index + time)).entry
        path = os.path.dirname(entry.path)
        before = folders[path].records if path in folders else []
        folders[path] = Folder(path, entry.place, entries=[*before, entry])
    tree = Tree("/dump", folders)
    lazily = _lazily_in_order(tree)
    ordered, problems = in_order(tree.records)
    assert not problems and lazily is not None and [entry.path for entry in lazily] == [entry.path for entry in ordered]


def test_where_clocks_were_set_all_are_needed() -> None:
    items = [found(10, 5).entry, found(20, 4).entry]
    folders = {os.path.dirname(entry.path): Folder(os.path.dirname(entry.path), entry.place, entries=[entry]) for entry in items}
    assert _lazily_in_order(Tree("/dump", folders)) is None
