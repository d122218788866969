"""The sample trees of the vendor's format: what must be said about each lies beside it."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict

import pytest

from npu_overflow.analysis.analyzer import analyze

CORPUS = Path(__file__).parents[1] / "data" / "corpus"
TREES = sorted(path.parent.name for path in CORPUS.glob("*/expected.json"))


def expected_of(name: str) -> Dict[str, Any]:
    found: Dict[str, Any] = json.loads((CORPUS / name / "expected.json").read_text(encoding="utf-8"))
    return found


def differences(report: Dict[str, Any], expected: Dict[str, Any]) -> Dict[str, Any]:
    """What ``expected`` says otherwise: place -> (found, expected). A key that is absent there is not checked."""
    wrong: Dict[str, Any] = {}

    def compare(place: str, found: Any, wanted: Any) -> None:
        if found != wanted or type(found) is not type(wanted):
            wrong[place] = (found, wanted)

    compare("mode", report["mode"], expected["mode"])
    compare("first", report["first"], expected["first"])
    compare("problems", len(report["problems"]), expected["problems"])
    compare("operators", len(report["operators"]), len(expected["operators"]))
    for number, (operator, wanted) in enumerate(zip(report["operators"], expected["operators"])):
        for key, value in wanted.items():
            place = "%d.%s" % (number, key)
            side = key.rstrip("0123456789")
            if key in ("inputs", "outputs"):
                compare(place, len(operator[key]), value)
            elif side in ("input", "output"):
                tensor = operator[side + "s"][int(key[len(side):])]
                for name, figure in value.items():
                    compare("%s.%s" % (place, name), tensor[name], figure)
            else:
                compare(place, operator[key], value)
    return wrong


def test_the_whole_corpus_is_here() -> None:
    assert len(TREES) == 24


@pytest.mark.parametrize("name", TREES)
def test_corpus(name: str) -> None:
    report = json.loads(analyze(str(CORPUS / name / "dump")).to_json())
    assert differences(report, expected_of(name)) == {}


@pytest.mark.parametrize("name", TREES)
def test_corpus_from_the_command_line(name: str, tmp_path: Path) -> None:
    of_old_protobuf = "ignore:Using or importing the ABCs:DeprecationWarning"
    command = [sys.executable, "-W", "error", "-W", of_old_protobuf, "-m", "npu_overflow", "analyze", str(CORPUS / name / "dump"), "--json"]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(entry for entry in sys.path if entry), PYTHONIOENCODING="utf-8")
    done = subprocess.run(command, capture_output=True, cwd=str(tmp_path), env=environment, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")
    assert differences(json.loads(done.stdout.decode("utf-8")), expected_of(name)) == {}


def test_files_in_the_report_are_relative() -> None:
    report = analyze(str(CORPUS / "damaged" / "dump"))
    files = [problem.file for problem in report.problems] + [operator.record_file for operator in report.operators]
    assert files and not any(os.path.isabs(file or "") for file in files)
    assert all((CORPUS / "damaged" / "dump" / (file or "")).exists() for file in files)


def test_another_run_by_name_and_all_runs() -> None:
    tree = str(CORPUS / "two_runs" / "dump")
    assert [operator.op_name for operator in analyze(tree, run="20240101000000").operators] == ["old/mul"]
    assert [operator.op_name for operator in analyze(tree, run="all").operators] == ["old/mul", "new/mul"]


def test_the_user_can_say_the_mode() -> None:
    tree = str(CORPUS / "ffts_plus_threads" / "dump")
    guessed, told = analyze(tree), analyze(tree, mode="saturation")
    assert [remark.code for remark in guessed.remarks] == ["remark.maybe_saturation"]
    assert (told.mode, told.operators[0].verdict, [remark.code for remark in told.remarks]) == ("saturation", "computed_here", [])
