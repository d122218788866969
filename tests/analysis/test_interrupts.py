"""Ctrl-C at every moment of an analysis: what was found so far is reported, and the report says that it is not all."""
from __future__ import annotations

from pathlib import Path
from typing import Any, List

import pytest
from dump_trees import CLEAN, INF, Step, host_of
from interrupting import interrupted_at

from npu_overflow.analysis import opening, selection
from npu_overflow.analysis.analyzer import analyze
from npu_overflow.dump import scan


@pytest.fixture
def tree(tmp_path: Path) -> str:
    """Two steps of three operators each."""
    for data_index in (0, 1):
        step = Step(tmp_path, data_index)
        for task in (1, 2, 3):
            step.operator("Mul", "model/mul_%d_%d" % (data_index, task), task, 1000 * data_index + 100 * task, [CLEAN], [INF])
    return str(tmp_path)


def codes(report: Any) -> List[Any]:
    return [remark.code for remark in report.remarks]


def test_while_files_are_looked_for(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # root, run, device, model, model id, then the second of two steps: the other one is never listed
    monkeypatch.setattr(scan._Scan, "folder", interrupted_at(7, scan._Scan.folder))
    report = analyze(tree, progress=True)
    assert codes(report) == ["remark.interrupted.listing"]
    assert report.records == 3 and [operator.inputs is not None for operator in report.operators] == [True, False, False]


def test_before_anything_was_found(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan._Scan, "folder", interrupted_at(1, scan._Scan.folder))
    report = analyze(tree, progress=True)
    assert (codes(report), report.records, report.operators) == (["remark.interrupted.listing"], 0, ())


def test_while_records_are_read(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "read_record", interrupted_at(3, selection.read_record))
    report = analyze(tree, progress=True)
    assert [(remark.code, remark.values) for remark in report.remarks] == [("remark.interrupted.records", {"done": 3, "total": 6})]
    assert report.first is not None and report.first.op_name == "model/mul_0_1" and report.first.inputs is not None
    assert report.records == 6 and len(report.operators) == 2 and report.operators[1].inputs is None


def test_while_a_host_tree_is_looked_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(tmp_path)
    for task, role in ((1, "culprit"), (2, "inherited"), (3, "inherited")):
        step.operator("Mul", "model/mul_%d" % task, task, 100 * task, [CLEAN], [INF], layout="magic", version=2, host=host_of(role=role))
    monkeypatch.setattr(opening, "look", interrupted_at(2, opening.look))
    report = analyze(str(tmp_path), progress=True)
    assert codes(report) == ["remark.interrupted.listing"]
    assert report.first is not None and report.first.op_name == "model/mul_1" and report.first.inputs is not None


def test_while_tensors_are_read(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "count_tensors", interrupted_at(3, opening.count_tensors))
    report = analyze(tree, progress=True)
    assert [(remark.code, remark.values) for remark in report.remarks] == [("remark.interrupted", {"done": 2, "total": 6})]
    assert [operator.inputs is not None for operator in report.operators] == [True, True, False, False, False, False]


def test_twice(tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "read_record", interrupted_at(3, selection.read_record))
    monkeypatch.setattr(opening, "count_tensors", interrupted_at(1, opening.count_tensors))
    report = analyze(tree, progress=True)
    assert codes(report) == ["remark.interrupted.records", "remark.interrupted"]
    assert report.first is not None and report.first.inputs is None


@pytest.mark.parametrize("where", [(scan._Scan, "folder"), (selection, "read_record"), (opening, "count_tensors"), (opening, "look")])
def test_a_program_that_asked_for_nothing_gets_its_interrupt(tree: str, where: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*where, interrupted_at(1, getattr(*where)))
    with pytest.raises(KeyboardInterrupt):
        analyze(tree)
