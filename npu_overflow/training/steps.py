"""How the steps of a training are noticed: calls of ``fit``, of tf.functions, optimizers that are used in Python, steps that the user marks or tells."""
from __future__ import annotations

import bisect
import contextlib
import functools
import sys
from typing import Any, Callable, Iterator, List, Optional, TypeVar, cast

from npu_overflow import dump_config
from npu_overflow.collect.base import Collector, Training
from npu_overflow.training import loss_scale
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.policy import Look, Policy
from npu_overflow.training.weights import weights_are_lost

__all__ = ["Stepping", "harmless"]

F = TypeVar("F", bound=Callable[..., Any])


def harmless(method: F) -> F:
    """Keep every failure of the watch away from the training; KeyboardInterrupt and SystemExit are the user's and pass."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.state == "off":
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception:
            self.fail()
            return None

    return cast(F, guarded)


class Stepping:
    """From whatever moves the training to steps that are counted and looked at.

    A part of ``Session``, in a file of its own; it uses the session's state and makes none that others write.
    """

    options: WatchOptions
    state: str
    _step: int
    _looked: int
    _calls: int
    _modules: int
    _check_every: int
    _collector: Optional[Collector]
    _training: Optional[Training]
    _policies: List[Policy]
    _made: List[Any]
    _applications: Any
    _marked: bool
    _active: bool
    say: Callable[..., None]
    _told: Optional[Policy]
    _told_until: int
    _restoring: bool
    _loss_was_bad: bool
    _lost_since: Optional[int]
    add_optimizer: Callable[[Any], None]
    optimizer_made: Callable[[Any], None]
    _announce: Callable[[], None]
    _renew: Callable[[], None]
    _see_device: Callable[[], None]
    _restore: Callable[[Any], None]
    _start: Callable[..., None]
    _look: Callable[[Optional[bool]], None]
    _judge: Callable[[Policy, Look], None]
    _finish_if_enough: Callable[[], None]
    _take: Callable[..., None]
    _listen: Callable[..., None]

    @harmless
    def before_fit_call(self, model: Any, steps: int) -> None:
        """``fit`` is about to run its training function over ``steps`` steps."""
        self._renew()
        self._see_device()
        self._force(self._step, steps)
        if self.state == "collecting" and self._collector is not None:
            self._collector.arm_fit(model, self._step)

    @harmless
    def after_steps(self, steps: int, finite: Optional[bool] = None) -> None:
        """``steps`` training steps have ended.

        Args:
            steps: how many since the last call.
            finite: whether the last step's loss was finite, where it is known.
        """
        self._announce()
        self._renew()
        self._take()
        self._listen()
        self._step += steps
        if self._restoring and self._training is not None:
            self._restore(self._training.model)
        if finite is not None:
            self._loss_seen(self._step - 1, finite)
        if finite is False:
            self._loss_was_bad = True
            if self._training is not None and self._training.bad_since is None:
                self._training.bad_since = self._step - 1
        if self.state != "collecting" and self._step - self._looked < self._check_every and finite is not False:
            return
        self._look(finite)

    def function_call(self, call: Any, proceed: Callable[..., Any]) -> Any:
        """An outermost call of a tf.function in a loop of the user's own. What it raises or returns is the user's."""
        self._before_function(call)
        args, kwargs = call.arguments()
        result = proceed(*args, **kwargs)
        self._after_function()
        return result

    @harmless
    def _before_function(self, call: Any) -> None:
        self._renew()
        self._see_device()
        self._look_for_late_optimizers()
        self._calls += 1
        self._force(self._step, 1)
        if self.state == "collecting" and self._collector is not None:
            self._collector.before_function(call, self._step)

    def _look_for_late_optimizers(self) -> None:
        """Keras can be loaded after the watch began: the making of its optimizers was not seen then."""
        assert self._training is not None
        while self._made:
            self.add_optimizer(self._made.pop(0))
        if not self._training.readers and self._training.model is None and self.options.optimizer is None and len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            for optimizer in loss_scale.find_optimizers():
                self.add_optimizer(optimizer)

    @harmless
    def _after_function(self) -> None:
        steps = self._moved()
        if steps:
            self._step_ended(self._step)
            self.after_steps(steps)

    @harmless
    def optimizer_applied(self, optimizer: Any = None) -> None:
        """An optimizer ended a step in Python, outside every tf.function."""
        if self._marked:
            return
        self._renew()
        self._look_for_late_optimizers()
        self._after_function()

    def _step_ended(self, step: int, overflowed: Optional[bool] = None) -> None:
        if self.state == "collecting" and self._collector is not None:
            self._collector.step_ended(step, overflowed)

    def _loss_seen(self, step: int, finite: bool) -> None:
        """Steps between two non-finite losses, whose own are hidden in a running mean, overflowed too: nothing guards the weights."""
        if not finite and self._lost_since is not None and self._training is not None:
            for reader, policy in zip(self._training.readers, self._policies):
                if not reader.guarded:
                    policy.lost(step - self._lost_since)
        self._lost_since = None if finite else step + 1

    def _last_loss_seen(self) -> None:
        """No further loss will be seen: the weights tell how the steps since the last one went."""
        if self._lost_since is not None and self._training is not None and self._step > self._lost_since:
            self._loss_seen(self._step, not weights_are_lost(self._training.model))
        self._lost_since = None

    @harmless
    def epoch_begins(self) -> None:
        """Keras starts its running mean of the loss again: after one non-finite step it says nothing until then."""
        self._loss_was_bad = False

    @property
    def needs_loss(self) -> bool:
        """Whether the loss is looked at: only where nothing skips an overflowing step, so that no loss scale tells."""
        if self.state == "off" or self._training is None or self._loss_was_bad:
            return False
        return not any(reader.guarded for reader in self._training.readers)

    @harmless
    def surround(self, undo: List[Callable[[], None]]) -> None:
        """See the calls of tf.functions on this thread and the optimizers that are still to be made; ``undo`` gets what ends it."""
        from npu_overflow.training.applications import Applications
        from npu_overflow.training.calls import FunctionCalls

        calls = FunctionCalls(self.function_call)
        calls.install()
        undo.append(calls.remove)
        self._applications = Applications(calls.concerned, self.optimizer_applied)
        self._applications.install()
        undo.append(self._applications.remove)
        assert self._training is not None
        for reader in self._training.readers:
            self._applications.see(reader.optimizer)

        def made(optimizer: Any) -> None:
            calls.reinstall()  # of an adapter that was loaded after this
            self.optimizer_made(optimizer)

        undo.append(loss_scale.watch_new_optimizers(made))
        if dump_config.loaded_adapter() is not None:
            undo.append(dump_config.after_default(dump_config.loaded_adapter(), calls.reinstall))

    @contextlib.contextmanager
    def marked_step(self) -> Iterator[None]:
        """One step of a loop that nothing else reveals."""
        if not self._began() or self.state == "off" or self._collector is None:
            yield
            return
        self._look_for_late_optimizers()
        self._force(self._step, 1)
        before, calls = self._step, self._calls
        self._marked = True
        try:
            if self.state == "collecting":
                with self._collector.observed_step(self._step):
                    yield
            else:
                yield
        finally:
            self._marked = False
        if self._step == before:  # no tf.function in it has told of the step already
            self.after_steps(max(self._moved(), 1) if self._calls == calls else 1)

    @harmless
    def told_step(self, scale: Optional[float], finite: Optional[bool]) -> None:
        """The user tells how a step went. Where a loss-scale optimizer has told of it already, its word counts."""
        if not self._began():
            return
        assert self._training is not None
        known, self._told_until = self._step != self._told_until, self._step
        if known and any(reader.guarded for reader in self._training.readers):
            return
        if self._told is None:
            self._told = Policy(self.options.patience, self.options.window, self.options.warmup, self.options.min_scale,
                                counts_skipped_steps=False, floor=None, dynamic=scale is not None, guarded=scale is not None)
        if not known:
            self._force(self._step, 1)
            self._step += 1
            self._told_until = self._step
        reading = None if scale is None else loss_scale.Reading(float(scale))
        look = self._told.look(self._step - 1, 1, reading, finite)
        self._step_ended(self._step - 1, bool(look.overflows))
        self._judge(self._told, look)
        if self.state == "collecting":
            self._finish_if_enough()

    def _began(self) -> bool:
        """Whether a step that the user marks or tells belongs to a training."""
        if not self._active:
            self.say("watch.step_outside", always=True)
        return self._active

    @property
    def _judges(self) -> List[Policy]:
        """One for each optimizer, and one for what the user tells."""
        return [*self._policies, *([self._told] if self._told is not None else [])]

    def _force(self, step: int, steps: int) -> None:
        assert self._training is not None
        wanted = self.options.at_steps  # sorted, and possibly very many
        self._training.forced = bisect.bisect_left(wanted, step) < bisect.bisect_left(wanted, step + steps)
        if self._training.forced and self.state in ("watching", "reported"):
            self._start(step, forced=True)

    def _moved(self) -> int:
        """Steps that any optimizer made since the last look: by its count of steps, else 1 where its loss scaling changed."""
        assert self._training is not None
        steps = 0
        for i, reader in enumerate(self._training.readers):
            reading, previous = reader.read(), self._policies[i].previous
            if reading is None or reading == previous:
                continue
            grown = 1
            if previous is not None and reading.iterations is not None and previous.iterations is not None:
                grown = max(1, reading.iterations - previous.iterations + (0 if reader.counts_skipped_steps else previous.halvings(reading)))
            steps = max(steps, grown)
        return max(0, steps - (self._step - self._looked)) if self._check_every > 1 else steps
