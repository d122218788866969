"""Laying out text: widths, wrapping, escapes."""
from __future__ import annotations

import re
from typing import List

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow.report.escape import clean
from npu_overflow.report.flow import cells, join, pad, plain, wrap

WORDS = st.lists(st.text("abcxyz0123456789./_-，。溢出值（）", min_size=1, max_size=12) | st.just("  "), max_size=20).map(" ".join)


@given(WORDS, st.integers(2, 60))
def test_no_line_is_wider_than_the_width(text: str, width: int) -> None:
    assert all(cells(plain(line)) <= width for line in wrap([(text, "")], width))


@given(WORDS, st.integers(20, 60), st.booleans())
def test_wrapping_loses_nothing_but_blanks(text: str, width: int, whole: bool) -> None:
    lines = wrap([(text, "")], width, whole=whole)
    assert "".join(plain(line) for line in lines).replace(" ", "") == text.replace(" ", "")


@given(st.lists(st.floats(allow_nan=False).map(repr), min_size=1, max_size=20), st.integers(26, 60))
def test_numbers_are_never_broken(numbers: List[str], width: int) -> None:
    text = "，".join("最小值 %s 溢出" % number for number in numbers)
    lines = [plain(line) for line in wrap([(text, "")], width)]
    found = [word for line in lines for word in re.findall(r"[-+.e0-9inf]+", line)]
    assert found == numbers


def test_pieces_keep_their_styles_and_words_run_on_across_pieces() -> None:
    lines = wrap([("see ", "dim"), ("abc", "name"), ("def", "bad"), (" end", "")], 10)
    assert lines == [[("see", "dim"), (" ", "dim"), ("abc", "name"), ("def", "bad")], [("end", "")]]


def test_a_name_breaks_after_a_slash() -> None:
    lines = [plain(line) for line in wrap([("model/block_1/attention/query_projection/MatMul", "")], 30)]
    assert lines == ["model/block_1/attention/", "query_projection/MatMul"]


def test_a_name_stays_whole_where_asked() -> None:
    name = "model/" * 30 + "MatMul"
    assert [plain(line) for line in wrap([(name, "")], 30, whole=True)] == [name]


def test_chinese_breaks_anywhere_but_not_before_punctuation() -> None:
    lines = [plain(line) for line in wrap([("溢出由该算子产生，请检查。", "")], 16)]
    assert lines == ["溢出由该算子产", "生，请检查。"]


def test_items_stay_together() -> None:
    items = [[("min ", "dim"), ("-65504", "")], [("max ", "dim"), ("65504", "")], [("mean ", "dim"), ("0.5", "")]]
    assert [plain(line) for line in join(items, 25)] == ["min -65504   max 65504", "mean 0.5"]


def test_pad_counts_cells() -> None:
    assert pad("溢出", 6) == "溢出  "
    assert pad("ab", 4, right=True) == "  ab"
    assert cells("溢出 ab") == 7


@pytest.mark.parametrize(
    ("given_name", "shown"),
    [
        ("net/fc/MatMul", "net/fc/MatMul"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\nb\tc\rd", "a\\x0ab\\x09c\\x0dd"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202egnp.exe", "\\u202egnp.exe"),
        ("a\u200bb\ufeff", "a\\u200bb\\ufeff"),
        ("\u2028", "\\u2028"),
        ("\udcff", "\\udcff"),
        ("\U000e0041", "\\U000e0041"),
        ("卷积/算子", "卷积/算子"),
        ("a\u00a0b", "a b"),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
    ],
)
def test_hidden_characters_are_shown(given_name: str, shown: str) -> None:
    assert clean(given_name) == shown


def test_a_name_of_a_megabyte_is_cut_with_its_length() -> None:
    shown = clean("x" * 1000000)
    assert len(shown) < 1100
    assert shown.endswith("…(1000000 characters)")


@given(st.text(max_size=200))
def test_cleaned_text_is_printable(text: str) -> None:
    assert clean(text).isprintable()
