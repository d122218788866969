"""Pictures of a report as SVG text: histograms of magnitudes, the curve of the loss scale.

Only numbers and words of the catalogue go into them, never a name from a dump. Colours are classes
that the page's style defines, so that light and dark, screen and print each have their own.
"""
from __future__ import annotations

import math
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from npu_overflow.report.model import LayerRange, LossScale, TensorSummary

__all__ = [
    "LOG2_MAX",
    "MOST_BARS",
    "MOST_DROPS",
    "bins",
    "histogram",
    "loss_scale_curve",
    "magnitudes",
    "special_counts",
]

#: log2 of the largest finite value of each type
LOG2_MAX: Dict[str, float] = {
    "float16": math.log2(65504.0),
    "bfloat16": math.log2(3.3895313892515355e38),
    "float32": math.log2(3.4028234663852886e38),
    "float64": 1024.0,
    "complex32": math.log2(65504.0),
    "complex64": math.log2(3.4028234663852886e38),
    "complex128": 1024.0,
    "float8_e4m3fn": math.log2(448.0),
    "float8_e5m2": math.log2(57344.0),
    "float8_e8m0": 127.0,
    "hifloat8": 15.0,
}

#: log2 of the smallest positive value of narrow types, whose lower end matters too
LOG2_MIN: Dict[str, float] = {
    "float16": -24.0,
    "complex32": -24.0,
    "float8_e4m3fn": -9.0,
    "float8_e5m2": -16.0,
    "hifloat8": -22.0,
}

MOST_BARS = 48
MOST_DROPS = 300
_MOST_BINS = 5000

_WIDTH, _HEIGHT, _BASE, _TOP = 360, 150, 122, 18
#: room of the bar of one kind of overflow value
_SPECIAL = 40.0


def special_counts(tensor: TensorSummary) -> List[Tuple[str, int]]:
    """Overflow values of a tensor by kind, those that occur; a count below 0 in a saved report is
    none."""
    counts = [
        ("-Inf", tensor.neg_inf),
        ("+Inf", tensor.pos_inf),
        ("NaN", tensor.nan),
        ("±MAX", tensor.saturated),
    ]
    return [(name, count) for name, count in counts if count > 0]


def bins(tensor: TensorSummary) -> Tuple[int, List[int]]:
    """(exponent of the first bin, counts) without the values at ±MAX; what is no histogram counts
    as none."""
    given: Mapping[str, Any] = tensor.histogram or {}
    low, counts = given.get("low"), given.get("counts")
    if (
        not isinstance(low, int)
        or isinstance(low, bool)
        or abs(low) > _MOST_BINS
        or not isinstance(counts, (list, tuple))
        or not 0 < len(counts) <= _MOST_BINS
    ):
        return 0, []
    kept = [
        int(item)
        if isinstance(item, (int, float)) and not isinstance(item, bool) and 0 <= item < 2**63
        else 0
        for item in counts
    ]
    top = LOG2_MAX.get(tensor.dtype)
    if tensor.saturated and top is not None:
        # the values at ±MAX have a bar of their own
        place = math.ceil(top) - 1 - low if top != int(top) else int(top) - low
        for at in (place, place - 1):
            if 0 <= at < len(kept) and kept[at]:
                kept[at] = max(0, kept[at] - tensor.saturated)
                break
    while kept and not kept[-1]:
        kept.pop()
    start = next((place for place, count in enumerate(kept) if count), 0)
    return low + start, kept[start:]


def histogram(tensor: TensorSummary) -> Optional[str]:
    """log2 magnitudes of a tensor, the type's maximum marked, Inf, NaN and ±MAX as bars of their
    own; None where nothing was counted.

    Heights are logarithmic: a single value must be seen beside a million.
    """
    low, counts = bins(tensor)
    special = special_counts(tensor)
    if not counts and not special:
        return None
    step = max(1, -(-len(counts) // MOST_BARS))
    bars = [
        (low + place, sum(counts[place : place + step])) for place in range(0, len(counts), step)
    ]
    limit = LOG2_MAX.get(tensor.dtype)
    first, last = _range(tensor, low, len(counts), limit)
    most = max([count for _, count in bars] + [count for _, count in special])
    left, right = 18.0, _WIDTH - 20.0 - (8.0 + _SPECIAL * len(special) if special else 0.0)
    unit = (right - left) / max(1.0, last - first)

    def x(exponent: float) -> float:
        return left + (exponent - first) * unit

    parts = [_open(_WIDTH, _HEIGHT, "hist"), _line(left, _BASE, right, _BASE, "axis")]
    for exponent, count in bars:
        if count:
            size = _height(count, most)
            label = "2^%d … 2^%d: %d" % (exponent, exponent + step, count)
            parts.append(
                _bar(
                    x(exponent) + 0.4, _BASE - size, max(0.8, unit * step - 0.8), size, "bar", label
                )
            )
    parts.extend(_ticks(first, last, x))
    if limit is not None and first <= limit <= last + 1:
        parts.append(_line(x(limit), _TOP - 4, x(limit), _BASE, "max"))
        anchor = "end" if x(limit) > 60 else "start"
        parts.append(
            _text(
                x(limit) + (-3 if anchor == "end" else 3),
                _TOP + 3,
                "MAX 2^%s" % _short(limit),
                "maxlabel",
                anchor,
            )
        )
    for place, (name, count) in enumerate(special):
        size = _height(count, most)
        at = right + 24.0 + _SPECIAL * place
        parts.append(_bar(at, _BASE - size, 24, size, "bad", "%s: %d" % (name, count)))
        parts.append(_text(at + 12, _BASE - size - 3, _count(count), "count"))
        parts.append(_text(at + 12, _BASE + 12, name, "badlabel"))
    return "".join(parts) + "</svg>"


def _range(
    tensor: TensorSummary, low: int, size: int, limit: Optional[float]
) -> Tuple[float, float]:
    """Exponents from left to right; of narrow types the whole range of the type, so that pictures
    compare."""
    first, last = (float(low), float(low + size)) if size else (0.0, 1.0)
    smallest = LOG2_MIN.get(tensor.dtype)
    if smallest is not None and limit is not None:
        return min(first, smallest), max(last, math.ceil(limit))
    if limit is not None and last > limit - 24:
        last = max(last, math.ceil(limit))
    return first, max(last, first + 8.0)


def _height(count: int, most: int) -> float:
    return 4.0 + (_BASE - _TOP - 18.0) * math.log1p(count) / math.log1p(most)


def _ticks(first: float, last: float, x: Any) -> List[str]:
    span = last - first
    step = next(
        size for size in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 8192) if span / size <= 7
    )
    start = math.ceil(first / step) * step
    made = []
    for exponent in range(start, int(last) + 1, step):
        made.append(_line(x(exponent), _BASE, x(exponent), _BASE + 3, "axis"))
        made.append(_text(x(exponent), _BASE + 13, "2^%d" % exponent, "tick"))
    return made


# -- the loss scale

_CURVE_WIDTH, _CURVE_HEIGHT = 560, 244


def loss_scale_curve(seen: LossScale, words: Mapping[str, Tuple[str, str]]) -> Optional[str]:
    """The loss scale over training steps, log2: its drops, the trigger, the kept steps; None where
    it never fell.

    Args:
        words: "step", "trigger", "kept" in both languages.
    """
    drops = [
        (step, _log2(before), _log2(after))
        for step, before, after in seen.drops
        if isinstance(step, int) and abs(step) < 2**62
    ]
    known = [
        (step, before, after)
        for step, before, after in drops
        if before is not None and after is not None
    ]
    if not known:
        return None
    shown = _thinned(sorted(known, key=lambda item: item[0]))
    trigger = seen.trigger_step
    kept = [step for step in seen.kept_steps if abs(step) < 2**62][:50]
    marks = (
        [step for step, _, _ in shown]
        + kept
        + ([trigger] if trigger is not None and abs(trigger) < 2**62 else [])
    )
    low_step, high_step = min(marks), max(marks)
    margin = max(2, (high_step - low_step) // 12)
    low_step, high_step = low_step - margin if low_step >= margin else 0, high_step + margin
    levels = [value for _, before, after in shown for value in (before, after)]
    bottom, top = math.floor(min(levels)), math.ceil(max(levels))
    if bottom == top:
        top += 1
    left, right, up, down = 56.0, _CURVE_WIDTH - 14.0, 32.0, _CURVE_HEIGHT - 44.0

    def x(step: float) -> float:
        return left + (right - left) * (step - low_step) / max(1, high_step - low_step)

    def y(level: float) -> float:
        return down - (down - up) * (level - bottom) / (top - bottom)

    parts = [_open(_CURVE_WIDTH, _CURVE_HEIGHT, "curve")]
    for level in _levels(bottom, top):
        parts.append(_line(left, y(level), right, y(level), "grid"))
        parts.append(_text(left - 5, y(level) + 4, "2^%d" % level, "tick", "end"))
    for step in _round_steps(low_step, high_step):
        parts.append(_line(x(step), down, x(step), down + 4, "axis"))
        parts.append(_text(x(step), down + 17, "%d" % step, "tick"))
    parts.append(_both((left + right) / 2, _CURVE_HEIGHT - 5, words["step"], "tick"))
    for step in kept:
        parts.append(
            '<rect class="keptmark" x="%.1f" y="%.1f" width="5" height="%.1f"/>'
            % (x(step) - 2.5, up, down - up)
        )
    if trigger is not None and low_step <= trigger <= high_step:
        parts.append(_line(x(trigger), up - 8, x(trigger), down, "trigger"))
        end = x(trigger) > _CURVE_WIDTH / 2
        parts.append(
            _both(
                x(trigger) + (-5 if end else 5),
                up - 12,
                words["trigger"],
                "triggerlabel",
                "end" if end else "start",
            )
        )
    path, points = ["M%.1f %.1f" % (x(low_step), y(shown[0][1]))], []
    now = shown[0][1]
    for step, before, after in shown:
        if before != now:  # it grew in between
            path.append("L%.1f %.1f" % (x(step), y(now)))
        path.append("L%.1f %.1fL%.1f %.1f" % (x(step), y(before), x(step), y(after)))
        points.append(
            '<circle class="drop" cx="%.1f" cy="%.1f" r="3"><title>%d: 2^%s → 2^%s</title></circle>'
            % (x(step), y(after), step, _short(before), _short(after))
        )
        now = after
    path.append("L%.1f %.1f" % (x(high_step), y(now)))
    parts.append('<path class="scale" d="%s"/>' % "".join(path))
    return "".join(parts + points) + "</svg>"


def _log2(value: float) -> Optional[float]:
    """log2 of a loss scale; a scale of 0 stands just below the smallest float."""
    if not isinstance(value, (int, float)) or value != value or value < 0 or value == math.inf:
        return None
    return math.log2(value) if value > 0 else -150.0


def _thinned(drops: List[Tuple[int, float, float]]) -> List[Tuple[int, float, float]]:
    """At most MOST_DROPS of them, the first, the last and the lowest among them."""
    if len(drops) <= MOST_DROPS:
        return drops
    chosen = {round(place * (len(drops) - 1) / (MOST_DROPS - 2)) for place in range(MOST_DROPS - 1)}
    chosen.add(min(range(len(drops)), key=lambda place: drops[place][2]))
    return [drops[place] for place in sorted(chosen)]


def _levels(bottom: int, top: int) -> Sequence[int]:
    step = max(1, -(-(top - bottom) // 6))
    return range(bottom, top + 1, step)


def _round_steps(low: int, high: int) -> Sequence[int]:
    """About six round numbers between two steps."""
    span = max(1, high - low)
    size = 10 ** (len(str(span)) - 1)
    size = next(
        (
            unit
            for unit in (size // 5, size // 2, size, size * 2, size * 5)
            if unit > 0 and span // unit <= 6
        ),
        size * 10,
    )
    return range(-(-low // size) * size, high + 1, size)


# -- headroom

_LOWEST, _HIGHEST = -40.0, 40.0  # powers of two


def magnitudes(item: LayerRange) -> str:
    """The magnitudes of a layer as a bar, with float16's smallest and largest number."""
    unit = 200.0 / (_HIGHEST - _LOWEST)

    def x(value: Optional[float]) -> float:
        power = math.log2(value) if value and 0 < value < math.inf else _HIGHEST
        return (max(_LOWEST, min(_HIGHEST, power)) - _LOWEST) * unit

    smallest = item.smallest if item.smallest and item.smallest <= item.largest else item.largest
    left, right, limit = x(smallest), x(item.largest), x(65504.0)
    parts = [_open(200, 14, "range"), _line(x(2.0**-24), 0, x(2.0**-24), 14, "grid")]
    parts.append(_plain_bar(left, max(1.5, min(right, limit) - left), "bar"))
    if right > limit:
        parts.append(_plain_bar(max(left, limit), right - max(left, limit), "bad"))
    return "".join([*parts, _line(limit, 0, limit, 14, "max"), "</svg>"])


def _plain_bar(x: float, width: float, kind: str) -> str:
    return '<rect class="%s" x="%.1f" y="3" width="%.1f" height="8"/>' % (kind, x, width)


# -- elements


def _open(width: int, height: int, kind: str) -> str:
    return '<svg class="%s" viewBox="0 0 %d %d" role="img" aria-hidden="true">' % (
        kind,
        width,
        height,
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return '<path class="%s" d="M%.1f %.1fL%.1f %.1f"/>' % (kind, x1, y1, x2, y2)


def _bar(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    return (
        '<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%s</title></rect>'
        % (kind, x, y, width, height, title)
    )


def _text(x: float, y: float, text: str, kind: str, anchor: str = "middle") -> str:
    return '<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>' % (
        kind,
        x,
        y,
        anchor,
        text,
    )


def _both(x: float, y: float, pair: Tuple[str, str], kind: str, anchor: str = "middle") -> str:
    return _text(x, y, pair[0], kind + " en", anchor) + _text(x, y, pair[1], kind + " zh", anchor)


def _short(value: float) -> str:
    """16 for a maximum just below 2^16."""
    return "%d" % round(value) if abs(value - round(value)) < 0.01 else "%.2f" % value


def _count(count: int) -> str:
    """3 figures at most: 119, 12k, 3.1M."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= size:
            return "%.3g%s" % (count / size, unit) if count / size < 1000 else ">999%s" % unit
    return str(count)
