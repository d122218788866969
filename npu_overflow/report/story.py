"""What a report says to people, once: terminal and page only draw it."""
from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from npu_overflow import messages
from npu_overflow.report import formatting
from npu_overflow.report.escape import clean
from npu_overflow.report.model import Operator, Report, Trial
from npu_overflow.report.tensors import has_overflow

__all__ = [
    *("Advice", "Fact", "Headline", "Story", "advice_text", "next_command_of", "quoted", "tell"),
    *("verdict_of", "worst"),
]

#: label, text, style of the text, whether the text is a name or path
Fact = Tuple[str, str, str, bool]

#: there are not as many rules as this that fit one operator; a saved report can come from anywhere
_MOST_ADVICE = 12
_MOST_LINE = 4000

#: blanks before a line of code in an advice text; two are enough on a screen
_CODE_INDENT = 4

_AI_CORES = ("AI Core", "AIC", "AIV")


@dataclass(frozen=True)
class Headline:
    """The finding, or why there is none.

    Args:
        state: "finding", "reason" (a collection ran in vain), "none", "absorbed" or "unreadable".
        sentences: the verdict on the finding, or what there is to say without one.
        kind, name: type and name of the operator; "" without a finding.
        origin: what held the value before any operator ran, and its first bad element; "".
    """

    state: str
    title: str
    sentences: Sequence[str]
    kind: str = ""
    name: str = ""
    origin: Tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Advice:
    """One thing to do: its title, and lines as (whether it is code, text)."""

    title: str
    lines: Sequence[Tuple[bool, str]]


@dataclass(frozen=True)
class Story:
    """What is said of the finding and of the run, in one language.

    Args:
        facts: what is known of the finding; the same facts in every language.
        advice: what to do, the most specific first.
        about: where all this comes from; the same facts in every language.
    """

    headline: Headline
    facts: Sequence[Fact]
    advice: Sequence[Advice]
    about: Sequence[Fact]


def tell(report: Report, language: str) -> Story:
    """The story of ``report`` in ``language``, "en" or "zh"."""
    first = report.first
    about = _about(report, language)
    if first is None:
        return Story(_nothing(report, language), (), (), about)
    codes = list(dict.fromkeys(first.advice))[:_MOST_ADVICE]
    advice = [_advice(first, code, language) for code in codes]
    return Story(
        _finding(first, language),
        _facts(first, language, report.world_size or 1),
        [*_tried(first, language), *advice],
        about,
    )


def verdict_of(operator: Operator, language: str, form: str = "") -> str:
    """The verdict as a sentence, or in a few words (``form`` is ".short")."""
    code = "verdict.%s%s" % (operator.verdict, form)
    return messages.say(code, language) if messages.known(code) else clean(operator.verdict, 80)


def worst(operator: Operator) -> str:
    """The first tensor of an operator that holds an overflow value, in a few words."""
    for side, tensors in (("output", operator.outputs), ("input", operator.inputs)):
        for tensor in tensors or ():
            if has_overflow(tensor):
                shape = formatting.shape(tensor.shape)
                value = formatting.value_at(tensor.first_overflow)
                return "%s.%d  %s  %s  %s" % (side, tensor.index, clean(tensor.dtype), shape, value)
    return ""


def next_command_of(report: Report) -> Optional[str]:
    """The command that shows the culprit's dump; None without one whose name can be typed."""
    first = report.first
    if first is None or first.dump_file is None:
        return None
    # files are relative to the path, or to its folder where one file was analyzed
    folder = os.path.dirname(report.path) if _is_file(report.path) else report.path
    path = quoted(os.path.join(folder, first.dump_file))
    return None if path is None else "npu-overflow show " + path


def _is_file(path: str) -> bool:
    try:
        return os.path.isfile(path)
    except ValueError:  # Python 3.7 on a path of a saved report that no file system has
        return False


def quoted(path: str) -> Optional[str]:
    """``path`` as a shell takes it, or None where it can't be typed."""
    return shlex.quote(path) if clean(path, len(path)) == path else None


# -- the headline


def _finding(first: Operator, language: str) -> Headline:
    kind = "ai_core" if first.core in _AI_CORES else "operator"
    title = "report.title." + (kind if first.origin == "operator" else first.origin)
    title = title if messages.known(title) else "report.title.operator"
    sentences = [verdict_of(first, language)]
    kind, name = formatting.operator_title(first, language)
    origin = _origin(first, language)
    return Headline("finding", messages.say(title, language), sentences, kind, name, origin)


def _origin(first: Operator, language: str) -> Tuple[str, str]:
    """What held the value before any operator ran: the batch, a variable, a constant."""
    code = "report.origin." + first.origin
    if first.origin == "operator" or not messages.known(code):
        return "", ""
    detail = first.origin_detail or {}
    name = clean(detail.get("name") or "")
    element, value = detail.get("element"), detail.get("value")
    found = {"index": [] if element is None else element, "value": value}
    sentence = messages.say(code if name else code + ".unnamed", language, name=name)
    return sentence, "" if value is None else formatting.value_at(found)


def _nothing(report: Report, language: str) -> Headline:
    if report.reason in (None, "absorbed"):
        state = "absorbed" if report.operators else "unreadable" if report.records else "none"
        surveyed = report.headroom.step if report.headroom is not None else None
        code = "report." + state
        if state == "none" and surveyed is not None:
            code = "report.surveyed"
        elif state == "none" and report.run is None and report.loss_scale is None:
            code = "report.none.empty"
        sentence = messages.say(code, language, count=report.records, step=surveyed)
        return Headline(state, messages.say("report.%s.title" % state, language), [sentence])
    code = formatting.reason_code(report.reason)
    sentences = [messages.say(code, language, reason=clean(report.reason))]
    if messages.known(code + ".next"):
        sentences.append(messages.say(code + ".next", language))
    return Headline("reason", messages.say("report.reason.title", language), sentences)


# -- facts


def _facts(first: Operator, language: str, ranks: int) -> List[Fact]:
    """What is known of the finding."""

    def known(code: str, otherwise: str, **values: str) -> str:
        return messages.say(code, language, **values) if messages.known(code) else otherwise

    figure, meaning = formatting.status(first, language)
    comma = "，" if language == "zh" else ", "
    texts: List[Fact] = [
        ("core", formatting.core_text(first), "", False),
        ("status", figure + ("  " + meaning if meaning else ""), "", False),
        ("where", comma.join(formatting.place(first, language, ranks)), "", False),
    ]
    if first.location:
        line = clean(first.location)
        code = "report.line." + (first.location_kind or "call")
        texts.append(("line", known(code, line, line=line), "type", False))
        texts.append(("source", clean(first.source_line or ""), "", False))
        texts.append(("calls", " ← ".join(clean(call) for call in first.called_from), "", False))
    if first.phase:
        texts.append(("phase", known("report.phase." + first.phase, clean(first.phase)), "", False))
    texts.append(("layer", clean(first.layer or ""), "name", True))
    texts.append(("forward", clean(first.forward_op or ""), "name", True))
    texts.append(("made", clean(first.inherited_from or ""), "name", True))
    if first.cured_by_scale is not None:
        code = "report.cured.yes" if first.cured_by_scale else "report.cured.no"
        texts.append(("scale", messages.say(code, language), "", False))
    if first.steps_seen > 1:
        counts = {"seen": first.steps_seen, "first": first.steps_first}
        texts.append(("seen", messages.say("report.seen", language, **counts), "", False))
    texts.append(("when", formatting.time_text(first.timestamp), "", False))
    if first.core not in ("CPU", "GPU"):
        texts.append(("task", comma.join(_tasks(first, language)), "", False))
    return _labelled("report.fact.", texts, language)


def _tasks(first: Operator, language: str) -> List[str]:
    names = ("model_id", "task_id", "stream_id", "context_id", "thread_id")
    ids = [(name, getattr(first, name)) for name in names]
    return [
        messages.say("report.task." + name, language, value=value)
        for name, value in ids
        if value is not None
    ]


def _about(report: Report, language: str) -> List[Fact]:
    mode, rank = "report.mode.%s" % report.mode, ""
    if report.rank is not None and (report.world_size or 1) > 1:
        code = "report.about.rank_of"
        rank = messages.say(code, language, rank=report.rank, size=report.world_size)
    named = messages.say(mode, language) if messages.known(mode) else clean(report.mode or "")
    texts: List[Fact] = [
        ("path", clean(report.path), "", True),
        ("run", clean(report.run or ""), "", False),
        ("mode", named, "", False),
        ("records", str(report.records), "", False),
        ("rank", rank, "", False),
    ]
    return _labelled("report.about.", texts, language)


def _labelled(prefix: str, facts: Sequence[Fact], language: str) -> List[Fact]:
    """Facts with their labels in the place of their names; empty ones are left out."""
    return [
        (messages.say(prefix + name, language), text, style, is_name)
        for name, text, style, is_name in facts
        if text
    ]


# -- advice


def _tried(operator: Operator, language: str) -> List[Advice]:
    """What was tried on the step itself: what helped, with what to type, then what did not."""
    lines: List[Tuple[bool, str]] = []
    known = [trial for trial in operator.trials if messages.known("trial." + trial.change)]
    helped = sorted((trial for trial in known if trial.finite), key=_size_of)[:_MOST_ADVICE]
    for trial in helped:
        lines.append((False, _outcome(trial, language)))
        if trial.change == "recomputed" and trial.code:
            lines.append((False, messages.say("trial.recomputed.keep", language)))
        lines += [(True, clean(line, _MOST_LINE)) for line in trial.code[:_MOST_ADVICE]]
    for trial in [trial for trial in known if not trial.finite][:_MOST_ADVICE]:
        lines.append((False, _outcome(trial, language)))
    if not lines:
        return []
    code = "trial.title" if helped else "trial.title.vain"
    if all(trial.change == "recomputed" for trial in known):
        code = "trial.recomputed"
    return [Advice(messages.say(code, language), lines)]


def _size_of(trial: Trial) -> int:
    return len(trial.layers)


def _outcome(trial: Trial, language: str) -> str:
    if trial.change == "recomputed":
        fits = "fits" if trial.largest is None else "does_not_fit"
        code = "trial.recomputed." + (fits if trial.finite else "overflows")
        return messages.say(code, language, largest=formatting.number(trial.largest))
    layers = [clean(layer) for layer in trial.layers]
    comma, last = ("、", "、") if language == "zh" else (", ", " and ")
    change = messages.say(
        "trial.%s" % trial.change,
        language,
        layers=last.join([comma.join(layers[:-1]), layers[-1]] if layers[1:] else layers),
        value=formatting.number(trial.value),
    )
    if trial.finite:
        return messages.say("trial.helps", language, change=change)
    if trial.next is None:
        return messages.say("trial.fails", language, change=change)
    code = "trial.next" if trial.largest is None else "trial.does_not_fit"
    largest = formatting.number(trial.largest)
    return messages.say(
        code, language, change=change, next=clean(trial.next), largest=largest
    )


def _advice(operator: Operator, code: str, language: str) -> Advice:
    title = "advice.%s.title" % code
    title = messages.say(title, language) if messages.known(title) else clean(code)
    lines = []
    for line in advice_text(operator, code, language).split("\n"):
        is_code = line.startswith(" ")
        if is_code:
            indented = line.startswith(" " * _CODE_INDENT)
            line = (line[_CODE_INDENT:] if indented else line.lstrip()).rstrip()
        lines.append((is_code, clean(line, _MOST_LINE)))
    return Advice(title, lines)


def advice_text(operator: Operator, code: str, language: str) -> str:
    """The sentences of one advice with its evidence filled in; lines of code begin with blanks."""
    key = "advice." + code
    values = _evidence(operator, code)
    for variant in ("batch", "scores"):
        if variant in values and messages.known("%s.%s" % (key, variant)):
            key = "%s.%s" % (key, variant)
    if operator.core in ("CPU", "GPU") and messages.known(key + ".host"):
        key += ".host"
    if not messages.known(key):
        return code
    return messages.say(key, language, **values)


def _evidence(operator: Operator, code: str) -> Dict[str, str]:
    """What a rule found, as texts for its sentence; with the operator's type and name."""
    values = operator.evidence.get(code)
    if not isinstance(values, dict):
        found = operator.evidence.items()
        values = {key: item for key, item in found if not isinstance(item, dict)}
    values = {"op_type": operator.op_type or "?", "op_name": operator.op_name or "?", **values}
    result = {}
    for key, value in values.items():
        if key not in ("_code", "language"):
            number = isinstance(value, (bool, int, float))
            result[str(key)] = formatting.number(value) if number else formatting.element(value)
    return result
