"""The files for modify_mixlist and customize_dtypes: right, merged, and nothing of the user's lost."""
from __future__ import annotations

import json
from typing import Any, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow.analysis.artefacts import dtype_line, kept_operators, merge_dtypes, merge_mixlist
from npu_overflow.errors import PathError
from npu_overflow.report.model import Operator, Report, TensorSummary

NAMES = st.lists(st.from_regex(r"\A[A-Z][A-Za-z0-9]{0,8}\Z"), max_size=6)


def operator(op_type: Optional[str], name: Optional[str], *advice: str, inputs: Any = ("float16",), outputs: Any = ("float16",)) -> Operator:
    sides = {
        side: None if types is None else tuple(TensorSummary(place, dtype, "ND", (2,)) for place, dtype in enumerate(types))
        for side, types in (("inputs", inputs), ("outputs", outputs))
    }
    return Operator(op_type=op_type, op_name=name, core="AI Core", advice=advice or ("keep_float32",), **sides)


def report(*operators: Operator) -> Report:
    return Report(path="x", version="0", operators=operators)


def test_only_operators_that_made_an_overflow_are_kept() -> None:
    own = [operator("Mul", "a"), operator("Mul", "c"), operator("Exp", "d", "exponent", "keep_float32")]
    kept = kept_operators(report(operator("Add", "b", "constant_input"), *own))
    assert kept.types == ("Exp", "Mul")
    assert [item.op_name for item in kept.operators] == ["a", "c", "d"]


@pytest.mark.parametrize("name", [None, "", "Mul;rm", "Mul\n", "a b", "../x", "x" * 300, '"'])
def test_a_strange_type_is_left_out_and_said(name: Optional[str]) -> None:
    kept = kept_operators(report(operator(name, "net/x")))
    assert kept.types == () and kept.strange == (name or "net/x",)


def test_a_fresh_list() -> None:
    assert merge_mixlist(None, ["FusedMulAdd"]) == ('{\n  "black-list": {\n    "to-add": [\n      "FusedMulAdd"\n    ]\n  }\n}\n', [])


def test_a_list_is_merged_into() -> None:
    existing = {"white-list": {"to-add": ["MatMul"], "x": 1}, "black-list": {"to-remove": ["Tanh"], "to-add": ["Softmax", "Add", "Add"]}, "comment": "我的"}
    text, conflicts = merge_mixlist(json.dumps(existing), ["Mul", "Add"])
    merged = json.loads(text)
    assert merged["black-list"] == {"to-remove": ["Tanh"], "to-add": ["Add", "Mul", "Softmax"]}
    assert {key: merged[key] for key in ("white-list", "comment")} == {key: existing[key] for key in ("white-list", "comment")}
    assert list(merged) == list(existing) and conflicts == []
    assert merge_mixlist(text, ["Mul"])[0] == text


@given(NAMES, NAMES, NAMES)
def test_nothing_is_lost(white: Any, black: Any, new: Any) -> None:
    text, conflicts = merge_mixlist(json.dumps({"white-list": {"to-add": white}, "black-list": {"to-add": black}}), new)
    merged = json.loads(text)
    assert merged["white-list"]["to-add"] == white
    assert merged["black-list"]["to-add"] == sorted(set(black) | set(new))
    assert conflicts == [name for name in new if name in white]


@pytest.mark.parametrize(
    "text",
    [
        *("[]", "{", "3", "null", '{"a": NaN}', '{"a": -Infinity}', '{"a": 1e999}', '{"black-list": {}} // mine', '{"white-list": {"to-add": {}}}'),
        *('{"black-list": []}', '{"black-list": {"to-add": "Mul"}}', '{"black-list": {"to-add": [1]}}', '{"a": 1, "a": 2}', "[" * 5000),
    ],
)
def test_another_file_is_left_alone(text: str) -> None:
    with pytest.raises(PathError):
        merge_mixlist(text, ["Mul"])


#: any JSON, as a user may keep beside the lists
FREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.text(max_size=5).filter(lambda name: not name.endswith("-list")), FREE, max_size=4),
    st.dictionaries(st.sampled_from(["to-remove", "x"]), NAMES, max_size=2),
    NAMES,
    st.sampled_from([None, 0, 2, 7]),
    st.booleans(),
)
def test_whatever_else_stands_in_the_file_is_kept(free: Any, beside: Any, new: Any, indent: Any, escaped: bool) -> None:
    """Unknown keys of any kind, the user's other lists, in any formatting; the file can be written as UTF-8."""
    existing = dict(free, **{"gray-list": {"to-add": ["Zeta"]}, "black-list": dict(beside, **{"to-add": ["Softmax"]})})
    given_text = json.dumps(existing, indent=indent, ensure_ascii=escaped or "\ud800" in str(existing))
    text, _ = merge_mixlist(given_text, new)
    text.encode("utf-8")
    expected = dict(existing, **{"black-list": dict(beside, **{"to-add": sorted({"Softmax", *new})})})
    assert json.loads(text) == expected and list(json.loads(text)) == list(existing)


def test_a_byte_order_mark_and_an_empty_file_are_no_obstacle() -> None:
    assert json.loads(merge_mixlist("\ufeff{}", ["Mul"])[0]) == json.loads(merge_mixlist(" \n", ["Mul"])[0]) == {"black-list": {"to-add": ["Mul"]}}


def test_a_line_by_name() -> None:
    assert dtype_line(operator("MatMul", "model/block_1/fc2/MatMul", inputs=("float16", "float16"))) == (
        "model/block_1/fc2/MatMul::InputDtype:float32,float32,OutputDtype:float32"
    )
    assert dtype_line(operator("Gather", "net/g", inputs=("bfloat16", "int32"), outputs=())) == "net/g::InputDtype:float32,int32"


@pytest.mark.parametrize(
    "given", [operator("Mul", None), operator("Mul", "a\nb"), operator("Mul", "a::b"), operator("Mul", "a b"), operator("Mul", "a", inputs=None, outputs=None)]
)
def test_no_line_without_a_name_or_tensors(given: Operator) -> None:
    assert dtype_line(given) is None


def test_lines_are_merged_into() -> None:
    existing = "# mine\nOpType::Relu::InputDtype:float32\nnet/b::InputDtype:float16\n\nnet/c::InputDtype:float32"
    text, conflicts = merge_dtypes(existing, ["net/%s::InputDtype:float32" % name for name in "zbca"])
    assert text == existing + "\nnet/a::InputDtype:float32\nnet/z::InputDtype:float32\n"
    assert conflicts == ["net/b"]
    assert merge_dtypes(text, ["net/a::InputDtype:float32"]) == (text, [])


@given(st.text())
def test_the_users_lines_stay_as_they_are(existing: str) -> None:
    """Whatever they are, to the last byte; what is new stands behind them."""
    text, _ = merge_dtypes(existing, ["net/a::InputDtype:float32"])
    assert text.startswith(existing)
    assert [line.strip() for line in text.split("\n")].count("net/a::InputDtype:float32") >= (existing == "")


def test_lines_of_windows_and_a_byte_order_mark() -> None:
    text, conflicts = merge_dtypes("\ufeffnet/b::InputDtype:float16\r\nnet/c::InputDtype:float16", ["net/%s::InputDtype:float32" % name for name in "ab"])
    assert text == "\ufeffnet/b::InputDtype:float16\r\nnet/c::InputDtype:float16\r\nnet/a::InputDtype:float32\r\n" and conflicts == ["net/b"]
