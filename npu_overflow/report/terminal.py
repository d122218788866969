"""The report on a terminal: the culprit first, then what to do, then the rest, then the next
command to type."""
from __future__ import annotations

from typing import IO, Dict, List, Optional, Sequence

from npu_overflow import messages
from npu_overflow.report import formatting
from npu_overflow.report.escape import clean
from npu_overflow.report.flow import Line, cells, pad
from npu_overflow.report.headroom import COLUMNS, headroom_table
from npu_overflow.report.lineage import spread
from npu_overflow.report.model import Headroom, LossScale, Operator, Report
from npu_overflow.report.screen import Screen
from npu_overflow.report.story import (
    Advice,
    Headline,
    Story,
    next_command_of,
    tell,
    verdict_of,
    worst,
)
from npu_overflow.report.tensors import shown_inputs, tensor_lines

__all__ = ["print_report"]

_VERDICT_STYLES: Dict[str, str] = {
    "computed_here": "type",
    "inherited": "warn",
    "internal": "type",
    "padding_only": "good",
    "absorbed": "good",
    "unknown": "warn",
}

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
        file: standard output by default. Colour only where it is a terminal; names are wrapped
            there and stay whole elsewhere.
        language: "en" or "zh"; the user's by default.
        limit: operators shown, the culprit included; None shows all.
        saved: path of the saved report, or the folder with the names of its files; printed near the
            end.
        next_command: the command to type next; by default ``show`` on the culprit's dump, where
            there is one.
        width, colour: instead of those of the terminal.
    """
    screen = Screen(file, width, colour)
    language = language or messages.language_of_user()
    told = tell(report, language)
    _headline(screen, told.headline)
    if report.first is not None:
        _finding(screen, told, report.first, language)
    if report.headroom is not None and report.headroom.step is not None:
        _headroom(screen, report.headroom, language)
    _others(screen, report, limit, language)
    _spread(screen, report, language)
    _problems(screen, report, language)
    if next_command is None:
        next_command = next_command_of(report)
    _about(screen, told, report.loss_scale, saved, next_command, language)
    screen.show()


# -- the finding


def _headline(screen: Screen, headline: Headline) -> None:
    style = {"finding": "title", "reason": "title", "unreadable": "warn"}.get(
        headline.state, "calm"
    )
    screen.add((headline.title, style))
    if headline.state != "finding":
        for sentence in headline.sentences:
            screen.add((sentence, ""), margin="  ")


def _finding(screen: Screen, told: Story, first: Operator, language: str) -> None:
    """The operator, why, where, its inputs and outputs, and what to do about it."""
    headline = told.headline
    if first.origin != "operator":
        sentence, value = headline.origin
        if sentence:
            screen.add((sentence, "type"), margin="  ")
        if value:
            screen.add((value, "bad"), margin="  ")
        screen.add((messages.say("report.consumer", language), "dim"), margin="  ")
    screen.add((headline.kind, "type"), margin="  ")
    if headline.name:
        screen.add((headline.name, "name"), margin="  ", name=True)
    screen.blank()
    for sentence in headline.sentences:
        screen.add((sentence, _VERDICT_STYLES.get(first.verdict, "")), margin="  ")
    screen.blank()
    screen.facts(told.facts)
    _tensors(screen, first, language)
    _advice(screen, told.advice, language)


def _tensors(screen: Screen, first: Operator, language: str) -> None:
    screen.heading(messages.say("report.tensors", language))
    if first.inputs is None and first.outputs is None:
        code = "report.no_dump" if first.dump_file is None else "report.not_opened"
        screen.add((messages.say(code, language), "warn"), margin="  ")
        return
    margin = "  "
    width = screen.width - len(margin)
    lines = tensor_lines(shown_inputs(first), first.outputs or (), width, language)
    screen.add_lines([[(margin, "")] + line for line in lines])


def _advice(screen: Screen, shown: Sequence[Advice], language: str) -> None:
    """Numbered; lines of code stay as they are."""
    if not shown:
        return
    screen.heading(messages.say("report.advice", language))
    for count, advice in enumerate(shown, 1):
        margin = "  %d. " % count if len(shown) > 1 else "  "
        for is_code, line in advice.lines:
            if is_code:
                room = max(0, screen.width - cells(line))
                screen.add_unbroken((line, "command"), margin=" " * min(len(margin) + 2, room))
            else:
                screen.add((line, ""), margin=margin)
            margin = " " * len(margin)


# -- headroom

#: layers that are listed, and room for a name beside the figures
MOST_LAYERS, LEAST_WIDTH = 10, 12


def _headroom(screen: Screen, found: Headroom, language: str) -> None:
    """The tightest layers of a step that was surveyed."""
    table = headroom_table(found, language, MOST_LAYERS)
    screen.heading(table.title)
    for sentence in table.sentences:
        screen.add((sentence, ""), margin="  ")
    lines = [(table.heads, "dim"), *((row, style) for row, style, _ in table.rows)]
    *figures, last = range(len(table.heads))
    widths = [max(cells(row[place]) for row, _ in lines) for place in figures]
    if sum(widths) + 2 * len(widths) > screen.width - LEAST_WIDTH:  # too narrow for all of them
        figures = [place for place in figures if COLUMNS[place] in ("bits", "phase")]
    for row, style in lines:
        columns = [pad(row[i], widths[i], right=COLUMNS[i] != "phase") for i in figures]
        margin = "  " + "  ".join(columns) + "  "
        start = len(screen.lines)
        screen.add((row[last], style), margin=" " * cells(margin), name=True)
        screen.lines[start] = [(margin, style), *screen.lines[start][1:]]
    if table.left:
        left = messages.say("headroom.more", language, count=table.left)
        screen.add((left, "dim"), margin="  ")


# -- the other operators


def _others(screen: Screen, report: Report, limit: Optional[int], language: str) -> None:
    others = [
        (number, operator)
        for number, operator in enumerate(report.operators, 1)
        if number - 1 != report.first_index
    ]
    if not others:
        return
    shown = others if limit is None else others[: max(0, limit - (report.first is not None))]
    screen.heading(messages.say("report.others", language))
    digits = len(str(shown[-1][0])) if shown else 1
    for number, operator in shown:
        _short(screen, number, digits, operator, report, language)
    left = others[len(shown):]
    if left:
        sentence = messages.say(
            "report.more_operators",
            language,
            count=len(left),
            kinds=_kinds([operator for _, operator in left], language),
        )
        screen.add((sentence, "dim"), margin="  ")
        screen.add((messages.say("report.more_hint", language), "dim"), margin="  ")


def _short(
    screen: Screen, number: int, digits: int, operator: Operator, report: Report, language: str
) -> None:
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
    items: List[Line] = []
    if operator.inputs is not None or operator.outputs is not None or operator.verdict != "unknown":
        text = verdict_of(operator, language, ".short")
        items.append([(text, _VERDICT_STYLES.get(operator.verdict, ""))])
    elif operator.dump_file is None:
        items.append([(messages.say("report.no_dump", language), "warn")])
    items.append(
        [("%s %s" % (formatting.core_text(operator), formatting.status(operator, language)[0]), "")]
    )
    items.extend(
        [(text, "")] for text in formatting.place(operator, language, report.world_size or 1)
    )
    screen.add_items(items, inner)
    if operator.inherited_from:
        screen.add(
            (messages.say("report.inherited_from", language) + " ", "dim"),
            (clean(operator.inherited_from), "name"),
            margin=inner,
            name=True,
        )
    found = worst(operator)
    if found:
        screen.add((found, "dim"), margin=inner)


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
    """Which operators were the first of a step, and how often: a persistent culprit stands out from
    a passer-by; and on which devices and ranks.

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
        seen = messages.say(
            code, language, seen=share.operator.steps_seen, first=share.operator.steps_first
        )
        screen.add(
            (kind, "type"), ("  " if name else "", ""), (name, "name"), margin="  ", name=True
        )
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


def _about(
    screen: Screen,
    told: Story,
    scale: Optional[LossScale],
    saved: Optional[str],
    next_command: Optional[str],
    language: str,
) -> None:
    """Where all this comes from, the loss scale, and what to type next."""
    screen.heading(messages.say("report.about", language))
    facts = list(told.about)
    if scale is not None:
        fell, rate = formatting.loss_scale(scale, language)
        high = (scale.rate or 0.0) > formatting.RULE_OF_THUMB
        facts.append((messages.say("report.about.scale", language), fell, "", False))
        style = "warn" if high else ""
        facts.append((messages.say("report.about.rate", language), rate, style, False))
    facts.append((messages.say("report.about.saved", language), clean(saved or ""), "type", True))
    screen.facts([fact for fact in facts if fact[1]])
    if next_command:
        screen.blank()
        screen.add((messages.say("report.next", language), "dim"), margin="  ")
        screen.add_unbroken((clean(next_command, len(next_command)), "command"), margin="    ")
