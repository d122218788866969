"""What the HTML page shows, as plain values in both languages: (English, Chinese) pairs, numbers as
text, names made harmless."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from npu_overflow import messages
from npu_overflow.report import charts, formatting, lineage
from npu_overflow.report.escape import clean
from npu_overflow.report.headroom import headroom_table
from npu_overflow.report.model import Operator, Problem, Remark, Report, TensorSummary
from npu_overflow.report.story import Fact, next_command_of, quoted, tell, verdict_of, worst
from npu_overflow.report.tensors import has_overflow, kept_tensors, shown_inputs

__all__ = ["View"]

Pair = Tuple[str, str]

#: characters of a name in a table, and in a headline
_SHORT, _LONG = 240, 1000
#: items of a list that are prepared at all; bytes bound them further
_MOST_ITEMS = 2000
#: operators in the summary over steps; all are in the table of operators
_MOST_SHARES = 12

_VERDICTS = ("computed_here", "inherited", "internal", "padding_only", "absorbed", "unknown")
_TONES = {
    "computed_here": "bad",
    "internal": "bad",
    "inherited": "warn",
    "unknown": "warn",
    "padding_only": "good",
    "absorbed": "good",
}


_STATES = {"none": "good", "absorbed": "good"}


def _in_both(make: Callable[[str], str]) -> Pair:
    return make("en"), make("zh")


def _said(code: str, **values: Any) -> Pair:
    return messages.say(code, "en", **values), messages.say(code, "zh", **values)


class View:
    """One report, prepared for the template."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self._told = [tell(report, language) for language in messages.LANGUAGES]
        self.spread = lineage.spread(report)
        self.links, self.links_left = lineage.chain(report)
        # an entry can stand twice in a report: by identity, each has its first place
        self._numbers = {
            id(operator): number
            for number, operator in reversed(list(enumerate(report.operators, 1)))
        }

    def lists(self) -> Dict[str, Tuple[Sequence[Any], int]]:
        """The lists that can be long, by the macro that draws an item: the items worth preparing,
        and how many there are in all."""
        report = self.report
        made = self._lists()
        ranges = len(report.headroom.layers) if report.headroom is not None else 0
        totals = {
            "row": len(report.operators),
            "range": ranges,
            "problem": len(report.problems),
            "remark": len(report.remarks),
        }
        return {name: (items, totals.get(name, len(items))) for name, items in made.items()}

    def _lists(self) -> Dict[str, Sequence[Any]]:
        report = self.report
        return {
            "advice": self._all_advice(),
            "row": [
                self._row(number, operator)
                for number, operator in enumerate(report.operators[:_MOST_ITEMS], 1)
            ],
            "problem": [self._problem(item) for item in report.problems[:_MOST_ITEMS]],
            "remark": [self._remark(item) for item in report.remarks[:_MOST_ITEMS]],
            "range": self._ranges(),
            "share": [self._share(item) for item in self.spread.operators[:_MOST_SHARES]],
            "link": [
                self._link(item, rails)
                for item, rails in zip(self.links, _rails([item.depth for item in self.links]))
            ],
        }

    def detailed(self) -> List[Operator]:
        """Operators in the order in which they are worth a card: after the finding, then before it,
        each once."""
        first = self.report.first_index
        operators = list(self.report.operators)
        ordered = operators if first is None else operators[first + 1 :] + operators[:first]
        each = {id(operator): operator for operator in ordered}
        each.pop(id(self.report.first), None)
        return list(each.values())

    # -- headroom

    @property
    def headroom(self) -> Optional[Dict[str, Any]]:
        """Title, sentences and heads of the table of headroom."""
        if self.report.headroom is None:
            return None
        en, zh = (headroom_table(self.report.headroom, code, 0) for code in messages.LANGUAGES)
        return {
            "title": (en.title, zh.title),
            "sentences": list(zip(en.sentences, zh.sentences)),
            "heads": list(zip(en.heads, zh.heads)),
        }

    def _ranges(self) -> List[Dict[str, Any]]:
        """The layers in the order of execution."""
        found = self.report.headroom
        if found is None:
            return []
        found = replace(found, layers=found.layers[:_MOST_ITEMS])
        en, zh = (headroom_table(found, code).rows for code in messages.LANGUAGES)
        return [
            {"texts": list(zip(texts, other)), "tone": tone, "picture": charts.magnitudes(item)}
            for (texts, tone, item), (other, _, _) in zip(en, zh)
        ]

    # -- the finding

    @property
    def headline(self) -> Dict[str, Any]:
        """Title, type, name and verdict of the finding, or why there is none."""
        en, zh = self._told[0].headline, self._told[1].headline
        first = self.report.first
        made: Dict[str, Any] = {
            "title": (en.title, zh.title),
            "sentences": list(zip(en.sentences, zh.sentences)),
            "tone": _STATES.get(en.state, "warn"),
        }
        if first is not None:
            made.update(
                type=(en.kind, zh.kind),
                name=en.name,
                tone=_TONES.get(first.verdict, "warn"),
                origin={"text": (en.origin[0], zh.origin[0]), "value": en.origin[1]}
                if en.origin[0]
                else None,
                facts=self._finding_facts(first),
            )
        return made

    def _finding_facts(self, first: Operator) -> List[Tuple[Pair, Pair, bool]]:
        """(label, text, whether it is a name) of what is known of the finding."""
        rows = _rows(self._told[0].facts, self._told[1].facts)
        for name, value in (("dump", first.dump_file), ("record", first.record_file)):
            if value:
                rows.append((_said("html.fact." + name), _same(value), True))
        return rows

    def _all_advice(self) -> List[Dict[str, Any]]:
        pairs = list(zip(self._told[0].advice, self._told[1].advice))
        return [
            {
                "number": number if len(pairs) > 1 else 0,
                "title": (en.title, zh.title),
                "blocks": [("en", _blocks(en.lines)), ("zh", _blocks(zh.lines))],
            }
            for number, (en, zh) in enumerate(pairs, 1)
        ]

    @property
    def commands(self) -> List[Tuple[str, Pair]]:
        """Commands worth typing next, and what they do."""
        report = self.report
        found: List[Tuple[str, Pair]] = []
        listed = any("keep_float32" in operator.advice for operator in report.operators)
        path = quoted(report.path)
        if listed and report.host is None and path is not None:
            found.append(("npu-overflow mixlist " + path, _said("html.command.mixlist")))
        show = next_command_of(report)
        if show is not None:
            found.append((show, _said("html.command.show")))
        return found

    # -- tensors

    def tensors(self, operator: Operator, most: int) -> List[Dict[str, Any]]:
        """Inputs, then outputs, at most ``most`` of each side; those with overflow values before
        the others."""
        found: List[Dict[str, Any]] = []
        for side, tensors in (
            ("input", shown_inputs(operator)),
            ("output", operator.outputs or ()),
        ):
            found.extend(
                self._tensor("%s.%d" % (side, tensor.index), tensor)
                for tensor in kept_tensors(tensors, most)
            )
        return found

    def _tensor(self, name: str, tensor: TensorSummary) -> Dict[str, Any]:
        bad = has_overflow(tensor)
        figures: List[Tuple[Pair, Pair, bool]] = []
        if tensor.note is None or tensor.min is not None or tensor.first_overflow is not None:
            for key in ("min", "max", "mean"):
                figures.append(
                    (
                        _said("report.column." + key),
                        _same(formatting.number(getattr(tensor, key))),
                        False,
                    )
                )
            if tensor.headroom_log2 is not None:
                bits = _said("report.headroom", bits="%.1f" % abs(tensor.headroom_log2))
                figures.append((_said("report.column.headroom"), bits, tensor.headroom_log2 < 1))
            for key in ("nan", "pos_inf", "neg_inf", "saturated", "overflow_in_padding"):
                if getattr(tensor, key):
                    figures.append(
                        (_said("report.column." + key), _same("%d" % getattr(tensor, key)), True)
                    )
        if tensor.first_overflow is not None:
            figures.append(
                (
                    _said("report.column.first"),
                    _same(formatting.value_at(tensor.first_overflow)),
                    True,
                )
            )
        original = tensor.original_shape
        shape = clean(formatting.shape(tensor.shape), _SHORT)
        same = original is None or tuple(original) == tuple(tensor.shape)
        return {
            "name": name,
            "bad": bad,
            "dtype": clean(tensor.dtype, 60),
            "format": clean(tensor.format, 60),
            "shape": (shape, shape)
            if same
            else _said(
                "report.original", shape=shape, original=clean(formatting.shape(original), _SHORT)
            ),
            "note": _in_both(lambda language: formatting.not_decoded(tensor, language)),
            "clean": not bad and bool(figures),
            "figures": figures,
            "picture": charts.histogram(tensor),
        }

    def card(self, operator: Operator, most: int) -> Dict[str, Any]:
        """One operator with its tensors."""
        kept = self.tensors(operator, most)
        return {
            "number": self._numbers[id(operator)],
            "type": _in_both(
                lambda language: clean(formatting.operator_title(operator, language)[0], _SHORT)
            ),
            "name": clean(operator.op_name or "", _SHORT),
            "verdict": _verdict(operator),
            "tone": _TONES.get(operator.verdict, "warn"),
            "tensors": kept,
            "left": len(operator.inputs or ()) + len(operator.outputs or ()) - len(kept),
            "dump_file": clean(operator.dump_file or "", _SHORT),
        }

    # -- lists

    def _row(self, number: int, operator: Operator) -> Dict[str, Any]:
        found = worst(operator)
        step = operator.train_step if operator.train_step is not None else operator.step
        verdict = operator.verdict if operator.verdict in _VERDICTS else "unknown"
        return {
            "number": number,
            "card": self._numbers[id(operator)],
            "first": number - 1 == self.report.first_index,
            "type": _in_both(
                lambda language: clean(formatting.operator_title(operator, language)[0], 80)
            ),
            "name": clean(operator.op_name or "", _SHORT),
            "code": verdict,
            "verdict": _verdict(operator),
            "tone": _TONES.get(operator.verdict, "warn"),
            "core": clean(operator.core, 40),
            "device": _number(operator.device),
            "rank": _number(operator.rank),
            "step": _number(step),
            "found": clean(found, 120),
            "seen": operator.steps_seen,
        }

    def _problem(self, item: Problem) -> Tuple[str, Pair]:
        return clean(item.file, _SHORT), _in_both(
            lambda language: formatting.problem(item, language)
        )

    def _remark(self, item: Remark) -> Pair:
        return _in_both(lambda language: formatting.remark(item, language))

    def _share(self, item: lineage.Share) -> Dict[str, Any]:
        return {
            "type": _in_both(
                lambda language: clean(formatting.operator_title(item.operator, language)[0], 80)
            ),
            "name": clean(item.operator.op_name or "", _SHORT),
            "seen": item.operator.steps_seen,
            "first": item.operator.steps_first,
            "entries": item.entries,
            "places": [_few(getattr(item, place["kind"] + "s")) for place in self.places],
        }

    def _link(self, item: lineage.Link, rails: str) -> Dict[str, Any]:
        operator = self.report.operators[item.index]
        return {
            "rails": rails,
            "times": item.times,
            "culprit": item.index == self.report.first_index,
            "type": _in_both(
                lambda language: clean(formatting.operator_title(operator, language)[0], 80)
            ),
            "name": clean(operator.op_name or "", _SHORT),
            "verdict": _verdict(operator),
            "tone": _TONES.get(operator.verdict, "warn"),
            "found": clean(worst(operator), 120),
        }

    @property
    def places(self) -> List[Dict[str, Any]]:
        """Devices and ranks, where there is more than one."""
        found: List[Dict[str, Any]] = []
        for kind, places in (("device", self.spread.devices), ("rank", self.spread.ranks)):
            if len(places) > 1:
                rows = [
                    (number, entries, clean(operator.op_name or operator.op_type or "?", 120))
                    for number, entries, operator in places[:64]
                ]
                found.append({"kind": kind, "rows": rows, "left": len(places) - len(rows)})
        return found

    @property
    def has_spread(self) -> bool:
        """Whether there is more to say than that one operator overflowed once."""
        return self.spread.steps > 1 or len(self.spread.devices) > 1 or len(self.spread.ranks) > 1

    @property
    def columns(self) -> List[str]:
        """Columns of the table of operators; those that say nothing here are left out."""
        operators = self.report.operators
        optional = {
            "device": len({operator.device for operator in operators}) > 1,
            "rank": len({operator.rank for operator in operators}) > 1,
            "seen": any(operator.steps_seen > 1 for operator in operators),
        }
        names = (
            "number",
            "type",
            "name",
            "verdict",
            "core",
            "device",
            "rank",
            "step",
            "first",
            "seen",
        )
        return [name for name in names if optional.get(name, True)]

    @property
    def verdicts(self) -> List[Tuple[str, Pair]]:
        """Verdicts that occur, to choose from."""
        present = {operator.verdict for operator in self.report.operators}
        return [(code, _said("verdict.%s.short" % code)) for code in _VERDICTS if code in present]

    # -- the run

    @property
    def scale(self) -> Optional[Dict[str, Any]]:
        """The loss scale as a picture and in words."""
        seen = self.report.loss_scale
        if seen is None:
            return None
        words = {name: _said("html.scale." + name) for name in ("step", "trigger", "kept")}
        fell, rate = zip(
            *(formatting.loss_scale(seen, language) for language in messages.LANGUAGES)
        )
        lines: List[Pair] = [pair for pair in (fell, rate) if pair[0]]
        if seen.trigger_step is not None:
            lines.append(_said("html.scale.trigger_at", step=seen.trigger_step))
        if seen.kept_steps:
            lines.append(_said("html.scale.kept_at", steps=_few(seen.kept_steps)))
        picture = charts.loss_scale_curve(seen, words)
        thinned = (
            _said("html.scale.thinned", shown=charts.MOST_DROPS, count=len(seen.drops))
            if len(seen.drops) > charts.MOST_DROPS
            else None
        )
        return (
            {"picture": picture, "lines": lines, "thinned": thinned} if picture or lines else None
        )

    @property
    def facts(self) -> List[Tuple[Pair, Pair]]:
        """(label, text) of the run."""
        report = self.report
        told = _rows(self._told[0].about, self._told[1].about)
        rows: List[Tuple[Pair, Pair]] = [(label, text) for label, text, _ in told]
        rows.append((_said("html.fact.operators"), _same(len(report.operators))))
        if report.loss_scale is not None and report.loss_scale.optimizers:
            rows.append(
                (
                    _said("html.fact.optimizers"),
                    _same(
                        ", ".join(clean(name, 100) for name in report.loss_scale.optimizers[:20])
                    ),
                )
            )
        rows.extend((_same(key, 40), _same(value, 200)) for key, value in _flat(report.host or {}))
        rows.append((_said("html.fact.version"), _same(report.version)))
        return [row for row in rows if row[1][0]]


def _rails(depths: Sequence[int]) -> List[str]:
    """How the lines of a tree run left of each of its nodes, a letter a level: "t" a branch, "l"
    the last one, "v" a line passing by, "s" nothing."""
    made = []
    for place, depth in enumerate(depths):
        letters = ""
        for level in range(1, depth + 1):
            later = next((other for other in depths[place + 1 :] if other <= level), 0)
            goes_on = later == level
            letters += ("t" if goes_on else "l") if level == depth else ("v" if goes_on else "s")
        made.append(letters)
    return made


def _same(value: object, longest: int = _LONG) -> Pair:
    text = clean(value, longest)
    return text, text


def _rows(english: Sequence[Fact], chinese: Sequence[Fact]) -> List[Tuple[Pair, Pair, bool]]:
    """(label, text, whether it is a name) of the same facts in both languages."""
    return [((en[0], zh[0]), (en[1], zh[1]), en[3]) for en, zh in zip(english, chinese)]


def _verdict(operator: Operator) -> Pair:
    return _in_both(lambda language: verdict_of(operator, language, ".short"))


def _number(value: Optional[int]) -> str:
    return "" if value is None else "%d" % value


def _few(numbers: Sequence[int]) -> str:
    """"0, 1, 2 … 7" of many."""
    if len(numbers) <= 12:
        return ", ".join(map(str, numbers))
    return "%s … %s (%d)" % (", ".join(map(str, numbers[:10])), numbers[-1], len(numbers))


def _flat(facts: Mapping[str, Any]) -> List[Tuple[str, str]]:
    """Facts of the process as (name, text), those of a dict below its own names; at most 30."""
    rows: List[Tuple[str, str]] = []
    for key, value in list(facts.items())[:30]:
        if isinstance(value, Mapping):
            rows.extend((str(name), str(item)) for name, item in list(value.items())[:30])
        elif value is not None:
            rows.append((str(key), str(value)))
    return rows[:30]


def _blocks(lines: Sequence[Tuple[bool, str]]) -> List[Tuple[str, str]]:
    """The lines of an advice as ("text", sentence) and ("code", lines that follow each other)."""
    blocks: List[Tuple[str, str]] = []
    for is_code, line in lines:
        if is_code and blocks and blocks[-1][0] == "code":
            blocks[-1] = ("code", blocks[-1][1] + "\n" + line)
        else:
            blocks.append(("code" if is_code else "text", line))
    return blocks
