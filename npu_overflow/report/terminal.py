"""The report on a terminal: the culprit first, then what to do, then the rest, then the next command to type."""
from __future__ import annotations

import os
import shlex
from typing import IO, Dict, List, Optional, Sequence

from npu_overflow import messages
from npu_overflow.report import formatting
from npu_overflow.report.culprit import VERDICT_STYLES, show_culprit
from npu_overflow.report.escape import clean
from npu_overflow.report.flow import Line, cells
from npu_overflow.report.lineage import spread
from npu_overflow.report.model import Operator, Report
from npu_overflow.report.screen import Screen
from npu_overflow.report.tensors import has_overflow

__all__ = ["next_command_of", "print_report", "quoted", "worst"]

#: problems and remarks that are listed
MOST_PROBLEMS, MOST_REMARKS = 8, 6


def print_report(
    report: Report,
    file: Optional[IO[str]] = None,
    language: Optional[str] = None,
    limit: Optional[int] = 3,
    saved: Optional[str] = None,
    next_command: Optional[str] = None,
    width: Optional[int] = None,
    colour: Optional[bool] = None,
) -> None:
    """Print ``report`` for people.

    Args:
        file: standard output by default. Colour only where it is a terminal; names are wrapped there and stay whole elsewhere.
        language: "en" or "zh"; the user's by default.
        limit: operators shown, the culprit included; None shows all.
        saved: path of the saved report, or the folder with the names of its files; printed near the end.
        next_command: the command to type next; by default ``show`` on the culprit's dump, where there is one.
        width, colour: instead of those of the terminal.
    """
    screen = Screen(file, width, colour)
    language = language or messages.language_of_user()
    first = report.first
    if first is None:
        _nothing(screen, report, language)
    else:
        show_culprit(screen, first, language, report.world_size or 1)
    _others(screen, report, limit, language)
    _spread(screen, report, language)
    _problems(screen, report, language)
    _about(screen, report, saved, next_command if next_command is not None else next_command_of(report), language)
    screen.show()


def next_command_of(report: Report) -> Optional[str]:
    """The command that shows the culprit's dump, or None where there is no dump, or its name can't be typed."""
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


# -- nothing to blame


def _nothing(screen: Screen, report: Report, language: str) -> None:
    if report.reason is not None:
        code = formatting.reason_code(report.reason)
        screen.add((messages.say("report.reason.title", language), "title"))
        screen.add((messages.say(code, language, reason=clean(report.reason)), ""), margin="  ")
        if messages.known(code + ".next"):
            screen.add((messages.say(code + ".next", language), ""), margin="  ")
        return
    kind = "none" if not report.records and not report.operators else "absorbed" if report.operators else "unreadable"
    screen.add((messages.say("report.%s.title" % kind, language), "warn" if kind == "unreadable" else "calm"))
    screen.add((messages.say("report." + kind, language, count=report.records), ""), margin="  ")


# -- the other operators


def _others(screen: Screen, report: Report, limit: Optional[int], language: str) -> None:
    others = [(number, operator) for number, operator in enumerate(report.operators, 1) if number - 1 != report.first_index]
    if not others:
        return
    shown = others if limit is None else others[: max(0, limit - (report.first is not None))]
    screen.heading(messages.say("report.others", language))
    digits = len(str(shown[-1][0])) if shown else 1
    for number, operator in shown:
        _short(screen, number, digits, operator, report, language)
    left = others[len(shown):]
    if left:
        sentence = messages.say("report.more_operators", language, count=len(left), kinds=_kinds([operator for _, operator in left], language))
        screen.add((sentence, "dim"), margin="  ")
        screen.add((messages.say("report.more_hint", language), "dim"), margin="  ")


def _short(screen: Screen, number: int, digits: int, operator: Operator, report: Report, language: str) -> None:
    """Two or three lines for one operator."""
    margin = "  %*d. " % (digits, number)
    inner = " " * len(margin)
    kind, name = formatting.operator_title(operator, language)
    if name and cells(kind) + 2 + cells(name) <= screen.width - len(margin):
        screen.add((kind, "type"), ("  ", ""), (name, "name"), margin=margin, name=True)
    else:
        screen.add((kind, "type"), margin=margin)
        if name:
            screen.add((name, "name"), margin=inner, name=True)
    verdict = "verdict.%s.short" % operator.verdict
    items: List[Line] = []
    if operator.inputs is not None or operator.outputs is not None or operator.verdict != "unknown":
        text = messages.say(verdict, language) if messages.known(verdict) else clean(operator.verdict)
        items.append([(text, VERDICT_STYLES.get(operator.verdict, ""))])
    elif operator.dump_file is None:
        items.append([(messages.say("report.no_dump", language), "warn")])
    items.append([("%s %s" % (formatting.core_text(operator), formatting.status(operator, language)[0]), "")])
    items.extend([(text, "")] for text in formatting.place(operator, language, report.world_size or 1))
    screen.add_items(items, inner)
    if operator.inherited_from:
        screen.add((messages.say("report.inherited_from", language) + " ", "dim"), (clean(operator.inherited_from), "name"), margin=inner, name=True)
    found = worst(operator)
    if found:
        screen.add((found, "dim"), margin=inner)


def worst(operator: Operator) -> str:
    """The first tensor of an operator that holds an overflow value, in a few words."""
    for side, tensors in (("output", operator.outputs), ("input", operator.inputs)):
        for tensor in tensors or ():
            if has_overflow(tensor):
                shape, value = formatting.shape(tensor.shape), formatting.value_at(tensor.first_overflow)
                return "%s.%d  %s  %s  %s" % (side, tensor.index, clean(tensor.dtype), shape, value)
    return ""


def _kinds(operators: Sequence[Operator], language: str) -> str:
    """"Mul ×12, Add ×3 …": how often each type stands among them, the five most frequent."""
    counts: Dict[str, int] = {}
    for operator in operators:
        kind = formatting.operator_title(operator, language)[0]
        counts[kind] = counts.get(kind, 0) + 1
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    comma = "、" if language == "zh" else ", "
    return comma.join("%s ×%d" % pair for pair in order[:5]) + (" …" if len(order) > 5 else "")


# -- over steps, devices and ranks

#: operators and places that are listed
MOST_SHARES, MOST_PLACES = 5, 8


def _spread(screen: Screen, report: Report, language: str) -> None:
    """Which operators were the first of a step, and how often: a persistent culprit stands out from a passer-by; and on which devices and ranks.

    What is always the same one is said among the facts of the finding.
    """
    found = spread(report)
    several = [places for places in (found.devices, found.ranks) if len(places) > 1]
    leaders = [share for share in found.operators if share.operator.steps_first]
    if not several and len(leaders) < 2:
        return
    screen.heading(messages.say("report.spread", language))
    for share in leaders[:MOST_SHARES] if len(leaders) > 1 else []:
        kind, name = formatting.operator_title(share.operator, language)
        code = "report.seen" if share.operator.steps_seen > 1 else "report.seen.once"
        seen = messages.say(code, language, seen=share.operator.steps_seen, first=share.operator.steps_first)
        screen.add((kind, "type"), ("  " if name else "", ""), (name, "name"), margin="  ", name=True)
        screen.add((seen, ""), margin="    ")
    for code, places in (("device", found.devices), ("rank", found.ranks)):
        if len(places) > 1:
            key = "report.place." + code
            items: List[Line] = [
                [(messages.say(key, language, value=number) + " ", ""), ("×%d" % entries, "dim")]
                for number, entries, _ in places[:MOST_PLACES]
            ]
            if len(places) > MOST_PLACES:
                items.append([("… +%d" % (len(places) - MOST_PLACES), "dim")])
            screen.add_items(items, "  ")


# -- problems, remarks, the foot


def _problems(screen: Screen, report: Report, language: str) -> None:
    if report.problems:
        screen.heading(messages.say("report.problems", language))
        for problem in report.problems[:MOST_PROBLEMS]:
            screen.add((clean(problem.file), "name"), margin="  ", name=True)
            screen.add((formatting.problem(problem, language), ""), margin="    ")
        _more(screen, len(report.problems) - MOST_PROBLEMS, language)
    if report.remarks:
        screen.heading(messages.say("report.remarks", language))
        for remark in report.remarks[:MOST_REMARKS]:
            screen.add((formatting.remark(remark, language), ""), margin="  - ")
        _more(screen, len(report.remarks) - MOST_REMARKS, language)


def _more(screen: Screen, count: int, language: str) -> None:
    if count > 0:
        screen.add((messages.say("report.more", language, count=count), "dim"), margin="  ")


def _about(screen: Screen, report: Report, saved: Optional[str], next_command: Optional[str], language: str) -> None:
    """Where all this comes from, the loss scale, and what to type next."""
    screen.heading(messages.say("report.about", language))
    mode = "report.mode.%s" % report.mode
    facts = [
        ("path", clean(report.path), "", True),
        ("run", clean(report.run or ""), "", False),
        ("mode", messages.say(mode, language) if messages.known(mode) else clean(report.mode or ""), "", False),
        ("records", str(report.records), "", False),
        ("rank", _rank(report, language), "", False),
    ]
    if report.loss_scale is not None:
        fell, rate = formatting.loss_scale(report.loss_scale, language)
        high = (report.loss_scale.rate or 0.0) > formatting.RULE_OF_THUMB
        facts.extend([("scale", fell, "", False), ("rate", rate, "warn" if high else "", False)])
    facts.append(("saved", clean(saved or ""), "type", True))
    screen.facts([(messages.say("report.about." + name, language), text, style, is_name) for name, text, style, is_name in facts if text])
    if next_command:
        screen.blank()
        screen.add((messages.say("report.next", language), "dim"), margin="  ")
        screen.add_unbroken((clean(next_command, len(next_command)), "command"), margin="    ")


def _rank(report: Report, language: str) -> str:
    if report.rank is None or (report.world_size or 1) < 2:
        return ""
    return messages.say("report.about.rank_of", language, rank=report.rank, size=report.world_size)
