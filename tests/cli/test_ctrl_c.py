"""Ctrl-C in the commands that take long: what was found so far is printed, the exit status is that of an interrupt."""
from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any, List

import pytest
from cli_helpers import DUMP, make_tree
from interrupting import interrupted_at

from npu_overflow.analysis import opening, statistics
from npu_overflow.cli import main, merge
from npu_overflow.dump import scan
from npu_overflow.report.model import Report

STATUS = 128 + signal.SIGINT


@pytest.mark.parametrize("quiet", [[], ["--quiet"]])
def test_analyze(quiet: List[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = make_tree(tmp_path / "a"), make_tree(tmp_path / "b")
    monkeypatch.setattr(opening, "count_tensors", interrupted_at(1, opening.count_tensors))
    assert main(["analyze", "--json", "--exit-code", *quiet, str(first), str(second)]) == STATUS
    out, err = capsys.readouterr()
    reports = json.loads("[%s]" % out) if out.startswith("{") else json.loads(out)
    assert len(reports) == 1 and err == ""  # the second tree is not begun
    assert [remark["code"] for remark in reports[0]["remarks"]] == ["remark.interrupted"]


def test_analyze_in_the_terminal(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(scan._Scan, "folder", interrupted_at(6, scan._Scan.folder))
    assert main(["analyze", str(tree), "--language", "zh"]) == STATUS
    out, err = capsys.readouterr()
    assert "查找文件时被中断" in out.replace("\n", "") and err == ""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    for rank in range(5):
        (tmp_path / ("report-%d.json" % rank)).write_text(Report(path="/d", version="0", rank=rank, records=1).to_json())
    return tmp_path


def test_merge(saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(merge, "_add", interrupted_at(4, merge._add))
    assert main(["merge", "--json", "--output", "all.json", str(saved)]) == STATUS
    out, err = capsys.readouterr()
    merged = json.loads(out)
    assert merged["records"] == 3
    assert merged["remarks"][0]["text"] == "Interrupted: 3 reports were read, others may follow; nothing is known of those."
    assert err == "npu-overflow: all.json was not written, as not all reports were read.\n" and not os.path.exists("all.json")


def test_merge_before_the_first(saved: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(merge, "_add", interrupted_at(1, merge._add))
    assert main(["merge", str(saved)]) == STATUS
    assert capsys.readouterr() == ("", "npu-overflow: interrupted\n")


def test_show(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(statistics, "summarize", interrupted_at(2, statistics.summarize))
    assert main(["show", str(tree / DUMP), "--save", "npy"]) == STATUS
    out, err = capsys.readouterr()
    assert "input.0" in out and "output.0" not in out and "Interrupted: 1 of 2 tensors were read." in out and err == ""
    assert os.listdir(".") == [] or "tree" in os.listdir(".")
    assert [name for name in os.listdir(".") if name.endswith(".npy")] == []


def test_show_while_it_saves(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from npu_overflow.cli import _arrays

    def interrupted(*given: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(_arrays.np, "save", interrupted)
    before = os.listdir(".")
    assert main(["show", str(tree / DUMP), "--save", "npy"]) == STATUS
    assert os.listdir(".") == before and capsys.readouterr().err == "npu-overflow: interrupted\n"
