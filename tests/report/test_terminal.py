"""The terminal report: literal screens, and what must hold of every screen.

A screen that was changed on purpose is written anew by ``python tests/report/test_terminal.py`` and then looked at.
"""
from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from typing import Any, List

import pytest
import report_samples
from hypothesis import given, settings
from report_strategies import reports

from npu_overflow import messages
from npu_overflow.report import html
from npu_overflow.report.flow import cells
from npu_overflow.report.model import Operator, Problem, Report, TensorSummary
from npu_overflow.report.story import next_command_of
from npu_overflow.report.tensors import shown_inputs
from npu_overflow.report.terminal import print_report

SCREENS = Path(__file__).parent / "screens"
SAVED = "precision_data/overflow/dump/20240517093010/report.json"


def screen(report: Report, width: Any = 80, language: str = "en", **options: Any) -> str:
    file = io.StringIO()
    print_report(report, file=file, language=language, width=width, **options)
    return file.getvalue()


def too_wide(text: str, width: int) -> List[str]:
    """Lines over the width, but for commands and code, which are to be copied whole."""
    lines = text.split("\n")
    return [line for line in lines if cells(line) > width and not line.startswith("    npu-overflow show ")]


class Terminal(io.StringIO):
    """A file that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("language", messages.LANGUAGES)
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", sorted(report_samples.ALL))
def test_screen(name: str, width: int, language: str) -> None:
    expected = (SCREENS / ("%s_%s_%d.txt" % (name, language, width))).read_text(encoding="utf-8")
    assert screen(report_samples.ALL[name], width, language, saved=SAVED) == expected


def test_a_reason_is_a_sentence_and_never_a_code() -> None:
    told = {
        "replay.python": "The overflowing steps could not be collected; the remarks say why.",
        "by hand": "The collection ended without a finding: by hand.",
    }
    for reason, sentence in told.items():
        shown = screen(dataclasses.replace(report_samples.NOT_REPRODUCED, reason=reason))
        assert sentence in shown and "replay.python" not in shown
        assert sentence in html.render(dataclasses.replace(report_samples.NOT_REPRODUCED, reason=reason), "en")


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("language", messages.LANGUAGES)
@given(report=reports())
@settings(max_examples=25)
def test_any_report_keeps_to_the_width_without_control_bytes(
    width: int, language: str, report: Report
) -> None:
    text = screen(report, width, language, limit=None)
    assert too_wide(text, width) == []
    assert all(line.isprintable() for line in text.split("\n"))


def test_float16_maximum_is_65504() -> None:
    text = screen(report_samples.NPU)
    assert "max 65504 " in text and "min -65504 " in text
    assert "65500" not in text and "6.55e" not in text


def test_plain_text_and_whole_names_when_piped() -> None:
    name = "gradient_tape/" + "model/very_long_scope/" * 12 + "MatMul"
    report = dataclasses.replace(report_samples.NPU, operators=(dataclasses.replace(report_samples.CULPRIT, op_name=name),))
    text = screen(report, width=None)
    assert "\x1b" not in text
    assert name in text


def test_colour_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    file = Terminal()
    print_report(report_samples.NPU, file=file, language="en")
    assert "\x1b[" in file.getvalue()
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        monkeypatch.setenv(name, value)
        file = Terminal()
        print_report(report_samples.NPU, file=file, language="en")
        assert "\x1b" not in file.getvalue()
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.delenv("NO_COLOR", raising=False)


def test_colour_changes_nothing_but_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    monkeypatch.setenv("TERM", "xterm-256color")
    coloured = screen(report_samples.NPU, 100, colour=True)
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == screen(report_samples.NPU, 100)


def test_width_of_a_pipe_is_80_or_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    assert too_wide(screen(report_samples.HOST, width=None), 80) == []
    assert "first overflow\n" not in screen(report_samples.HOST, width=None)
    monkeypatch.setenv("COLUMNS", "120")
    assert "first overflow\n" in screen(report_samples.HOST, width=None)


def test_hostile_names_are_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    evil = "\x1b]0;owned\x07\u202e[bold red]x[/]\n\rok\x9b2J\udcff"
    operator = dataclasses.replace(
        report_samples.CULPRIT,
        op_name=evil, op_type=evil, core=evil, location=evil, forward_op=evil, inherited_from=evil, status_text=(evil,), dump_file=evil,
        origin="data", origin_detail={"name": evil, "element": [evil], "value": evil},
        evidence={"sample_first": {"limit": evil, "tensor": evil}},
        inputs=(TensorSummary(0, evil, evil, (1,), first_overflow={"index": [evil], "value": evil}),),
    )
    problem = Problem(evil, evil, "file.empty", {"_code": evil, "language": evil})
    report = Report(path=evil, version="0.1.0", run=evil, first_index=0, operators=(operator, operator), problems=(problem,))
    for colour in (False, True):
        text = screen(report, 80, saved=evil, colour=colour)
        assert "\x1b]" not in text and "\x07" not in text and "\u202e" not in text and "\x9b" not in text and "\r" not in text
        assert "\\u202e[bold red]x[/]" in text.replace("\n    ", "").replace("\n  ", "")


def test_long_lists_are_cut_with_a_count() -> None:
    clean = TensorSummary(0, "float16", "ND", (2,), min=0.0, max=1.0)
    inputs = [dataclasses.replace(clean, index=i) for i in range(500)]
    inputs[450] = dataclasses.replace(inputs[450], saturated=1, first_overflow={"index": [0], "value": 65504.0})
    others = tuple(Operator(op_type="Mul" if i % 3 else "Add", op_name="op%d" % i) for i in range(1000))
    operators = (dataclasses.replace(report_samples.CULPRIT, inputs=tuple(inputs)),) + others
    report = dataclasses.replace(report_samples.NPU, operators=operators, problems=tuple(Problem("f%d" % i, "r") for i in range(100)))
    text = screen(report, 100)
    assert "input.450" in text and "input.6" in text and "input.7 " not in text
    assert "492 more, 0 of them" in text
    assert "… and 998 more: Mul ×665, Add ×333" in text
    assert "… and 92 more" in text
    assert text.count("\n") < 90


def test_limit_counts_the_culprit() -> None:
    assert "  2. Conv2D" in screen(report_samples.NPU, limit=2) and "  3. Mul" not in screen(report_samples.NPU, limit=2)
    assert "  2. Conv2D" not in screen(report_samples.NPU, limit=1)
    assert "  5. FusedMulAdd" in screen(report_samples.NPU, limit=None)


def test_entries_before_the_culprit_stay_in_their_place() -> None:
    report = dataclasses.replace(report_samples.NPU, operators=(report_samples.INHERITED, report_samples.CULPRIT), first_index=1)
    text = screen(report)
    assert text.index("FusedMulAdd") < text.index("  1. Conv2D")


@pytest.mark.parametrize("encoding", ["ascii", "gbk", "latin-1", "utf-8"])
@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_any_encoding_of_the_output_will_do(encoding: str, language: str) -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    print_report(report_samples.NPU, file=file, language=language)
    text = raw.getvalue().decode(encoding)
    assert "FusedMulAdd" in text
    if encoding == "ascii" and language == "en":
        assert "+-MAX 119" in text and "32768 -> 8192" in text


def test_works_without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = screen(report_samples.NPU, 80, "zh")
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    assert screen(report_samples.NPU, 80, "zh", colour=True) == expected


def test_language_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    file = io.StringIO()
    report_samples.NPU.print(file=file)
    assert file.getvalue().startswith("首个溢出的 AI Core 算子\n")
    file = io.StringIO()
    report_samples.NPU.print(file=file, language="en")
    assert file.getvalue().startswith("First overflowing AI Core operator\n")


def test_next_command_is_one_that_a_shell_takes(tmp_path: Path) -> None:
    import shlex

    operator = dataclasses.replace(report_samples.CULPRIT, dump_file="a b/$(x)'y")
    report = dataclasses.replace(report_samples.NPU, path="my dump", operators=(operator,))
    command = next_command_of(report)
    assert command is not None
    assert shlex.split(command) == ["npu-overflow", "show", "my dump/a b/$(x)'y"]
    assert next_command_of(dataclasses.replace(report, operators=(dataclasses.replace(operator, dump_file="a\x1bb"),))) is None
    assert next_command_of(report_samples.NOTHING) is None
    record = tmp_path / "Opdebug.Node_OpDebug.1.2.1715938212345600"
    record.write_bytes(b"")
    beside = dataclasses.replace(report, path=str(record), operators=(dataclasses.replace(operator, dump_file="Mul.x.1.2.3"),))
    assert next_command_of(beside) == "npu-overflow show " + shlex.quote(str(tmp_path / "Mul.x.1.2.3"))


def test_a_command_given_is_printed_instead() -> None:
    text = screen(report_samples.NPU, next_command="npu-overflow run --restart train.py")
    assert text.endswith("  Next command:\n    npu-overflow run --restart train.py\n")


def test_chinese_translates_what_the_report_holds_in_english() -> None:
    assert "浮点计算溢出" in screen(report_samples.NPU, language="zh")
    unknown = dataclasses.replace(report_samples.CULPRIT, status=0x4000, status_bits=("0x4000",), status_text=("unknown bit 0x4000",))
    report = dataclasses.replace(report_samples.NPU, operators=(unknown,))
    assert "未知位 0x4000" in screen(report, language="zh")


@pytest.mark.parametrize("language", messages.LANGUAGES)
@pytest.mark.parametrize("origin", ["data", "variable", "constant"])
def test_a_name_that_nobody_knows_is_left_out(origin: str, language: str) -> None:
    culprit = dataclasses.replace(report_samples.CULPRIT, origin=origin, origin_detail={"name": None, "element": [1, 8], "value": 81230.1})
    text = screen(dataclasses.replace(report_samples.NPU, operators=(culprit,)), language=language)
    assert messages.say("report.origin.%s.unnamed" % origin, language) in text and "[1, 8] = 81230.1" in text
    assert "?" not in text.split(messages.say("report.consumer", language))[0]


def test_a_cast_says_no_headroom_of_its_wider_input() -> None:
    wide = TensorSummary(index=0, dtype="float32", format="ND", shape=(2,), bytes=8, min=1.0, max=70000.0, mean=35000.0, headroom_log2=111.4)
    half = TensorSummary(index=0, dtype="float16", format="ND", shape=(2,), bytes=4, min=1.0, max=float("inf"), pos_inf=1, headroom_log2=16.0)
    cast = dataclasses.replace(report_samples.CULPRIT, op_type="Cast", inputs=(wide,), outputs=(half,))
    assert [tensor.headroom_log2 for tensor in shown_inputs(cast)] == [None]
    assert shown_inputs(dataclasses.replace(cast, op_type="Mul")) == (wide,)
    assert "111.4" not in screen(dataclasses.replace(report_samples.NPU, operators=(cast,)))


def test_who_was_first_in_how_many_steps() -> None:
    culprit = dataclasses.replace(report_samples.CULPRIT, device=0)
    passer = dataclasses.replace(culprit, op_name="net/passer_by", steps_seen=1, steps_first=1, step=9)
    text = screen(dataclasses.replace(report_samples.NPU, operators=(culprit, passer)), 100)
    assert "Over steps" in text and "overflowed in one step only" in text and "overflowed in 3 steps, first in 2" in text
    assert "Over steps" not in screen(dataclasses.replace(report_samples.NPU, operators=(culprit, culprit)), 100)


@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_lists_of_a_saved_report_that_nobody_reads_to_the_end(language: str) -> None:
    """Advice stands once and no more than 12 of it; of a status 16 words and 256 meanings: all that any record has."""
    endless = dataclasses.replace(
        report_samples.CULPRIT,
        advice=tuple("advice %d" % (number // 2) for number in range(100000)),
        status=(1,) * 100000,
        status_text=tuple("meaning %d of it" % number for number in range(100000)),
    )
    text = screen(dataclasses.replace(report_samples.NPU, operators=(endless,), first_index=0), None, language)
    assert [("advice %d\n" % number in text) for number in range(14)] == [True] * 12 + [False] * 2
    unbroken = "".join(text.split())
    assert unbroken.count("1(0x1)") == 16 and "1(0x1),…]" in unbroken
    assert unbroken.count("meaning") == 256


if __name__ == "__main__":
    SCREENS.mkdir(exist_ok=True)
    messages.known("")
    messages._texts.update(report_samples.ADVICE)
    for sample_name, sample in report_samples.ALL.items():
        for sample_language in messages.LANGUAGES:
            for sample_width in (80, 120):
                target = SCREENS / ("%s_%s_%d.txt" % (sample_name, sample_language, sample_width))
                target.write_text(screen(sample, sample_width, sample_language, saved=SAVED), encoding="utf-8")


@pytest.mark.parametrize("path", ["\0", "\ud800", "a\0b/report"])
def test_paths_that_no_file_system_has(path: str) -> None:
    report = Report(path=path, version="1", first_index=0, operators=(Operator(op_type="Mul", op_name="a", core="AIV", dump_file="x"),))
    assert next_command_of(report) is None
