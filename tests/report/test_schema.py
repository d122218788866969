"""Every JSON report fits the schema that is shipped with the package, and the schema names every field of the model."""
from __future__ import annotations

import dataclasses
import json
import pkgutil
from pathlib import Path
from typing import Any, Dict, Set

import html_trees
import pytest
import report_samples
from hypothesis import given, settings
from report_strategies import reports

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.cli import main
from npu_overflow.report.model import LossScale, Operator, Problem, Remark, Report, TensorSummary

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
    classes = {"operator": Operator, "tensor": TensorSummary, "problem": Problem, "remark": Remark, "loss_scale": LossScale}
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
