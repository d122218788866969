"""``--exit-code``: 3 only for an overflow of this very run."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_overflow import launcher
from npu_overflow.cli import main
from npu_overflow.report.model import Operator, Report
from npu_overflow.training import delivery

FOUND = Report("dump", "0", operators=(Operator("Mul", "net/Mul"),), first_index=0)
HARMLESS = Report("dump", "0", operators=(Operator("Mul", "net/Mul"),), reason="absorbed")


def status(monkeypatch: Any, reports: Any, ending: Any = 0, *options: str) -> int:
    """Of ``run``, whose script has these reports and ends with a status, or raises SystemExit."""

    def launch(passed: Any, options: Any, own: Any) -> int:
        for report in reports:
            for listener in delivery.listeners:
                listener(report)
        if isinstance(ending, int):
            return ending
        raise ending

    monkeypatch.setattr(delivery, "listeners", [])
    monkeypatch.setattr(launcher, "launch", launch)
    try:
        return main(["run", *options, "train.py"])
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("reports", "ending", "expected"),
    [
        ([FOUND], 0, 3),
        ([FOUND], SystemExit(), 3),
        ([FOUND], SystemExit(0), 3),
        ([FOUND], SystemExit(7), 7),
        ([FOUND], 1, 1),  # the script raised
        ([], 0, 0),
        ([HARMLESS], 0, 0),
    ],
)
def test_run(reports: Any, ending: Any, expected: int, monkeypatch: Any) -> None:
    assert status(monkeypatch, reports, ending, "--exit-code") == expected
    if expected == 3:
        assert status(monkeypatch, reports, ending) == 0


def test_a_report_of_before_does_not_count(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "precision_data" / "overflow" / "dump" / "20240517093010"
    old.mkdir(parents=True)
    (old / "report.json").write_text(FOUND.to_json())
    assert status(monkeypatch, [], 0, "--exit-code") == 0


def test_merge(tmp_path: Path, capsys: Any) -> None:
    folder = str(tmp_path / "dump")
    assert main(["merge", "--exit-code", folder]) == 0  # a healthy run makes no folder
    assert main(["merge", folder]) == 1
    (tmp_path / "dump").mkdir()
    assert main(["merge", "--exit-code", folder]) == 0
    assert "no rank has reported an overflow" in capsys.readouterr().err
    (tmp_path / "dump" / "report-0.json").write_text(FOUND.to_json())
    assert main(["merge", "--exit-code", folder]) == 3
    assert main(["merge", folder]) == 0


def test_an_empty_folder_holds_no_dump(tmp_path: Path, capsys: Any) -> None:
    assert main(["analyze", "--exit-code", str(tmp_path)]) == 0
    assert "No dump lies here" in capsys.readouterr().out
