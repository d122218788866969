"""What a step's Python code draws from and counts on: a replay runs that code again, so random generators and plain values begin where they stood
when the step began, and are put back afterwards.

Found is what the step's own code reaches: attributes of the model and its layers, closures, defaults, and globals that the functions name. The
search is bounded and looks into no installed package, but for the seeds that Keras keeps in its layers. Of the generators that the whole process
shares, the replay draws from copies.
"""
from __future__ import annotations

import contextlib
import functools
import pickle
import random
import sys
import types
from collections import deque
from typing import Any, Callable, Collection, Deque, Dict, Iterable, Iterator, List, Optional, Set, Tuple

from npu_overflow.collectors import compat
from npu_overflow.collectors.own_draws import own_draws, shared_states
from npu_overflow.collectors.plain_values import PLAIN, PlainValues, Values
from npu_overflow.collectors.source import is_user_file, package_roots

__all__ = ["PythonState", "Reached"]

MAX_OBJECTS, MAX_DEPTH = 20_000, 12
_ANY = ""


class Reached:
    """What a step's Python code reaches: random generators, and places where it keeps plain values; each found once."""

    def __init__(self) -> None:
        self.plain = PlainValues()
        self._known: Dict[int, Tuple[Any, _Access]] = {}
        self._searched: Dict[int, Any] = {}  # held so that their ids stay theirs
        for source in compat.keras_seed_sources():  # of this thread
            self._known[id(source)] = (source, _access(source))
            self._known[id(source)][1].own = True

    def search(self, owner: Any, *roots: Any) -> None:
        """Look behind these objects, once for each owner (a model, a tf.function)."""
        if id(owner) not in self._searched:
            self._searched[id(owner)] = owner
            self._walk(roots)

    def all(self) -> List[Tuple[Any, _Access]]:
        """The generators found so far, and how to reach their states."""
        return list(self._known.values())

    def _walk(self, root: Any) -> None:
        waiting: Deque[Tuple[Any, str, int]] = deque([(root, _ANY, 0)])
        seen: Dict[int, Any] = {}
        while waiting and len(seen) < MAX_OBJECTS:
            item, name, depth = waiting.popleft()
            if _is_generator(item):
                self._known.setdefault(id(item), (item, _access(item)))[1].names.add(name)
                continue
            if isinstance(item, PLAIN) or id(item) in seen:
                continue
            seen[id(item)] = item
            if isinstance(item, types.FunctionType) and _is_users(item.__code__.co_filename):
                self.plain.add_function(item)
            elif _is_of_users(type(item)) and _attributes(item):
                self.plain.add_object(item, _attributes(item))
            if depth < MAX_DEPTH:
                waiting.extend((part, inner, depth + 1) for inner, part in _parts(item, name))


class _Access:
    """How to read and write the state of one generator.

    Attributes:
        own: whether the step's thread was seen to draw from it: another's may draw from one that the step only reaches.
        names: what code calls it, or what holds it; ``_ANY`` where that is not known.
    """

    def __init__(self, read: Callable[[], Any], write: Callable[[Any], None], own: bool = False) -> None:
        self.read, self.write, self.own = read, write, own
        self.names: Set[str] = set()


class PythonState:
    """States of generators, and plain values, at one moment.

    Attributes:
        learned: the run before used something that stood otherwise when the step began, as only now is known. The next one begins right.
    """

    def __init__(self, reached: Reached) -> None:
        self.learned = False
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
        """What is the step's own stands as it did at that moment; afterwards as it does now."""
        now, plain, use = PythonState(self._reached), self._reached.plain, _Use()
        before = set(plain.own)
        others = [number for number, (access, _) in self._states.items() if not access.own]
        with own_draws(self._shared), plain.in_place(self._plain, now._plain, use.ran), use.seen(bool(others or plain.assigning)):
            try:
                for access, state in self._states.values():
                    if access.own:
                        access.write(state)
                yield
            finally:
                drawn = self._drawn(now, others, use)
                for access, state in now._states.values():
                    if access.own:
                        access.write(state)
        learned = [(self._plain.get(key), now._plain.get(key)) for key in plain.own - before]
        learned += [(self._states[number][1], now._states[number][1]) for number in drawn]
        self.learned = any(pickle.dumps(then) != pickle.dumps(present) for then, present in learned)

    def _drawn(self, now: PythonState, others: Collection[int], use: _Use) -> List[int]:
        """Those of the generators that stand otherwise than ``now``, and that code which this thread ran can mean: they are the step's own, too."""
        found: List[int] = []
        for number in others:
            access, state = now._states[number]
            if (_ANY in access.names or access.names & use.names) and use.ran and pickle.dumps(access.read()) != pickle.dumps(state):
                access.own = True
                found.append(number)
        return found


class _Use:
    """The user's code that this thread runs. Where a profiler runs already, nothing is seen."""

    def __init__(self) -> None:
        self.ran: Set[types.CodeType] = set()

    @property
    def names(self) -> Set[str]:
        """The names that this code uses."""
        return {name for code in self.ran for name in (*code.co_names, *code.co_freevars, *code.co_varnames)}

    @contextlib.contextmanager
    def seen(self, wanted: bool) -> Iterator[None]:
        """Look, where it is wanted: each call of a function costs some time."""
        wanted = wanted and sys.getprofile() is None
        try:
            if wanted:
                sys.setprofile(self._see)
            yield
        finally:
            if wanted:
                sys.setprofile(None)

    def _see(self, frame: types.FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and (_is_users(code.co_filename) or "ag__" in code.co_freevars):  # AutoGraph's, made of the user's
            self.ran.add(code)


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
    # a seed that Keras counts on, which nobody else draws from
    return _Access(lambda: getattr(item, "_seed", None), functools.partial(setattr, item, "_seed"), own=True)


def _parts(item: Any, name: str) -> Iterable[Tuple[str, Any]]:
    """What the search looks at behind an object, under the name by which code reaches it; ``name``: that of the object."""
    if isinstance(item, (list, tuple, set, frozenset, deque)):
        return [(name, part) for part in item]
    if isinstance(item, dict):
        return [(name, part) for part in list(item.values())]
    if isinstance(item, types.MethodType):
        return [(name, item.__self__), (name, item.__func__)]
    if isinstance(item, functools.partial):
        return [(name, item.func), (_ANY, item.args), (_ANY, item.keywords)]
    if isinstance(item, types.FunctionType):
        return _behind_function(item, name)
    if isinstance(item, type):
        return _methods(item)
    if isinstance(item, types.BuiltinFunctionType):  # a generator's method that a module has taken by its name
        return [(name, item.__self__)] if _is_generator(item.__self__) else ()
    if isinstance(item, (types.ModuleType, types.CodeType, types.FrameType)) or _is_data(item):
        return ()
    return [*_attributes(item).items(), (name, type(item))]


def _is_data(item: Any) -> bool:
    """Arrays, tensors and variables: nothing is behind them."""
    return hasattr(type(item), "shape") and hasattr(type(item), "dtype") and not hasattr(type(item), "call")


def _attributes(item: Any) -> Dict[str, Any]:
    try:
        found = object.__getattribute__(item, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _behind_function(function: types.FunctionType, name: str) -> List[Tuple[str, Any]]:
    """Closure, defaults, what it wraps; of the user's own functions also the globals that they name."""
    found: List[Tuple[str, Any]] = [(name, getattr(function, "__wrapped__", None)), (_ANY, function.__defaults__), (_ANY, function.__kwdefaults__)]
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # an empty cell
            found.append((variable, cell.cell_contents))
    if _is_users(function.__code__.co_filename):
        found += _named(function.__code__, function.__globals__)
    return found


def _named(code: types.CodeType, space: Dict[str, Any], depth: int = 0) -> List[Tuple[str, Any]]:
    found: List[Tuple[str, Any]] = []
    for name in code.co_names:
        value = space.get(name)
        if isinstance(value, types.ModuleType):
            file: Optional[str] = getattr(value, "__file__", None)
            if file and _is_users(file):  # a module of the user's: what the function can mean in it
                found += [(inner, vars(value)[inner]) for inner in code.co_names if inner in vars(value)]
        else:
            found.append((name, value))
    if depth < 4:
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                found += _named(constant, space, depth + 1)
    return found


def _methods(kind: type) -> List[Tuple[str, Any]]:
    """Functions and class attributes of classes of the user's own: the globals that they name count too."""
    found: List[Tuple[str, Any]] = []
    for base in kind.__mro__:
        functions = [(name, getattr(value, "__func__", value)) for name, value in vars(base).items()]
        functions = [(name, getattr(value, "fget", None) or value) for name, value in functions]
        if any(isinstance(value, types.FunctionType) and _is_users(value.__code__.co_filename) for _, value in functions):
            found += functions
    return found


def _is_of_users(kind: type) -> bool:
    module = sys.modules.get(str(kind.__module__))
    file = getattr(module, "__file__", None)
    return kind.__module__ == "__main__" or bool(file and _is_users(file))


@functools.lru_cache(maxsize=1024)
def _is_users(file: str) -> bool:
    return is_user_file(file, package_roots())
