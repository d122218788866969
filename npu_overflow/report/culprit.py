"""The primary finding on a terminal: who it is, why, where, its inputs and outputs, and what to do about it."""
from __future__ import annotations

from typing import Any, Dict, List

from npu_overflow import messages
from npu_overflow.report import formatting
from npu_overflow.report.escape import clean
from npu_overflow.report.flow import Line, cells
from npu_overflow.report.model import Operator
from npu_overflow.report.screen import Fact, Screen
from npu_overflow.report.tensors import shown_inputs, tensor_lines

__all__ = ["AI_CORES", "CODE_INDENT", "VERDICT_STYLES", "advice_text", "facts_of", "show_culprit", "shown_advice"]

#: there are not as many rules as this that fit one operator; a saved report can come from anywhere
_MOST_ADVICE = 12

#: blanks before a line of code in an advice text; two are enough on a screen
CODE_INDENT = 4

AI_CORES = ("AI Core", "AIC", "AIV")

VERDICT_STYLES: Dict[str, str] = {
    "computed_here": "type",
    "inherited": "warn",
    "internal": "type",
    "padding_only": "good",
    "absorbed": "good",
    "unknown": "warn",
}


def show_culprit(screen: Screen, first: Operator, language: str, ranks: int = 1) -> None:
    """Add the sections of the primary finding: headline, verdict, facts, tensors, advice."""
    _headline(screen, first, language)
    screen.blank()
    screen.add(*_verdict(first, language), margin="  ")
    screen.blank()
    facts = facts_of(first, language, ranks)
    screen.facts([(messages.say("report.fact." + name, language), text, style, is_name) for name, text, style, is_name in facts])
    _tensors(screen, first, language)
    _advice(screen, first, language)


def _headline(screen: Screen, first: Operator, language: str) -> None:
    kind = "report.title." + (first.origin if first.origin != "operator" else "ai_core" if first.core in AI_CORES else "operator")
    screen.add((messages.say(kind if messages.known(kind) else "report.title.operator", language), "title"))
    if first.origin != "operator":
        _origin(screen, first, language)
        screen.add((messages.say("report.consumer", language), "dim"), margin="  ")
    kind, name = formatting.operator_title(first, language)
    screen.add((kind, "type"), margin="  ")
    if name:
        screen.add((name, "name"), margin="  ", name=True)


def _origin(screen: Screen, first: Operator, language: str) -> None:
    """What held the value before any operator ran: the batch, a variable, a constant."""
    detail = first.origin_detail or {}
    code = "report.origin." + first.origin
    if not messages.known(code):
        return
    name = clean(detail.get("name") or "")
    screen.add((messages.say(code if name else code + ".unnamed", language, name=name), "type"), margin="  ")
    found: Dict[str, Any] = {"index": detail.get("element") if detail.get("element") is not None else [], "value": detail.get("value")}
    if detail.get("value") is not None:
        screen.add((formatting.value_at(found), "bad"), margin="  ")


def _verdict(operator: Operator, language: str) -> Line:
    code = "verdict." + operator.verdict
    sentence = messages.say(code, language) if messages.known(code) else clean(operator.verdict)
    return [(sentence, VERDICT_STYLES.get(operator.verdict, ""))]


def facts_of(first: Operator, language: str, ranks: int) -> List[Fact]:
    """What is known of the finding: (name of the fact, text, style, whether the text is a name); the same facts in every language."""
    figure, meaning = formatting.status(first, language)
    comma = "，" if language == "zh" else ", "
    facts: List[Fact] = [("core", formatting.core_text(first), "", False)]
    facts.append(("status", figure + ("  " + meaning if meaning else ""), "", False))
    facts.append(("where", comma.join(formatting.place(first, language, ranks)), "", False))
    if first.location:
        code = "report.line." + (first.location_kind or "call")
        line = clean(first.location)
        facts.append(("line", messages.say(code, language, line=line) if messages.known(code) else line, "type", False))
    if first.phase:
        code = "report.phase." + first.phase
        facts.append(("phase", messages.say(code, language) if messages.known(code) else clean(first.phase), "", False))
    if first.forward_op:
        facts.append(("forward", clean(first.forward_op), "name", True))
    if first.inherited_from:
        facts.append(("made", clean(first.inherited_from), "name", True))
    if first.cured_by_scale is not None:
        facts.append(("scale", messages.say("report.cured.yes" if first.cured_by_scale else "report.cured.no", language), "", False))
    if first.steps_seen > 1:
        facts.append(("seen", messages.say("report.seen", language, seen=first.steps_seen, first=first.steps_first), "", False))
    facts.append(("when", formatting.time_text(first.timestamp), "", False))
    names = ("model_id", "task_id", "stream_id", "context_id", "thread_id")
    tasks = [messages.say("report.task." + name, language, value=getattr(first, name)) for name in names if getattr(first, name) is not None]
    if first.core not in ("CPU", "GPU"):
        facts.append(("task", comma.join(tasks), "", False))
    return [fact for fact in facts if fact[1]]


def _tensors(screen: Screen, first: Operator, language: str) -> None:
    screen.heading(messages.say("report.tensors", language))
    if first.inputs is None and first.outputs is None:
        screen.add((messages.say("report.no_dump" if first.dump_file is None else "report.not_opened", language), "warn"), margin="  ")
        return
    margin = "  "
    lines = tensor_lines(shown_inputs(first), first.outputs or (), screen.width - len(margin), language)
    screen.add_lines([[(margin, "")] + line for line in lines])


def _advice(screen: Screen, first: Operator, language: str) -> None:
    """Numbered, the most specific first; lines of a text that begin with blanks are code and stay as they are."""
    shown = shown_advice(first)
    if not shown:
        return
    screen.heading(messages.say("report.advice", language))
    for count, code in enumerate(shown, 1):
        margin = "  %d. " % count if len(shown) > 1 else "  "
        for line in advice_text(first, code, language).split("\n"):
            if line.startswith(" "):
                code = clean((line[CODE_INDENT:] if line.startswith(" " * CODE_INDENT) else line.lstrip()).rstrip())
                room = max(0, screen.width - cells(code))
                screen.add_unbroken((code, "command"), margin=" " * min(len(margin) + 2, room))
            else:
                screen.add((clean(line), ""), margin=margin)
            margin = " " * len(margin)


def shown_advice(operator: Operator) -> List[str]:
    """Codes of the advice that is shown: each once, and no more than anybody follows."""
    return list(dict.fromkeys(operator.advice))[:_MOST_ADVICE]


def advice_text(operator: Operator, code: str, language: str) -> str:
    """The sentence of one advice with its evidence filled in."""
    key = "advice." + code
    values = evidence_values(operator, code)
    if "batch" in values and messages.known(key + ".batch"):
        key += ".batch"
    if operator.core in ("CPU", "GPU") and messages.known(key + ".host"):
        key += ".host"
    if not messages.known(key):
        return code
    return messages.say(key, language, **values)


def evidence_values(operator: Operator, code: str) -> Dict[str, str]:
    """What a rule found, as texts for its sentence; the operator's type and name are always there."""
    own = operator.evidence.get(code)
    values = dict(own) if isinstance(own, dict) else {key: value for key, value in operator.evidence.items() if not isinstance(value, dict)}
    values.setdefault("op_type", operator.op_type or "?")
    values.setdefault("op_name", operator.op_name or "?")
    result = {}
    for key, value in values.items():
        if key not in ("_code", "language"):
            number = isinstance(value, (bool, int, float))
            result[str(key)] = formatting.number(value) if number else formatting.element(value)
    return result
