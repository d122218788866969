"""What a step's Python code draws from and counts on: a replay runs that code again, so random generators and plain values begin where they stood
when the step began, and are put back afterwards.

Found is what the step's own code reaches: attributes of the model and its layers, closures, defaults, and globals that the functions name. The
search is bounded and looks into no installed package, but for the seeds that Keras keeps in its layers. Of the generators that the whole process
shares, the replay draws from copies.
"""
from __future__ import annotations

import contextlib
import functools
import random
import sys
import types
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Tuple

from npu_overflow.collectors import compat
from npu_overflow.collectors.own_draws import own_draws, shared_states
from npu_overflow.collectors.plain_values import PLAIN, PlainValues, Values
from npu_overflow.collectors.source import is_user_file, package_roots

__all__ = ["PythonState", "Reached"]

MAX_OBJECTS, MAX_DEPTH = 20_000, 12


class Reached:
    """What a step's Python code reaches: random generators, and places where it keeps plain values; each found once."""

    def __init__(self) -> None:
        self.plain = PlainValues()
        self._known: Dict[int, Tuple[Any, _Access]] = {}
        self._searched: Dict[int, Any] = {}  # held so that their ids stay theirs
        self._walk(compat.keras_seed_sources())

    def search(self, owner: Any, *roots: Any) -> None:
        """Look behind these objects, once for each owner (a model, a tf.function)."""
        if id(owner) not in self._searched:
            self._searched[id(owner)] = owner
            self._walk(roots)

    def all(self) -> List[Tuple[Any, _Access]]:
        """The generators found so far, and how to reach their states."""
        return list(self._known.values())

    def _walk(self, root: Any) -> None:
        waiting: Deque[Tuple[Any, int]] = deque([(root, 0)])
        seen: Dict[int, Any] = {}
        while waiting and len(seen) < MAX_OBJECTS:
            item, depth = waiting.popleft()
            if isinstance(item, PLAIN) or id(item) in seen:
                continue
            seen[id(item)] = item
            if _is_generator(item):
                self._known.setdefault(id(item), (item, _access(item)))
                continue
            if isinstance(item, types.FunctionType) and _is_users(item.__code__.co_filename):
                self.plain.add_function(item)
            elif _is_of_users(type(item)) and _attributes(item):
                self.plain.add_object(item, _attributes(item))
            if depth < MAX_DEPTH:
                waiting.extend((part, depth + 1) for part in _parts(item))


class _Access:
    """How to read and write the state of one generator."""

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None]) -> None:
        self.read, self.write = read, write


class PythonState:
    """States of generators, and plain values, at one moment."""

    def __init__(self, reached: Reached) -> None:
        self._reached = reached
        self._plain: Values = {}
        self._states: Dict[int, Tuple[_Access, Any]] = {}
        self._shared = shared_states()
        self.add_new()

    def add_new(self) -> None:
        """Read those that were found since."""
        self._plain = {**self._reached.plain.now(), **self._plain}
        for item, access in self._reached.all():
            if id(item) not in self._states:
                with contextlib.suppress(Exception):  # a generator that has no state (random.SystemRandom), or none that can be read
                    self._states[id(item)] = (access, access.read())

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """All stands as it did at that moment; afterwards as it does now."""
        now = PythonState(self._reached)
        with own_draws(self._shared), self._reached.plain.in_place(self._plain, now._plain):
            try:
                self._write()
                yield
            finally:
                now._write()

    def _write(self) -> None:
        for access, state in self._states.values():
            access.write(state)


def _is_generator(item: Any) -> bool:
    import numpy as np

    kind = type(item)
    if issubclass(kind, (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator)):
        return True
    return compat.is_keras_seed(kind)


def _access(item: Any) -> _Access:
    import numpy as np

    if isinstance(item, random.Random):
        return _Access(item.getstate, item.setstate)
    if isinstance(item, np.random.RandomState):
        return _Access(item.get_state, item.set_state)
    if isinstance(item, np.random.Generator):
        item = item.bit_generator
    if isinstance(item, np.random.BitGenerator):
        return _Access(lambda: item.state, functools.partial(setattr, item, "state"))
    # a seed that Keras counts on
    return _Access(lambda: getattr(item, "_seed", None), functools.partial(setattr, item, "_seed"))


def _parts(item: Any) -> Iterable[Any]:
    """What the search looks at behind an object."""
    if isinstance(item, (list, tuple, set, frozenset, deque)):
        return list(item)
    if isinstance(item, dict):
        return list(item.values())
    if isinstance(item, types.MethodType):
        return [item.__self__, item.__func__]
    if isinstance(item, functools.partial):
        return [item.func, item.args, item.keywords]
    if isinstance(item, types.FunctionType):
        return _behind_function(item)
    if isinstance(item, type):
        return _methods(item)
    if isinstance(item, types.BuiltinFunctionType):  # a generator's method that a module has taken by its name
        return (item.__self__,) if _is_generator(item.__self__) else ()
    if isinstance(item, (types.ModuleType, types.CodeType, types.FrameType)) or _is_data(item):
        return ()
    return [*_attributes(item).values(), type(item)]


def _is_data(item: Any) -> bool:
    """Arrays, tensors and variables: nothing is behind them."""
    return hasattr(type(item), "shape") and hasattr(type(item), "dtype") and not hasattr(type(item), "call")


def _attributes(item: Any) -> Dict[str, Any]:
    try:
        found = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _behind_function(function: types.FunctionType) -> List[Any]:
    """Closure, defaults, what it wraps; of the user's own functions also the globals that they name."""
    found: List[Any] = [getattr(function, "__wrapped__", None), function.__defaults__, function.__kwdefaults__]
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # an empty cell
            found.append(cell.cell_contents)
    if _is_users(function.__code__.co_filename):
        found += _named(function.__code__, function.__globals__)
    return found


def _named(code: types.CodeType, space: Dict[str, Any], depth: int = 0) -> List[Any]:
    found: List[Any] = []
    for name in code.co_names:
        value = space.get(name)
        if isinstance(value, types.ModuleType):
            file: Optional[str] = getattr(value, "__file__", None)
            if file and _is_users(file):  # a module of the user's: what the function can mean in it
                found += [vars(value)[inner] for inner in code.co_names if inner in vars(value)]
        else:
            found.append(value)
    if depth < 4:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                found += _named(constant, space, depth + 1)
    return found


def _methods(kind: type) -> List[Any]:
    """Functions and class attributes of classes of the user's own: the globals that they name count too."""
    found: List[Any] = []
    for base in kind.__mro__:
        space = vars(base)
        functions = [getattr(value, "__func__", value) for value in space.values()]
        functions = [getattr(value, "fget", None) or value for value in functions]
        if any(isinstance(value, types.FunctionType) and _is_users(value.__code__.co_filename) for value in functions):
            found += functions
    return found


def _is_of_users(kind: type) -> bool:
    module = sys.modules.get(str(kind.__module__))
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or bool(file and _is_users(file))


@functools.lru_cache(maxsize=1024)
def _is_users(file: str) -> bool:
    return is_user_file(file, package_roots())
