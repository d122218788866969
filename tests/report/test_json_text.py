"""Report.from_json restores what to_json wrote, and says what is wrong with anything else."""
from __future__ import annotations

import dataclasses
import json
import math
from typing import Any, Dict

import pytest
import report_samples
from hypothesis import given
from report_strategies import OPERATORS, PLAIN, SCALES, TENSORS, reports

from npu_overflow.errors import DumpFormatError
from npu_overflow.report.model import LossScale, Operator, Problem, Remark, Report, TensorSummary


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


def test_the_strategy_varies_every_field() -> None:
    """A field that is added to the model must be tried here too."""
    wanted = {
        TENSORS: TensorSummary, OPERATORS: Operator, SCALES: LossScale, PLAIN: Report,
    }  # fmt: skip
    fixed = {Report: {"schema", "tool", "first_index"}}
    for strategy, cls in wanted.items():
        given_fields = set(strategy.wrapped_strategy.kwargs)
        assert given_fields == {item.name for item in dataclasses.fields(cls)} - fixed.get(cls, set())


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "\\inf", "\\\\-inf", "\\", "information"])
def test_a_text_that_reads_like_a_number_stays_a_text(text: str) -> None:
    """In free JSON, under any key, in lists and deeper."""
    free = {"why": text, "known": [text, math.inf, {"low": text}], "name": text}
    operator = Operator(evidence=free, origin_detail={"value": text, "name": text})
    report = Report(path="p", version="1", operators=(operator,), problems=(Problem("f", "r", "c", free),), remarks=(Remark("t", "c", free),), host=free)
    back = Report.from_json(report.to_json())
    assert back == report and repr(dataclasses.astuple(back)) == repr(dataclasses.astuple(report))


def _of_an_older_version(data: Any, cls: Any) -> Any:
    """Every field with a default, left out one at a time."""
    for item in dataclasses.fields(cls):
        if item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING:
            yield item.name, {key: value for key, value in data.items() if key != item.name}


def test_reports_that_lack_any_of_todays_fields_are_read() -> None:
    """Fields are only ever added, so that a report of an older version lacks some: each gets its default."""
    whole = Report.from_dict(report_samples.NPU.to_dict())
    data = whole.to_dict()
    seen = 0
    for name, older in _of_an_older_version(data, Report):
        if name not in ("schema", "tool", "operators", "first_index"):
            assert Report.from_dict(older) == dataclasses.replace(whole, **{name: _default(Report, name)}), name
            seen += 1
    for name, older in _of_an_older_version(data["operators"][0], Operator):
        back = Report.from_dict(dict(data, operators=[older, *data["operators"][1:]]))
        assert back.operators[0] == dataclasses.replace(whole.operators[0], **{name: _default(Operator, name)}), name
        seen += 1
    for name, older in _of_an_older_version(data["operators"][0]["inputs"][0], TensorSummary):
        operator = dict(data["operators"][0], inputs=[older])
        back = Report.from_dict(dict(data, operators=[operator], first=0))
        assert back.operators[0].inputs is not None and whole.operators[0].inputs is not None
        assert back.operators[0].inputs[0] == dataclasses.replace(whole.operators[0].inputs[0], **{name: _default(TensorSummary, name)}), name
        seen += 1
    assert seen > 50


def _default(cls: Any, name: str) -> Any:
    item = next(item for item in dataclasses.fields(cls) if item.name == name)
    return item.default if item.default is not dataclasses.MISSING else item.default_factory()  # type: ignore[misc]


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


@pytest.mark.parametrize("digits", [41, 4000, 1000000])
def test_numbers_of_too_many_digits_are_no_report(digits: int) -> None:
    """Old releases of Python take hours to convert them, new ones refuse to."""
    text = report_samples.NPU.to_json().replace('"task_id": 58', '"task_id": ' + "9" * digits)
    with pytest.raises(DumpFormatError) as caught:
        Report.from_json(text)
    assert caught.value.code == "report.not_json" and "a number of %d digits" % digits in str(caught.value)


@pytest.mark.parametrize("depth", [33, 200, 900])
def test_free_json_of_any_depth_is_no_report(depth: int) -> None:
    deep = json.loads("[" * depth + "]" * depth)
    data = dict(report_samples.NPU.to_dict(), host={"x": deep})
    with pytest.raises(DumpFormatError) as caught:
        Report.from_json(json.dumps(data))
    assert (caught.value.code, caught.value.values["field"]) == ("report.wrong_field", "host")


def test_free_json_of_some_depth_is_one() -> None:
    data = dict(report_samples.NPU.to_dict(), host={"x": json.loads("[" * 20 + "]" * 20)})
    assert Report.from_json(json.dumps(data)).to_dict()["host"] == data["host"]


def test_a_byte_order_mark_in_front_is_no_part_of_the_json() -> None:
    report = report_samples.NPU
    text = report.to_json()
    assert Report.from_json("\ufeff" + text) == Report.from_json(text)


def test_a_report_reads_as_one_line() -> None:
    first = Operator(op_name="net/hot/MatMul", op_type="MatMul", step=4, train_step=40)
    report = Report(path="dump", version="1", records=2, operators=(first, Operator()), first_index=0)
    assert repr(report) == "Report(first=MatMul 'net/hot/MatMul', step=40, operators=2, records=2, path='dump')"
    assert repr(Report(path="dump", version="1", reason="other_rank")) == "Report(first=None, reason='other_rank', operators=0, records=0, path='dump')"
    assert report == dataclasses.replace(report) and report != dataclasses.replace(report, records=3)
    hostile = dataclasses.replace(first, op_name="a\x1b]0;\n" + "x" * 10**6, op_type="\u202e\n" + "y" * 10**6)
    line = repr(dataclasses.replace(report, operators=(hostile,)))
    assert len(line) < 800 and line.isprintable()
