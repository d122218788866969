"""What a watch holds from its making on: the training that runs now, and where its steps are seen.

Nothing in here raises into a training: a failure is logged once and turns the watch off.
"""
from __future__ import annotations

import atexit
import os
import weakref
from typing import Any, Callable, List, Optional

from npu_overflow.collect.ascend import device as ascend_device
from npu_overflow.collect.base import Training
from npu_overflow.report.tensorboard import Board
from npu_overflow.training import job, record
from npu_overflow.training.console import Console, Script
from npu_overflow.training.job import Ranks
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.options import DEFAULT_DUMP_PATH, WatchOptions
from npu_overflow.training.run import Run
from npu_overflow.training.steps import StepDetector, StepListener, never_raises

__all__ = ["Session", "active", "never_raises"]

_active: weakref.WeakSet[Session] = weakref.WeakSet()


def active() -> List[Session]:
    """The sessions of trainings that have begun and neither paused nor ended."""
    return [session for session in list(_active) if session.is_active and not session.is_paused]


class Session(StepListener):
    """Trainings under one watch, one after the other.

    Args:
        options: how they are watched.
        script: shared with the other watches of one script.

    Attributes:
        is_active: a training has begun and not ended.
        is_paused: its ``fit`` has ended, and the next one goes on.
        steps: finds out where a step begins and ends.
        board: TensorBoard's files.
    """

    def __init__(self, options: WatchOptions, script: Optional[Script] = None) -> None:
        self.options = options
        self.script = script if script is not None else Script()
        self.board = Board(options.tensorboard_dir)
        self.is_active = self.is_paused = False
        self.steps = StepDetector(self)
        self._put_open_back: Callable[[], None] = lambda: None
        self._run = self._new_run(Training(options, ""), Ranks(), Manifest())

    def _new_run(
        self, training: Training, ranks: Ranks, manifest: Manifest, aloud: bool = True
    ) -> Run:
        return Run(training, ranks, manifest, self.board, self.script, self.steps.see, aloud)

    @property
    def run(self) -> Run:
        """The training that runs now, or ended last; before the first, one that never begins."""
        return self._run

    @property
    def is_off(self) -> bool:
        """Whether the watch has turned itself off."""
        return self._run.machine.state == "off"

    @property
    def needs_loss(self) -> bool:
        """Whether the loss is looked at: only where no loss scale tells of an overflow."""
        return not self.is_off and self._run.optimizers.needs_loss

    def fail(self) -> None:
        """Called in an ``except``: the watch itself failed. Log it and turn off."""
        self._run.fail()

    @never_raises
    def configure_device(self) -> None:
        """A watch was made: an Ascend device that opens later dumps overflow, unless its options
        say already what it dumps."""
        adapter = ascend_device.loaded_adapter()
        if not self.options.dump or adapter is None or ascend_device.is_device_open(adapter):
            return
        path = self.options.dump_path or job.rank_folder(DEFAULT_DUMP_PATH, job.ranks_of())
        say = Console(self.options).say
        self._put_open_back = ascend_device.configure_at_open(adapter, path, say)

    # --- a training begins, pauses, ends

    @never_raises
    def begin(self, model: Any = None, announce: bool = True, lasting: bool = False) -> None:
        """A training begins. Never raises.

        Args:
            model: the Keras model in ``fit``, or None in a loop of the user's own.
            announce: say at once that it is watched, else when the first step has ended.
            lasting: where it was paused, it goes on with what it knows, with the same model.
        """
        if lasting and self.is_active and self.is_paused:
            self.is_paused = False
            self._run.resume(model)
            return
        if self.is_active:
            self._end()  # the training before was left by an exception
        self._begin(model, announce)

    def _begin(self, model: Any, announce: bool) -> None:
        ranks = ascend_device.ranks_now()
        path = self.options.dump_path or job.rank_folder(DEFAULT_DUMP_PATH, ranks)
        training = Training(
            self.options,
            os.path.abspath(path),
            model,
            rank=ranks.rank,
            world_size=ranks.world_size,
            device=ranks.device,
        )
        warned = self._run.record.disk_warned
        self._run = self._new_run(training, ranks, record.begun(self.options, ranks), announce)
        self._run.record.disk_warned = warned
        self.is_active, self.is_paused = True, False
        _active.add(self)
        atexit.register(_at_exit, weakref.ref(self))
        self._run.begin()

    def pause(self) -> None:
        """``fit`` has ended and the same model may go on. Never raises."""
        if not self.is_active or self.is_paused:
            return
        try:
            self._run.pause()
        except Exception:
            self.fail()
        self.is_paused = True

    def end(self, failed: bool = False) -> None:
        """The training ends, in whatever way. Never raises.

        Args:
            failed: an exception of the user's ended it.
        """
        if self.is_active:
            try:
                self._end(failed)
            except Exception:
                self.fail()

    def _end(self, failed: bool = False) -> None:
        self.is_active = False
        self._put_open_back()
        self._run.end(failed and not self.is_paused)  # what failed later was not the training

    # --- what happens meanwhile

    def has_begun(self) -> bool:
        """Whether a step that the user marks or tells belongs to a training."""
        if not self.is_active:
            self._run.console.say("watch.step_outside", always=True)
        return self.is_active

    @never_raises
    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer is being made: watch it from the next step on. A class that was loaded later
        can still be in the middle of making it."""
        self._run.optimizer_made(optimizer)

    @never_raises
    def after_steps(self, steps: int, finite: Optional[bool] = None) -> None:
        """``steps`` training steps have ended; ``finite``: the last one's loss, where known."""
        self._run.after_steps(steps, finite)

    @never_raises
    def epoch_begins(self) -> None:
        """Keras starts its running mean of the loss again."""
        self._run.optimizers.epoch_begins()

    @never_raises
    def watch_loop(self) -> None:
        """See the steps of a loop of the user's own on this thread, until ``steps.remove()``."""
        self.steps.install([item.reader.optimizer for item in self._run.optimizers.items])


def _at_exit(reference: Any) -> None:
    session = reference()
    if session is not None:
        session.end(failed=True)
