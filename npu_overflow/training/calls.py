"""The outermost calls of ``tf.function`` on one thread: how a loop of the user's own is seen.

One replaced ``__call__`` of TensorFlow's function class; calls inside a trace, inside another call,
or on another thread pass through.
"""
from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Tuple

from npu_overflow.collect.replay import batches
from npu_overflow.collect.replay import tensorflow as private

__all__ = ["Call", "FunctionCalls", "draws_of"]

Handler = Callable[["Call", Callable[..., Any]], Any]


class Call:
    """One outermost call: the function, its arguments, and names for them."""

    def __init__(self, function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.drawn: List[Any] = []  # batches drawn by hand from an iterator argument
        self.iterator: Any = None
        self.given: Any = None  # an iterator over these batches, that stands in for it

    def take_batches(self, most: int) -> None:
        """Draw by hand what the call is going to draw from an iterator argument.

        Where the graph doesn't tell how much that is, or it is more than ``most``, the function
        draws for itself.
        """
        iterators = _iterators_in((self.args, self.kwargs))
        count = draws_of(self) if len(iterators) == 1 else None
        if count is not None and 0 < count <= most:
            self.drawn = batches.draw(iterators[0], count)
        if self.drawn:
            self.iterator = iterators[0]
            self.given = batches.feed(self.drawn, self.iterator.element_spec)

    def arguments(self) -> Tuple[Any, Any]:
        """Arguments for the compiled function: an iterator over the drawn batches stands in for the
        one that they came from."""
        if not self.drawn:
            return self.args, self.kwargs

        def swapped(item: Any) -> Any:
            return self.given if item is self.iterator else item

        kwargs = {key: swapped(item) for key, item in self.kwargs.items()}
        return tuple(swapped(item) for item in self.args), kwargs

    @property
    def names(self) -> Tuple[str, ...]:
        """Names of the positional arguments, as far as the function's signature gives them."""
        import inspect

        try:
            return tuple(inspect.signature(self.function.python_function).parameters)
        except (TypeError, ValueError):
            return ()

    @property
    def is_of_keras(self) -> bool:
        """Whether Keras wrote the function: ``train_on_batch`` of Keras 3 hands it the batch as one
        argument."""
        module = str(getattr(self.function.python_function, "__module__", ""))
        return module.split(".")[0] in ("keras", "tf_keras")


class FunctionCalls:
    """While installed, ``handler(call, proceed)`` stands around every outermost call on the thread
    that installed it.

    ``proceed(*args, **kwargs)`` runs the compiled function. Several may be installed: the newest
    stands outermost, and they may end in any order.
    """

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._thread = 0
        self._inside = False

    def install(self) -> None:
        """Begin. Raises AttributeError where TensorFlow's function class was not found."""
        if self not in _place.installed:
            self._thread = threading.get_ident()
            _place.add(self)

    def reinstall(self) -> None:
        """Take the place again, where somebody has assigned it since: an Ascend device does when it
        becomes the default."""
        if self in _place.installed:
            _place.take()

    def remove(self) -> None:
        """End; what somebody else has put in the place since stays, and passes through here."""
        if self in _place.installed:
            _place.remove(self)

    def concerned(self) -> bool:
        """Whether a call that begins now, on this thread, is an outermost one."""
        return not self._inside and threading.get_ident() == self._thread

    def around(self, proceed: Callable[..., Any]) -> Callable[..., Any]:
        """``proceed(function, …)`` with the handler around it."""

        def handled(function: Any, *args: Any, **kwargs: Any) -> Any:
            self._inside = True
            try:
                call = Call(function, args, kwargs)
                return self._handler(call, lambda *a, **k: proceed(function, *a, **k))
            finally:
                self._inside = False

        return handled


class _Place:
    """The one ``__call__`` that stands in TensorFlow's function class for all that are
    installed."""

    def __init__(self) -> None:
        self.installed: List[FunctionCalls] = []  # oldest first
        self._ours: Any = None
        self._real: Any = None

    def add(self, calls: FunctionCalls) -> None:
        self.take()
        self.installed = [*self.installed, calls]

    def remove(self, calls: FunctionCalls) -> None:
        self.installed = [item for item in self.installed if item is not calls]
        if self.installed:
            return
        kind = private.found("function_class")
        if vars(kind).get("__call__") is self._ours:
            kind.__call__ = self._real
        self._ours = self._real = None

    def take(self) -> None:
        kind, context = private.found("function_class"), private.found("context")
        if self._ours is not None and vars(kind).get("__call__") is self._ours:
            return
        real = kind.__call__

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            concerned: List[FunctionCalls] = []
            if self._ours is call:
                concerned = [calls for calls in self.installed if calls.concerned()]
            if not concerned or not context().executing_eagerly():
                return real(function, *args, **kwargs)
            run = real
            for calls in concerned:
                run = calls.around(run)
            return run(function, *args, **kwargs)

        kind.__call__ = self._ours = call
        self._real = real


_place = _Place()


def _iterators_in(structure: Any) -> List[Any]:
    """Dataset iterators among the arguments of a call."""
    if isinstance(structure, (tuple, list)):
        return [found for item in structure for found in _iterators_in(item)]
    if isinstance(structure, dict):
        return _iterators_in(list(structure.values()))
    return [structure] if batches.can_feed(structure) else []


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def draws_of(call: Call) -> Optional[int]:
    """How many elements one call draws from an iterator argument, by its graph; None where the
    graph doesn't tell (a loop, a condition)."""
    graph = _graph_of(call)
    if graph is None:
        return None
    library = {function.signature.name: function.node_def for function in graph.library.function}
    return _draws(graph.node, library, 0)


def _graph_of(call: Call) -> Any:
    """The function's graph for these arguments; it was traced for them already."""
    try:
        return call.function.get_concrete_function(*call.args, **call.kwargs).graph.as_graph_def()
    except Exception:  # of a function of the user's: only less is known of it then
        return None


def _draws(nodes: Any, library: Dict[str, Any], depth: int) -> Optional[int]:
    total = 0
    for node in nodes:
        if node.op.startswith("IteratorGetNext"):
            total += 1
            continue
        for value in node.attr.values():
            for name in [value.func.name] + [item.name for item in value.list.func]:
                if not name or name not in library or depth > 8:
                    continue
                inside = _draws(library[name], library, depth + 1)
                if inside is None or (inside and node.op not in _CALLS):
                    return None
                total += inside
    return total
