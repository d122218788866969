"""One training under watch: watching → collecting → reported → watching …, or off. Ties the rooms together; knows nothing of Keras hooks.

A failure in here is logged once with its traceback and turns the watch off. The training never notices.
"""
from __future__ import annotations

import atexit
import contextlib
import os
import socket
import sys
import tempfile
import threading
import time
import weakref
from typing import Any, List, Optional, Sequence, Set, Tuple

from npu_overflow import dump_config, messages
from npu_overflow.collect.base import Collector, Training
from npu_overflow.collect.choice import choose
from npu_overflow.errors import CannotCollect, CannotWrite
from npu_overflow.report.model import Report
from npu_overflow.report.tensorboard import Board
from npu_overflow.training import console, job, loss_scale, reports_io, restart
from npu_overflow.training.delivery import Reporting
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.options import DEFAULT_DUMP_PATH, WatchOptions
from npu_overflow.training.pause import Pausing, Script
from npu_overflow.training.policy import Look, Policy
from npu_overflow.training.session_restart import Restarting
from npu_overflow.training.steps import Stepping, harmless

__all__ = ["Session", "active"]

_active: weakref.WeakSet[Session] = weakref.WeakSet()

#: said once in a process, however many trainings it has
_ONCE = ("watch.blind", "watch.step_outside", "ascend.opened_without_dump.note", "watch.restart_alone", "watch.restart_notebook")
_said: Set[str] = set()


def active() -> List[Session]:
    """The sessions of trainings that have begun and not ended."""
    return [session for session in list(_active) if session._active and not session._paused]


class Session(Stepping, Reporting, Restarting, Pausing):
    """The watch's state and everything it does between two training steps.

    Attributes:
        state: "watching", "collecting", "reported" or "off".
        drops: falls of the loss scale: (training step, before, after).
        reports: every Report made, oldest first.
        stop_requested: True once a report was made under ``on_overflow="stop"``.
    """

    def __init__(self, options: WatchOptions, script: Optional[Script] = None) -> None:
        self.options = options
        self.script = script if script is not None else Script()
        self.state = "watching"
        self.drops: List[Tuple[int, float, float]] = []
        self.reports: List[Report] = []
        self.stop_requested = False
        self.board = Board(options.tensorboard_dir)
        self._active = self._paused = False
        self._writing = threading.RLock()
        self._step = 0
        self._collector: Optional[Collector] = None
        self._applications: Any = None  # where optimizers are seen to end steps in Python
        self._marked = False  # inside a step that the user marked
        self._training: Optional[Training] = None
        self._ranks = job.Ranks()

    # --- a training begins and ends ---------------------------------------------------------------------------------------------

    @harmless
    def begin(self, model: Any = None, announce: bool = True, lasting: bool = False) -> None:
        """Training begins: find optimizers, choose the collector, take the first look.

        Args:
            model: the Keras model in ``fit``, or None in a loop of the user's own.
            announce: whether to say at once that it is watched, else when the first step shows that something trains.
            lasting: where it was paused, it goes on with what it knows, with the same model.
        """
        if lasting and self._active and self._paused:
            self._resume(model)
            return
        if self._active:
            self._end()  # the training before was left by an exception
        options = self.options
        self._ranks = dump_config.ranks_now()
        self.state, self.drops, self.stop_requested = "watching", [], False
        self.reports = []
        self._step = self._looked = self._calls = self._modules = 0
        self._policies: List[Policy] = []
        self._finished: List[Policy] = []
        self._told: Optional[Policy] = None  # of what the user tells
        self._told_until = 0  # the step that was told of last
        self._paused = False
        self._made: List[Any] = []
        self._requested: Set[str] = set()
        self._beside: Optional[Tuple[threading.Thread, List[Any]]] = None
        self._waiting = None
        self._listen_again = 0.0
        self._collect_from: Optional[int] = None
        self._collect_since = 0.0
        self._last_culprit = self.script.culprit
        self._loss_was_bad = False
        self._lost_since: Optional[int] = None  # the step after the last one whose loss was seen to be non-finite
        dump_path = os.path.abspath(options.dump_path or job.rank_folder(DEFAULT_DUMP_PATH, self._ranks))
        self._training = Training(
            options, dump_path, model, rank=self._ranks.rank, world_size=self._ranks.world_size, device=self._ranks.device, say=self.say, fail=self.fail
        )
        self._manifest = self._new_manifest()
        self._active = True
        self._by_itself = announce
        _active.add(self)
        atexit.register(_at_exit, weakref.ref(self))
        if not self._choose_collector(may_open=model is None):
            return
        self._context = _context()
        self._on_default = dump_config.is_default() or not dump_config.is_device_open()
        if self._ranks.several:
            self._write_manifest()  # the others on a shared path see that this one is there
        if announce:
            self._announce()
        self._restore(model)
        for optimizer in self._optimizers(model):
            self.add_optimizer(optimizer)

    def _choose_collector(self, may_open: bool = False) -> bool:
        """Choose and prepare the collector; False where it can't work, the watch is off then."""
        assert self._training is not None
        self._collector, why = choose(self.options.collector, may_open)
        try:
            self._collector.prepare(self._training)
        except CannotCollect as error:
            self._turn_off(error)
            return False
        self._announcement: Optional[Tuple[str, str]] = ("watch.collector." + self._collector.name, why)
        self._check_every = self._looks_apart()
        self._manifest.collector = self._collector.name
        if self.options.on_overflow == "restart" and getattr(self._collector, "needs_restart", False):
            if self._ranks.several:
                self.say("watch.restart_several", always=True, size=self._ranks.world_size)
            elif restart.in_notebook():
                self.say("watch.restart_notebook", always=True)
            elif not restart.wants_restart():
                self.say("watch.restart_alone", always=True)
        return True

    def _renew(self) -> None:
        """Opening an Ascend device replaces TensorFlow's eager context: every variable of before is dead, also those of optimizers watched here."""
        self._see_default()
        context = _context()
        if context is None or context is self._context:
            return
        replaced, self._context = self._context is not None, context
        assert self._training is not None and self._collector is not None
        if self.options.collector == "auto" and self._collector.name == "host" and dump_config.is_device_open():
            self._collector.close()
            if not self._choose_collector():
                return
            if self._by_itself:
                self._announce()
        if not replaced:
            return
        dead = [reader.optimizer for reader in self._training.readers]
        for known in (self._training.readers, self._policies, self._manifest.optimizers):
            known.clear()
        for optimizer in self._optimizers(self._training.model):
            if not any(optimizer is item for item in dead):
                self.add_optimizer(optimizer)

    def _see_device(self) -> None:
        """A step begins: where no Ascend device is open by now, npu_device was only loaded, and the step runs on TensorFlow's own devices."""
        assert self._collector is not None
        if self.options.collector != "auto" or self._collector.name != "ascend" or dump_config.is_device_open():
            return
        self._collector.close()
        if self._choose_collector(may_open=False) and self._by_itself:
            self._announce()

    def _announce(self) -> None:
        said, self._announcement = self._announcement, None
        if said is not None and said[0] not in self.script.announced:
            self.script.announced.add(said[0])
            self.say(said[0], why=messages.say("watch.why." + said[1], self._language, collector=self.options.collector))

    @harmless
    def optimizer_made(self, optimizer: Any) -> None:
        """An optimizer is being made: watch it from the next step on. A class that was loaded later can still be in the middle of making it."""
        self._renew()
        self._made.append(optimizer)

    @harmless
    def add_optimizer(self, optimizer: Any) -> None:
        """Watch one more optimizer; one that is watched already is left alone."""
        assert self._training is not None
        self._renew()
        reader = loss_scale.reader_for(optimizer)
        if any(known.optimizer is reader.optimizer for known in self._training.readers):
            return
        self._training.readers.append(reader)
        if self._applications is not None:
            self._applications.see(reader.optimizer)
        options = self.options
        policy = Policy(
            options.patience,
            options.window,
            options.warmup,
            options.min_scale,
            counts_skipped_steps=reader.counts_skipped_steps,
            floor=reader.floor,
            dynamic=reader.dynamic,
            guarded=reader.guarded or reader.blind,  # blind: overflow records tell, and they are judged by their number
        )
        policy.look(self._step, 0, reader.read())
        self._policies.append(policy)
        self._manifest.optimizers.append({"name": reader.name, "family": reader.family, "dynamic": reader.dynamic, "floor": reader.floor})
        if self._on_default:
            self._say_guard(reader)

    def _say_guard(self, reader: loss_scale.Reader) -> None:
        if reader.blind:
            self.say("watch.blind", always=True, optimizer=reader.name)
        elif not reader.guarded:
            self.say("watch.unguarded.fixed" if reader.family != "none" else "watch.unguarded", optimizer=reader.name)

    def _see_default(self) -> None:
        """An open Ascend device has become the default: only now is it known what its optimizers see."""
        if self._on_default or not dump_config.is_default():
            return
        self._on_default = True
        assert self._training is not None
        for reader, policy in zip(self._training.readers, self._policies):
            reader.read()
            policy.guarded = reader.guarded or reader.blind
            self._say_guard(reader)

    def end(self, failed: bool = False) -> None:
        """Training ends, in whatever way: analyze what was collected, undo every hook, say the rate. Never raises.

        Args:
            failed: an exception of the user's ended it.
        """
        if not self._active:
            return
        try:
            self._end(failed)
        except Exception:
            self.fail()

    def _end(self, failed: bool = False) -> None:
        self._active = False
        failed = failed and not self._paused  # what failed later was not the training
        try:
            if not failed and getattr(self._collector, "lasts", False) and not getattr(self._collector, "needs_restart", False) and self._step > self._looked:
                self._look(None)  # what lies on disk since the last look
            self._take(wait=True, short=failed, last=True)
            if self.state == "collecting" or (failed and self._rescued()):
                self._report(short=failed)
            self._listen_for_the_last_time(failed)
            if self.state != "off" and not failed:
                self._last_loss_seen()
                self._closing_line()
        finally:
            self.board.close()
            if self._collector is not None:
                self._collector.close()
            self._manifest.ended = True
            if self._manifest.folder is not None:
                self._write_manifest()

    def _closing_line(self) -> None:
        policies = [*self._finished, *self._judges, *(policy for _made, policy in (self._known if self._paused else []))]
        calm = self.state == "watching" and not self.reports
        for policy in policies:
            if calm and policy.settled_at is not None:
                self.say("watch.rate.settled", overflowing=policy.overflowing_steps, steps=policy.steps, scale="%g" % policy.settled_at)
            elif policy.overflowing_steps:
                self.say("watch.rate", overflowing=policy.overflowing_steps, steps=policy.steps, percent="%.2f" % (100 * policy.rate))
        if calm and any(policy.calibrating and policy.overflowing_steps for policy in policies):
            self.say("watch.rate.warmup", step=self.drops[-1][0] if self.drops else "…")
        assert self._training is not None
        if self._step == 0 and not self._training.readers and self._by_itself:
            self.say("watch.no_optimizer", always=True)

    def fail(self) -> None:
        """The watch itself failed: log it once, turn off, leave the training alone. A disk that refuses is no fault to trace."""
        error = sys.exc_info()[1]
        if isinstance(error, CannotWrite):
            self.say("watch.off", always=True, reason="%s %s" % (error.message(self._language), error.hint(self._language)))
        else:
            console.log_failure(messages.say("watch.failed", self._language))
        with contextlib.suppress(Exception):
            self._change("off")
        self.state = "off"
        with contextlib.suppress(Exception):
            if self._collector is not None:
                self._collector.close()

    def _turn_off(self, error: CannotCollect) -> None:
        self._disk_warned = error.code == "dump_config.unwritable"
        self._change("off")
        hint = error.hint(self._language)
        self.say("watch.off", always=True, reason=error.message(self._language) + (" " + hint if hint else ""))

    # --- parts ------------------------------------------------------------------------------------------------------------------

    def _look(self, finite: Optional[bool]) -> None:
        assert self._training is not None and self._collector is not None
        steps, self._looked = self._step - self._looked, self._step
        signs: Sequence[int] = ()
        if any(self._sees_nothing(reader) for reader in self._training.readers) and hasattr(self._collector, "signs"):
            signs = self._collector.signs(self._step - steps, steps)
        for reader, policy in zip(self._training.readers, list(self._policies)):
            known = finite if not reader.guarded else None
            look = policy.look(self._step - 1, steps, reader.read(), known, signs if self._sees_nothing(reader) else ())
            self._collector.step_done(self._step - steps, steps, look.overflows, look.counted, look.pending)
            self._judge(policy, look)
        if self.state == "reported" and not any(policy.is_quiet(self._step) for policy in self._judges):
            self._change("watching")
        if self.state == "collecting":
            self._finish_if_enough()

    @staticmethod
    def _sees_nothing(reader: loss_scale.Reader) -> bool:
        """In saturation mode an overflow looks healthy to an optimizer that does not ask the device."""
        return not reader.asks_device and loss_scale.npu_mode() == "saturation"

    def _judge(self, policy: Policy, look: Look) -> None:
        if look.drop is not None:
            self.drops.append(look.drop)
            self.board.drop(look.drop)
        if look.trigger and self.state in ("watching", "reported") and len(self.reports) < self.options.max_reports:
            self._manifest.trigger = {"step": self._step, "pending": list(look.pending), "scale": look.drop[2] if look.drop else None}
            if self._training is not None and self._training.bad_since is None and look.pending:
                self._training.bad_since = look.pending[0]
            self._start(self._step, lost=not policy.guarded and loss_scale.npu_mode() != "saturation")

    def _start(self, step: int, forced: bool = False, lost: bool = False) -> None:
        """Collect from ``step`` on; ``lost``: nothing skips overflowing steps, and the loss told of it."""
        assert self._collector is not None
        if self._beside is not None:
            self._take(wait=forced)
        if self._beside is not None or len(self.reports) >= self.options.max_reports:
            return
        try:
            self._check_folder()
            self._collector.start(step)
        except CannotCollect as error:
            self._request(error)
            return
        self._collect_from, self._collect_since, self._collect_forced = step, time.time(), forced
        count = max([policy.overflowing_steps for policy in self._judges], default=0)
        if lost:
            self.say("watch.trigger.lost", step=step)
        elif not forced and self.drops:
            before, after = "%g" % self.drops[0][1], "%g" % self.drops[-1][2]
            self.say("watch.trigger", step=step, count=count, before=before, after=after)
        elif not forced:
            self.say("watch.trigger.signs", step=step, count=count)
        self._change("collecting")

    def _check_folder(self) -> None:
        """Find out before a collection, not in the middle of it, that there is no place for its files."""
        assert self._training is not None and self._collector is not None
        if self._collector.name != "host":
            return
        path = self._training.dump_path
        try:
            os.makedirs(path, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                pass
        except OSError as error:
            reason = error.strerror or str(error)
            try:
                self._training.dump_path = tempfile.mkdtemp(prefix="npu_overflow_")
            except OSError:
                self._disk_warned = True
                raise CannotCollect("dump_config.unwritable", path=reports_io.shown(path), reason=reason) from None
            self.say("watch.elsewhere", always=True, path=reports_io.shown(path), reason=reason, folder=self._training.dump_path)

    def _finish_if_enough(self) -> None:
        assert self._collector is not None and self._collect_from is not None
        last_forced = self._collect_forced and not any(self._step <= step < self._step + self.options.max_collect_steps for step in self.options.at_steps)
        enough = self._collector.collected >= self.options.keep or last_forced
        over = self._step - self._collect_from >= self.options.max_collect_steps
        late = time.time() - self._collect_since >= self.options.max_collect_seconds
        if enough or over or late:
            # a step that was asked for and is healthy leaves the watch as it was
            for policy in self._judges if self._collector.collected or not self._collect_forced else ():
                policy.reported(self._step)
            self._change("reported")
            if getattr(self._collector, "in_background", False):
                self._collector.freeze()
                self._gather_beside()
            else:
                self._deliver(self._gather())

    def _change(self, state: str) -> None:
        self.state = state
        self._manifest.state = state
        self._manifest.state_history.append((self._step, state))
        self._write_manifest()

    def _write_manifest(self) -> None:
        assert self._training is not None
        with self._writing:
            self._write_manifest_now()

    def _write_manifest_now(self) -> None:
        assert self._training is not None
        self._manifest.drops = list(self.drops)
        if not self._paused:
            self._manifest.rate = max([policy.rate for policy in self._judges], default=None)
        self._manifest.mode = loss_scale.npu_mode() or "inf_nan"
        tree = self._collector.tree if self._collector is not None else self._manifest.folder
        if self._collector is not None:
            # a collector of the user's own may lack them
            self._manifest.kept_folders = getattr(self._collector, "kept_folders", None)
            self._manifest.kept_steps = list(getattr(self._collector, "kept_steps", ()))
            self._manifest.train_steps = dict(getattr(self._collector, "train_steps", {}))
            self._manifest.folder_steps = dict(getattr(self._collector, "folder_steps", {}))
        folder = tree or self._training.dump_path
        try:
            os.makedirs(folder, exist_ok=True)
            self._manifest.write(folder)
        except OSError as error:
            if not getattr(self, "_disk_warned", False):
                self._disk_warned = True
                self._say_refused("watch.no_disk", folder, error)

    def _new_manifest(self) -> Manifest:
        place = self._ranks
        return Manifest(
            run_id=place.run_id,
            rank=place.rank,
            world_size=place.world_size,
            device=place.device,
            hostname=socket.gethostname(),
            pid=os.getpid(),
            started=time.time(),
            versions=reports_io.versions(),
            mode=loss_scale.npu_mode() or "inf_nan",
            options=reports_io.plain_options(self.options),
            argv=list(sys.argv),
            environment=dict(os.environ),
        )

    def _optimizers(self, model: Any) -> List[Any]:
        given = self.options.optimizer
        if given is not None:
            return list(given) if isinstance(given, (list, tuple)) else [given]
        if model is not None:
            return loss_scale.find_in_model(model)
        return loss_scale.find_optimizers()

    def _looks_apart(self) -> int:
        """Steps between looks: a look waits for the device, so on accelerators it is rarer."""
        if isinstance(self.options.check_every, int):
            return self.options.check_every
        assert self._collector is not None
        return 10 if self._collector.on_accelerator() else 1

    # --- words ------------------------------------------------------------------------------------------------------------------

    def _say_refused(self, code: str, path: str, error: OSError) -> None:
        """The disk refuses: which file, why, and what helps."""
        refused = CannotWrite.of(path, error)
        self.say(code, always=True, error=refused.message(self._language), hint=refused.hint(self._language))

    def say(self, code: str, always: bool = False, **values: Any) -> None:
        """One line to the user: on stderr, so that results on stdout stay clean."""
        if code in _ONCE and code in _said:
            return
        if self.options.verbose or always:
            _said.add(code)
            console.say("%snpu_overflow: %s" % (job.prefix(self._ranks), messages.say(code, self._language, **values)), apart=self._active and self._step > 0)


def _context() -> Any:
    """TensorFlow's eager context as it is now, or None; nothing is imported or made to look."""
    safe = getattr(sys.modules.get("tensorflow.python.eager.context"), "context_safe", None)
    return None if safe is None else safe()


def _at_exit(reference: Any) -> None:
    session = reference()
    if session is not None:
        session.end(failed=True)


