"""A tree that is still being written: only whole operators, and what was growing is said. Nothing here waits for a clock."""
from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Dict, List

import pytest
from dump_trees import CLEAN, INF, Step, titles

from npu_overflow.analysis import growing, opening
from npu_overflow.analysis.analyzer import analyze
from npu_overflow.dump import writer
from npu_overflow.errors import DumpFormatError


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """What happens while the analysis waits for a slow writer; each is called once."""
    waiting: List[Any] = []

    def sleep(seconds: float) -> None:
        if waiting:
            waiting.pop(0)()

    monkeypatch.setattr(growing.time, "sleep", sleep)
    return waiting


def three(tmp_path: Path) -> List[str]:
    """Paths of the dumps of three operators."""
    step = Step(tmp_path)
    return [step.operator("Mul", "model/mul_%d" % task, task, 100 * task, [CLEAN], [INF]) for task in (1, 2, 3)]


def cut(path: str, to: int) -> bytes:
    """Cut a file; returns what is missing."""
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:to])
    return content[to:]


def append(path: str, more: bytes) -> None:
    with open(path, "ab") as file:
        file.write(more)


def growing_of(report: Any) -> List[Dict[str, Any]]:
    return [dict(remark.values) for remark in report.remarks if remark.code == "remark.growing"]


@pytest.mark.parametrize("kept", ["nothing", "length", "header", "half"])
@pytest.mark.parametrize("more", ["all", "a byte"])
def test_a_dump_that_grows_is_left_out_and_named(tmp_path: Path, pauses: List[Any], kept: str, more: str) -> None:
    paths = three(tmp_path)
    size = os.path.getsize(paths[0])
    missing = cut(paths[0], {"nothing": 0, "length": 8, "header": 40, "half": size - 3}[kept])
    pauses.append(lambda: append(paths[0], missing if more == "all" else missing[:1]))
    report = analyze(str(tmp_path))
    assert titles(report) == [("model/mul_2", "computed_here"), ("model/mul_3", "computed_here")]
    assert report.first is not None and report.first.op_name == "model/mul_2" and report.first.inputs is not None
    assert growing_of(report) == [{"count": 1, "file": os.path.relpath(paths[0], str(tmp_path)).replace(os.sep, "/")}]
    assert report.problems == ()
    if more == "all":
        assert titles(analyze(str(tmp_path)))[0] == ("model/mul_1", "computed_here")


def test_the_next_finding_is_opened_in_its_place(tmp_path: Path, pauses: List[Any]) -> None:
    paths = three(tmp_path)
    missing = cut(paths[0], 20)
    pauses.append(lambda: append(paths[0], missing))
    report = analyze(str(tmp_path), limit=1)
    assert [operator.inputs is not None for operator in report.operators] == [True, False]


def test_one_that_was_cut_for_good_is_shown_as_far_as_it_goes(tmp_path: Path, pauses: List[Any]) -> None:
    paths = three(tmp_path)
    cut(paths[0], os.path.getsize(paths[0]) - 3)
    report = analyze(str(tmp_path))
    assert [problem.code for problem in report.problems] == ["dump.cut"] and growing_of(report) == []
    assert titles(report)[0][0] == "model/mul_1" and len(report.operators) == 3


def test_an_old_one_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: List[float] = []
    monkeypatch.setattr(growing.time, "sleep", waited.append)
    paths = three(tmp_path)
    for path in paths[:2]:
        cut(path, 20)
    analyze(str(tmp_path))
    assert len(waited) == 1
    for path in paths:
        os.utime(path, (1_000_000_000, 1_000_000_000))
    report = analyze(str(tmp_path))
    assert len(waited) == 1 and len(report.problems) == 2


def test_a_record_that_grows_is_said(tmp_path: Path, pauses: List[Any]) -> None:
    three(tmp_path)
    record = Step(tmp_path).record(4, 400)
    Step(tmp_path).dump("Mul", "model/mul_4", 4, 400)
    missing = cut(record, 100)
    pauses.append(lambda: append(record, missing))
    report = analyze(str(tmp_path))
    assert len(report.operators) == 3 and report.records == 4 and report.problems == ()
    assert [values["count"] for values in growing_of(report)] == [1]
    assert len(analyze(str(tmp_path)).operators) == 4


def test_a_dump_that_comes_after_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(tmp_path)
    step.operator("Mul", "model/mul_1", 1, 100)
    step.record(2, 200)
    look = opening.look

    def late(opened: Any, fetch: Any = None) -> None:
        look(opened, fetch)
        if not opened.candidates:
            step.dump("Mul", "model/mul_2", 2, 200)

    monkeypatch.setattr(opening, "look", late)
    report = analyze(str(tmp_path))
    assert titles(report) == [("model/mul_1", "computed_here")]
    assert len(growing_of(report)) == 1 and report.problems == ()
    monkeypatch.undo()
    assert len(analyze(str(tmp_path)).operators) == 2


def test_a_dump_that_never_comes_is_a_problem(tmp_path: Path) -> None:
    Step(tmp_path).record(2, 200)
    report = analyze(str(tmp_path))
    assert [problem.code for problem in report.problems] == ["problem.no_dump"] and growing_of(report) == []


def test_files_that_are_renamed_into_place_are_whole_or_not_there(tmp_path: Path) -> None:
    """The writer of this package, stopped after every system call that changes the tree."""
    step = Step(tmp_path)
    step.operator("Mul", "model/mul_1", 1, 100)
    seen: List[Any] = []
    write_padded = writer._write_padded

    def watched(file: Any, data: Any, size: int) -> None:
        write_padded(file, data, size)
        file.flush()
        seen.append(analyze(str(tmp_path)))

    writer._write_padded, before = watched, write_padded
    try:
        step.dump("Mul", "model/mul_2", 2, 200)
        step.record(2, 200)
    finally:
        writer._write_padded = before
    assert len(seen) == 3
    for report in seen:
        assert titles(report) == [("model/mul_1", "computed_here")] and report.problems == ()
        assert [remark.code for remark in report.remarks] == ["remark.unfinished"]
    assert len(analyze(str(tmp_path)).operators) == 2


def test_many_analyses_beside_a_writer_show_whole_operators_only(tmp_path: Path) -> None:
    """A thread writes as the device does, in pieces; each operator that is shown is as it was written."""
    source = tmp_path / "source"
    step = Step(source)
    files: List[str] = []
    for task in range(1, 13):
        files.append(step.operator("Mul", "model/mul_%d" % task, task, 100 * task, [CLEAN], [INF]))
    records = sorted(os.path.join(step.folder, name) for name in os.listdir(step.folder) if name.startswith("Opdebug"))
    target = tmp_path / "target"
    folder = target / os.path.relpath(step.folder, str(source))
    folder.mkdir(parents=True)
    turn, done = threading.Semaphore(0), threading.Event()

    def write() -> None:
        for pair in zip(files, records):
            for path in pair:
                content = Path(path).read_bytes()
                for start in range(0, len(content), len(content) // 3 + 1):
                    turn.acquire()
                    append(str(folder / os.path.basename(path)), content[start : start + len(content) // 3 + 1])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    most = 0
    while not done.is_set():
        turn.release()
        report = analyze(str(target))
        whole = [operator for operator in report.operators if operator.outputs is not None]
        assert all(operator.outputs[0].pos_inf == 1 and operator.verdict == "computed_here" for operator in whole)
        assert len(whole) >= most  # what was whole once stays
        most = len(whole)
    thread.join()
    assert len(analyze(str(target)).operators) == 12 and analyze(str(target)).problems == ()


def test_two_analyses_at_once_give_the_same(tmp_path: Path) -> None:
    paths = three(tmp_path)
    cut(paths[2], 30)
    os.utime(paths[2], (1_000_000_000, 1_000_000_000))
    alone = analyze(str(tmp_path))
    made: List[Any] = []
    barrier = threading.Barrier(4)

    def one() -> None:
        barrier.wait()
        made.append(analyze(str(tmp_path)))

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [alone] * 4


def test_a_dump_that_vanishes_is_a_problem_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = three(tmp_path)
    look = opening.look

    def vanishing(opened: Any, fetch: Any = None) -> None:
        if opened.dump_file == paths[1]:
            os.unlink(paths[1])
        look(opened, fetch)

    monkeypatch.setattr(opening, "look", vanishing)
    report = analyze(str(tmp_path))
    assert [problem.code for problem in report.problems] == ["file.gone"] and len(report.operators) == 3


def test_what_can_not_be_fetched_is_a_problem(tmp_path: Path) -> None:
    three(tmp_path)

    def fetch(path: str) -> None:
        raise DumpFormatError("remote.not_read", reason="x")

    report = analyze(str(tmp_path), fetch=fetch)
    assert [problem.code for problem in report.problems] == ["remote.not_read"] * 3
