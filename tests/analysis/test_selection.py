"""Which records, in which order."""
from __future__ import annotations

from typing import Any, List, Tuple

from npu_overflow.analysis.selection import Found, close_clocks, in_order
from npu_overflow.dump.layout import Entry, Name, Place
from npu_overflow.dump.record import Part


def found(time: int, data_index: Any = 0, device: int = 0, model: str = "g", run: str = "20240517093010", label: str = "r") -> Found:
    name = Name("record", "Opdebug", "Node_OpDebug", 1, 5, time)
    path = "/dump/%s/%d/%s/1/%s/%s" % (run, device, model, data_index, label)
    return Found(Entry(path, name, Place(run, device, model, 1, data_index)), Part("AIV", 1))


def order(items: List[Found]) -> Tuple[List[Tuple[int, Any]], List[str]]:
    ordered, problems = in_order(items)
    return [(item.entry.name.timestamp, item.entry.place.data_index) for item in ordered], [problem.code for problem in problems]


def test_by_time() -> None:
    assert order([found(30, 1), found(10, 0), found(20, 1)]) == ([(10, 0), (20, 1), (30, 1)], [])


def test_data_index_breaks_ties() -> None:
    assert order([found(10, 4), found(10, 2)]) == ([(10, 2), (10, 4)], [])


def test_the_step_wins_where_the_clock_was_set() -> None:
    assert order([found(10, 5), found(20, 4), found(30, 6)]) == ([(20, 4), (10, 5), (30, 6)], ["problem.clock_set"])


def test_the_problem_names_the_graph_and_the_steps() -> None:
    _, problems = in_order([found(10, 5), found(20, 4)])
    assert problems[0].path == "/dump/20240517093010/0/g/1"
    assert problems[0].values == {"step": 5, "before": 4}


def test_other_graphs_keep_their_places() -> None:
    items = [found(10, 5, model="a"), found(15, 9, model="b"), found(20, 4, model="a"), found(25, 1, device=1)]
    ordered, problems = in_order(items)
    assert [(item.entry.place.model_name, item.entry.place.data_index) for item in ordered] == [("a", 4), ("b", 9), ("a", 5), ("g", 1)]
    assert len(problems) == 1


def test_steps_of_different_graphs_do_not_compare() -> None:
    assert order([found(10, 9, model="a"), found(20, 1, model="b")])[1] == []
    assert order([found(10, 9, device=0), found(20, 1, device=1)])[1] == []
    assert order([found(10, 9, run="20240517093010"), found(20, 1, run="20240517093020")])[1] == []


def test_records_without_a_step_go_by_time() -> None:
    assert order([found(20, None), found(10, 3), found(15, None)]) == ([(10, 3), (15, None), (20, None)], [])


def test_parts_of_one_record_keep_their_order() -> None:
    one = found(10)
    two = Found(one.entry, Part("AI Core", 32))
    assert in_order([one, two])[0] == [one, two]


def test_close_clocks() -> None:
    assert close_clocks([found(0, device=0), found(10_000, device=1)]) == [0, 1]
    assert close_clocks([found(0, device=0), found(10_001, device=1)]) == []
    assert close_clocks([found(0, device=0), found(50_000, device=1), found(50_001, device=0)]) == []
    assert close_clocks([found(0, device=3)]) == []
    assert close_clocks([]) == []
