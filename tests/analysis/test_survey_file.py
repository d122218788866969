"""Headroom from a survey's file, which anybody can have written, and from the operators of an NPU."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dump_trees import RUN, Step

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.report.model import Report
from npu_overflow.training.manifest import Manifest

LAYER = {"layer": "hot", "phase": "forward", "largest": 32752.0, "nonzero": 8, "flushed": 0}


def surveyed(root: Path, content: Any) -> Report:
    folder = root / RUN
    folder.mkdir()
    Manifest(collector="host").write(str(folder))
    text = content if isinstance(content, str) else json.dumps(content)
    (folder / "headroom.json").write_text(text, encoding="utf-8")
    return analyze(str(folder))


def test_a_survey_without_any_operator(tmp_path: Path) -> None:
    report = surveyed(tmp_path, {"step": 4, "dtype": "float16", "layers": [LAYER]})
    assert report.headroom is not None and report.headroom.step == 4
    (row,) = report.headroom.layers
    assert (row.layer, row.headroom_log2) == ("hot", 1.0)
    assert report.problems == () and report.first is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        {"layers": 3},
        {"layers": [dict(LAYER, largest="x")]},
        {"layers": [dict(LAYER, nonzero=-1)]},
        {"layers": [dict(LAYER, layer="x" * 5000)]},
        {"layers": [LAYER] * 20_001},
        {"step": -1, "layers": [LAYER]},
    ],
)
def test_what_is_no_survey_counts_as_none(tmp_path: Path, content: Any) -> None:
    assert surveyed(tmp_path, content).headroom is None


@pytest.mark.parametrize("largest", ["inf", "nan", 0, -1])
def test_a_magnitude_that_is_none_is_left_out(tmp_path: Path, largest: Any) -> None:
    report = surveyed(tmp_path, {"step": 4, "layers": [dict(LAYER, largest=largest), LAYER]})
    assert report.headroom is not None and len(report.headroom.layers) == 1


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "other.json"
    elsewhere.write_text(json.dumps({"step": 4, "layers": [LAYER]}), encoding="utf-8")
    folder = tmp_path / RUN
    folder.mkdir()
    Manifest(collector="host").write(str(folder))
    os.symlink(str(elsewhere), str(folder / "headroom.json"))
    assert analyze(str(folder)).headroom is None


def test_operators_of_an_npu_dump(tmp_path: Path) -> None:
    tree = Step(tmp_path)
    half = np.array([1.0, -32752.0], np.float16)
    tree.operator("Mul", "net/hot/Mul", 1, 100, [half], [np.array([np.inf, 8.0], np.float16)])
    tree.operator("Mul", "gradients/net/Mul", 2, 200, [half / 2], [np.array([np.inf], np.float16)])
    found = analyze(str(tmp_path)).headroom
    assert found is not None and found.step is None
    assert [(row.layer, row.phase, row.headroom_log2) for row in found.layers] == [
        ("net/hot/Mul", "forward", 1.0),
        ("gradients/net/Mul", "backward", 2.0),
    ]
