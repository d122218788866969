"""Whole commands, timed: the best of several runs, warm, the interpreter's start included, with the peak of memory."""
from __future__ import annotations

import os
import sys
from typing import List, NamedTuple, Sequence

__all__ = ["PYTHON", "ROOT", "Cost", "best_of", "code", "table"]

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
PYTHON = [sys.executable]


class Cost(NamedTuple):
    """Seconds of the fastest run, and the largest resident memory of any (MB; pages of mapped files count)."""

    seconds: float
    megabytes: float


def code(text: str, *arguments: str) -> List[str]:
    """A command that runs a piece of Python."""
    return [*PYTHON, "-c", text, *arguments]


def best_of(commands: Sequence[Sequence[str]], runs: int = 5) -> List[Cost]:
    """Run the commands in turn, ``runs`` times and once more to warm up; the best of each. Every command must end with status 0."""
    costs = [Cost(float("inf"), 0.0) for _ in commands]
    for turn in range(runs + 1):
        for index, command in enumerate(commands):
            seconds, megabytes = _once(command)
            if turn:
                costs[index] = Cost(min(costs[index].seconds, seconds), max(costs[index].megabytes, megabytes))
    return costs


def _once(command: Sequence[str]) -> Cost:
    import time

    environment = dict(os.environ, PYTHONPATH=ROOT)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    sys.stdout.flush()
    start = time.perf_counter()
    child = os.fork()
    if not child:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.execvpe(command[0], list(command), environment)
    _, status, usage = os.wait4(child, 0)
    seconds = time.perf_counter() - start
    if status:
        raise SystemExit("%s ended with status %d" % (" ".join(command)[:200], status))
    return Cost(seconds, usage.ru_maxrss / 1024)


def table(rows: Sequence[Sequence[object]], head: Sequence[str]) -> str:
    """A table in Markdown."""
    cells = [[str(cell) for cell in row] for row in [head, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in cells]
    return "\n".join([lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]])
