"""watching → collecting → reported → watching …, or off: when operators are collected."""
from __future__ import annotations

import bisect
import time
from dataclasses import dataclass
from typing import List, Optional, Tuple

from npu_overflow.collect.base import Training
from npu_overflow.errors import CannotCollect
from npu_overflow.report.tensorboard import Board
from npu_overflow.training import loss_scale
from npu_overflow.training.chosen import ChosenCollector
from npu_overflow.training.console import Console
from npu_overflow.training.delivery import Delivery, Gathered
from npu_overflow.training.policy import Observation
from npu_overflow.training.record import RunRecord
from npu_overflow.training.restart import Restart
from npu_overflow.training.spoiled import Spoiled, StateVariables
from npu_overflow.training.tracked import TrackedOptimizers

__all__ = ["StateMachine"]


@dataclass(frozen=True)
class _Collection:
    """It runs from training step ``step`` and from ``time`` on; ``forced``: by ``at_steps``."""

    step: int
    time: float
    forced: bool


class StateMachine:
    """Decides what the watch of one training does next. ``step`` is always the number of training
    steps that have ended.

    Args:
        training: its options; it is told since when there is trouble.
        chosen: the collector that is started and stopped.
        optimizers: their policies are told of reports.
        record: the manifest, written at every change of state.
        delivery: gets what was collected.
        restart: asked where collecting takes a new process.
        variables: the state beside the weights.
        console: says what happens.
        board: TensorBoard's files.

    Attributes:
        ended: the training has ended: there will be no further steps.
    """

    def __init__(
        self,
        training: Training,
        chosen: ChosenCollector,
        optimizers: TrackedOptimizers,
        record: RunRecord,
        delivery: Delivery,
        restart: Restart,
        variables: StateVariables,
        console: Console,
        board: Board,
    ) -> None:
        self._training, self._options, self._chosen = training, training.options, chosen
        self._optimizers, self._record, self._delivery = optimizers, record, delivery
        self._restart, self._console, self._board = restart, console, board
        self._variables = variables
        self._collection: Optional[_Collection] = None
        self._reports = {False: 0, True: 0}  # shown, by whether they were asked for
        self.ended = False

    @property
    def state(self) -> str:
        """"watching", "collecting", "reported" or "off"."""
        return self._record.manifest.state

    @property
    def drops(self) -> List[Tuple[int, float, float]]:
        """Falls of the loss scale: (training step, before, after)."""
        return self._record.manifest.drops

    @property
    def _is_forced(self) -> bool:
        """Whether the present or last collection was asked for by ``at_steps``."""
        return self._collection is not None and self._collection.forced

    def change(self, state: str, step: int) -> None:
        """Go to ``state``."""
        self._record.change(state, step, self._chosen.now)

    # --- to collecting

    def judge(self, guarded: bool, seen: Observation, step: int) -> None:
        """Collect where overflow is frequent.

        Args:
            guarded: steps that overflow are skipped.
            seen: what a policy says of the last steps.
        """
        if seen.drop is not None:
            self.drops.append(seen.drop)
            self._board.drop(seen.drop)
        if not seen.trigger:
            return
        if self.state == "collecting" and self._is_forced:
            self._deliver(step)  # what was asked for has a report of its own
            self.take(step, wait=True)
        if self._may_collect():
            scale = seen.drop[2] if seen.drop else None
            trigger = {"step": step, "pending": list(seen.pending), "scale": scale}
            self._record.manifest.trigger = trigger
            if self._training.bad_since is None and seen.pending:
                self._training.bad_since = seen.pending[0]
            self._start(step, lost=not guarded and loss_scale.npu_mode() != "saturation")

    def force(self, step: int) -> None:
        """The user wants the step that begins."""
        if self._may_collect(forced=True):
            self._start(step, forced=True)

    def _may_collect(self, forced: bool = False) -> bool:
        few = self._reports[forced] < self._options.max_reports
        return few and self.state in ("watching", "reported")

    def _start(self, step: int, forced: bool = False, lost: bool = False) -> None:
        """Collect from ``step`` on; ``lost``: nothing skips overflowing steps, the loss told."""
        self.take(step, wait=forced)
        if self._delivery.is_busy or not self._may_collect(forced):
            return
        try:
            if self._chosen.now.name == "host":
                self._record.find_place()
            self._chosen.now.start(step)
        except CannotCollect as error:
            self._request(error, step, forced)
            return
        self._collection = _Collection(step, time.time(), forced)
        if not forced:
            self._optimizers.say_trigger(step, lost, self.drops)
        self.change("collecting", step)

    def _request(self, error: CannotCollect, step: int, forced: bool) -> None:
        """Collecting is impossible in this process: ask for another, and go on."""
        request = self._record.manifest.request = self._restart.request(error, step)
        if not forced:
            self._optimizers.reported(step)
        self.change("reported", step)
        self._restart.ask(error, request)

    # --- to reported and back

    def after_check(self, step: int) -> None:
        """The policies have judged all steps up to here."""
        if self.state == "reported" and not self._optimizers.is_quiet(step):
            self.change("watching", step)
        self.finish_if_enough(step)

    def finish_if_enough(self, step: int) -> None:
        """End a collection that has what it needs, or has lasted long enough."""
        collection, options = self._collection, self._options
        if collection is None or self.state != "collecting":
            return
        collected = self._chosen.now.collected
        enough = collected >= options.keep or (collection.forced and not self._is_wanted(step))
        over = step - collection.step >= options.max_collect_steps
        if enough or over or time.time() - collection.time >= options.max_collect_seconds:
            if not collection.forced:  # the policy knows nothing of what was asked for
                self._optimizers.reported(step)
            self._deliver(step)

    def _is_wanted(self, step: int) -> bool:
        wanted = self._options.at_steps  # sorted, and possibly very many
        place = bisect.bisect_left(wanted, step)
        return place < len(wanted) and wanted[place] == step

    def _deliver(self, step: int, short: bool = False, at_end: bool = False) -> None:
        """The collection has ended: analyze, save and show it.

        Args:
            short: a traceback follows.
            at_end: the training ends here, so wait for what is made beside it.
        """
        self.change("reported", step)
        collector = self._chosen.now
        self._delivery.spoiled = self.look_at_state()
        if not collector.in_background:
            self._show(self._delivery.gather(collector), step, short)
            return
        if not at_end:
            collector.seal()
        self._delivery.gather_beside(collector)
        if at_end:
            self.take(step, wait=True, short=short, last=True)

    def take(
        self, step: int, wait: bool = False, short: bool = False, last: bool = False
    ) -> None:
        """Show the report that was made beside the training, once it is ready.

        Args:
            wait: until it is, within a bound.
            short: a traceback follows.
            last: the training ends.
        """
        for gathered in self._delivery.take(self._chosen.now, wait, last):
            self._show(gathered, step, short)

    def _show(self, gathered: Optional[Gathered], step: int, short: bool) -> None:
        forced = self._is_forced
        if gathered is not None:
            self._reports[forced] += 1
            self._delivery.show(gathered, step, short)
            return
        self.change("watching", step)
        if not forced:
            self._optimizers.nothing_reported()
        if short:  # an exception ended the training: nobody has looked for further steps
            return
        if forced and self._collection is not None:
            self._console.say("watch.nothing_asked", step=self._collection.step)
        else:
            self._console.say("watch.nothing_collected" + (".end" if self.ended else ""))

    def look_at_state(self) -> Optional[Spoiled]:
        """What steps that overflowed have spoiled for good besides the weights."""
        if not self._optimizers.have_overflowed:
            return None
        return self._variables.spoiled(self._training.model)

    # --- a training pauses or ends

    def pause(self, step: int) -> None:
        """``fit`` has ended: report what was collected."""
        self.take(step)
        if self.state == "collecting":
            self._deliver(step, at_end=True)

    def end(self, step: int, failed: bool) -> None:
        """The training has ended, by an exception if ``failed``: report what was collected."""
        self.take(step, wait=True, short=failed, last=True)
        if self.state == "collecting" or (failed and self._salvaged()):
            self._deliver(step, short=failed, at_end=True)

    def _salvaged(self) -> bool:
        """Whether a training that failed before its trigger has left something to analyze."""
        return self._may_collect() and not self._delivery.is_busy and self._chosen.now.salvage()
