"""File names, both directions."""
from __future__ import annotations

from typing import List, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow.dump.names import (
    Name,
    clean,
    dump_name,
    parse_name,
    record_name,
    sort_names,
    time_of_record,
)

WORD = st.text(st.characters(whitelist_categories=("L", "N"), whitelist_characters="_-:()"), min_size=1, max_size=40)
NUMBER = st.integers(0, 2**63)
TIME = st.integers(10**15, 10**16 - 1)


@given(WORD, WORD, NUMBER, st.none() | NUMBER, TIME)
def test_a_dump_name_there_and_back(op_type: str, op_name: str, task: int, stream: Optional[int], time: int) -> None:
    expected = Name("dump", op_type, op_name, task, stream, time)
    assert parse_name(dump_name(op_type, op_name, task, stream, time)) == expected


@given(WORD, WORD, NUMBER, NUMBER, TIME, st.integers(0, 9), NUMBER, NUMBER, st.integers(0, 4095))
def test_an_ffts_plus_name_there_and_back(
    op_type: str, op_name: str, task: int, stream: int, time: int, kind: int, context: int, thread: int, device: int
) -> None:
    made = dump_name(op_type, op_name, task, stream, time, kind, context, thread, device)
    assert parse_name(made) == Name("dump", op_type, op_name, task, stream, time, kind, context, thread, device)
    assert parse_name(made + ".csv") == Name("statistics", op_type, op_name, task, stream, time, kind, context, thread, device)


@given(NUMBER, st.none() | NUMBER, TIME)
def test_a_record_name_there_and_back(task: int, stream: Optional[int], time: int) -> None:
    name = parse_name(record_name(task, stream, time))
    assert name is not None and (name.kind, name.task_id, name.stream_id, name.timestamp) == ("record", task, stream, time)


@given(st.text(max_size=80))
def test_any_text_is_a_name_or_none(text: str) -> None:
    name = parse_name(text)
    assert name is None or (text.count(".") >= 3 and name.op_type)


@pytest.mark.parametrize("spelled", ["Opdebug.Node_OpDebug.1.5.1715938212345600", "OpDebug.Node_Opdebug.1.5.1715938212345600"])
def test_records_are_known_in_either_spelling(spelled: str) -> None:
    name = parse_name(spelled)
    assert name is not None and name.kind == "record"


@pytest.mark.parametrize(
    ("file_name", "expected"),
    [
        ("Mul.a.7.1715938212345678", Name("dump", "Mul", "a", 7, None, 1715938212345678)),
        ("Mul.5.3.1715938212000205", Name("dump", "Mul", "5", 3, None, 1715938212000205)),
        ("Mul.a.0.3.1715938212000205.4.1.2.0", Name("dump", "Mul", "a", 0, 3, 1715938212000205, 4, 1, 2, 0)),
        ("Mul.a.b.5.3.1715938212000205", None),
        ("Mul.a.5.3.1715938212000205.4", None),
        ("Mul.a.7.3.1715938212345678.csv", Name("statistics", "Mul", "a", 7, 3, 1715938212345678)),
        ("Opdebug.Node_OpDebug.x.y", None),
        ("Opdebug.Node_OpDebug", None),
        ("108172736190", None),
        ("mapping.csv", None),
        (".Mul.a.7.3.1715938212345678.part", None),
        ("Mul..7.3.1715938212345678", None),
        (".a.7.3.1715938212345678", None),
        ("Mul.a.7.3.", None),
        ("Mul.a.-7.3.1715938212345678", None),
        ("Mul.a.٣.3.1715938212345678", None),
        ("Mul.a.7.3." + "9" * 200, None),
        ("", None),
        ("...", None),
    ],
)
def test_names_by_example(file_name: str, expected: Optional[Name]) -> None:
    assert parse_name(file_name) == expected


def test_what_the_device_replaces_in_names() -> None:
    assert clean("a.b/c\\d e") == "a_b_c_d_e"
    assert dump_name("Mat.Mul", "net/fc 1", 1, 2, 1715938212345678) == "Mat_Mul.net_fc_1.1.2.1715938212345678"


SMALL, WHEN = st.integers(0, 9), st.integers(0, 10**16)
NAMES = st.one_of(
    st.text(st.sampled_from("aO.1-\n \udc80"), min_size=1, max_size=12),
    st.builds(record_name, SMALL, SMALL, WHEN),
    st.builds(dump_name, st.sampled_from(["Mul", "Opdebug", "opdebug"]), st.sampled_from(["a", "NODE_OpDebug", "1"]), SMALL, SMALL, WHEN),
    st.builds(record_name, SMALL, st.none(), WHEN).map(lambda name: name + ".csv"),
    st.builds(record_name, SMALL, SMALL, WHEN, st.just(4), SMALL, SMALL, SMALL),
)


@given(st.lists(NAMES, unique=True, max_size=8))
def test_sorted_as_parsed_one_by_one(given: List[str]) -> None:
    records, dumps, others = sort_names(given)
    kinds = {name: None if parsed is None else parsed.kind for name, parsed in ((name, parse_name(name)) for name in given)}
    assert records == [name for name in given if kinds[name] == "record"]
    assert dumps == [name for name in given if kinds[name] in ("dump", "statistics")]
    assert others == [name for name in given if kinds[name] is None]
    assert [time_of_record(name) for name in records] == [parse_name(name).timestamp for name in records]
