"""Where a training step begins and ends: calls of ``fit``, of tf.functions, optimizers that are
used in Python, steps that the user marks or tells."""
from __future__ import annotations

import abc
import contextlib
import functools
from typing import Any, Callable, Iterator, List, Optional, TypeVar, cast

from npu_overflow.collect.ascend import device as ascend_device
from npu_overflow.collect.base import Collector
from npu_overflow.training import loss_scale
from npu_overflow.training.applications import Applications
from npu_overflow.training.calls import FunctionCalls
from npu_overflow.training.run import Run

__all__ = ["StepDetector", "StepListener", "never_raises"]

F = TypeVar("F", bound=Callable[..., Any])


def never_raises(method: F) -> F:
    """Keep every failure of the watch away from the training. KeyboardInterrupt and SystemExit are
    the user's and pass. Where the watch is off the method does nothing and gives None."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_off:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception:
            self.fail()
            return None

    return cast(F, guarded)


class StepListener(abc.ABC):
    """Hears where steps begin and end; ``Session`` does."""

    @property
    @abc.abstractmethod
    def run(self) -> Run:
        """The training that runs now."""

    @property
    @abc.abstractmethod
    def is_off(self) -> bool:
        """Whether the watch has turned itself off."""

    @abc.abstractmethod
    def fail(self) -> None:
        """Called in an ``except``: log the failure and turn off."""

    @abc.abstractmethod
    def has_begun(self) -> bool:
        """Whether a training runs; if not, the user is told what to do."""

    @abc.abstractmethod
    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer is being made; it is whole when the next step begins."""

    @abc.abstractmethod
    def after_steps(self, steps: int, finite: Optional[bool] = None) -> None:
        """``steps`` training steps have ended; ``finite``: the last one's loss, where known."""


class StepDetector:
    """Turns whatever moves a training into steps.

    Args:
        listener: hears of them.
    """

    def __init__(self, listener: StepListener) -> None:
        self._listener = listener
        self._calls = 0  # of tf.functions
        self._marked = False  # inside a step that the user marked
        self._applications: Optional[Applications] = None
        self._undo: List[Callable[[], None]] = []

    @property
    def is_off(self) -> bool:
        """Whether the watch has turned itself off."""
        return self._listener.is_off

    def fail(self) -> None:
        """Called in an ``except``: log the failure and turn the watch off."""
        self._listener.fail()

    # --- fit

    @never_raises
    def before_fit_call(self, model: Any, steps: int) -> None:
        """``fit`` is about to run its training function over ``steps`` steps."""
        collector = self._listener.run.step_begins(steps)
        if collector is not None:
            collector.arm_fit(model, self._listener.run.step)

    # --- loops of the user's own

    @never_raises
    def install(self, optimizers: List[Any]) -> None:
        """See the calls of tf.functions on this thread, optimizers that are applied in Python, and
        optimizers that are still to be made; ``optimizers``: those that are watched already."""
        calls = FunctionCalls(self.function_call)
        calls.install()
        self._undo.append(calls.remove)
        self._applications = Applications(calls.concerned, self.optimizer_applied)
        self._applications.install()
        self._undo.append(self._applications.remove)
        for optimizer in optimizers:
            self._applications.see(optimizer)

        def made(optimizer: Any) -> None:
            calls.reinstall()  # of an adapter that was loaded after this
            self._listener.optimizer_made(optimizer)

        self._undo.append(loss_scale.watch_new_optimizers(made))
        adapter = ascend_device.loaded_adapter()
        if adapter is not None:
            self._undo.append(ascend_device.after_default(adapter, calls.reinstall))

    def remove(self) -> None:
        """Undo ``install``."""
        self._applications = None
        while self._undo:
            self._undo.pop()()

    def see(self, optimizer: Any) -> None:
        """One more optimizer is watched: it may be applied in Python."""
        if self._applications is not None:
            self._applications.see(optimizer)

    def function_call(self, call: Any, proceed: Callable[..., Any]) -> Any:
        """An outermost call of a tf.function. What it raises or returns is the user's."""
        self._before_function(call)
        args, kwargs = call.arguments()
        result = proceed(*args, **kwargs)
        self._after_function(call)
        return result

    @never_raises
    def _before_function(self, call: Any) -> None:
        self._listener.run.look_for_optimizers()
        self._calls += 1
        collector = self._listener.run.step_begins()
        if collector is not None:
            collector.before_function(call, self._listener.run.step)

    @never_raises
    def _after_function(self, call: Any = None) -> None:
        if call is not None:
            self._listener.run.function_called(call)
        steps = self._listener.run.steps_moved()
        if steps:
            self._listener.run.step_finished()
            self._listener.after_steps(steps)

    @never_raises
    def optimizer_applied(self, optimizer: Any = None) -> None:
        """An optimizer ended a step in Python, outside every tf.function."""
        if not self._marked:
            self._listener.run.look_for_optimizers()
            self._after_function()

    # --- steps that the user marks or tells

    @contextlib.contextmanager
    def marked_step(self) -> Iterator[None]:
        """One step of a loop that calls no tf.function and no Keras optimizer."""
        if not self._listener.has_begun() or self.is_off:
            yield
            return
        collector = self._begin_marked()
        before, calls = self._listener.run.step, self._calls
        self._marked = True
        try:
            with contextlib.ExitStack() as stack:
                if collector is not None:
                    stack.enter_context(collector.observed_step(before))
                yield
        finally:
            self._marked = False
        if self._listener.run.step == before:  # no tf.function in it has told of the step already
            self._end_marked(self._calls == calls)

    @never_raises
    def _begin_marked(self) -> Optional[Collector]:
        self._listener.run.look_for_optimizers()
        return self._listener.run.step_begins()

    @never_raises
    def _end_marked(self, alone: bool) -> None:
        """``alone``: no tf.function was called in it."""
        self._listener.after_steps(max(self._listener.run.steps_moved(), 1) if alone else 1)

    @never_raises
    def told_step(self, scale: Optional[float], finite: Optional[bool]) -> None:
        """The user tells how a step went."""
        if self._listener.has_begun():
            self._listener.run.step_told(scale, finite)
