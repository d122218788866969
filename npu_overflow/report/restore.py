"""From the JSON of a report back to the report. Guided by the dataclasses' own type hints, so new fields need nothing here.

Lenient where time passes: unknown fields (of a later version) are ignored, missing ones get their defaults. Strict where data is
wrong: a field of another type raises, and the message says which.
"""
from __future__ import annotations

import dataclasses
import json
import re
import typing
from typing import Any, Dict, List, Mapping, Tuple, Type, TypeVar

from npu_overflow.errors import DumpFormatError
from npu_overflow.report.model import TEXT_KEYS

__all__ = ["parsed", "restore", "restore_json", "restore_part"]

_T = TypeVar("_T")

_NOT_FINITE = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}

#: digits of a whole number, and how deep free JSON goes; what is in a report has 20 and 5
_MOST_DIGITS, _MOST_DEPTH = 40, 32

_LIKE_NUMBERS = re.compile(r"\\+(?:-?inf|nan)\Z")


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
        return json.loads(text[1:] if text[:1] == "\ufeff" else text, parse_int=_whole)
    except (ValueError, RecursionError, MemoryError) as error:
        raise DumpFormatError("report.not_json", why=str(error)) from None


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:  # converting millions of digits takes hours, and showing them as long
        raise ValueError("a number of %d digits" % len(digits))
    return int(digits)


def restore(cls: Type[_T], data: Any) -> _T:
    """The ``cls`` (Report) that ``data`` describes.

    Raises:
        DumpFormatError: not a report of this tool, or a field of another type.
    """
    if not isinstance(data, Mapping) or data.get("tool", "npu_overflow") != "npu_overflow" or "schema" not in data:
        raise DumpFormatError("report.not_report")
    fields = dict(data)
    fields["first_index"] = data.get("first")
    report: Any = _dataclass(cls, fields, "")
    first = report.first_index
    if first is not None and not 0 <= first < len(report.operators):
        raise _wrong("first", first)
    return typing.cast(_T, report)


def restore_part(cls: Type[_T], data: Any, where: str) -> _T:
    """A part of a report, such as one operator, that ``data`` describes; ``where`` names it in errors.

    Raises:
        DumpFormatError: a field of another type.
    """
    return typing.cast(_T, _dataclass(cls, data, where))


def _dataclass(cls: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise _wrong(where, data)
    values = {}
    for name, hint, kind, has_default, can_be_none in _fields(cls):
        value = data.get(name)
        if value is not None:
            values[name] = value if type(value) is kind else _value(hint, value, "%s.%s" % (where, name) if where else name)
        elif not has_default:
            if not can_be_none:
                raise DumpFormatError("report.missing", field="%s.%s" % (where, name) if where else name)
            values[name] = None
    return cls(**values)


def _value(hint: Any, value: Any, where: str) -> Any:
    """``value`` as the type ``hint`` says; only the hints that the model uses."""
    origin = getattr(hint, "__origin__", None)
    if hint is Any:
        return value
    if origin is typing.Union:
        return _union(hint, value, where)
    if origin is tuple:
        return _tuple(hint.__args__, value, where)
    if dataclasses.is_dataclass(hint):
        return _dataclass(hint, value, where)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _wrong(where, value)
        return _free(value, where)
    return _scalar(hint, value, where)


def _union(hint: Any, value: Any, where: str) -> Any:
    for member in hint.__args__:
        if member is type(None):
            if value is None:
                return None
            continue
        try:
            return _value(member, value, where)
        except DumpFormatError:
            if len([arg for arg in hint.__args__ if arg is not type(None)]) == 1:
                raise
    raise _wrong(where, value)


def _tuple(args: Any, value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise _wrong(where, value)
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_value(args[0], item, "%s[%d]" % (where, i)) for i, item in enumerate(value))
    if len(args) != len(value):
        raise _wrong(where, value)
    return tuple(_value(arg, item, "%s[%d]" % (where, i)) for i, (arg, item) in enumerate(zip(args, value)))


def _scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _wrong(where, value) from None
    if hint is int and isinstance(value, int) and not isinstance(value, bool):
        return value
    if hint in (str, bool) and isinstance(value, hint):
        return value
    raise _wrong(where, value)


def _free(value: Any, where: str, key: str = "", depth: int = 0) -> Any:
    """Free JSON: the strings for infinities and NaN become numbers again, except where the key promises a text or a backslash marks one."""
    if isinstance(value, str):
        if key in TEXT_KEYS:
            return value
        return value[1:] if _LIKE_NUMBERS.match(value) else _NOT_FINITE.get(value, value)
    if isinstance(value, (Mapping, list)) and depth > _MOST_DEPTH:
        raise _wrong(where, "...")
    if isinstance(value, Mapping):
        return {str(name): _free(item, where, str(name), depth + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [_free(item, where, key, depth + 1) for item in value]
    return value


_PLAIN = (str, int, bool)


def _plain(hint: Any) -> Any:
    """The plain type that ``hint`` is or allows besides None; None where it is another one."""
    if hint in _PLAIN:
        return hint
    args: Any = getattr(hint, "__args__", ()) or ()
    return args[0] if len(args) == 2 and args[1] is type(None) and args[0] in _PLAIN else None


_cache: Dict[Any, List[Tuple[str, Any, Any, bool, bool]]] = {}


def _fields(cls: Any) -> List[Tuple[str, Any, Any, bool, bool]]:
    """(name, type, plain type that needs no look inside, whether it has a default, whether it can be None) of the fields of a dataclass."""
    if cls not in _cache:
        hints = typing.get_type_hints(cls)
        _cache[cls] = [
            (
                item.name,
                hints[item.name],
                _plain(hints[item.name]),
                item.default is not dataclasses.MISSING or item.default_factory is not dataclasses.MISSING,
                type(None) in (getattr(hints[item.name], "__args__", ()) or ()),
            )
            for item in dataclasses.fields(cls)
        ]
    return _cache[cls]


def _wrong(where: str, value: Any) -> DumpFormatError:
    return DumpFormatError("report.wrong_field", field=where or "report", value=repr(value)[:60])
