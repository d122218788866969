"""Operator names as TensorFlow's graphs give them, for operators that run eagerly.

A graph makes the names of operators and scopes unique by numbers; its own wrappers (``/``, ``tf.norm``, ``tf.einsum``) open scopes. Eager execution does
neither, so a replay does it here. The layers of Keras are entered again under their own names. The body of a loop is one graph, so its names start
again in each iteration.
"""
from __future__ import annotations

import sys
from typing import Any, Callable, Dict, List, Tuple

from npu_overflow.collectors import compat

__all__ = ["GraphNames", "install_arguments", "install_cases", "install_loops", "install_plain_layers", "install_scopes"]


class GraphNames:
    """The names given so far in one graph: plain data, one for each thread and call of a function."""

    def __init__(self) -> None:
        self.call = 0
        self.iteration = 0  # of the innermost loop, counted from 1; 0 outside loops
        self._used: Dict[str, int] = {}
        self._reserved: Dict[Tuple[str, str], str] = {}  # (scope, name) -> full name of an operator that still converts its arguments
        self._backward: Dict[int, GraphNames] = {}

    def restart(self, call: int) -> None:
        """Another graph begins."""
        self.call, self.iteration = call, 0
        self._used.clear()
        self._reserved.clear()
        self._backward.clear()

    def of_operator(self, op_type: str, name: Any, scope: str) -> str:
        """Full name of an operator of this type that was given ``name`` (or None) in ``scope``."""
        if isinstance(name, bytes):
            name = name.decode()
        if name and name.endswith("/"):  # a name scope was opened for this operator: its name is unique already
            return str(name[:-1])
        return self._reserved.pop((scope, name or op_type), None) or self.unique(scope, name or op_type)

    def reserve(self, op_type: str, name: Any, scope: str) -> str:
        """The full name that ``of_operator`` will give next for the same arguments."""
        key = (scope, name or op_type)
        if key not in self._reserved:
            self._reserved[key] = self.of_operator(op_type, name, scope)
        return self._reserved[key]

    def unique(self, scope: str, name: str) -> str:
        """A name for an operator or a scope that none has yet, by the rule of TensorFlow's graphs: case does not count."""
        whole = (scope + "/" if scope else "") + name
        key = whole.lower()
        count = self._used.get(key, 0)
        self._used[key] = count + 1
        if not count:
            return whole
        while "%s_%d" % (key, count) in self._used:
            count += 1
        self._used["%s_%d" % (key, count)] = 1
        return "%s_%d" % (whole, count)

    def begin_iteration(self, iteration: int, before: Dict[str, int]) -> None:
        """The body of a loop runs again: its names start again from those given before the loop."""
        self.iteration = iteration
        self._used = dict(before)

    def backward_of(self, iteration: int) -> GraphNames:
        """The names of gradient operators whose forward operator ran in this iteration of a loop: its gradient is a loop with one body, too."""
        if not iteration:
            return self
        names = self._backward.setdefault(iteration, GraphNames())
        names.call, names.iteration = self.call, iteration
        return names

    def given(self) -> Dict[str, int]:
        """The names given so far, to go back to."""
        return dict(self._used)


def install_scopes(names: Callable[[], Any], scope_now: Callable[[], str]) -> List[Callable[[], None]]:
    """Open the scopes that a graph would have.

    Args:
        names: the GraphNames of the present thread, or None where it is not observed.
        scope_now: the present name scope.

    Returns:
        what undoes it.
    """
    internals = compat.internals()
    if not (internals.has("open_scope") and internals.has("scope_class")):
        return []
    real, kind = internals.get("open_scope"), internals.get("scope_class")
    real_enter, context = kind.__enter__, internals.get("context")

    def open_scope(name: Any, default_name: Any = None, values: Any = None, skip_on_eager: bool = True) -> Any:
        wanted = default_name if name is None else name
        if names() is None or not isinstance(wanted, str) or not context().executing_eagerly():
            return real(name, default_name, values, skip_on_eager)
        return kind(wanted)

    def enter(scope: Any) -> Any:
        name, given = scope._name, names()
        # layers are entered again and again under their own names; a trailing slash makes a name absolute
        if given is None or not name or name.endswith("/") or not context().executing_eagerly() or compat.opens_layer_scope(sys._getframe(1)):
            return real_enter(scope)
        scope._name = given.unique(scope_now(), name) + "/"
        try:
            return real_enter(scope)
        finally:
            scope._name = name

    return [internals.replace("open_scope", open_scope), compat.patch(kind, "__enter__", enter)]


def install_arguments(names: Callable[[], Any], scope_now: Callable[[], str]) -> List[Callable[[], None]]:
    """Let an operator read and cast the variables among its arguments in a scope of its own name, as an operator of a graph does.

    Args and result as for ``install_scopes``.
    """
    internals = compat.internals()
    if not (internals.has("match_arguments") and internals.has("scope_class")):
        return []
    real, kind = internals.get("match_arguments"), internals.get("scope_class")

    def match_arguments(inputs: Any, *args: Any, **kwargs: Any) -> Any:
        given = names()
        if given is None or not any(hasattr(item, "assign") for item in inputs):
            return real(inputs, *args, **kwargs)
        frame = sys._getframe(1)  # of the generated function of an operator, which holds the operator's type as its only bytes
        op_type = next((constant.decode() for constant in frame.f_code.co_consts if isinstance(constant, bytes)), None)
        if op_type is None:
            return real(inputs, *args, **kwargs)
        with kind(given.reserve(op_type, frame.f_locals.get("name"), scope_now()) + "/"):
            return real(inputs, *args, **kwargs)

    return [internals.replace("match_arguments", match_arguments)]


def install_plain_layers(mine: Callable[[], bool]) -> List[Callable[[], None]]:
    """Let the layers of Keras be entered again under their own names while a graph is traced: Keras 3 enters each of them twice, which
    would number all of them. Returns what undoes it.

    Args:
        mine: whether the present thread traces the graph.
    """
    internals = compat.internals()
    if not (internals.has("name_scope") and internals.has("scope_class")):
        return []
    scope_now, kind = internals.get("name_scope"), internals.get("scope_class")
    real_enter = kind.__enter__

    def enter(scope: Any) -> Any:
        name = scope._name
        if not name or name.endswith("/") or not mine() or not compat.opens_layer_scope(sys._getframe(1)):
            return real_enter(scope)
        around = scope_now()
        scope._name = (around + "/" if around else "") + name + "/"
        try:
            return real_enter(scope)
        finally:
            scope._name = name

    return [compat.patch(kind, "__enter__", enter)]


def install_loops(names: Callable[[], Any]) -> List[Callable[[], None]]:
    """Let the body of ``tf.while_loop`` name its operators as one graph does, whatever the iteration. Returns what undoes it."""
    return [compat.patch(place, "while_loop", _observed_loop(place.while_loop, names)) for place in compat.loop_places()]


def install_cases(names: Callable[[], Any]) -> List[Callable[[], None]]:
    """Open the scope that a graph has around the branches of ``tf.switch_case``. Returns what undoes it."""
    internals = compat.internals()
    if not (internals.has("case_branches") and internals.has("scope_class")):
        return []
    real = internals.get("case_branches")

    def scoped(branch: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            with internals.get("scope_class")("indexed_case"):
                return branch()

        return run

    def branches(*args: Any, **kwargs: Any) -> Any:
        found = real(*args, **kwargs)
        return found if names() is None else [scoped(branch) for branch in found]

    return [internals.replace("case_branches", branches)]


def _observed_loop(real: Callable[..., Any], names: Callable[[], Any]) -> Callable[..., Any]:
    def while_loop(cond: Any, body: Any, *args: Any, **kwargs: Any) -> Any:
        given = names()
        if given is None or hasattr(body, "_observed_body"):  # TensorFlow's loop functions call each other
            return real(cond, body, *args, **kwargs)
        state: List[Tuple[int, Dict[str, int]]] = []
        outer = given.iteration

        def observed(*variables: Any, **named: Any) -> Any:
            if not state:
                state.append((0, given.given()))
            iteration, before = state[0]
            given.begin_iteration(iteration + 1, before)
            state[0] = (iteration + 1, before)
            return body(*variables, **named)

        observed._observed_body = True  # type: ignore[attr-defined]
        try:
            return real(cond, observed, *args, **kwargs)
        finally:
            given.iteration = outer

    return while_loop
