"""One training, from its first step to its last: its parts, and what happens between two steps."""
from __future__ import annotations

import bisect
import contextlib
import sys
from typing import Any, Callable, Optional, Sequence

from npu_overflow.collect.base import Collector, Training
from npu_overflow.errors import CannotCollect, CannotWrite, NpuOverflowError
from npu_overflow.report.tensorboard import Board
from npu_overflow.training import job
from npu_overflow.training.chosen import ChosenCollector
from npu_overflow.training.console import Console, Script
from npu_overflow.training.delivery import Delivery
from npu_overflow.training.job import Ranks
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.record import RunRecord
from npu_overflow.training.restart import Restart
from npu_overflow.training.spoiled import StateVariables
from npu_overflow.training.state_machine import StateMachine
from npu_overflow.training.surroundings import Surroundings
from npu_overflow.training.tracked import TrackedOptimizers
from npu_overflow.training.weights import weights_are_lost

__all__ = ["Run"]


class Run:
    """One training under watch. Whoever calls this keeps failures in here away from the training.

    Args:
        training: the options, the model, the place of the dump.
        ranks: this process in its job.
        manifest: as it is when the training begins.
        board: TensorBoard's files.
        script: shared with the other watches of one script.
        seen: called with each optimizer that comes under watch.
        aloud: say at once how it is watched, else when the first step has ended.

    Attributes:
        step: training steps that have ended.
        machine: the state of the watch.
        optimizers, record, delivery, console: further parts.
    """

    def __init__(
        self,
        training: Training,
        ranks: Ranks,
        manifest: Manifest,
        board: Board,
        script: Script,
        seen: Callable[[Any], None],
        aloud: bool = True,
    ) -> None:
        self.options, self.step, self._checked = training.options, 0, 0
        self.console = Console(self.options, job.prefix(ranks))
        training.say, training.fail = self.console.say, self.fail
        self._training, self._board, self._seen, self._aloud = training, board, seen, aloud
        self._surroundings, self._state = Surroundings(), StateVariables()
        self.optimizers = TrackedOptimizers(
            self.options, self.console, self._surroundings.is_settled
        )
        training.optimizers, manifest.optimizers = self.optimizers.items, self.optimizers.facts
        self.record = RunRecord(manifest, training, self.optimizers, self.console)
        self.delivery = Delivery(training, ranks, self.record, self.console, board, script)
        self._restart = Restart(training, self.console)
        self._chosen = ChosenCollector(training, self.console, script)
        self.machine = StateMachine(
            training,
            self._chosen,
            self.optimizers,
            self.record,
            self.delivery,
            self._restart,
            self._state,
            self.console,
            board,
        )

    @property
    def collector(self) -> Collector:
        """What collects now."""
        return self._chosen.now

    @property
    def _is_collecting(self) -> bool:
        return self.machine.state == "collecting"

    # --- a training begins, pauses, ends

    def begin(self) -> None:
        """Choose the collector, find optimizers, take the first look."""
        model = self._training.model
        if not self._choose(lambda: self._chosen.choose(may_open=model is None)):
            return
        if self._aloud:
            self._chosen.announce()
        self._restore()
        self._state.of_model(model)
        for optimizer in self.optimizers.find(model):
            self.add_optimizer(optimizer)

    def pause(self) -> None:
        """``fit`` has ended and the same model may go on: keep what is known, and nothing of the
        model, which the script may drop."""
        if self.collector.survives_close and self.step > self._checked:
            self._check(None)
        self.machine.pause(self.step)
        self._last_loss_seen()
        self.optimizers.park()
        self._training.model = None
        self._chosen.park()

    def resume(self, model: Any) -> None:
        """``fit`` goes on with the same model, with the optimizer of before or another."""
        self._training.model = model
        if self._choose(self._chosen.resume):
            for optimizer in self.optimizers.resume(model):
                self.add_optimizer(optimizer)

    def end(self, failed: bool) -> None:
        """Analyze what was collected, undo every hook, say the rate.

        Args:
            failed: an exception of the user's ended the training.
        """
        collector, machine = self.collector, self.machine
        self.console.apart, machine.ended = False, True
        try:
            dumps = collector.survives_close and not collector.needs_restart
            if not failed and dumps and self.step > self._checked:
                self._check(None)  # what lies on disk since the last check
            machine.end(self.step, failed)
            if machine.state != "off" and not failed:
                self._last_loss_seen()
                self.optimizers.late_signs(len(self.collector.overflow_signs(self.step, 0)))
                spoiled = machine.look_at_state()
                calm = machine.state == "watching" and not self.delivery.made
                self.optimizers.say_rates(calm, whole=spoiled is None)
                if spoiled is not None:
                    self.console.say(spoiled.code, **spoiled.values)
                if self.step == 0 and not self.optimizers.items and self._aloud:
                    self.console.say("watch.no_optimizer", always=True)
        finally:
            self._board.close()
            self.collector.close()
            self.record.manifest.ended = True
            if self.record.manifest.folder is not None:
                self.record.write(self.collector)

    def fail(self) -> None:
        """Called in an ``except``: the watch itself failed. Log it, turn off, leave the training
        alone. A disk that refuses is no fault to trace."""
        error = sys.exc_info()[1]
        if isinstance(error, CannotWrite):
            self._say_off(error)
        else:
            self.console.log_failure("watch.failed")
        with contextlib.suppress(Exception):
            self.machine.change("off", self.step)
        with contextlib.suppress(Exception):
            self.collector.close()

    def _say_off(self, error: NpuOverflowError) -> None:
        self.console.say("watch.off", always=True, reason=self.console.reason(error))

    # --- the collector and the optimizers

    def _choose(self, choose: Callable[[], None]) -> bool:
        """Whether ``choose`` gave a collector that can work here; else the watch is off."""
        before = self.collector
        try:
            choose()
        except CannotCollect as error:
            self.record.disk_warned = error.code == "dump_config.unwritable"
            self.machine.change("off", self.step)
            self._say_off(error)
            return False
        if self.collector is not before:
            self.record.manifest.collector = self.collector.name
            if self.collector.needs_restart:
                self._restart.warn()
        return True

    def _choose_another(self) -> bool:
        self.collector.close()
        chosen = self._choose(self._chosen.choose)
        if chosen and self._aloud:
            self._chosen.announce()
        return chosen

    def _renew(self) -> None:
        """See whether a device has opened, and go on with what is alive and works on it."""
        if self._surroundings.device_became_default():
            self.optimizers.device_became_default()
        change = self._surroundings.context_changed()
        if change is None:
            return
        if self._chosen.is_outdated and not self._choose_another():
            return
        if change == "replaced":
            dead = self.optimizers.clear()
            for optimizer in self.optimizers.find(self._training.model):
                if not any(optimizer is item for item in dead):
                    self.add_optimizer(optimizer)

    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer is being made: it is watched from the next step on."""
        self._renew()
        self.optimizers.made(optimizer)

    def add_optimizer(self, optimizer: Any) -> None:
        """Watch one more optimizer; one that is watched already is left alone."""
        self._renew()
        item = self.optimizers.add(optimizer, self.step)
        if item is not None:
            self._seen(item.reader.optimizer)

    def look_for_optimizers(self) -> None:
        """Watch the optimizers that have come since the last step."""
        self._renew()
        for optimizer in self.optimizers.late(self._training.model):
            self.add_optimizer(optimizer)

    # --- steps

    def step_begins(self, steps: int = 1) -> Optional[Collector]:
        """``steps`` training steps begin; returns the collector while it collects, else None."""
        self._renew()
        if self._chosen.has_no_device:
            self._choose_another()
        self._force(steps)
        return self.collector if self._is_collecting else None

    def _force(self, steps: int) -> None:
        """Collect the steps that begin, if the user wants one of them."""
        wanted = self.options.at_steps  # sorted, and possibly very many
        first = bisect.bisect_left(wanted, self.step)
        self._training.forced = first < bisect.bisect_left(wanted, self.step + steps)
        if self._training.forced:
            self.machine.force(self.step)

    def steps_moved(self) -> int:
        """Steps that optimizers made since the last step that ended; 0 where none did."""
        steps, unchecked = self.optimizers.steps_made(), self.step - self._checked
        return max(0, steps - unchecked) if self._chosen.check_every > 1 else steps

    def function_called(self, call: Any) -> None:
        """A tf.function of a loop of the user's own was called."""
        self._state.of_call(call)

    def step_finished(self) -> None:
        """A step of a loop of the user's own has ended; ``after_steps`` follows."""
        if self._is_collecting:
            self.collector.step_ended(self.step)

    def after_steps(self, steps: int, finite: Optional[bool]) -> None:
        """``steps`` training steps have ended; ``finite``: the last one's loss, where known."""
        self._chosen.announce()
        self._renew()
        self.machine.take(self.step)
        self._count(steps)
        self._restore()
        if finite is not None:
            self.optimizers.loss_seen(self.step - 1, finite)
        if finite is False and self._training.bad_since is None:
            self._training.bad_since = self.step - 1
        due = self.step - self._checked >= self._chosen.check_every
        if self._is_collecting or due or finite is False:
            self._check(finite)

    def step_told(self, scale: Optional[float], finite: Optional[bool]) -> None:
        """The user tells how a step went; the word of a loss-scale optimizer counts more."""
        told = self.optimizers.told
        is_new = told.is_new(self.step)
        if not is_new and self.optimizers.guarded:
            return
        if is_new:
            self._force(1)
            self._count(1)
        seen = told.check(self.step - 1, scale, finite)
        if self._is_collecting:
            self.collector.step_ended(self.step - 1, bool(seen.overflows))
        self.machine.judge(told.guarded, seen, self.step)
        self.machine.finish_if_enough(self.step)

    def _count(self, steps: int) -> None:
        self.step += steps
        self.console.apart = True

    def _check(self, finite: Optional[bool]) -> None:
        """Read every loss scale and judge the steps since the last check."""
        steps, first, self._checked = self.step - self._checked, self._checked, self.step
        signs: Sequence[int] = ()
        if self.optimizers.see_no_overflow:
            signs = self.collector.overflow_signs(first, steps)
        for item in list(self.optimizers.items):
            seen = item.check(self.step - 1, steps, finite, signs)
            self.collector.step_done(first, steps, seen.overflows, seen.counted, seen.pending)
            self.machine.judge(item.policy.guarded, seen, self.step)
        self.machine.after_check(self.step)

    def _restore(self) -> None:
        if self._restart.restore(self.step):
            self.optimizers.forget()

    def _last_loss_seen(self) -> None:
        """The weights tell how the steps since the last loss went."""
        lost = self.optimizers.asks_weights(self.step) and weights_are_lost(self._training.model)
        self.optimizers.last_loss_seen(self.step, lost)
