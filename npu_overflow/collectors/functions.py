"""The outermost calls of ``tf.function`` on one thread: how a loop of the user's own is seen.

One replaced ``__call__`` of TensorFlow's function class; calls inside a trace, inside another call, or on another thread pass through.
"""
from __future__ import annotations

import re
import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from npu_overflow.collectors import batches, compat

__all__ = ["Call", "FunctionCalls", "computes_gradients", "draws_of", "giving_gradients", "mapped", "needed", "pair_up", "tensors_in", "writes_variables"]

Handler = Callable[["Call", Callable[..., Any]], Any]


class Call:
    """One outermost call: the function, its arguments, and names for them."""

    def __init__(self, function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.result: Any = None
        self.drawn: List[Any] = []  # batches drawn by hand from an iterator argument
        self.iterator: Any = None
        self.given: Any = None
        self.exchanged: List[Any] = []  # arguments of later calls that look like this call's result after an exchange between workers
        self._replayed: Optional[Tuple[Any, Any]] = None

    def take(self, drawn: List[Any], iterator: Any) -> None:
        """The batches that the call was going to draw from its iterator argument were drawn by hand."""
        if drawn:
            self.drawn, self.iterator = drawn, iterator
            self.given = batches.feed(drawn, iterator.element_spec)

    def arguments(self) -> Tuple[Any, Any]:
        """Arguments for the compiled function: an iterator over the drawn batches stands in for the one that they came from."""
        return self._with((self.args, self.kwargs), self.given)

    def again(self) -> Tuple[Any, Any]:
        """Arguments for a replay: the batches themselves, so that their tensors keep their identity."""
        return self._with(self.as_tensors(), batches.Batches(self.drawn, self.iterator.element_spec) if self.drawn else None)

    def as_tensors(self) -> Tuple[Any, Any]:
        """The arguments with NumPy arrays made tensors, as the function itself makes them; the same tensors each time."""
        if self._replayed is None:
            signature = getattr(self.function, "input_signature", None)
            self._replayed = batches.as_tensors(self.args, signature), batches.as_tensors(self.kwargs)
        return self._replayed

    def _with(self, given: Tuple[Any, Any], stand_in: Any) -> Tuple[Any, Any]:
        if not self.drawn:
            return given

        def swapped(item: Any) -> Any:
            return stand_in if item is self.iterator else item

        args, kwargs = given
        return tuple(swapped(item) for item in args), {key: swapped(item) for key, item in kwargs.items()}

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
        """Whether Keras wrote the function: ``train_on_batch`` of Keras 3 hands it the batch as one argument."""
        return str(getattr(self.function.python_function, "__module__", "")).split(".")[0] in ("keras", "tf_keras")


class FunctionCalls:
    """While installed, ``handler(call, proceed)`` stands around every outermost call on the thread that installed it.

    ``proceed(*args, **kwargs)`` runs the compiled function. Several may be installed: the newest stands outermost, and they may end in any order.
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
        """Take the place again, where somebody has assigned it since: an Ascend device does when it becomes the default."""
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
                return self._handler(Call(function, args, kwargs), lambda *a, **k: proceed(function, *a, **k))
            finally:
                self._inside = False

        return handled


class _Place:
    """The one ``__call__`` that stands in TensorFlow's function class for all that are installed."""

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
        kind = compat.internals().get("function_class")
        if vars(kind).get("__call__") is self._ours:
            kind.__call__ = self._real
        self._ours = self._real = None

    def take(self) -> None:
        internals = compat.internals()
        kind, context = internals.get("function_class"), internals.get("context")
        if self._ours is not None and vars(kind).get("__call__") is self._ours:
            return
        real = kind.__call__

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            concerned = [calls for calls in self.installed if calls.concerned()] if self._ours is call else []
            if not concerned or not context().executing_eagerly():
                return real(function, *args, **kwargs)
            run = real
            for calls in concerned:
                run = calls.around(run)
            return run(function, *args, **kwargs)

        kind.__call__ = self._ours = call
        self._real = real


_place = _Place()


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


def tensors_in(structure: Any) -> Set[int]:
    """Numbers of the eager tensors in tuples, lists and dicts."""
    if isinstance(structure, (tuple, list)):
        return set().union(*[tensors_in(item) for item in structure]) if structure else set()
    if isinstance(structure, dict):
        return tensors_in(list(structure.values()))
    number = getattr(structure, "_id", None)
    return {number} if isinstance(number, int) else set()


def needed(calls: List[Call], writes: Callable[[Call], bool], several_workers: bool = False) -> List[Call]:
    """The calls that make up the step that the last one ends: those it takes tensors from, and those that write variables.

    Args:
        writes: whether a call's function writes variables (a gradient accumulator passes values on through one).
        several_workers: gradients may be exchanged between two calls in Python; then arguments that nothing of this step made stand for the
            result of an earlier call with the same types and shapes.
    """
    kept = calls[-1:]
    wanted = tensors_in([(call.args, call.kwargs) for call in kept])
    for call in reversed(calls[:-1]):
        call.exchanged = []
        if several_workers and not tensors_in(call.result) & wanted:
            look = _looks(call.result)
            call.exchanged = [item for later in kept for item in later.args if look and _looks(item) == look]
        if tensors_in(call.result) & wanted or call.exchanged or writes(call):
            kept.insert(0, call)
            wanted |= tensors_in((call.args, call.kwargs))
    return kept


def giving_gradients(calls: List[Call], writes: Callable[[Call], bool], several_workers: bool = False) -> List[Call]:
    """The calls of a step that ended in Python: those that compute gradients, with what these need; all where none is seen to."""
    kept: List[Call] = []
    for i, call in enumerate(calls):
        if computes_gradients(call):
            kept += needed(calls[: i + 1], writes, several_workers)
    return [call for call in calls if any(call is item for item in kept)] or calls


def computes_gradients(call: Call) -> bool:
    """Whether the function's graph has a backward pass."""
    graph = _graph_of(call)
    return graph is None or any(re.search(r"(^|/)(gradient_tape|gradients)/", node.name) for node in _nodes(graph))


def _looks(structure: Any) -> List[Tuple[Any, Any]]:
    """Types and shapes of the tensors of a list or tuple, in order."""
    if not isinstance(structure, (tuple, list)):
        return []
    return [(item.dtype, tuple(item.shape)) for item in structure if hasattr(item, "_id")]


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def draws_of(call: Call) -> Optional[int]:
    """How many elements one call draws from an iterator argument, by its graph; None where the graph doesn't tell (a loop, a condition)."""
    graph = _graph_of(call)
    if graph is None:
        return None
    library = {function.signature.name: function.node_def for function in graph.library.function}
    return _draws(graph.node, library, 0)


def writes_variables(call: Call) -> bool:
    """Whether the function's graph writes any variable."""
    graph = _graph_of(call)
    return graph is None or any(node.op.startswith(("Assign", "ResourceApply", "ResourceScatter")) for node in _nodes(graph))


def _nodes(graph: Any) -> List[Any]:
    """Nodes of a graph and of its functions."""
    return [*graph.node, *[node for function in graph.library.function for node in function.node_def]]


def _graph_of(call: Call) -> Any:
    """The function's graph for these arguments; it was traced for them already."""
    try:
        return call.function.get_concrete_function(*call.args, **call.kwargs).graph.as_graph_def()
    except Exception:  # whatever a function of the user's raises here, it would only be told less of
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
