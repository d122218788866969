"""What GitHub Actions is told of a report."""
from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from npu_overflow.report import github
from npu_overflow.report.model import Operator, Report

FIRST = Operator(
    op_type="Square",
    op_name="net/hot/Square",
    core="CPU",
    verdict="computed_here",
    location="src/train.py:18",
    location_kind="call",
    source_line="y = tf.square(x)",
    advice=("values_large",),
)


def report(**more: Any) -> Report:
    return Report("dump", "0", operators=(dataclasses.replace(FIRST, **more),), first_index=0)


def told(folder: Path, capsys: Any, *reports: Report, **more: str) -> Any:
    summary = folder / "summary.md"
    environment = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary), **more}
    github.show(reports, "en", environment)
    return capsys.readouterr().out, summary.read_text(encoding="utf-8") if summary.exists() else ""


def test_an_annotation_at_the_line_and_a_summary(tmp_path: Path, capsys: Any) -> None:
    command, summary = told(tmp_path, capsys, report())
    assert command.startswith(
        "::error file=src/train.py,line=18,title=npu-overflow%3A First overflowing operator::"
        "Square net/hot/Square: The overflow is made in this operator"
    )
    assert command.count("\n") == 1
    assert "### First overflowing operator" in summary and "`net/hot/Square`" in summary
    assert "`y = tf.square(x)`" in summary


@pytest.mark.parametrize("name", ["a\n::error ::b", "x%0A", "`*[a](b)", "\x1b[31mred"])
def test_a_name_from_a_dump_is_text_only(name: str, tmp_path: Path, capsys: Any) -> None:
    command, summary = told(tmp_path, capsys, report(op_name=name, location=name))
    assert command.count("\n") == 1 and command.count("::") <= 3 + name.count("::")
    assert "\x1b" not in command + summary
    (line,) = [line for line in summary.splitlines() if line.startswith("`Square` ")]
    assert re.match(r"^`Square` `[^`]*`$", line)


@pytest.mark.parametrize("environment", [{"GITHUB_ACTIONS": ""}, {"GITHUB_STEP_SUMMARY": "/no/x"}])
def test_elsewhere_nothing_happens_and_nothing_fails(
    environment: Any, tmp_path: Path, capsys: Any
) -> None:
    command, summary = told(tmp_path, capsys, report(), **environment)
    assert bool(command) == ("GITHUB_ACTIONS" not in environment) and summary == ""


def test_a_report_without_a_finding_is_no_annotation(tmp_path: Path, capsys: Any) -> None:
    assert told(tmp_path, capsys, Report("dump", "0")) == ("", "")
