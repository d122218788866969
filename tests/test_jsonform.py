"""Dataclasses from untrusted JSON: what is accepted, and what the error says of the rest."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

import pytest

from npu_overflow.jsonform import Form, Number, WrongField, accepts, number_or_word, one_of, parse


@dataclass(frozen=True)
class Inner:
    index: int
    value: Optional[Number] = None


@dataclass(frozen=True)
class Outer:
    name: str
    rate: float = 0.0
    sure: bool = False
    mode: Optional[str] = field(default=None, metadata=one_of("slow", "fast"))
    sizes: List[int] = field(default_factory=list, metadata=accepts(lambda sizes: min(sizes) >= 0))
    pairs: Tuple[Tuple[int, float], ...] = ()
    steps: Dict[int, int] = field(default_factory=dict)
    inner: Optional[Inner] = None
    inners: Mapping[str, Inner] = field(default_factory=dict)
    free: Mapping[str, Any] = field(default_factory=dict)


STRICT = Form(depth=3, text=10, items=4, whole=(-(2**63), 2**64 - 1))
FORGIVING = Form(text=10, whole=(0, 99), forgiving=True)


def test_every_type() -> None:
    data = {
        "name": "x", "rate": 1, "sure": True, "mode": "slow", "sizes": [1, 2], "pairs": [[1, "inf"]],
        "steps": {"7": 8}, "inner": {"index": 3, "value": "-inf"}, "inners": {"a": {"index": 1}},
        "free": {"a": [{"b": "inf"}]}, "of_a_later_version": 1,
    }  # fmt: skip
    read = STRICT.read(Outer, data)
    assert read == Outer(
        "x", 1.0, True, "slow", [1, 2], ((1, math.inf),), {7: 8}, Inner(3, -math.inf),
        {"a": Inner(1)}, {"a": [{"b": "inf"}]},
    )  # fmt: skip
    assert type(read.rate) is float


def test_null_and_nothing_give_the_default() -> None:
    assert STRICT.read(Outer, {"name": "x", "rate": None, "inner": None}) == Outer("x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], "it can't be []"),
        ({}, "field name is missing"),
        ({"name": 5}, "field name can't be 5"),
        ({"name": "x" * 11}, "field name can't be 'xxxxxxxxxxx'"),
        ({"rate": True}, "field rate can't be True"),
        ({"rate": "1"}, "field rate can't be '1'"),
        ({"sure": 1}, "field sure can't be 1"),
        ({"mode": "other"}, "field mode can't be 'other'"),
        ({"sizes": [1, -2]}, "field sizes can't be [1, -2]"),
        ({"sizes": [1, 2.0]}, "field sizes[1] can't be 2.0"),
        ({"sizes": [2**64]}, "field sizes[0] can't be %d" % 2**64),
        ({"sizes": [0] * 5}, "field sizes can't be [0, 0, 0, 0, 0]"),
        ({"pairs": [[1, 2], [1]]}, "field pairs[1] can't be [1]"),
        ({"pairs": [[1, None]]}, "field pairs[0][1] can't be None"),
        ({"steps": {"../x": 1}}, "field steps['../x'] can't be '../x'"),
        ({"steps": {"1": "x"}}, "field steps['1'] can't be 'x'"),
        ({"inner": {"index": "x"}}, "field inner.index can't be 'x'"),
        ({"inner": {}}, "field inner.index is missing"),
        ({"inners": {"a": {"index": 1, "value": []}}}, "field inners['a'].value can't be []"),
        ({"free": {"a": [[[[]]]]}}, "field free can't be '...'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(data: Any, message: str) -> None:
    given = dict(data, name=data.get("name", "x")) if data else data
    with pytest.raises(WrongField) as caught:
        STRICT.read(Outer, given)
    assert str(caught.value) == message


def test_forgiving_takes_what_is_right() -> None:
    data = {
        "name": "x" * 11, "rate": "1", "mode": "other", "sizes": [-1], "steps": {"1": 1, "x": 2, "3": "x"},
        "inner": {"index": 1, "value": []}, "inners": {"a": {"index": 1}, "b": {"index": "x"}, "c": 5},
    }  # fmt: skip
    read = FORGIVING.read(Outer, data)
    assert read == Outer("x" * 10, steps={1: 1}, inner=Inner(1), inners={"a": Inner(1)})
    assert FORGIVING.read(Inner, {"index": 1, "value": 100}).value == 100.0  # no whole number that is accepted


def test_words_in_free_json() -> None:
    form = Form(texts=frozenset(["name"]))
    free = {"a": ["inf", "\\inf", "\\\\inf"], "name": ["nan", "\\inf"]}
    read = form.read(Outer, {"name": "x", "free": free})
    assert read.free == {"a": [math.inf, "inf", "\\inf"], "name": ["nan", "\\inf"]}


def test_numbers() -> None:
    assert [number_or_word(value) for value in (1.5, math.inf, -math.inf, math.nan)] == [1.5, "inf", "-inf", "nan"]
    assert STRICT.read(Outer, {"name": "x", "rate": -(10**400)}).rate == -math.inf


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, "9" * 41, "-" + "9" * 1_000_000])
def test_what_is_not_parsed(text: Any) -> None:
    with pytest.raises(ValueError):
        parse(text)
