"""Counters and flags of the step's own Python code: a replay runs that code again, so they begin as they stood when the step began, and are put
back afterwards.

Kept are numbers, strings, None and tuples of them: attributes of objects of the user's own classes, and variables around functions of the user's
that assign them (``global``, ``nonlocal``). Only those are touched that the step's thread was seen to write: a pipeline's thread may count on the
same objects. What handlers of signals write meanwhile stays.
"""
from __future__ import annotations

import contextlib
import dis
import numbers
import signal
import sys
import threading
import types
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Set, Tuple, cast

__all__ = ["PLAIN", "PlainValues", "Values"]

PLAIN = (str, bytes, bool, numbers.Number, type(None))
_LONGEST = 100  # elements of a tuple

Key = Tuple[int, str]  # id of what holds it, name
Values = Dict[Key, Any]
_Written = Dict[Key, Tuple[Dict[str, Any], Any]]

_MISSING = object()


class PlainValues:
    """Where a step's code keeps plain values, each place found once.

    Attributes:
        own: the places that the step's thread was seen to write in replays.
    """

    def __init__(self) -> None:
        self.own: Set[Key] = set()
        self._attributes: Dict[int, Tuple[Any, Dict[str, Any]]] = {}  # by id of the dictionary: object, its attributes
        self._around: Dict[Key, Any] = {}  # the variables around functions, in what holds them
        self._assigned_by: Dict[types.CodeType, List[Key]] = {}
        self._kinds: Dict[int, type] = {}

    def add_object(self, item: Any, attributes: Dict[str, Any]) -> None:
        """An object of a class of the user's own."""
        self._attributes[id(attributes)] = (item, attributes)
        self._kinds[id(type(item))] = type(item)

    def add_function(self, function: types.FunctionType) -> None:
        """A function of the user's own: the variables around it that it assigns."""
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for code, operation, name in _assigned(function.__code__):
            if operation == "STORE_GLOBAL":
                key, space = (id(function.__globals__), name), cast(Any, function.__globals__)
            elif name in cells:
                key, space = (id(cells[name]), name), _Cell(cells[name])
            else:
                continue
            self._around[key] = space
            self._assigned_by.setdefault(code, []).append(key)

    @property
    def assigning(self) -> Collection[types.CodeType]:
        """Code that assigns variables around it: where the step runs it, they are its own."""
        return self._assigned_by.keys()

    def now(self) -> Values:
        """All plain values as they are."""
        spaces = [(number, space) for number, (_, space) in self._attributes.items()]
        found = {(number, name): value for number, space in spaces for name, value in list(space.items()) if _is_plain(value)}
        around = {key: space.get(key[1], _MISSING) for key, space in self._around.items()}
        found.update((key, value) for key, value in around.items() if _is_plain(value))
        return found

    @contextlib.contextmanager
    def in_place(self, begin: Values, now: Values, ran: Set[types.CodeType]) -> Iterator[None]:
        """The step's own values stand as in ``begin``; afterwards they, and what this thread writes in between, stand as ``now``.

        Args:
            ran: the code that this thread has run by then.
        """
        handlers = _signal_handlers()
        theirs = {(id(function.__globals__), name) for function in handlers for _, _, name in _assigned(function.__code__)}
        moved = {key for key in self.own - theirs if key in begin and key in now and now[key] != begin[key]}
        written: _Written = {}
        for key in moved:
            self._space(key)[key[1]] = begin[key]
        undo = [_noting(kind, written, [function.__code__ for function in handlers]) for kind in self._kinds.values()]
        try:
            yield
        finally:
            for put_back in undo:
                put_back()
            for (_, name), (space, value) in written.items():
                _restore(space, name, value)
            around = {key for code in ran for key in self._assigned_by.get(code, ())} - theirs
            for key in around:
                _restore(self._around[key], key[1], now.get(key, _MISSING))
            for key in moved:
                self._space(key)[key[1]] = now[key]
            self.own |= around | {key for key in written if key[0] in self._attributes}

    def _space(self, key: Key) -> Any:
        return self._around[key] if key in self._around else self._attributes[key[0]][1]


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return len(value) <= _LONGEST and all(isinstance(item, PLAIN) for item in value)
    return isinstance(value, PLAIN)


class _Cell:
    """The variable of a closure, to use like a dictionary of one."""

    def __init__(self, cell: Any) -> None:
        self._cell = cell

    def get(self, name: str, default: Any) -> Any:
        try:
            return self._cell.cell_contents
        except ValueError:  # nothing was assigned yet
            return default

    def __setitem__(self, name: str, value: Any) -> None:
        self._cell.cell_contents = value

    def __delitem__(self, name: str) -> None:
        del self._cell.cell_contents


def _restore(space: Any, name: str, value: Any) -> None:
    present = space.get(name, _MISSING)
    if present is value or not (present is _MISSING or _is_plain(present)):
        return
    if _is_plain(value):
        space[name] = value
    elif value is _MISSING and present is not _MISSING:
        del space[name]


def _noting(kind: type, written: _Written, handlers: Collection[types.CodeType]) -> Callable[[], None]:
    """Note what this thread's code assigns to attributes of objects of a class, before it does; returns what ends it."""
    real, own, thread = cast(Callable[..., None], kind.__setattr__), vars(kind).get("__setattr__"), threading.get_ident()

    def __setattr__(item: Any, name: str, value: Any) -> None:
        if threading.get_ident() == thread and not _is_inside(sys._getframe(1), handlers):
            space = getattr(item, "__dict__", None)
            if isinstance(space, dict):
                written.setdefault((id(space), name), (space, space.get(name, _MISSING)))
        real(item, name, value)

    with contextlib.suppress(Exception):  # a metaclass that allows no change
        kind.__setattr__ = __setattr__  # type: ignore[assignment, method-assign]

    def undo() -> None:
        if vars(kind).get("__setattr__") is not __setattr__:
            return
        if own is not None:
            kind.__setattr__ = own  # type: ignore[method-assign]
        else:
            del kind.__setattr__

    return undo


def _signal_handlers() -> List[types.FunctionType]:
    """The functions that Python calls when signals arrive."""
    found = [signal.getsignal(number) for number in range(1, signal.NSIG)]
    functions = [getattr(handler, "__func__", handler) for handler in found]
    return [function for function in functions if isinstance(function, types.FunctionType)]


def _is_inside(frame: Optional[types.FrameType], codes: Collection[types.CodeType]) -> bool:
    while frame is not None and codes:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


def _assigned(code: types.CodeType, depth: int = 0) -> List[Tuple[types.CodeType, str, str]]:
    """(code, operation, name) of what a function, or one inside it, assigns around itself."""
    found = [(code, item.opname, str(item.argval)) for item in dis.get_instructions(code) if item.opname in ("STORE_GLOBAL", "STORE_DEREF")]
    if depth < 4:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                found += _assigned(constant, depth + 1)
    return found
