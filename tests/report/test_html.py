"""The HTML report as text: bounded, escaped, whole without scripts, both languages in it."""
from __future__ import annotations

import builtins
import dataclasses
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, Dict, List, Set, Tuple

import html_trees
import pytest
import report_samples
from hypothesis import given, settings
from report_strategies import reports

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.cli import main
from npu_overflow.dump import codes
from npu_overflow.errors import MissingExtra
from npu_overflow.report import charts, html, lineage
from npu_overflow.report.html_views import _rails
from npu_overflow.report.model import LossScale, Operator, Problem, Remark, Report, TensorSummary

VOID = {"meta", "link", "br", "input", "rect", "path", "circle"}
#: every element that a page may hold, and attributes that could load or run something
ELEMENTS = set(
    "html head meta link title style body header main section article div p span b i h1 h2 h3 dl dt dd ul ol li table thead tbody tr th td button "
    "input select option details summary pre code svg path rect circle text script noscript br".split()
)
HARMLESS = re.compile(r"^(data-[a-z-]+|aria-[a-z]+|class|id|lang|title|type|name|content|charset|http-equiv|rel|href|role|value|placeholder|autocomplete|"
                      r"spellcheck|hidden|viewBox|viewbox|d|x|y|cx|cy|r|width|height|text-anchor)$")


class Page(HTMLParser):
    """Elements, attributes and visible texts of a page; complains of elements that are not closed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.stack: List[str] = []
        self.elements: List[Tuple[str, Dict[str, Any]]] = []
        self.texts: List[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID or tag in ("rect", "circle"):
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.stack or self.stack[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def names(self) -> Set[str]:
        return {name for name, _ in self.elements}


def sound(text: str) -> Page:
    """The page, after checking what holds of every page."""
    assert len(text.encode("utf-8", "backslashreplace")) < html.MOST_BYTES
    page = Page(text)
    assert page.stack == []
    assert page.names <= ELEMENTS
    assert [key for _, attributes in page.elements for key in attributes if not HARMLESS.match(key)] == []
    assert [attributes["href"] for _, attributes in page.elements if "href" in attributes] == ["data:,"]
    assert sum(name == "script" for name, _ in page.elements) == 1
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    return page


@pytest.mark.parametrize("name", report_samples.ALL)
def test_every_sample_makes_a_sound_page(name: str) -> None:
    page = sound(html.render(report_samples.ALL[name], "en"))
    text = " ".join(page.texts)
    first = report_samples.ALL[name].first
    assert first is None or (first.op_name or "") in text
    assert "html." not in text.replace("report.html", "")
    assert "{{" not in text and "None" not in text


@settings(max_examples=25)
@given(reports())
def test_any_report_makes_a_sound_page(report: Report) -> None:
    sound(html.render(report, "zh"))


@pytest.mark.parametrize("name", html_trees.TREES)
def test_trees(tmp_path: Path, name: str) -> None:
    report = analyze(str(html_trees.TREES[name](tmp_path)))
    text = html.render(report, "en")
    page = sound(text)
    assert sum(1 for tag, attributes in page.elements if tag == "tr" and "data-v" in attributes) == len(report.operators)
    assert html.render(Report.from_json(report.to_json()), "en") == text


def test_hostile_names_are_text(tmp_path: Path) -> None:
    report = analyze(str(html_trees.hostile_tree(tmp_path)))
    names = {operator.op_name for operator in report.operators}
    assert set(html_trees.HOSTILE) <= names
    page = sound(html.render(report, "en"))
    text = "".join(page.texts)
    for name in html_trees.HOSTILE[:5]:
        assert name in text
    assert "\x1b" not in text and "\u202e" not in text and "\\x1b[31mred" in text
    assert "img" not in page.names


def test_a_page_of_anything_is_small() -> None:
    tensors = tuple(TensorSummary(i, "x" * 5000, "<" * 5000, (2**60,) * 60, first_overflow={"index": [2**60] * 500, "value": 1.0}, nan=1) for i in range(100))
    operators = tuple(
        Operator(op_type="<" * 5000, op_name="&" * 5000 + str(i), core="&" * 5000, inputs=tensors, outputs=tensors, inherited_from="&" * 5000 + str(i - 1),
                 advice=("keep_float32",) * 500, dump_file="'" * 5000, verdict="&" * 9000, step=i)
        for i in range(3000)
    )
    many = Report(
        path="&" * 5000, version="1", first_index=0, operators=operators, host={str(i): "&" * 9000 for i in range(999)},
        problems=tuple(Problem("&" * 5000, "&" * 5000) for _ in range(3000)), remarks=tuple(Remark("&" * 5000) for _ in range(3000)),
        loss_scale=LossScale(tuple((i, 2.0, 1.0) for i in range(9999)), 0.5, ("&" * 9000,) * 999, 3, tuple(range(9999))),
    )
    text = html.render(many, "en")
    page = sound(text)
    assert "left out here" in " ".join(page.texts)


def test_the_page_allows_its_own_script_and_style_and_nothing_else() -> None:
    text = html.render(report_samples.NPU, "en")
    policy = next(attributes["content"] for _, attributes in Page(text).elements if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy and policy.count("sha256-") == 2
    assert "http://" not in text and "https://" not in text and "@import" not in text and "url(" not in text


def test_both_languages_and_the_chosen_one_first() -> None:
    for language, word in (("en", "What to do"), ("zh", "处理建议")):
        text = html.render(report_samples.NPU, language)
        assert '<html lang="%s">' % language in text and word in text and "What to do" in text


def test_without_jinja2_the_install_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def missing(name: str, *more: Any, **words: Any) -> Any:
        if name == "jinja2":
            raise ImportError(name)
        return load(name, *more, **words)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(MissingExtra, match="pip install jinja2"):
        html.render(report_samples.NPU)


def test_it_is_written_aside_and_then_renamed(tmp_path: Path) -> None:
    target = tmp_path / "r.html"
    target.write_text("old", encoding="utf-8")
    assert report_samples.NPU.to_html(str(target), "en") == str(target)
    assert target.read_text(encoding="utf-8") == html.render(report_samples.NPU, "en")
    assert os.listdir(str(tmp_path)) == ["r.html"]
    with pytest.raises(OSError):
        report_samples.NPU.to_html(str(tmp_path / "none" / "r.html"))


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = str(html_trees.large_tree(tmp_path / "t", 12))
    assert main(["analyze", tree, "--html", "out.html"]) == 0
    assert "out.html" in capsys.readouterr().out
    assert "block_11" in Path("out.html").read_text(encoding="utf-8")
    assert main(["analyze", tree, "--html", "out.html", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["operators"]) == 12
    assert main(["analyze", tree, tree, "--html", "out.html"]) == 2
    assert "one report" in capsys.readouterr().err


def test_of_a_saved_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("all.json").write_text(report_samples.NPU.to_json(), encoding="utf-8")
    assert main(["analyze", "all.json", "--html", "all.html"]) == 0
    assert Path("all.html").read_text(encoding="utf-8") == html.render(Report.from_json(report_samples.NPU.to_json()))
    Path("other.json").write_text("[]", encoding="utf-8")
    assert main(["analyze", "other.json"]) == 1
    assert "Traceback" not in capsys.readouterr().err


# -- pictures


def test_maxima_are_those_of_the_dump_format() -> None:
    parts = {"complex32": "float16", "complex64": "float32", "complex128": "float64"}
    for dtype, value in charts.LOG2_MAX.items():
        assert 2.0 ** min(value, 1023) == pytest.approx(min(codes.MAX[parts.get(dtype, dtype)], 2.0**1023))


def test_a_histogram_shows_each_kind_of_value() -> None:
    tensor = TensorSummary(0, "float16", "ND", (9,), nan=3, pos_inf=2, neg_inf=1, saturated=4, histogram={"low": 0, "counts": [5, 0, 7] + [0] * 12 + [6]})
    picture = charts.histogram(tensor)
    assert picture is not None
    labels = re.findall("<title>(.*?)</title>", picture)
    # of the six in the highest bin four stand at ±MAX, which has a bar of its own
    assert labels == ["2^0 … 2^1: 5", "2^2 … 2^3: 7", "2^15 … 2^16: 2", "-Inf: 1", "+Inf: 2", "NaN: 3", "±MAX: 4"]
    assert "MAX 2^16" in picture


@pytest.mark.parametrize(
    "given",
    [None, {}, {"low": "x", "counts": [1]}, {"low": 0, "counts": "abc"}, {"low": 10**9, "counts": [1]}, {"low": 0, "counts": [-1, None, "<"]}],
)
def test_what_is_no_histogram_is_none(given: Any) -> None:
    tensor = TensorSummary(0, "float16", "ND", (9,), histogram=given)
    picture = charts.histogram(tensor)
    assert picture is None or "<title>" not in picture


def test_wide_histograms_have_few_bars() -> None:
    picture = charts.histogram(TensorSummary(0, "float64", "ND", (9,), histogram={"low": -1074, "counts": [1] * 2098}))
    assert picture is not None and picture.count("<rect") <= charts.MOST_BARS


def test_the_curve_shows_drops_trigger_and_kept_steps() -> None:
    words = {"step": ("step", "步"), "trigger": ("frequent", "频繁"), "kept": ("kept", "采集")}
    drops = ((10, 1024.0, 512.0), (20, 2048.0, 1024.0), (30, 1024.0, 0.0), (31, float("nan"), 1.0))
    picture = charts.loss_scale_curve(LossScale(drops, None, (), 20, (20, 30)), words)
    assert picture is not None
    assert picture.count('class="drop"') == 3 and picture.count("keptmark") == 2 and picture.count('class="trigger"') == 1
    assert charts.loss_scale_curve(LossScale(), words) is None
    many = charts.loss_scale_curve(LossScale(tuple((step, 2.0, 1.0) for step in range(5000))), words)
    assert many is not None and many.count('class="drop"') <= charts.MOST_DROPS


# -- the chain


def _operator(name: str, made_by: Any = None, **more: Any) -> Operator:
    return Operator(op_type="Mul", op_name=name, core="AIV", inherited_from=made_by, **more)


def _report(*operators: Operator, first: Any = 0) -> Report:
    return Report(path="x", version="0", operators=operators, first_index=first)


def test_the_chain_is_a_tree_below_the_maker() -> None:
    report = _report(_operator("a"), _operator("b", "a"), _operator("c", "b"), _operator("d", "a"), _operator("b", "a"), _operator("x"))
    links, left = lineage.chain(report)
    assert [(report.operators[link.index].op_name, link.depth, link.times) for link in links] == [("a", 0, 1), ("b", 1, 2), ("c", 2, 1), ("d", 1, 1)]
    assert left == 0 and _rails([link.depth for link in links]) == ["", "t", "vl", "l"]


def test_the_chain_begins_above_a_finding_that_inherited() -> None:
    links, _ = lineage.chain(_report(_operator("a"), _operator("b", "a"), first=1))
    assert [link.index for link in links] == [0, 1]


def test_circles_and_long_chains_end() -> None:
    assert len(lineage.chain(_report(_operator("a", "b"), _operator("b", "a")))[0]) <= 3
    links, left = lineage.chain(_report(*[_operator(str(i), str(i - 1)) for i in range(100)]))
    assert len(links) == lineage.MOST_LINKS and left == 100 - lineage.MOST_LINKS
    assert lineage.chain(_report(_operator("a"), first=None)) == ([], 0)


def test_the_spread_over_steps_devices_and_ranks() -> None:
    passer = _operator("p", steps_seen=1, steps_first=1, device=0, rank=0, step=1)
    culprit = [_operator("c", steps_seen=3, steps_first=2, device=step % 2, rank=step % 2, step=step) for step in (1, 2, 3)]
    spread = lineage.spread(_report(passer, *culprit, dataclasses.replace(passer, op_name="n", verdict="absorbed", device=9)))
    assert [(share.operator.op_name, share.entries, share.devices) for share in spread.operators] == [("c", 3, (0, 1)), ("p", 1, (0,))]
    assert spread.steps == 3
    assert [(number, entries, first.op_name) for number, entries, first in spread.devices] == [(0, 2, "p"), (1, 2, "c")]


def test_an_operator_that_was_not_opened_is_the_same_operator() -> None:
    opened = _operator("net/fc.1/mul", steps_seen=2, inputs=(), outputs=(), step=1)
    spread = lineage.spread(_report(_operator("net_fc_1_mul", steps_seen=2, step=0), opened))
    assert [(share.operator.op_name, share.entries) for share in spread.operators] == [("net/fc.1/mul", 2)]


@pytest.mark.parametrize("count", [-1, -(10**30)])
def test_counts_below_zero_in_a_saved_report_are_drawn_as_none(count: int) -> None:
    tensor = TensorSummary(0, "float16", "ND", (4,), nan=count, pos_inf=2, neg_inf=count, saturated=count, histogram={"low": 0, "counts": [1, count, 2]})
    assert charts.special_counts(tensor) == [("+Inf", 2)]
    assert charts.bins(tensor)[1] == [1, 0, 2]
    drawn = charts.histogram(tensor)
    assert drawn is not None and drawn.count("<title>") == 3
    only = TensorSummary(0, "float16", "ND", (4,), nan=count)
    assert charts.histogram(only) is None
