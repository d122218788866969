"""``--exit-code``: 3 only for an overflow of this very run."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npu_overflow.cli import main
from npu_overflow.report.model import Operator, Report
from npu_overflow.training import delivery

FOUND = Report("dump", "0", operators=(Operator("Mul", "net/Mul"),), first_index=0)
HARMLESS = Report("dump", "0", operators=(Operator("Mul", "net/Mul"),), reason="absorbed")

SCRIPT = """
import sys
from npu_overflow.training import delivery
from npu_overflow.report.model import Report
for text in {reports!r}:
    for listener in delivery.listeners:
        listener(Report.from_json(text))
{ending}
"""


@pytest.fixture(autouse=True)
def no_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "listeners", [])


def status(folder: Path, reports: Any, ending: str = "", *options: str) -> int:
    script = folder / "train.py"
    texts = [report.to_json() for report in reports]
    script.write_text(SCRIPT.format(reports=texts, ending=ending))
    try:
        return main(["run", *options, str(script)])
    except SystemExit as stop:
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("reports", "ending", "expected"),
    [
        ([FOUND], "", 3),
        ([FOUND], "sys.exit()", 3),
        ([FOUND], "sys.exit(7)", 7),
        ([FOUND], "1 / 0", 1),
        ([], "", 0),
        ([HARMLESS], "", 0),
    ],
)
def test_run(reports: Any, ending: str, expected: int, tmp_path: Path) -> None:
    assert status(tmp_path, reports, ending, "--exit-code") == expected
    if expected == 3:
        delivery.listeners.clear()
        assert status(tmp_path, reports, ending) == 0


def test_a_dump_of_before_does_not_count(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "precision_data" / "overflow" / "dump" / "20240517093010"
    old.mkdir(parents=True)
    (old / "report.json").write_text(FOUND.to_json())
    assert status(tmp_path, [], "", "--exit-code") == 0


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
