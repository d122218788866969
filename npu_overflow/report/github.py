"""A report in GitHub Actions: an annotation at the user's line, and a summary of the job.

Formats: "Workflow commands for GitHub Actions" (``::error file=…,line=…,title=…::message``, with
``%``, line ends, ``:`` and ``,`` as percent codes) and the Markdown file that
``GITHUB_STEP_SUMMARY`` names.
"""
from __future__ import annotations

import contextlib
import os
import re
import sys
from typing import Iterable, List, Mapping, Optional

from npu_overflow import messages
from npu_overflow.report.escape import clean
from npu_overflow.report.model import Report
from npu_overflow.report.story import tell

__all__ = ["annotation", "show", "summary"]

#: what GitHub keeps of one step is 1 MiB
_MOST_REPORTS = 20
_LINE = re.compile(r"(.+):(\d+)$")


def show(
    reports: Iterable[Report],
    language: Optional[str] = None,
    environment: Mapping[str, str] = os.environ,
) -> None:
    """Tell GitHub of the reports that name an operator; nothing happens elsewhere, and nothing is
    raised."""
    if environment.get("GITHUB_ACTIONS") != "true":
        return
    language = language or messages.language_of_user()
    named = {report.first.op_name: report for report in reports if report.first is not None}
    found = list(named.values())[:_MOST_REPORTS]  # each operator once
    for report in found:
        sys.stdout.write(annotation(report, language) + "\n")
    path = environment.get("GITHUB_STEP_SUMMARY")
    if found and path:
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8") as file:
            file.write("\n".join(summary(report, language) for report in found))


def annotation(report: Report, language: str) -> str:
    """The workflow command that marks the line of the operator to blame."""
    told, first = tell(report, language), report.first
    line = _LINE.match(clean(first.location or "")) if first is not None else None
    place = ["file=" + _property(line.group(1)), "line=" + line.group(2)] if line else []
    place.append("title=" + _property("npu-overflow: " + told.headline.title))
    text = "%s %s: %s" % (told.headline.kind, told.headline.name, " ".join(told.headline.sentences))
    return "::error %s::%s" % (",".join(place), _data(text))


def summary(report: Report, language: str) -> str:
    """The finding, its facts and the first advice as Markdown."""
    told = tell(report, language)
    head = told.headline
    lines: List[str] = ["### " + head.title, "", "%s %s" % (_code(head.kind), _code(head.name)), ""]
    lines += [*head.sentences, ""]
    lines += ["- %s: %s" % (label, _code(text)) for label, text, _, _ in told.facts]
    for advice in told.advice[:1]:
        lines += ["", "**%s**" % advice.title, ""]
        for is_code, text in advice.lines:
            lines.append("    " + text if is_code else _plain(text) + "\n")
    return "\n".join(lines) + "\n"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _code(text: str) -> str:
    """A text from a dump as code, so that none of it is Markdown."""
    return "`%s`" % " ".join(text.split()).replace("`", "'") if text else ""


def _plain(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|])", r"\\\1", text)
