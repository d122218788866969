"""Progress on standard error, with a clock that only the test moves."""
from __future__ import annotations

import io
from pathlib import Path
from typing import Any, List

import pytest
from dump_trees import CLEAN, INF, Step

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.analysis.progress import Progress


class Clock:
    """Seconds; each look takes ``tick`` of them."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 0.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def lines(file: io.StringIO) -> List[str]:
    return file.getvalue().splitlines()


def test_it_is_silent_for_two_seconds_then_says_bytes_and_time_left() -> None:
    clock, file = Clock(), Terminal()
    progress = Progress(language="en", clock=clock, file=file)
    asked: List[int] = []

    def all_bytes() -> int:
        asked.append(1)
        return 4 * 10**9

    for clock.now in (0.0, 1.0, 1.9):
        progress.step("progress.operators", 0, 8, lambda: 0, all_bytes)
    assert (lines(file), asked) == ([], [])
    clock.now = 3.0
    progress.step("progress.operators", 2, 8, lambda: 10**9, all_bytes)
    assert lines(file) == ["npu-overflow: 2 of 8 operators read, 1.0 GB of 4.0 GB, about 9 s left"]


@pytest.mark.parametrize(
    ("language", "now", "done", "expected"),
    [
        ("en", 100.0, 1, "npu-overflow: 1 of 4 records read, about 5 min left"),
        ("en", 7200.0, 1, "npu-overflow: 1 of 4 records read, about 6 h left"),
        ("en", 100.0, 0, "npu-overflow: 0 of 4 records read"),
        ("en", 100.0, 4, "npu-overflow: 4 of 4 records read"),
        ("zh", 30.0, 2, "npu-overflow：已读取 2/4 条溢出记录，约剩 30 秒"),
    ],
)
def test_time_left_in_round_numbers_and_in_the_users_language(language: str, now: float, done: int, expected: str) -> None:
    clock, file = Clock(), Terminal()
    progress = Progress(language=language, clock=clock, file=file)
    progress.step("progress.records", 0, 4)
    clock.now = now
    progress.step("progress.records", done, 4)
    assert lines(file) == [expected]


def test_the_users_locale_is_taken_where_no_language_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    clock, file = Clock(3.0), Terminal()
    Progress(clock=clock, file=file).step("progress.listing", 12345)
    assert lines(file) == ["npu-overflow：已找到 12345 个文件"]


def test_small_sizes_have_small_units() -> None:
    file = Terminal()
    Progress(language="en", clock=Clock(3.0), file=file).step("progress.tensors", 1, 2, lambda: 12, lambda: 34_500)
    assert lines(file)[0].startswith("npu-overflow: 1 of 2 tensors read, 12 B of 34.5 KB")


@pytest.mark.parametrize(("file", "count"), [(Terminal(), 14), (io.StringIO(), 3)], ids=["terminal", "log"])
def test_a_log_gets_fewer_lines_than_a_terminal(file: io.StringIO, count: int) -> None:
    clock = Clock()
    progress = Progress(language="en", clock=clock, file=file)
    for second in range(30):
        clock.now = float(second)
        progress.step("progress.listing", second)
    assert len(lines(file)) == count
    assert all(character.isprintable() for line in lines(file) for character in line)


def test_each_part_has_a_time_of_its_own() -> None:
    clock, file = Clock(), Terminal()
    progress = Progress(language="en", clock=clock, file=file)
    progress.step("progress.records", 0, 2)
    clock.now = 1000.0
    progress.step("progress.operators", 0, 2)
    clock.now = 1010.0
    progress.step("progress.operators", 1, 2)
    assert lines(file)[-1] == "npu-overflow: 1 of 2 operators read, about 10 s left"


def test_nobody_who_listens_is_no_error() -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    progress = Progress(language="en", clock=Clock(3.0), file=Closed())
    progress.step("progress.listing", 1)
    progress.step("progress.listing", 2)
    quiet = io.StringIO()
    Progress(False, clock=Clock(3.0), file=quiet).step("progress.listing", 1)
    assert quiet.getvalue() == ""


def test_an_analysis_tells_of_every_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npu_overflow.analysis.progress.QUIET_LOG", 0.0)
    step = Step(tmp_path)
    for task in (1, 2, 3):
        step.operator("Mul", "model/mul_%d" % task, task, 100 * task, [CLEAN], [INF])
    file = io.StringIO()
    report = analyze(str(tmp_path), progress=Progress(language="en", clock=Clock(3.0), file=file))
    assert len(report.operators) == 3
    said = file.getvalue()
    parts: Any = [said.find(text) for text in ("0 files found", "2 of 3 records read, about", "0 of 3 operators read, 0 B of ", "2 of 3 operators read")]
    assert -1 not in parts and parts == sorted(parts)
