"""Where lines go: a terminal with colour, or a file, a pipe or NO_COLOR as plain text without a
control byte."""
from __future__ import annotations

import io
import os
import shutil
import sys
from typing import IO, Dict, Iterable, List, Optional, Sequence

from npu_overflow.report.flow import Line, Piece, cells, indent, join, pad, plain, wrap
from npu_overflow.report.story import Fact

__all__ = ["Screen"]

#: names used in lines -> styles of rich
STYLES: Dict[str, str] = {
    "title": "bold red",
    "calm": "bold green",
    "type": "bold",
    "name": "cyan",
    "bad": "bold red",
    "warn": "yellow",
    "good": "green",
    "dim": "dim",
    "head": "bold",
    "rule": "dim",
    "command": "bold cyan",
}

#: prose is easier to read in lines that are not too long
PROSE = 100
LEAST_WIDTH, MOST_WIDTH = 30, 160

#: for outputs that can't write them
_ASCII = {
    "±": "+-",
    "─": "-",
    "→": "->",
    "…": "...",
    "·": "-",
    "▶": ">",
    "×": "x",
    **dict(zip("▁▂▃▄▅▆▇█", "..::==##")),
}


class Screen:
    """Collects lines, then writes them at once.

    Args:
        file: where they go; standard output by default.
        width: cells of a line; by default the terminal's, or COLUMNS, or 80.
        colour: by default where ``file`` is a terminal, NO_COLOR is not set and TERM is not "dumb".

    On a terminal long names are wrapped at ``width``; elsewhere they stay whole, so that they can
    be searched for and copied.
    """

    def __init__(
        self,
        file: Optional[IO[str]] = None,
        width: Optional[int] = None,
        colour: Optional[bool] = None,
    ) -> None:
        self.file = sys.stdout if file is None else file
        terminal = _is_terminal(self.file)
        self.colour = (
            (terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")
            if colour is None
            else colour
        )
        self.whole_names = not terminal and width is None
        self.width = max(LEAST_WIDTH, min(MOST_WIDTH, width or _width_of(self.file, terminal)))
        self.lines: List[Line] = []

    def blank(self) -> None:
        """An empty line, never two in a row."""
        if self.lines and self.lines[-1]:
            self.lines.append([])

    def add(
        self, *pieces: Piece, margin: str = "", rest: Optional[str] = None, name: bool = False
    ) -> None:
        """One paragraph, wrapped behind ``margin`` (its later lines behind ``rest``); ``name``
        marks it as a name or path."""
        inner = self.width - cells(margin)
        whole = name and self.whole_names
        lines = wrap(list(pieces), inner if name else min(inner, PROSE), whole=whole)
        self.lines.extend(indent(lines, margin, rest if rest is not None else " " * cells(margin)))

    def add_unbroken(self, *pieces: Piece, margin: str = "") -> None:
        """One line that is never broken: a command to copy."""
        self.lines.append([(margin, "")] + list(pieces))

    def add_items(self, items: List[Line], margin: str, gap: str = "   ") -> None:
        """Short items side by side, as many as fit a line."""
        self.lines.extend(indent(join(items, self.width - cells(margin), gap), margin))

    def facts(self, facts: Sequence[Fact], margin: str = "  ") -> None:
        """Lines "label  text" with the texts below each other."""
        if not facts:
            return
        column = max(cells(label) for label, _, _, _ in facts) + 2
        for label, text, style, name in facts:
            start = len(self.lines)
            self.add((text, style), margin=margin + " " * column, name=name)
            self.lines[start] = [(margin, ""), (pad(label, column), "dim")] + self.lines[start][1:]

    def add_lines(self, lines: Iterable[Line]) -> None:
        """Lines that are laid out already."""
        self.lines.extend(lines)

    def heading(self, text: str) -> None:
        """A section's heading with a rule behind it."""
        self.blank()
        rule = "─" * max(0, min(self.width, PROSE + 20) - cells(text) - 1)
        self.lines.append([(text, "head"), (" ", ""), (rule, "rule")])

    def text(self) -> str:
        """All lines, plain."""
        return "".join(plain(line).rstrip() + "\n" for line in self.lines)

    def show(self) -> None:
        """Write the lines."""
        text = self._coloured() if self.colour else self.text()
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        try:
            text.encode(encoding)
        except UnicodeEncodeError:
            text = text.translate({ord(char): ascii_text for char, ascii_text in _ASCII.items()})
            text = text.encode(encoding, "backslashreplace").decode(encoding)
        except LookupError:
            pass
        self.file.write(text)
        self.file.flush()
        self.lines = []

    def _coloured(self) -> str:
        """All lines with the terminal's colours; plain where rich is not installed."""
        try:
            from rich.console import Console
            from rich.text import Text
        except ImportError:
            return self.text()
        buffer = io.StringIO()
        console = Console(
            file=buffer,
            force_terminal=True,
            width=MOST_WIDTH,
            highlight=False,
            markup=False,
            emoji=False,
            soft_wrap=True,
            legacy_windows=False,
        )
        for line in self.lines:
            console.print(
                Text.assemble(*((text, STYLES.get(style, style)) for text, style in line)),
                soft_wrap=True,
            )
        return buffer.getvalue()


def _is_terminal(file: IO[str]) -> bool:
    try:
        return bool(file.isatty())
    except (AttributeError, ValueError):
        return False


def _width_of(file: IO[str], terminal: bool) -> int:
    columns = os.environ.get("COLUMNS", "")
    if columns.isdigit() and int(columns):
        return int(columns)
    if terminal:
        try:
            return os.get_terminal_size(file.fileno()).columns or 80
        except (OSError, ValueError, AttributeError):
            return shutil.get_terminal_size().columns
    return 80
