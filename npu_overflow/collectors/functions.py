"""The outermost calls of ``tf.function`` on one thread: how a loop of the user's own is seen.

One replaced ``__call__`` of TensorFlow's function class; calls inside a trace, inside another call, or on another thread pass through.
"""
from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from npu_overflow.collectors import compat

__all__ = ["Call", "FunctionCalls", "mapped"]

Handler = Callable[["Call", Callable[..., Any]], Any]


class Call:
    """One outermost call: the function, its arguments, and names for them."""

    def __init__(self, function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.result: Any = None

    @property
    def names(self) -> Tuple[str, ...]:
        """Names of the positional arguments, as far as the function's signature gives them."""
        import inspect

        try:
            return tuple(inspect.signature(self.function.python_function).parameters)
        except (TypeError, ValueError):
            return ()


class FunctionCalls:
    """While installed, ``handler(call, proceed)`` stands around every outermost call on the thread that installed it.

    ``proceed(*args, **kwargs)`` runs the compiled function.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._undo: Optional[Callable[[], None]] = None
        self._inside = False

    def install(self) -> None:
        """Begin. Raises AttributeError where TensorFlow's function class was not found."""
        if self._undo is not None:
            return
        internals = compat.internals()
        kind, context = internals.get("function_class"), internals.get("context")
        real, thread = kind.__call__, threading.get_ident()

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            if self._inside or self._undo is None or threading.get_ident() != thread or not context().executing_eagerly():
                return real(function, *args, **kwargs)
            self._inside = True
            try:
                return self._handler(Call(function, args, kwargs), lambda *a, **k: real(function, *a, **k))
            finally:
                self._inside = False

        kind.__call__ = call

        def undo() -> None:
            if kind.__dict__.get("__call__") is call:
                kind.__call__ = real

        self._undo = undo

    def remove(self) -> None:
        """End; what somebody else has put in the place since stays, and passes through here."""
        if self._undo is not None:
            undo, self._undo = self._undo, None
            undo()


def mapped(structure: Any, table: Dict[int, Any]) -> Any:
    """The structure with the tensors of ``table`` (by number) in place of the others."""
    if not table:
        return structure
    if isinstance(structure, tuple) and hasattr(structure, "_fields"):
        return type(structure)(*[mapped(item, table) for item in structure])
    if isinstance(structure, (tuple, list)):
        return type(structure)([mapped(item, table) for item in structure])
    if isinstance(structure, dict):
        return {key: mapped(item, table) for key, item in structure.items()}
    number = getattr(structure, "_id", None)
    return table.get(number, structure) if isinstance(number, int) else structure


def pair_up(then: Any, now: Any, table: Dict[int, Any]) -> None:
    """Note which tensor of a replayed call stands for which tensor of the real one."""
    if isinstance(then, (tuple, list)) and isinstance(now, (tuple, list)) and len(then) == len(now):
        for a, b in zip(then, now):
            pair_up(a, b, table)
    elif isinstance(then, dict) and isinstance(now, dict):
        for key in then:
            if key in now:
                pair_up(then[key], now[key], table)
    elif isinstance(getattr(then, "_id", None), int):
        table[then._id] = now


Calls = List[Call]
