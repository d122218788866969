"""Histograms of magnitudes in a terminal: bars for one tensor, one line each for several."""
from __future__ import annotations

import math
from typing import List, Sequence, Tuple

from npu_overflow.report.charts import LOG2_MAX, bins, special_counts
from npu_overflow.report.flow import Line, cells, pad
from npu_overflow.report.model import TensorSummary

__all__ = ["histogram_lines", "sparklines"]

#: bars of one tensor, and cells of a line of many
MOST_BARS, MOST_CELLS = 20, 40

_LEVELS = "▁▂▃▄▅▆▇█"


def histogram_lines(tensor: TensorSummary, width: int) -> List[Line]:
    """A bar for each range of magnitudes (lengths are logarithmic), then Inf, NaN and ±MAX; nothing
    where nothing was counted.

    Args:
        width: cells of a line.
    """
    low, counts = bins(tensor)
    step = max(1, -(-len(counts) // MOST_BARS))
    rows: List[Tuple[str, int, str]] = []
    for place in range(0, len(counts), step):
        rows.append(
            (
                "2^%d … 2^%d" % (low + place, low + place + step),
                sum(counts[place : place + step]),
                "",
            )
        )
    rows.extend((name, count, "bad") for name, count in special_counts(tensor))
    if not rows:
        return []
    label = max(cells(name) for name, _, _ in rows)
    figures = max(len(str(count)) for _, count, _ in rows)
    room = max(4, min(60, width - label - figures - 6))
    most = max(count for _, count, _ in rows)
    lines: List[Line] = []
    for name, count, style in rows:
        size = round(room * math.log1p(count) / math.log1p(most)) if count else 0
        bar = "█" * (max(1, size) if count else 0)
        lines.append(
            [
                (pad(name, label, True) + "  ", style or "dim"),
                (bar + " " if bar else "", style),
                (str(count), style),
            ]
        )
    limit = LOG2_MAX.get(tensor.dtype)
    if limit is not None and counts:
        text = "MAX 2^%d" % round(limit)
        place = len(counts) // step + (len(counts) % step > 0)
        lines.insert(place, [(pad(text, label, True) + "  ", "dim"), ("─" * min(room, 20), "rule")])
    return lines


def sparklines(tensors: Sequence[Tuple[str, TensorSummary]], width: int) -> List[Line]:
    """One line a tensor that was counted: its name, its range of magnitudes, and a mark for each
    power of two or several."""
    lines: List[Line] = []
    shown = [(name, tensor) for name, tensor in tensors if bins(tensor)[1]]
    column = max((cells(name) for name, _ in shown), default=0) + 2
    for name, tensor in shown:
        low, counts = bins(tensor)
        room = max(8, min(MOST_CELLS, width - column - 20))
        step = max(1, -(-len(counts) // room))
        sums = [sum(counts[place : place + step]) for place in range(0, len(counts), step)]
        most = math.log1p(max(sums))
        marks = "".join(
            _LEVELS[min(7, int(8 * math.log1p(count) / most))] if count else "·" for count in sums
        )
        bad = "  ".join("%s %d" % pair for pair in special_counts(tensor))
        end = (" 2^%d" % (low + len(counts)), "dim")
        lines.append(
            [
                (pad(name, column), "head"),
                (pad("2^%d" % low, 7, True) + " ", "dim"),
                (marks, ""),
                end,
                ("  " + bad if bad else "", "bad"),
            ]
        )
    return lines
