"""Report.from_json restores what to_json wrote, and says what is wrong with anything else."""
from __future__ import annotations

import json
import math
from typing import Any, Dict

import pytest
import report_samples
from hypothesis import given
from report_strategies import reports

from npu_overflow.errors import DumpFormatError
from npu_overflow.report.model import Operator, Report, TensorSummary


@given(reports())
def test_from_json_restores_what_to_json_wrote(report: Report) -> None:
    assert Report.from_json(report.to_json()) == report


@given(reports())
def test_from_dict_restores_what_to_dict_gave(report: Report) -> None:
    assert Report.from_dict(report.to_dict()) == report


@given(reports())
def test_json_holds_no_character_that_could_steer_a_terminal(report: Report) -> None:
    text = report.to_json()
    text.encode("utf-8")
    assert all(char >= " " or char == "\n" for char in text)
    assert not any(char in text for char in "\x7f\x9b\u202e\u2066\ufeff")


def test_numbers_that_json_lacks_come_back() -> None:
    tensor = TensorSummary(0, "float16", "ND", (2,), min=-math.inf, max=math.inf, mean=math.nan, first_overflow={"index": [1], "value": math.nan})
    operator = Operator(op_name="inf", op_type="nan", inputs=(tensor,), evidence={"value": -math.inf, "name": "nan"})
    text = Report(path="nan", version="0.1.0", operators=(operator,)).to_json()
    data = json.loads(text)
    assert data["operators"][0]["inputs"][0]["min"] == "-inf"
    back = Report.from_json(text)
    assert (back.path, back.operators[0].op_name, back.operators[0].op_type) == ("nan", "inf", "nan")
    assert back.operators[0].evidence == {"value": -math.inf, "name": "nan"}
    assert back.operators[0].inputs is not None
    again = back.operators[0].inputs[0]
    assert (again.min, again.max) == (-math.inf, math.inf)
    assert again.mean is not None and math.isnan(again.mean)
    assert again.first_overflow is not None and math.isnan(again.first_overflow["value"])


def test_bool_extremes_stay_bool() -> None:
    tensor = TensorSummary(0, "bool", "ND", (2,), min=False, max=True)
    back = Report.from_json(Report(path="p", version="1", operators=(Operator(outputs=(tensor,)),)).to_json())
    assert back.operators[0].outputs is not None
    assert back.operators[0].outputs[0].max is True and back.operators[0].outputs[0].min is False


def test_fields_of_a_later_version_are_ignored() -> None:
    data = report_samples.NPU.to_dict()
    data["schema"] = 2
    data["new"] = {"deep": [1]}
    data["operators"][0]["new"] = 1
    data["operators"][0]["inputs"][0]["new"] = "x"
    back = Report.from_dict(data)
    assert back.operators == report_samples.NPU.operators
    assert back.schema == 2


def test_missing_fields_get_their_defaults() -> None:
    back = Report.from_json('{"schema": 1, "tool": "npu_overflow", "version": "0.0.9", "path": "p", "operators": [{"op_type": "Mul"}]}')
    assert back == Report(path="p", version="0.0.9", operators=(Operator(op_type="Mul"),))


def test_the_example_of_the_interface_is_read() -> None:
    data: Dict[str, Any] = {
        "schema": 1,
        "tool": "npu_overflow",
        "version": "0.1.0",
        "path": "p",
        "first": 0,
        "host": None,
        "operators": [
            {
                "op_type": "FusedMulAdd",
                "status": [0, 32, 0, 0],
                "inputs": [{"index": 0, "dtype": "float16", "format": "ND", "shape": [32, 64], "min": -381.5}],
                "outputs": None,
            }
        ],
        "problems": [{"file": "f", "reason": "r"}],
        "loss_scale": {"drops": [[120, 32768.0, 16384.0]], "rate": 0.004, "optimizers": []},
    }
    report = Report.from_dict(data)
    assert report.first is not None
    assert report.first.status == (0, 32, 0, 0)
    assert report.first.outputs is None
    assert report.loss_scale is not None and report.loss_scale.drops == ((120, 32768.0, 16384.0),)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "not a JSON report"),
        ("{", "not a JSON report"),
        ("[" * 100000, "not a JSON report"),
        ("[]", "no report of npu_overflow"),
        ("null", "no report of npu_overflow"),
        ("{}", "no report of npu_overflow"),
        ('{"schema": 1, "tool": "another", "version": "1", "path": "p"}', "no report of npu_overflow"),
        ('{"schema": 1, "version": "1"}', "path"),
        ('{"schema": 1, "version": "1", "path": 5}', "path"),
        ('{"schema": 1, "version": "1", "path": "p", "first": 0}', "first"),
        ('{"schema": 1, "version": "1", "path": "p", "first": -1, "operators": [{}]}', "first"),
        ('{"schema": 1, "version": "1", "path": "p", "operators": 5}', "operators"),
        ('{"schema": 1, "version": "1", "path": "p", "operators": [5]}', "operators[0]"),
        ('{"schema": 1, "version": "1", "path": "p", "operators": [{"device": "0"}]}', "operators[0].device"),
        ('{"schema": 1, "version": "1", "path": "p", "operators": [{"evidence": []}]}', "operators[0].evidence"),
        ('{"schema": 1, "version": "1", "path": "p", "loss_scale": {"drops": [[1, 2.0]]}}', "loss_scale.drops[0]"),
    ],
)
def test_what_is_no_report_is_refused_with_the_place(text: str, part: str) -> None:
    with pytest.raises(DumpFormatError) as caught:
        Report.from_json(text)
    assert part in str(caught.value)
    assert caught.value.message("zh")
