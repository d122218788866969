"""How near layers come to float16's limits, in words and numbers: terminal and page draw them."""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from npu_overflow import messages
from npu_overflow.report import formatting
from npu_overflow.report.escape import clean
from npu_overflow.report.model import Headroom, LayerRange

__all__ = ["COLUMNS", "HeadroomTable", "headroom_table"]

COLUMNS = ("bits", "largest", "flushed", "phase", "layer")
_MANY = 0.01  # of the gradients flushed to zero: the loss scale is too low
_MOST_NAME = 240
_MOST_BITS = 300  # between the largest and the smallest of float32


@dataclass(frozen=True)
class HeadroomTable:
    """What is said of the headroom.

    Args:
        heads: of the columns.
        rows: a text for each column, a style, and what is told.
        left: rows that are not among them.
    """

    title: str
    sentences: Sequence[str]
    heads: Sequence[str]
    rows: Sequence[Tuple[Sequence[str], str, LayerRange]]
    left: int = 0


def headroom_table(
    found: Headroom, language: str, tightest: Optional[int] = None
) -> HeadroomTable:
    """The layers, and what follows for the loss scale.

    Args:
        tightest: only so many, those with the least headroom first; None: all, in the order of
            execution.
    """
    layers = found.layers if tightest is None else sorted(found.layers, key=_bits)[:tightest]
    return HeadroomTable(
        messages.say("headroom.title", language),
        _sentences(found, language),
        [messages.say("headroom.column." + name, language) for name in COLUMNS],
        [(_row(item, language), _style(item), item) for item in layers],
        len(found.layers) - len(layers),
    )


def _bits(item: LayerRange) -> float:
    return math.inf if item.headroom_log2 is None else item.headroom_log2


def _style(item: LayerRange) -> str:
    return "bad" if _bits(item) < 0 else "warn" if _bits(item) < 1 else ""


def _row(item: LayerRange, language: str) -> List[str]:
    code = "headroom.phase." + item.phase
    phase = messages.say(code, language) if messages.known(code) else clean(item.phase, 8)[:8]
    bits = _bits(item)
    share = item.flushed / item.nonzero if item.nonzero and item.phase != "forward" else 0.0
    return [
        "%.1f" % bits if abs(bits) < _MOST_BITS else "%.3g" % bits,
        "%.3g" % item.largest,
        _percent(share) if share else "-",
        phase,
        clean(item.layer, _MOST_NAME),
    ]


def _percent(share: float) -> str:
    return "< 0.1 %" if share < 0.001 else "%.3g %%" % (100 * share)


def _sentences(found: Headroom, language: str) -> List[str]:
    """What the figures mean; then what float16 loses of the gradients, and what the loss scale
    could be."""
    told = [messages.say("headroom.meaning", language)]
    if found.step is not None:
        told.insert(0, messages.say("headroom.step", language, step=found.step))
    if found.dtype != "float16":
        told.append(messages.say("headroom.other_type", language, dtype=clean(found.dtype, 20)))
    gradients = [item for item in found.layers if item.phase == "backward"]
    total = sum(item.nonzero for item in gradients)
    if not total:
        return told
    share = sum(item.flushed for item in gradients) / total
    if share:
        told.append(messages.say("headroom.flushed", language, share=_percent(share)))
    doublings = min(map(_bits, gradients))
    scale = _scale(found, share, doublings, language)
    return told if scale is None else [*told, scale]


def _scale(found: Headroom, share: float, doublings: float, language: str) -> Optional[str]:
    """What the gradients say of the loss scale; None without one, or where a saved report is
    wrong."""
    if not found.loss_scale or not abs(doublings) < _MOST_BITS:
        return None
    highest = found.loss_scale * 2.0 ** math.floor(doublings)
    high = "high" if highest >= 1 else "vain"
    code = high if doublings < 0 else "low" if share > _MANY else "fits"
    return messages.say(
        "headroom.scale." + code,
        language,
        scale=formatting.number(found.loss_scale),
        highest=formatting.number(highest),
    )
