"""Several writers of the same files, and several ranks in one folder: every file is one writer's, whole."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, BinaryIO, Callable, List

import pytest

from npu_overflow.report.model import Operator, Report
from npu_overflow.training import reports_io
from npu_overflow.training.manifest import Manifest, read_manifests

TIMES = 6


def at_once(*works: Callable[[], Any]) -> None:
    """Run all in threads that begin together; the first error is raised."""
    barrier, errors = threading.Barrier(len(works)), []  # type: Any, List[BaseException]

    def run(work: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            for _ in range(TIMES):
                work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def report_of(name: str) -> Report:
    operator = Operator(op_type="Mul", op_name=name, core="AIV", verdict="computed_here", inputs=(), outputs=())
    return Report(path="x", version="0", first_index=0, operators=(operator,) * 50)


def test_two_watches_of_one_process_save_into_one_folder(tmp_path: Path) -> None:
    reports = [report_of(name * 2000) for name in "ab"]
    seen: List[Report] = []

    def look() -> None:
        path = tmp_path / "report.json"
        if path.exists():
            seen.append(Report.from_json(path.read_text(encoding="utf-8")))

    at_once(*(lambda report=report: reports_io.save(report, str(tmp_path), Manifest(), "en") for report in reports), look)
    assert all(report in reports for report in seen)
    assert Report.from_json((tmp_path / "report.json").read_text(encoding="utf-8")) in reports
    assert sorted(os.listdir(str(tmp_path))) == ["report.html", "report.json", "report.txt"]


def test_manifests_of_one_rank_and_of_several(tmp_path: Path) -> None:
    manifests = [Manifest(rank=rank, world_size=3, run_id=run * 3000, device=rank) for rank, run in ((0, "a"), (0, "b"), (1, "c"), (2, "d"))]
    counts: List[int] = []

    def look() -> None:
        found = read_manifests(str(tmp_path))
        assert not found.problems
        counts.append(len(found))

    at_once(*(lambda manifest=manifest: manifest.write(str(tmp_path)) for manifest in manifests), look)
    found = read_manifests(str(tmp_path))
    assert sorted(manifest.rank for manifest in found) == [0, 1, 2] and max(counts) <= 3
    assert {manifest.run_id for manifest in found} - {manifest.run_id for manifest in manifests} == set()
    assert sorted(os.listdir(str(tmp_path))) == ["session-0.json", "session-1.json", "session-2.json"]


def test_two_analyses_write_one_page(tmp_path: Path) -> None:
    pages = [report_of(name) for name in ("first/mul", "second/mul")]
    at_once(*(lambda report=report: report.to_html("page.html", "en") for report in pages))
    text = Path("page.html").read_text(encoding="utf-8")
    assert text.rstrip().endswith("</html>") and ("first/mul" in text) != ("second/mul" in text)
    assert os.listdir(".") == ["page.html"]


def test_processes_that_analyze_and_save_the_same(tmp_path: Path) -> None:
    (tmp_path / "given.json").write_text(report_of("net/mul").to_json(), encoding="utf-8")
    command = [sys.executable, "-m", "npu_overflow", "merge", "given.json", "--output", "all.json", "--json"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(3)]
    printed = [process.communicate() for process in running]
    assert [(process.returncode, err) for process, (_, err) in zip(running, printed)] == [(0, b"")] * 3
    assert len({out for out, _ in printed}) == 1
    assert json.loads(Path("all.json").read_text(encoding="utf-8")) == json.loads(printed[0][0].decode("utf-8"))
    assert sorted(os.listdir(".")) == ["all.json", "given.json"]


def test_what_a_killed_writer_left_is_no_report_and_no_obstacle(tmp_path: Path) -> None:
    from npu_overflow import atomic

    class Killed(BaseException):
        pass

    def killed(file: BinaryIO) -> None:
        file.write(b"{")
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", lambda path: None)  # a killed process takes nothing away
        with pytest.raises(Killed):
            atomic.atomic_write(str(tmp_path / "report.json"), killed)
    left = os.listdir(str(tmp_path))
    assert len(left) == 1 and left[0].startswith(".report.json.") and left[0].endswith(".part")
    reports_io.save(report_of("net/mul"), str(tmp_path), Manifest(), "en")
    assert Report.from_json((tmp_path / "report.json").read_text(encoding="utf-8")).operators[0].op_name == "net/mul"
