"""The notebook among the examples runs from top to bottom and prints what is stored in it."""
from __future__ import annotations

import contextlib
import html
import io
import json
import re
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from npu_overflow.report.model import Operator, Report

NOTEBOOKS = sorted((Path(__file__).resolve().parent.parent / "examples").glob("*.ipynb"))


def test_there_is_one() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_it_runs_and_prints_what_it_shows(path: Path) -> None:
    space: Dict[str, Any] = {}
    shown: List[str] = []
    printed: List[str] = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] != "code":
            continue
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), path.name, "exec"), space)
        printed.append(out.getvalue())
        shown.append("".join("".join(item["text"]) for item in cell["outputs"]))
    assert len(printed) > 3 and printed == shown


def test_a_report_shows_itself_as_its_page_in_a_frame() -> None:
    report = Report("dump", "0", operators=(Operator("Mul", "<b>net</b>"),), first_index=0)
    shown = report._repr_html_()
    frame = re.fullmatch(r'<iframe [^>]*srcdoc="([^"]*)"[^>]*></iframe>', shown)
    assert frame is not None and "sandbox" in shown
    page = html.unescape(frame.group(1))
    assert page.startswith("<!DOCTYPE html>") and "&lt;b&gt;net" in page and "<b>net" not in page


def test_without_the_template_engine_it_is_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    report = Report("dump", "0", operators=(Operator("Mul", "<b>net</b>"),), first_index=0)
    shown = report._repr_html_()
    assert shown.startswith("<pre>") and "&lt;b&gt;net" in shown and "<b>" not in shown
