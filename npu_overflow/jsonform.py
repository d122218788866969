"""Dataclasses from JSON that anybody can have written: one checker, guided by their type hints.

Lenient where time passes: unknown fields (of a later version) are ignored, missing ones and null
give the default. Strict where data is wrong: the error says which field holds what. A field's
metadata can narrow what its type allows, see ``accepts``.
"""
from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import math
import re
import typing
from dataclasses import dataclass
from typing import (
    AbstractSet,
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
)

__all__ = ["Form", "Number", "WrongField", "accepts", "number_or_word", "one_of", "parse"]

T = TypeVar("T")
Number = Union[bool, int, float]

_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_MOST_DIGITS = 40
_LIKE_NUMBERS = re.compile(r"\\+(?:-?inf|nan)\Z")
_NONE = type(None)


class WrongField(ValueError):
    """A field that is missing or holds what it may not.

    Args:
        value: what came.
        field: where, such as "operators[0].device"; "" is the whole.
        missing: nothing came where a value is needed.
    """

    def __init__(self, value: Any, field: str = "", missing: bool = False) -> None:
        self.value, self.field, self.missing = value, field, missing
        what = "is missing" if missing else "can't be %s" % repr(value)[:60]
        super().__init__("field %s %s" % (field, what) if field else "it %s" % what)

    def inside(self, place: str) -> WrongField:
        """The same error, seen from the value that has this one at ``place``."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return WrongField(self.value, place + dot + self.field, self.missing)


def parse(text: Union[str, bytes]) -> Any:
    """What JSON says.

    Raises:
        ValueError: not JSON, not UTF-8, nested too deeply, or a whole number of too many digits.
    """
    try:
        text = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(text, parse_int=_whole)
    except (RecursionError, MemoryError):
        raise ValueError("nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:  # converting millions of digits takes hours
        raise ValueError("a number of %d digits" % len(digits))
    return int(digits)


def number_or_word(value: float) -> Union[float, str]:
    """``value`` as JSON can hold it: infinities and NaN are the words "inf", "-inf" and "nan"."""
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")


def accepts(check: Callable[[Any], bool]) -> Dict[str, Any]:
    """Metadata of a dataclass field: a value that has the field's type must also pass ``check``."""
    return {"accepts": check}


def one_of(*words: str) -> Dict[str, Any]:
    """Metadata of a dataclass field that holds one of some words."""
    return accepts(frozenset(words).__contains__)


@dataclass(frozen=True)
class Form:
    """How the JSON of one kind of file is read.

    Args:
        depth: how deep objects and lists lie in each other, where any JSON is allowed.
        text: longest text, in characters.
        items: most items of a list or an object.
        whole: from and to which whole numbers are accepted.
        forgiving: a field that holds what it may not counts as missing, and a text that is
            too long is cut.
        texts: None leaves free JSON as it is. Else the words for infinities and NaN become numbers
            there, except under these keys, and a backslash in front of such a word goes.
    """

    depth: int = 32
    text: float = math.inf
    items: float = math.inf
    whole: Tuple[float, float] = (-math.inf, math.inf)
    forgiving: bool = False
    texts: Optional[AbstractSet[str]] = None

    def read(self, cls: Type[T], data: Any) -> T:
        """The ``cls``, a dataclass, that ``data`` describes.

        Raises:
            WrongField: ``data`` is no object, or a field of it is wrong.
        """
        if not isinstance(data, Mapping):
            raise WrongField(data)
        values = {}
        for field in _fields(self, typing.cast(Any, cls)):
            value = data.get(field.name)
            if value is not None:
                try:
                    values[field.name] = self._checked(field, value)
                    continue
                except WrongField as wrong:
                    if not self.forgiving:
                        raise wrong.inside(field.name) from None
            if field.required:
                if not field.optional:
                    raise WrongField(None, field.name, missing=True)
                values[field.name] = None
        return cls(**values)

    def reader(self, hint: Any) -> Callable[[Any], Any]:
        """What makes a value as the type ``hint`` says of one that JSON has."""
        origin: Any = getattr(hint, "__origin__", None)
        args: Any = getattr(hint, "__args__", ())
        plain = {str: self._text, bool: self._bool, int: self._int, float: self._float}
        plain[Any] = self._free
        if hint in plain:
            return plain[hint]
        if origin is None:
            return functools.partial(self.read, hint)
        if origin is Union:
            readers = [self.reader(member) for member in args if member is not _NONE]
            return readers[0] if len(readers) == 1 else functools.partial(self._union, readers)
        if issubclass(origin, Mapping):
            read_key = self._digits if args[0] is int else self._text
            return functools.partial(self._mapping, args[1] is Any, read_key, self.reader(args[1]))
        if origin is list or args[1:] == (Ellipsis,):
            return functools.partial(self._list, origin, self.reader(args[0]))
        return functools.partial(self._row, [self.reader(arg) for arg in args])

    def _checked(self, field: _Field, value: Any) -> Any:
        made = field.read(value)
        if field.accepts is not None and not field.accepts(made):
            raise WrongField(value)
        return made

    def _union(self, readers: List[Callable[[Any], Any]], value: Any) -> Any:
        for read in readers[:-1]:
            try:
                return read(value)
            except WrongField:
                pass
        return readers[-1](value)

    def _list(self, kind: Any, read: Callable[[Any], Any], value: Any) -> Any:
        """A list, or a tuple of one type."""
        if not isinstance(value, list) or len(value) > self.items:
            raise WrongField(value)
        return kind(self._items(itertools.repeat(read), value))

    def _row(self, readers: List[Callable[[Any], Any]], value: Any) -> Any:
        """A tuple of as many values as there are types."""
        if not isinstance(value, list) or len(value) != len(readers):
            raise WrongField(value)
        return tuple(self._items(readers, value))

    def _items(self, readers: Iterable[Callable[[Any], Any]], value: List[Any]) -> List[Any]:
        made: List[Any] = []
        try:
            for read, item in zip(readers, value):
                made.append(read(item))
        except WrongField as wrong:
            raise wrong.inside("[%d]" % len(made)) from None
        return made

    def _mapping(
        self, is_free: bool, read_key: Callable[[Any], Any], read: Callable[[Any], Any], value: Any
    ) -> Any:
        if not isinstance(value, Mapping) or len(value) > self.items:
            raise WrongField(value)
        if is_free:
            return self._free(value)
        made = {}
        for name, item in value.items():
            try:
                made[read_key(name)] = read(item)
            except WrongField as wrong:
                if not self.forgiving:
                    raise wrong.inside("[%s]" % repr(name)[:60]) from None
        return made

    def _digits(self, name: str) -> int:
        if not re.match(r"\d{1,20}\Z", name, re.ASCII):
            raise WrongField(name)
        return self._int(int(name))

    def _text(self, value: Any) -> str:
        if not isinstance(value, str) or (len(value) > self.text and not self.forgiving):
            raise WrongField(value)
        return value if len(value) <= self.text else value[: int(self.text)]

    def _bool(self, value: Any) -> bool:
        if not isinstance(value, bool):
            raise WrongField(value)
        return value

    def _int(self, value: Any) -> int:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if not is_whole or not self.whole[0] <= value <= self.whole[1]:
            raise WrongField(value)
        return int(value)

    def _float(self, value: Any) -> float:
        if isinstance(value, str) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise WrongField(value)
        try:
            return float(value)
        except OverflowError:  # as JSON is read anyway: 1e400 is infinite
            return math.inf if value > 0 else -math.inf

    def _free(self, value: Any, key: str = "", depth: int = 0) -> Any:
        """Any JSON of bounded depth; ``key`` is the one that it lies under."""
        if isinstance(value, (Mapping, list)):
            if depth > self.depth:
                raise WrongField("...")
            if isinstance(value, list):
                return [self._free(item, key, depth + 1) for item in value]
            pairs = ((str(name), item) for name, item in value.items())
            return {name: self._free(item, name, depth + 1) for name, item in pairs}
        if isinstance(value, str) and self.texts is not None and key not in self.texts:
            return value[1:] if _LIKE_NUMBERS.match(value) else _NOT_FINITE.get(value, value)
        return value


class _Field(NamedTuple):
    name: str
    read: Callable[[Any], Any]
    required: bool
    optional: bool
    accepts: Optional[Callable[[Any], bool]]


@functools.lru_cache(maxsize=None)
def _fields(form: Form, cls: Any) -> List[_Field]:
    hints = typing.get_type_hints(cls)
    return [
        _Field(
            item.name,
            form.reader(hints[item.name]),
            item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING,
            _NONE in (getattr(hints[item.name], "__args__", None) or ()),
            item.metadata.get("accepts"),
        )
        for item in dataclasses.fields(cls)
    ]
