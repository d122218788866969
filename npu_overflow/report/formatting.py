"""Values in words: numbers, shapes, statuses, times. Plain text, the same for every reporter that
people read."""
from __future__ import annotations

import datetime
import math
import re
from typing import Any, Iterable, Mapping, Optional, Sequence, Tuple, Union

from npu_overflow import messages
from npu_overflow.report.escape import clean
from npu_overflow.report.model import LossScale, Operator, Problem, Remark, TensorSummary

__all__ = [
    "RULE_OF_THUMB",
    "bytes_text",
    "core_text",
    "element",
    "loss_scale",
    "not_decoded",
    "number",
    "operator_title",
    "place",
    "problem",
    "reason_code",
    "remark",
    "shape",
    "status",
    "time_text",
    "value_at",
]

#: words of a status (records have up to four, those of unknown versions more) and meanings of its
#: bits that are shown
_MOST_WORDS, _MOST_BITS = 16, 256

#: the vendor's rule of thumb: a healthy run overflows in fewer of its steps
RULE_OF_THUMB = 0.005


def number(value: Optional[Union[bool, int, float]]) -> str:
    """A number as people write it: 65504 and not 6.55e+04, true, inf; "-" for None."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    value = float(value)
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value == int(value) and abs(value) < 1e7:
        return "%d" % value
    text = "%.6g" % value
    if "e" in text and abs(value) >= 1e7:
        text = "%.8g" % value
    return re.sub(r"e([+-])0(\d)$", r"e\1\2", text)


def shape(dims: Optional[Iterable[int]]) -> str:
    """"[32, 64]"; a scalar is "[]", an unknown shape "-"."""
    return "-" if dims is None else "[%s]" % ", ".join(str(dim) for dim in dims)


def element(index: Any) -> str:
    """The index of an element as text, "[3, 17]"."""
    return (
        "[%s]" % ", ".join(clean(item) for item in index)
        if isinstance(index, (list, tuple))
        else clean(index)
    )


def value_at(found: Optional[Mapping[str, Any]]) -> str:
    """"[3, 17] = inf" of a first overflow element; "-" for None."""
    if not found:
        return "-"
    value = found.get("value")
    return "%s = %s" % (
        element(found.get("index", [])),
        number(value) if isinstance(value, (bool, int, float)) else clean(value),
    )


def bytes_text(size: int) -> str:
    """"1.5 MB" of a number of bytes."""
    amount = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return "%.3g %s" % (amount, unit)
        amount /= 1000
    return "%.3g TB" % amount


def time_text(timestamp: Optional[int]) -> str:
    """Microseconds since the epoch as UTC; the number itself where that is no time, "" for None."""
    if timestamp is None:
        return ""
    try:
        moment = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=timestamp)
    except (OverflowError, ValueError):
        return str(timestamp)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f UTC") if moment.year >= 1990 else str(timestamp)


def status(operator: Operator, language: str) -> Tuple[str, str]:
    """The status of a record as (number, meaning): ("32 (0x20)", "a floating-point computation
    overflowed")."""
    words = operator.status if isinstance(operator.status, (tuple, list)) else (operator.status,)
    figure = ", ".join("%d (0x%x)" % (word, word) for word in words[:_MOST_WORDS]) + (
        ", …" if len(words) > _MOST_WORDS else ""
    )
    if len(words) > 1:
        figure = "[%s]" % figure
    meanings = [messages.translate(text, language) for text in operator.status_text[:_MOST_BITS]]
    if len(meanings) == len(operator.status_bits) > 1:
        meanings = ["%s %s" % pair for pair in zip(operator.status_bits, meanings)]
    comma = "；" if language == "zh" else "; "
    return figure, comma.join(clean(text) for text in meanings)


def core_text(operator: Operator) -> str:
    return clean(operator.core) or "-"


def operator_title(operator: Operator, language: str) -> Tuple[str, str]:
    """(type, name) for a headline; an operator whose dump is missing has a word instead."""
    kind = clean(operator.op_type) if operator.op_type else messages.say("report.no_type", language)
    return kind, clean(operator.op_name) if operator.op_name else ""


def place(operator: Operator, language: str, ranks: int = 1) -> Sequence[str]:
    """Where it ran: ("rank 1", "device 0", "step 3", "training step 119"); what is not known, or
    says nothing, is left out.

    Args:
        ranks: how many there are; a single one is not named.
    """
    facts = {
        "rank": operator.rank,
        "device": operator.device,
        "step": operator.step,
        "train_step": operator.train_step,
    }
    if ranks < 2:
        del facts["rank"]
    if operator.core == "CPU" and not operator.device:
        del facts["device"]
    # on a CPU or GPU the iteration is the training step
    if operator.core in ("CPU", "GPU") and operator.step == operator.train_step:
        del facts["step"]
    return [
        messages.say("report.place." + name, language, value=value)
        for name, value in facts.items()
        if value is not None
    ]


def problem(item: Problem, language: str) -> str:
    """The reason of a problem in ``language``."""
    return clean(_coded(item.code, item.values, item.reason, language))


def remark(item: Remark, language: str) -> str:
    """A remark in ``language``."""
    return clean(_coded(item.code, item.values, item.text, language))


def _coded(code: Optional[str], values: Mapping[str, Any], english: str, language: str) -> str:
    if code is None or not messages.known(code):
        return messages.translate(english, language)
    return messages.say(
        code,
        language,
        **{str(key): value for key, value in values.items() if key not in ("_code", "language")},
    )


def _halvings(before: float, after: float) -> int:
    """How often a fall halved the loss scale: one look can cover several steps."""
    if not 0 < after < before < math.inf:
        return 1
    return max(1, round(math.log2(before) - math.log2(after)))


def loss_scale(seen: LossScale, language: str) -> Tuple[str, str]:
    """What the watch saw of the loss scale: (how it fell, the rate against the rule of thumb); ""
    where there is nothing to say."""
    fell = rate = ""
    if seen.drops:
        halvings = sum(_halvings(before, after) for _step, before, after in seen.drops)
        several = "report.scale.halvings" if halvings > len(seen.drops) else "report.scale.drops"
        fell = messages.say(
            several if max(halvings, len(seen.drops)) > 1 else "report.scale.drop",
            language,
            count=max(halvings, len(seen.drops)),
            before=number(seen.drops[0][1]),
            after=number(seen.drops[-1][2]),
            first=seen.drops[0][0],
            last=seen.drops[-1][0],
        )
    if seen.rate is not None:
        code = "report.scale.rate_high" if seen.rate > RULE_OF_THUMB else "report.scale.rate"
        rate = messages.say(code, language, rate="%.3g" % (100 * seen.rate))
    return fell, rate


def not_decoded(tensor: TensorSummary, language: str) -> str:
    """Why a tensor has no numbers, or ""."""
    if tensor.note is None:
        return ""
    known = tensor.min is not None or tensor.first_overflow is not None
    code = "report.note." + ("kept" if tensor.note == "cut" and known else tensor.note)
    return (
        messages.say(code, language, bytes=bytes_text(tensor.bytes))
        if messages.known(code)
        else clean(tensor.note)
    )


def reason_code(reason: str) -> str:
    """Code of the sentence on why a collection found nothing. Where the reason is an error's code,
    the error stands among the remarks."""
    code = "report.reason." + reason
    if messages.known(code):
        return code
    return "report.reason.remarks" if messages.known(reason) else "report.reason.other"
