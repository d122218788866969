"""Every JSON report fits the schema that is shipped with the package, and the schema names every field of the model."""
from __future__ import annotations

import dataclasses
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Set

import html_trees
import pytest
import report_samples
from hypothesis import given, settings
from report_strategies import reports

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.cli import main
from npu_overflow.report.model import (
    Headroom,
    LayerRange,
    LossScale,
    Operator,
    Problem,
    Remark,
    Report,
    TensorSummary,
    Trial,
)

jsonschema = pytest.importorskip("jsonschema")

CORPUS = Path(__file__).resolve().parent.parent / "data" / "corpus"


@pytest.fixture(scope="module")
def schema() -> Dict[str, Any]:
    data = pkgutil.get_data("npu_overflow.report", "schema_1.json")
    assert data is not None
    loaded: Dict[str, Any] = json.loads(data.decode("utf-8"))
    jsonschema.Draft7Validator.check_schema(loaded)
    return loaded


@pytest.fixture(scope="module")
def validator(schema: Dict[str, Any]) -> Any:
    return jsonschema.Draft7Validator(schema)


def complaints(validator: Any, text: str) -> Any:
    return [(list(error.absolute_path), error.message) for error in validator.iter_errors(json.loads(text))]


@pytest.mark.parametrize("tree", sorted(path.name for path in CORPUS.iterdir()))
def test_reports_of_dumps(validator: Any, tree: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(CORPUS / tree / "dump"), "--json"]) == 0
    assert complaints(validator, capsys.readouterr().out) == []


@pytest.mark.parametrize("name", html_trees.TREES)
def test_reports_of_trees_with_manifests(validator: Any, tmp_path: Path, name: str) -> None:
    report = analyze(str(html_trees.TREES[name](tmp_path)))
    assert complaints(validator, report.to_json()) == []
    # NaN is unequal to itself, but not as text
    assert repr(Report.from_json(report.to_json())) == repr(report)


def test_merged_reports(validator: Any, tmp_path: Path) -> None:
    from npu_overflow.report.merge import merge

    report = analyze(str(html_trees.culprit_tree(tmp_path)))
    merged = merge([dataclasses.replace(report, rank=rank, world_size=2) for rank in (0, 1)])
    assert complaints(validator, merged.to_json()) == []


def test_every_command_that_prints_or_writes_json(validator: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Dumps, several of them, saved reports, merged ones: to standard output and to a file."""
    tree = str(html_trees.culprit_tree(tmp_path / "one"))
    other = str(html_trees.hostile_tree(tmp_path / "two"))

    def printed(*words: str) -> str:
        capsys.readouterr()
        assert main(list(words)) == 0
        return capsys.readouterr().out

    texts = {"one": printed("analyze", tree, "--json"), "none": printed("analyze", str(CORPUS / "no_overflow" / "dump"), "--json")}
    for name, text in texts.items():
        Path(name + ".json").write_text(text, encoding="utf-8")
    texts["again"] = printed("analyze", "one.json", "--json")
    assert texts["again"] == texts["one"]
    texts["limited"] = printed("analyze", tree, "--json", "--limit", "1")
    texts["merged"] = printed("merge", "--json", "--output", "merged.json", "one.json", "none.json")
    assert Path("merged.json").read_text(encoding="utf-8") == texts["merged"]
    texts["merged again"] = printed("merge", "--json", "merged.json", "one.json")
    several = json.loads(printed("analyze", tree, other, "--json"))  # a list, in the order of the paths
    assert [report["path"] for report in several] == [tree, other]
    texts.update({"one of two": json.dumps(several[0]), "two of two": json.dumps(several[1])})
    for name, text in texts.items():
        assert complaints(validator, text) == [], name
        restored = Report.from_json(text)
        assert json.loads(restored.to_json()) == json.loads(text), name


@pytest.mark.tensorflow
def test_reports_that_a_training_saves(validator: Any, tmp_path: Path) -> None:
    """Those that the watch writes beside the dump, and what ``merge`` makes of them."""
    example = Path(__file__).resolve().parent.parent.parent / "examples" / "keras_fit.py"
    command = [sys.executable, "-m", "npu_overflow", "run", "--verbose", "0", str(example)]
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run(command, cwd=str(tmp_path), capture_output=True, encoding="utf-8", env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    (saved,) = tmp_path.glob("precision_data/overflow/dump/*/report.json")
    text = saved.read_text(encoding="utf-8")
    assert complaints(validator, text) == []
    report = Report.from_json(text)
    # a second trace of the model numbers its layers
    assert report.first is not None and re.sub(r"_\d+", "", report.first.op_name or "") == "net/hot/MatMul"
    assert report.loss_scale is not None and report.loss_scale.drops
    assert report.loss_scale.trigger_step is not None and report.to_json() == text


@pytest.mark.parametrize("name", report_samples.ALL)
def test_samples(validator: Any, name: str) -> None:
    assert complaints(validator, report_samples.ALL[name].to_json()) == []


@settings(max_examples=60)
@given(report=reports())
def test_any_report(validator: Any, report: Report) -> None:
    assert complaints(validator, report.to_json()) == []


def test_the_schema_names_every_field(schema: Dict[str, Any]) -> None:
    def fields(cls: Any) -> Set[str]:
        return {item.name for item in dataclasses.fields(cls)}

    assert set(schema["properties"]) == fields(Report) - {"first_index"} | {"first"}
    classes = {"operator": Operator, "tensor": TensorSummary, "problem": Problem, "remark": Remark, "loss_scale": LossScale, "trial": Trial}
    classes.update(headroom=Headroom, layer_range=LayerRange)
    assert {name: set(schema["definitions"][name]["properties"]) for name in classes} == {name: fields(cls) for name, cls in classes.items()}


@pytest.mark.parametrize(
    "change",
    [{"schema": 2}, {"tool": "x"}, {"operators": {}}, {"first": "0"}, {"records": -1}, {"loss_scale": {"drops": [[1, 2]], "rate": None, "optimizers": []}}],
)
def test_what_is_no_report_does_not_fit(validator: Any, change: Dict[str, Any]) -> None:
    assert complaints(validator, json.dumps(dict(report_samples.NPU.to_dict(), **change))) != []


def test_reports_of_an_older_version_are_read() -> None:
    """What this version added is missing in them."""
    old = report_samples.NPU.to_dict()
    for name in ("trigger_step", "kept_steps"):
        del old["loss_scale"][name]
    del old["reason"]
    assert Report.from_dict(old) == report_samples.NPU
