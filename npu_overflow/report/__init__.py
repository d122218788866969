"""What people see: the report's model and the reporters. Each reporter sees only the model.

A report can print itself, so the model reaches two reporters, through here: they are loaded when a
report is first shown.
"""
from __future__ import annotations

from typing import IO, Any, Optional

__all__ = ["notebook_html", "print_report", "write_html"]


def print_report(
    report: Any, file: Optional[IO[str]] = None, language: Optional[str] = None
) -> None:
    """See ``Report.print``."""
    from npu_overflow.report import terminal

    terminal.print_report(report, file=file, language=language)


def write_html(report: Any, path: str, language: Optional[str] = None) -> str:
    """See ``Report.to_html``."""
    from npu_overflow.report import html

    return html.write_html(report, path, language)


def notebook_html(report: Any) -> str:
    """See ``Report._repr_html_``."""
    from npu_overflow.report import html

    return html.notebook(report)
