"""Every operator that one thread runs eagerly, seen from Python, with its name and its forward operator.

Generated operator code tries a fast path in C++ first. While hooks are in, that path answers "use the Python one" on the observing
thread, and then each operator passes through ``execute.execute``, before and after it runs; the tape is told of it through ``record_gradient``, whose
last argument comes back unchanged when the gradient function runs. So one replaced function sees everything, and a backward operator knows its forward one.

All hooks are process-wide except in effect: other threads pass straight through.
"""
from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from types import CodeType, TracebackType
from typing import Any, Callable, Iterator, List, Optional, Sequence, Set, Type

from npu_overflow import streams
from npu_overflow.collectors import compat
from npu_overflow.collectors.blame import Op
from npu_overflow.collectors.naming import GraphNames, install_arguments, install_cases, install_loops, install_scopes
from npu_overflow.collectors.optimizers import intercept
from npu_overflow.collectors.source import SourceLines
from npu_overflow.errors import CannotCollect

__all__ = ["Careful", "Hooks", "Turn", "Watcher"]


class Watcher:
    """What hooks tell: override what is needed."""

    def before(self, op: Op, inputs: Sequence[Any], attrs: Sequence[Any], ctx: Any) -> Optional[List[Any]]:
        """An operator is about to run; outputs returned here are used instead of running it."""
        return None

    def after(self, op: Op, inputs: Sequence[Any], attrs: Sequence[Any], outputs: List[Any]) -> List[Any]:
        """An operator ran; what is returned takes the place of its outputs."""
        return outputs

    def gradients(self, optimizer: Any, gradients: Sequence[Any]) -> None:
        """An optimizer was given gradients."""

    def taped(self, gradients: Any) -> None:
        """``tape.gradient`` gave gradients of variables."""

    def returned(self, tensors: Sequence[Any]) -> None:
        """An outermost call of a tf.function returned tensors."""

    def python(self) -> None:
        """A Python function (``tf.numpy_function``) is about to run; raise to prevent it."""


class Careful(Watcher):
    """For a step that is the training's own: a failure of the watcher ends the watching, never the step."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher: Optional[Watcher] = watcher

    def before(self, op: Op, inputs: Sequence[Any], attrs: Sequence[Any], ctx: Any) -> Optional[List[Any]]:
        with self._guarded():
            if self._watcher is not None:
                self._watcher.before(op, inputs, attrs, ctx)
        return None

    def after(self, op: Op, inputs: Sequence[Any], attrs: Sequence[Any], outputs: List[Any]) -> List[Any]:
        with self._guarded():
            if self._watcher is not None:
                self._watcher.after(op, inputs, attrs, outputs)
        return outputs

    def gradients(self, optimizer: Any, gradients: Sequence[Any]) -> None:
        with self._guarded():
            if self._watcher is not None:
                self._watcher.gradients(optimizer, gradients)

    def taped(self, gradients: Any) -> None:
        with self._guarded():
            if self._watcher is not None:
                self._watcher.taped(gradients)

    @contextlib.contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            streams.log_failure("observing a step failed; the training is not affected")
            self._watcher = None


class _Forward(str):
    """What the tape keeps of a forward operator: its name scope (the string, as TensorFlow expects) and the operator."""

    op: Optional[Op] = None


class _Thread(threading.local):
    """What is known of one thread while hooks are in."""

    known = False  # whether it was asked if it takes part
    mine = False  # it takes part in the observed step
    busy = False  # it runs code of the watcher, which is not observed
    replica = 0
    last: Optional[_Forward] = None  # the operator that ran last
    gradient: Optional[Op] = None  # forward operator of the gradient function that is running
    functions = 0  # depth of running tf.functions
    backward = 0  # depth of running tape.gradient calls

    def __init__(self) -> None:
        self.names = GraphNames()


_busy = threading.Lock()

#: how long one thread's training stands still for another one's replay; half as long each time that it was in vain
MAX_WAIT_SECONDS = 5.0


class Turn:
    """The right to observe, of one thread of the process at a time. Another one waits for it, but never for long: its training stands meanwhile.

    Raises:
        CannotCollect: another thread has not ended in time, or this thread itself has it already.
    """

    _owner: Optional[int] = None
    _in_vain = 0

    def __enter__(self) -> Turn:
        if Turn._owner == threading.get_ident():
            raise CannotCollect("replay.busy")
        if not _busy.acquire(timeout=MAX_WAIT_SECONDS / 2 ** min(Turn._in_vain, 20)):
            Turn._in_vain += 1
            raise CannotCollect("replay.busy")
        Turn._owner, Turn._in_vain = threading.get_ident(), 0
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        Turn._owner = None
        _busy.release()


class Hooks:
    """Observes the operators of the current thread while the context is entered. One at a time in a process.

    Args:
        watcher: is told of every operator.
        lines: finds the user's source line, or None.
        apply: what happens where an optimizer would apply gradients: "skip" (nothing, the step goes on) or "run".
        functions: whether tf.functions run operator by operator ("eager"), so as AutoGraph rewrites them ("rewritten"), or as they are ("compiled").
        turn: the caller's, where it has one already; else the hooks take their own.

    Attributes:
        asked: the user's code asked tensors for their truth or their rows, which only code that AutoGraph rewrites can do when it is traced.

    Raises:
        CannotCollect: another thread is observing, or TensorFlow lacks what is needed.
    """

    def __init__(
        self,
        watcher: Watcher,
        lines: Optional[SourceLines] = None,
        apply: str = "skip",
        functions: str = "eager",
        turn: Optional[Turn] = None,
    ) -> None:
        self._watcher = watcher
        self._turn = Turn() if turn is None else None
        self._functions = functions
        self._lines = lines
        self._apply = apply
        self._undo: List[Callable[[], None]] = []
        self.asked = False
        self._gradients: Set[CodeType] = set()  # code that runs a gradient function
        self._thread = _Thread()
        self._call = 0
        self._count = 0

    def __enter__(self) -> Hooks:
        if self._turn is not None:
            self._turn.__enter__()
        try:
            self._thread.known = self._thread.mine = True
            self._install()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        try:
            while self._undo:
                self._undo.pop()()
        finally:
            self._thread = _Thread()
            self._thread.known = True
            if self._turn is not None:
                self._turn.__exit__(None, None, None)

    # --- installing -------------------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        internals = compat.internals()
        for key in ("fast_path", "run_op", "fallback", "execute", "context", "eager_tensor", "function_class"):
            if not internals.has(key):
                raise CannotCollect("replay.internals", name=key)
        self._scope = internals.get("name_scope") if internals.has("name_scope") else (lambda: "")
        self._real_execute = internals.get("execute")
        self._undo.append(internals.replace("execute", self._execute))
        self._undo.append(internals.replace("fast_path", self._fast_path(internals)))
        if internals.has("record_gradient") and internals.has("tell_tape"):
            self._undo.append(internals.replace("record_gradient", self._record_gradient(internals)))
            if internals.has("gradient_function") and internals.has("register_gradient"):
                real = internals.get("gradient_function")
                internals.get("register_gradient")(self._gradient_function(real))
                self._undo.append(lambda: internals.get("register_gradient")(real))
        if internals.has("record_operation"):
            self._undo.append(internals.replace("record_operation", self._record_operation(internals.get("record_operation"))))
        self._install_tape()
        self._undo += install_scopes(self._names, self._scope)
        self._undo += install_arguments(self._names, self._scope)
        self._undo += install_loops(self._names) + install_cases(self._names)
        if internals.has("python_function"):
            self._undo.append(internals.replace("python_function", self._python_function(internals.get("python_function"))))
        if self._functions != "compiled":
            self._install_functions(internals)
            self._install_rewriting(internals)
        self._undo += intercept(self._mine, self._given)

    def next_call(self) -> None:
        """The next call of a tf.function of the step begins: operator names start again, as in a graph of its own."""
        self._call += 1

    def _mine(self) -> bool:
        """Whether this thread takes part: the one that entered, and the replica threads that a distribution strategy starts for the step."""
        thread = self._thread
        if not thread.known:
            thread.known = True
            current = threading.current_thread()
            if type(current).__name__ == "_MirroredReplicaThread":
                thread.mine, thread.replica = True, int(getattr(current, "replica_id", 0))
        return thread.mine

    def _observing(self) -> bool:
        return self._mine() and not self._thread.busy

    def _fast_path(self, internals: compat.Internals) -> Callable[..., Any]:
        real, fallback = internals.get("fast_path"), internals.get("fallback")

        def fast_path(*args: Any) -> Any:
            if not self._observing():  # another thread, or the watcher's own operators
                return real(*args)
            raise fallback("observed")

        return fast_path

    def _record_gradient(self, internals: compat.Internals) -> Callable[..., Any]:
        real, tell_tape = internals.get("record_gradient"), internals.get("tell_tape")

        def record_gradient(op_name: Any, inputs: Any, attrs: Any, outputs: Any) -> Any:
            if not self._mine() or self._thread.last is None:
                return real(op_name, inputs, attrs, outputs)
            return tell_tape(op_name, inputs, attrs, outputs, self._thread.last)

        return record_gradient

    def _python_function(self, real: Callable[..., Any]) -> Callable[..., Any]:
        """Eagerly ``tf.numpy_function`` calls Python at once, without an operator."""

        def python_function(*args: Any, **kwargs: Any) -> Any:
            if self._observing():
                self._told(self._watcher.python)
            return real(*args, **kwargs)

        return python_function

    def _gradient_function(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def gradient_function(*args: Any) -> Any:
            forward = args[-1]
            if not self._mine():
                return real(*args)
            scope = str(forward) if forward else ""
            with self._backward_of(forward.op if isinstance(forward, _Forward) else None, scope):
                return real(*args[:-1], scope)

        self._gradients.add(gradient_function.__code__)
        return gradient_function

    def _record_operation(self, real: Callable[..., Any]) -> Callable[..., Any]:
        # TensorFlow's own names: it is called with keywords, on every thread that traces a function
        def record_operation(op_type: Any, output_tensors: Any, input_tensors: Any, backward_function: Any, forward_function: Any = None) -> Any:
            if not self._mine() or backward_function is None:
                return real(op_type, output_tensors, input_tensors, backward_function, forward_function)
            scope = self._scope()
            # A custom gradient stands for a whole function: its last operator is the best name for what is differentiated.
            op = self._thread.last.op if self._thread.last is not None else None

            def observed(*args: Any, **kwargs: Any) -> Any:
                if not self._mine():
                    return backward_function(*args, **kwargs)
                with self._backward_of(op, scope):
                    return backward_function(*args, **kwargs)

            self._gradients.add(observed.__code__)
            return real(op_type, output_tensors, input_tensors, observed, forward_function)

        return record_operation

    @contextlib.contextmanager
    def _backward_of(self, op: Optional[Op], scope: str) -> Iterator[None]:
        """The operators inside are the gradient of ``op`` and are named below ``gradient_tape/``, as in a graph.

        TensorFlow's own gradient function skips its name scope when it runs eagerly.
        """
        import tensorflow as tf

        thread = self._thread
        before = thread.gradient
        thread.gradient = op or before
        thread.backward += 1
        try:
            with tf.name_scope("gradient_tape/" + (scope + "/" if scope else "")):
                yield
        finally:
            thread.gradient = before
            thread.backward -= 1

    def _install_tape(self) -> None:
        import tensorflow as tf

        real = tf.GradientTape.gradient
        hooks = self

        def gradient(tape: Any, *args: Any, **kwargs: Any) -> Any:
            if not hooks._mine():
                return real(tape, *args, **kwargs)
            hooks._thread.backward += 1
            try:
                gradients = real(tape, *args, **kwargs)
            finally:
                hooks._thread.backward -= 1
            sources = args[1] if len(args) > 1 else kwargs.get("sources")
            if any(compat.handles_of(source) for source in tf.nest.flatten(sources)):
                hooks._told(lambda: hooks._watcher.taped(tf.nest.flatten(gradients)))
            return gradients

        self._patch(tf.GradientTape, "gradient", gradient)

    def _names(self) -> Optional[GraphNames]:
        """The names of the present thread's graph; None on a thread that is not observed."""
        if not self._observing():
            return None
        return self._present_names()

    def _present_names(self) -> GraphNames:
        thread = self._thread
        if thread.names.call != self._call:
            thread.names.restart(self._call)
        return thread.names.backward_of(thread.gradient.iteration) if thread.gradient is not None else thread.names

    def _install_functions(self, internals: compat.Internals) -> None:
        import tensorflow as tf

        kind = internals.get("function_class")
        real = kind.__call__
        hooks = self

        def call(function: Any, *args: Any, **kwargs: Any) -> Any:
            # What the global switch run_functions_eagerly does, for this thread only.
            if not (hooks._mine() and internals.get("context")().executing_eagerly()):
                return real(function, *args, **kwargs)
            body = function.python_function
            if hooks._functions == "rewritten" and getattr(function, "_autograph", True):
                body = compat.rewritten(body, asked_for=True)
            hooks._thread.functions += 1
            try:
                result = body(*args, **kwargs)
            finally:
                hooks._thread.functions -= 1
            if not hooks._thread.functions:
                hooks._told(lambda: hooks._watcher.returned(tf.nest.flatten(result, expand_composites=True)))
            return result

        self._patch(kind, "__call__", call)

    def _install_rewriting(self, internals: compat.Internals) -> None:
        """Notice what only AutoGraph makes legal; where its code is wanted, let it rewrite the layers that Keras lets it rewrite."""
        if not (internals.has("rewritten") and internals.has("unwrap")) or self._lines is None:
            return
        if self._functions == "rewritten":
            for kind in compat.rewritten_layers():
                self._patch(kind, "call", self._rewritten_call(vars(kind)["call"]))
        else:
            for kind, name in compat.tensor_questions():
                self._patch(kind, name, self._noticed(getattr(kind, name), self._lines))

    def _rewritten_call(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (compat.rewritten(real, asked_for=False) if self._observing() else real)(*args, **kwargs)

        call.__signature__ = inspect.signature(real)  # type: ignore[attr-defined]
        return call

    def _noticed(self, real: Callable[..., Any], lines: SourceLines) -> Callable[..., Any]:
        def question(tensor: Any) -> Any:
            self.asked = self.asked or (self._observing() and lines.kind(sys._getframe(1).f_code) == "user")
            return real(tensor)

        return question

    def _given(self, optimizer: Any, gradients: List[Any]) -> bool:
        """An optimizer was given gradients; returns whether it shall apply them."""
        self._told(lambda: self._watcher.gradients(optimizer, gradients))
        return self._apply != "skip"

    def _patch(self, kind: Any, name: str, value: Any) -> None:
        self._undo.append(compat.patch(kind, name, value))

    # --- observing --------------------------------------------------------------------------------------------------------------

    def _told(self, tell: Callable[[], Any]) -> Any:
        """Run the watcher's own code unobserved."""
        thread = self._thread
        before, thread.busy = thread.busy, True
        try:
            return tell()
        finally:
            thread.busy = before

    def _execute(self, op_name: Any, num_outputs: int, inputs: Any, attrs: Any, ctx: Any, name: Any = None) -> Any:
        if not self._observing():
            return self._real_execute(op_name, num_outputs, inputs, attrs, ctx, name)
        thread = self._thread
        thread.busy = True
        try:
            op = self._op(op_name.decode() if isinstance(op_name, bytes) else op_name, name)
            outputs = self._watcher.before(op, inputs, attrs, ctx)
            if outputs is None:
                outputs = self._real_execute(op_name, num_outputs, inputs, attrs, ctx, name)
            thread.last = _Forward(op.scope)
            thread.last.op = op
            return self._watcher.after(op, inputs, attrs, outputs if isinstance(outputs, list) else list(outputs or ()))
        finally:
            thread.busy = False

    def _op(self, op_type: str, name: Any) -> Op:
        thread, scope, names = self._thread, self._scope(), self._present_names()
        op = Op(self._count, op_type, names.of_operator(op_type, name, scope), scope, call=self._call, replica=thread.replica, iteration=names.iteration)
        self._count += 1
        frame = sys._getframe(2)
        if thread.gradient is not None:
            op.phase, op.forward = "backward", thread.gradient.name
            inside = self._lines.here(frame, self._gradients) if self._lines is not None else None  # a gradient that the user wrote
            op.location = inside or thread.gradient.location
        elif thread.backward:
            op.phase = "backward"
        if op.location is None and self._lines is not None:
            op.location = self._lines.here(frame)
        return op
