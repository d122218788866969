"""Ways through the analysis that only odd trees take."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List

import pytest
from dump_trees import CLEAN, INF, RUN, Step, tensor_of

from npu_overflow.analysis import chain, growing, workers
from npu_overflow.analysis.analyzer import analyze
from npu_overflow.analysis.entries import Found, Opened
from npu_overflow.analysis.opening import Sizes
from npu_overflow.dump.names import Entry, Place, parse_name
from npu_overflow.dump.scan import find
from npu_overflow.dump.writer import TensorSpec
from npu_overflow.errors import DumpFormatError
from npu_overflow.training.manifest import Manifest


def opened_of(path: str) -> Opened:
    entry = next(entry for entry in find(os.path.dirname(path)).dumps if entry.path == path)
    return Opened(Found(entry, None), [entry])


def test_folders_that_were_not_kept_are_left_out_and_counted(tmp_path: Path) -> None:
    for data_index in (0, 1):
        Step(tmp_path, data_index).operator("Mul", "model/mul_%d" % data_index, 1, 100 * data_index)
    manifest = Manifest(mode="saturation")
    manifest.kept_folders = ["0/graph/11/1"]
    manifest.write(str(tmp_path / RUN))
    report = analyze(str(tmp_path))
    assert [operator.op_name for operator in report.operators] == ["model/mul_1"]
    assert [(remark.code, remark.values) for remark in report.remarks] == [("remark.sporadic", {"count": 1})]
    assert len(analyze(str(tmp_path), run="all").operators) == 2


def test_a_private_format_without_its_original_shape_is_remarked(tmp_path: Path) -> None:
    array = CLEAN.reshape(1, 1, 2, 1, 2)
    Step(tmp_path).operator("Mul", "model/mul", 1, 100, outputs=[TensorSpec(array, format="NC1HWC0", original_shape=(7, 7))])
    report = analyze(str(tmp_path))
    assert [(remark.code, remark.values) for remark in report.remarks] == [("remark.region.no_fit", {"format": "NC1HWC0", "tensors": 1})]


def test_files_that_vanish_between_two_looks_have_no_producer(tmp_path: Path) -> None:
    path = Step(tmp_path).dump("Mul", "model/mul", 1, 100)
    opened = opened_of(path)
    assert chain._tensor(opened, "outputs", 0) is not None and chain._tensor(opened, "outputs", 5) is None
    tensor = chain._tensor(opened, "outputs", 0)
    os.unlink(path)
    assert chain._tensor(opened, "outputs", 0) is None
    assert not chain._same(tensor, tensor) and not chain._same(None, tensor)


def test_sizes_of_files_that_are_gone_or_yet_to_come(tmp_path: Path) -> None:
    paths = [Step(tmp_path).dump("Mul", "model/mul_%d" % task, task, 100 * task) for task in (1, 2)]
    operators = [opened_of(path) for path in paths]
    size = os.path.getsize(paths[0])
    os.unlink(paths[1])
    sizes = Sizes(operators)
    assert (sizes.all(), sizes.of_first(0)(), sizes.of_first(2)()) == (size, 0, size)
    assert Sizes(operators, unknown=True).all() == 0


def test_both_files_of_a_collective_are_fetched(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.record(1, 100)
    paths = [step.dump("HcomAllReduce", "model/reduce", 1, 100, [CLEAN], []), step.dump("HcomAllReduce", "model/reduce", 1, 200, [], [INF])]
    step.dump("Add", "model/other", 1, 300)
    asked: List[str] = []

    def fetch(path: str) -> None:
        asked.append(path)
        if path == paths[1]:
            raise DumpFormatError("remote.not_read", reason="x")

    report = analyze(str(tmp_path), fetch=fetch)
    assert asked == paths and report.problems == ()  # the other half may be missing


def test_a_missing_file_is_not_growing(tmp_path: Path) -> None:
    path = str(tmp_path / RUN / "Mul.model_mul.1.2.1715938212000100")
    name = parse_name(os.path.basename(path))
    assert name is not None
    opened = Opened(Found(Entry(path, name, Place()), None), [Entry(path, name, Place())])
    opened.problems.append(Any)  # type: ignore[arg-type]
    grown = growing.Growing()
    grown.note(opened)
    assert grown.operators() == [] and grown.paths == set()
    assert growing._stamp(path) is None and not growing._lately(path)
    opened.candidates = ()
    grown.note(opened)
    assert grown.operators() == []


def test_a_folder_that_vanishes_holds_no_late_dump(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(tmp_path)
    step.record(2, 200)
    monkeypatch.setattr(growing, "find", lambda folder: find(folder + "/gone"))
    report = analyze(str(tmp_path))
    assert [problem.code for problem in report.problems] == ["problem.no_dump"]


def test_what_a_counting_process_answers(tmp_path: Path) -> None:
    facts, error = workers._summarized(tensor_of(INF), "inf_nan")
    assert error is None and facts.summary.pos_inf == 1
    path = Step(tmp_path).dump("Mul", "model/mul", 1, 100)
    tensor = chain._tensor(opened_of(path), "outputs", 0)
    os.unlink(path)
    facts, error = workers._summarized(tensor, "inf_nan")
    assert facts is None and error is not None and error.code == "file.gone"
