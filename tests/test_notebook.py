"""The notebook among the examples runs from top to bottom and prints what is stored in it."""
from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path
from typing import Any, Dict, List

import pytest

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
