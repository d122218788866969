"""What was tried on a step stands in every output, with what to type."""
from __future__ import annotations

import dataclasses
import html
import io
from pathlib import Path

import pytest
import report_samples

from npu_overflow.report.model import Trial
from npu_overflow.report.tensorboard import Board
from npu_overflow.report.terminal import print_report

CODE = 'train.py:12: keras.layers.Dense(8, name="fc2", dtype="float32")'
CURED = Trial("float32", ("fc2",), finite=True, code=(CODE,))
FIRST = dataclasses.replace(report_samples.HOST.operators[0], trials=(CURED,))
REPORT = dataclasses.replace(report_samples.HOST, operators=(FIRST,))


@pytest.mark.parametrize(
    ("language", "said"), [("en", "with float32 in fc2 it is finite"), ("zh", "已在该步上验证")]
)
def test_in_every_output(tmp_path: Path, language: str, said: str) -> None:
    board = Board(str(tmp_path))
    board.report(REPORT, 31, language)
    board.close()
    (events,) = tmp_path.iterdir()
    page = html.unescape(html.unescape(REPORT._repr_html_()))  # a page in an attribute
    for text in (events.read_bytes().decode("utf-8", "replace"), page):
        assert said in text and CODE in text


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_code_stays_on_its_line(width: int, language: str) -> None:
    file = io.StringIO()
    print_report(REPORT, file=file, width=width, language=language)
    assert CODE in [line.strip() for line in file.getvalue().splitlines()]
