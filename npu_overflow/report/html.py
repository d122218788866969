"""The report as one HTML file that opens offline: style, script and pictures are in it, nothing
comes from elsewhere, its size is bounded.

Every text is escaped by the template engine, names from a dump are made harmless first
(``escape.clean``), and a content security policy in the page allows this page's own style and
script by their hashes and nothing else. Both languages are in the page; a switch shows one.
"""
from __future__ import annotations

import base64
import hashlib
import html
import io
import os
import pkgutil
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Sequence, Tuple

from npu_overflow import messages
from npu_overflow.atomic import atomic_write
from npu_overflow.errors import MissingExtra
from npu_overflow.report.html_views import View
from npu_overflow.report.model import Report

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = ["MOST_BYTES", "notebook", "render", "write_html"]

#: what a page may weigh at most
MOST_BYTES = 1_000_000

#: bytes that each long list may take
_BUDGETS = {
    "rows": 300_000,
    "cards": 300_000,
    "advices": 60_000,
    "problems": 60_000,
    "remarks": 30_000,
    "shares": 40_000,
    "links": 40_000,
    "ranges": 80_000,
}
#: where the page gets too large all the same (names full of characters that must be escaped), all
#: lists get less
_SHARES = (1.0, 0.6, 0.2)
#: bytes of the cards of tensors of the finding itself
_OWN_TENSORS = 60_000

#: tensors of one side of an operator: of the finding, of the others
MOST_TENSORS, FEW_TENSORS = 8, 4


def write_html(report: Report, path: str, language: Optional[str] = None) -> str:
    """Write ``report`` to ``path``, see ``Report.to_html``."""
    path = os.fspath(path)
    atomic_write(path, render(report, language), follow=True)
    return path


def notebook(report: Report) -> str:
    """The page in a frame: its style and script can do nothing to the notebook around it. Without
    jinja2 the text of the report."""
    try:
        page = render(report)
    except MissingExtra:
        text = io.StringIO()
        report.print(file=text)
        return "<pre>%s</pre>" % html.escape(text.getvalue())
    frame = '<iframe title="npu-overflow" sandbox="allow-scripts" srcdoc="%s" style="%s"></iframe>'
    return frame % (html.escape(page), "width:100%;height:640px;border:0")


def render(report: Report, language: Optional[str] = None) -> str:
    """The page as text.

    Args:
        language: the one shown first, "en" or "zh" (default: the user's).

    Raises:
        MissingExtra: jinja2 is not installed.
    """
    text = ""
    for share in _SHARES:
        text = _render(report, language or messages.language_of_user(), share)
        if len(text.encode("utf-8", "backslashreplace")) < MOST_BYTES:
            break
    return text


def _render(report: Report, language: str, share: float) -> str:
    """The page, its long lists cut to ``share`` of their budgets."""
    environment = _environment()
    parts: Any = environment.get_template("parts.html").module
    view = View(report)
    style, script = _asset("report.css"), _asset("report.js")
    listed = {
        name: _bounded(items, getattr(parts, name), share * _BUDGETS[name + "s"], total)
        for name, (items, total) in view.lists().items()
    }
    cards = [
        operator
        for operator in view.detailed()
        if operator.inputs is not None or operator.outputs is not None
    ]
    listed["card"] = _bounded(
        cards, lambda item: parts.card(view.card(item, FEW_TENSORS)), share * _BUDGETS["cards"]
    )
    own = view.tensors(report.first, MOST_TENSORS) if report.first is not None else []
    page = environment.get_template("report.html").render(
        view=view,
        language=language,
        style=style,
        script=script,
        policy="default-src 'none'; style-src '%s'; script-src '%s'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
        % (_hash(style), _hash(script)),
        lists=listed,
        tensors=_bounded(own, parts.tensor, _OWN_TENSORS),
        parts=parts,
    )
    return str(page)


def _bounded(
    items: Sequence[Any], draw: Callable[[Any], Any], budget: float, total: Optional[int] = None
) -> Dict[str, Any]:
    """Drawn items until ``budget`` bytes are used, the first one always where it fits at all; and
    how many were left out."""
    drawn: List[Any] = []
    used = 0
    for item in items:
        text = draw(item)
        used += len(str(text).encode("utf-8", "backslashreplace"))
        if used > budget:
            break
        drawn.append(text)
    count = len(items) if total is None else total
    return {"items": drawn, "left": count - len(drawn), "count": count}


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("html.missing") from None
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.globals.update(both=_both, pair=_pair, say=messages.say)
    return environment


def _asset(name: str) -> str:
    data = pkgutil.get_data("npu_overflow.report", "templates/" + name)
    assert data is not None, name
    return data.decode("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode(
        "ascii"
    )


def _pair(pair: Tuple[str, str]) -> Any:
    """A text in both languages, one of them shown; the same in both stands once."""
    from markupsafe import Markup, escape

    english, chinese = pair
    if english == chinese:
        return escape(english)
    return Markup('<span class="en">%s</span><span class="zh" lang="zh">%s</span>') % (
        english,
        chinese,
    )


def _both(_code: str, **values: Any) -> Any:
    """A sentence of the catalogue in both languages."""
    return _pair((messages.say(_code, "en", **values), messages.say(_code, "zh", **values)))
