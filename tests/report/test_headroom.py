"""How near layers come to float16's limits, told and drawn."""
from __future__ import annotations

import io
import math
import re
from typing import Any, Optional

import pytest

from npu_overflow.report import charts, terminal
from npu_overflow.report.headroom import headroom_table
from npu_overflow.report.model import Headroom, LayerRange, Report


def layer(name: str, largest: float, phase: str = "forward", **more: Any) -> LayerRange:
    bits = math.log2(65504.0 / largest)
    return LayerRange(name, phase, largest, headroom_log2=bits, nonzero=1000, **more)


def sentences(*layers: LayerRange, scale: Optional[float] = 1024.0) -> str:
    return " ".join(headroom_table(Headroom(layers, 3, loss_scale=scale), "en", 10).sentences)


def test_the_tightest_first_all_in_the_order_of_execution() -> None:
    found = Headroom((layer("a", 1.0), layer("b", 131008.0), layer("c", 16376.0)), 3)
    table = headroom_table(found, "en", 2)
    assert [(row[0], row[-1]) for row, _, _ in table.rows] == [("-1.0", "b"), ("2.0", "c")]
    assert (table.left, table.rows[0][1]) == (1, "bad")
    everything = headroom_table(found, "en")
    assert [row[-1] for row, _, _ in everything.rows] == ["a", "b", "c"] and not everything.left


@pytest.mark.parametrize(
    ("largest", "flushed", "said"),
    [
        (16376.0, 0, "1024 suits this step; the highest at which every gradient fits is 4096"),
        (16376.0, 200, "1024 is low: up to 4096"),
        (262016.0, 0, "1024 is too high for this step: 256"),
        (65504.0 * 2**12, 0, "At no loss scale from 1 on"),
    ],
)
def test_what_the_gradients_say_of_the_loss_scale(largest: float, flushed: int, said: str) -> None:
    told = sentences(layer("a", 1.0), layer("a", largest, "backward", flushed=flushed))
    assert said in told
    assert ("flushes 20 % of the gradients" in told) == (flushed == 200)


def test_nothing_is_said_of_a_loss_scale_without_one_or_without_gradients() -> None:
    assert "loss scale" not in sentences(layer("a", 1.0, "backward"), scale=None)
    assert "loss scale" not in sentences(layer("a", 1.0))


@pytest.mark.parametrize("width", [80, 120])
def test_on_a_terminal(width: int) -> None:
    layers = [layer("block_%d/dense" % i, 2.0**i) for i in range(14)]
    report = Report("dump", "0", headroom=Headroom((*layers, layer("x" * 200, 9e4)), 7))
    text = io.StringIO()
    terminal.print_report(report, text, "en", width=width)
    lines = text.getvalue().splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("Headroom in float16 "))
    assert max(map(len, lines)) <= width
    assert "Measured on training step 7" in lines[begin + 1]
    shown = [line for line in lines[begin:] if re.match(r" +-?\d+\.\d  ", line)]
    assert len(shown) == 10 and shown[0].split()[0] == "-0.5"
    assert any("5 more with more headroom" in line for line in lines)


def test_bars_stay_inside_and_show_what_does_not_fit() -> None:
    fits, not_fits = charts.magnitudes(layer("a", 8.0)), charts.magnitudes(layer("a", 1e6))
    assert 'class="bad"' not in fits and 'class="bad"' in not_fits
    for item in (layer("a", 1e300, smallest=1e-300), layer("a", 1e-30, smallest=5.0)):
        drawn = charts.magnitudes(item)
        for x, size in re.findall(r'x="([\d.]+)" y="3" width="([\d.]+)"', drawn):
            assert 0 <= float(x) <= float(x) + float(size) <= 202
