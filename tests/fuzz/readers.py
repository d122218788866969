"""One report through everything that shows it, and what must hold of each output."""
from __future__ import annotations

import functools
import io
import json
import os
import pkgutil
from html.parser import HTMLParser
from typing import Any, List, Optional

from npu_overflow import messages
from npu_overflow.report import html
from npu_overflow.report.merge import merge
from npu_overflow.report.model import Report
from npu_overflow.report.tensorboard import Board
from npu_overflow.report.terminal import print_report

from .bounds import require

#: in place of ``html._environment``: the template is compiled once, not for each of thousands of pages
environment = functools.lru_cache(maxsize=1)(html._environment)

_validator: Any = None


def validator() -> Any:
    """Of the schema that the package ships; None without jsonschema."""
    global _validator
    if _validator is None:
        try:
            import jsonschema
        except ImportError:
            return None
        data = pkgutil.get_data("npu_overflow.report", "schema_1.json")
        assert data is not None
        _validator = jsonschema.Draft7Validator(json.loads(data.decode("utf-8")))
    return _validator


def _no_constant(word: str) -> Any:
    raise ValueError(word)


def check_json(report: Report, by_schema: bool = True) -> str:
    """JSON by the standard, by the schema, and the same report when read again."""
    text = report.to_json()
    data = json.loads(text, parse_constant=_no_constant)
    text.encode("utf-8")
    checks = validator() if by_schema else None
    complaints = [] if checks is None else [(list(error.absolute_path), error.message[-200:]) for error in checks.iter_errors(data)]
    require(not complaints, "a report fits its schema", *complaints[:3])
    require(Report.from_json(text).to_json() == text, "a report read again is the same")
    return text


def check_screen(text: str, what: str) -> None:
    """Nothing steers a terminal."""
    hidden = [char for char in text if char != "\n" and not char.isprintable()]
    require(not hidden, what + " has no control characters", *hidden[:3])


def check_terminal(report: Report) -> None:
    for language in messages.LANGUAGES:
        out = io.StringIO()
        print_report(report, file=out, language=language)
        require(out.getvalue().strip(), "a terminal report says something")
        check_screen(out.getvalue(), "a terminal report")


class _Page(HTMLParser):
    """What a page holds that could act."""

    _NAMES = frozenset(
        "html head meta link title style body header main footer section article nav div span p h1 h2 h3 h4 ul ol li dl dt dd table thead tbody tr th td "
        "caption code pre a b i em strong small button details summary script noscript svg g path rect line polyline polygon circle text tspan defs "
        "label input select option br hr figure figcaption sub sup".split()
    )

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.strange: List[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.scripts += tag == "script"
        if tag not in self._NAMES:
            self.strange.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (name in ("href", "src") and not (value or "").startswith(("#", "data:"))):
                self.strange.append("%s=%s" % (name, value))


def check_html(report: Report) -> None:
    """One script, known elements, no handlers, bounded."""
    for language in messages.LANGUAGES[:1]:
        page = html.render(report, language)
        require(len(page.encode("utf-8", "backslashreplace")) < html.MOST_BYTES, "a page is smaller than %d bytes" % html.MOST_BYTES, len(page))
        parser = _Page()
        parser.feed(page)
        parser.close()
        require(parser.scripts == 1 and not parser.strange, "a page holds its own elements only", parser.scripts, *parser.strange[:3])


def check_merge(report: Report, other: Optional[Report] = None, by_schema: bool = True) -> None:
    merged = merge([report, report] if other is None else [report, other])
    check_json(merged, by_schema)
    check_terminal(merged)


def check_board(report: Report, folder: str) -> None:
    board = Board(folder)
    board.report(report, 7, "en")
    board.close()
    require(not board._broken, "TensorBoard's file is written")
    for name in os.listdir(folder):
        os.unlink(os.path.join(folder, name))


def check_report(report: Report, folder: str, other: Optional[Report] = None) -> None:
    """Every reporter on one report."""
    for text in [item.reason for item in report.problems] + [item.text for item in report.remarks]:
        require(text, "a problem has a sentence")
    check_json(report)
    check_terminal(report)
    check_html(report)
    check_merge(report, other)
    check_board(report, folder)
