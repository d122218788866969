"""From the JSON of a report back to the report."""
from __future__ import annotations

from typing import Any, Mapping, Type, TypeVar

from npu_overflow import jsonform
from npu_overflow.errors import DumpFormatError
from npu_overflow.report.model import TEXT_KEYS

__all__ = ["parsed", "restore", "restore_json", "restore_part"]

_T = TypeVar("_T")
_FORM = jsonform.Form(texts=TEXT_KEYS)


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
        raise DumpFormatError("report.not_json", why=str(error)) from None


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
    """A part of a report, such as one operator, that ``data`` describes; ``where`` names it in errors.

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
