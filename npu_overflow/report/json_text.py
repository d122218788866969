"""A report as JSON text and back.

JSON lacks infinities and NaN: they are the words "inf", "-inf" and "nan".
"""
from __future__ import annotations

import dataclasses
import json
import re
from typing import Any, Mapping, Match, Optional, Type, TypeVar

from npu_overflow import jsonform
from npu_overflow.errors import DumpFormatError, reason_of

__all__ = ["parsed", "plain", "restore", "restore_json", "restore_part", "text_of"]

_T = TypeVar("_T")

#: keys whose values are texts even where they read "inf" or "nan", in fields that hold free JSON
#: (evidence, origin_detail …)
TEXT_KEYS = frozenset(
    (
        *("name", "op_name", "op_type", "operator", "producer", "tensor", "type", "dtype"),
        *("file", "path", "text", "reason"),
    )
)

#: texts that would be taken for numbers in free JSON under any other key: there a backslash more
#: goes in front
_LIKE_NUMBERS = re.compile(r"\\*(?:-?inf|nan)\Z")
_FORM = jsonform.Form(texts=TEXT_KEYS)

#: outside strings JSON has none of these: control characters past ASCII, zero width and bidi
#: characters, separators, surrogates
_HIDDEN = re.compile(
    "[\x7f-\x9f\xad\u0600-\u0605\u061c\u06dd\u070f\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)


def text_of(report: Mapping[str, Any]) -> str:
    """JSON text, one indent of a blank; characters that could steer a terminal are escaped."""
    text = json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False)
    return _HIDDEN.sub(_escaped, text)


def _escaped(match: Match[str]) -> str:
    return json.dumps(match.group())[1:-1]


def plain(value: Any, key: Optional[str] = None) -> Any:
    """JSON-ready form of a field's value; ``key`` is that of the value in free JSON."""
    if isinstance(value, float):
        return jsonform.number_or_word(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, key) for item in value]
    is_text = key is None or key in TEXT_KEYS
    if isinstance(value, str) and not is_text and _LIKE_NUMBERS.match(value):
        return "\\" + value
    return value


def restore_json(cls: Type[_T], text: str) -> _T:
    """The ``cls`` that ``text`` (JSON) describes.

    Raises:
        DumpFormatError: not JSON, or not a report.
    """
    return restore(cls, parsed(text))


def parsed(text: str) -> Any:
    """What JSON says; a byte order mark in front, as some editors put it, is no part of it.

    Raises:
        DumpFormatError: not JSON, or a whole number that no report has.
    """
    try:
        return jsonform.parse(text[1:] if text[:1] == "\ufeff" else text)
    except ValueError as error:
        raise DumpFormatError("report.not_json", why=reason_of(error)) from None


def restore(cls: Type[_T], data: Any) -> _T:
    """The ``cls`` (Report) that ``data`` describes.

    Raises:
        DumpFormatError: not a report of this tool, or a field of another type.
    """
    is_ours = isinstance(data, Mapping) and data.get("tool", "npu_overflow") == "npu_overflow"
    if not is_ours or "schema" not in data:
        raise DumpFormatError("report.not_report")
    report: Any = restore_part(cls, dict(data, first_index=data.get("first")), "")
    first = report.first_index
    if first is not None and not 0 <= first < len(report.operators):
        raise _wrong("first", first)
    restored: _T = report
    return restored


def restore_part(cls: Type[_T], data: Any, where: str) -> _T:
    """A part of a report, such as one operator; ``where`` names it in errors.

    Raises:
        DumpFormatError: a field of another type.
    """
    try:
        return _FORM.read(cls, data)
    except jsonform.WrongField as wrong:
        field = wrong.inside(where).field if where else wrong.field
        if wrong.missing:
            raise DumpFormatError("report.missing", field=field) from None
        raise _wrong(field, wrong.value) from None


def _wrong(where: str, value: Any) -> DumpFormatError:
    return DumpFormatError("report.wrong_field", field=where or "report", value=repr(value)[:60])
