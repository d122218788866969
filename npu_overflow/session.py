"""One training under watch: watching → collecting → reported → watching …, or off. Ties the rooms together; knows nothing of Keras hooks.

A failure in here is logged once with its traceback and turns the watch off. The training never notices.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import socket
import sys
import time
import weakref
from typing import Any, Callable, Iterator, List, Optional, Tuple, TypeVar, cast

from npu_overflow import loss_scale, ranks, saved
from npu_overflow.collectors.base import Collector, Training
from npu_overflow.collectors.choice import choose
from npu_overflow.errors import CannotCollect
from npu_overflow.manifest import Manifest
from npu_overflow.options import DEFAULT_DUMP_PATH, WatchOptions
from npu_overflow.policy import Look, Policy
from npu_overflow.report import texts
from npu_overflow.report.model import Report

__all__ = ["Session"]

log = logging.getLogger("npu_overflow")

F = TypeVar("F", bound=Callable[..., Any])


def _harmless(method: F) -> F:
    """Keep every failure of the watch away from the training; KeyboardInterrupt and SystemExit are the user's and pass."""

    @functools.wraps(method)
    def guarded(self: Session, *args: Any, **kwargs: Any) -> Any:
        if self.state == "off" and method.__name__ != "end":
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception:
            self.fail()
            return None

    return cast(F, guarded)


class Session:
    """The watch's state and everything it does between two training steps.

    Attributes:
        state: "watching", "collecting", "reported" or "off".
        drops: falls of the loss scale: (training step, before, after).
        reports: every Report made, oldest first.
        stop_requested: True once a report was made under ``on_overflow="stop"``.
    """

    def __init__(self, options: WatchOptions) -> None:
        self.options = options
        self.state = "watching"
        self.drops: List[Tuple[int, float, float]] = []
        self.reports: List[Report] = []
        self.stop_requested = False
        self._active = False
        self._collector: Optional[Collector] = None
        self._training: Optional[Training] = None
        self._ranks = ranks.Ranks()

    # --- a training begins and ends ---------------------------------------------------------------------------------------------

    @_harmless
    def begin(self, model: Any = None) -> None:
        """Training begins: find optimizers, choose the collector, take the first look.

        Args:
            model: the Keras model in ``fit``, or None in a loop of the user's own.
        """
        if self._active:
            self._end()  # the training before was left by an exception
        options = self.options
        self._ranks = ranks.ranks_of()
        self.state, self.drops, self.stop_requested = "watching", [], False
        self.reports = []
        self._step = self._looked = self._calls = 0
        self._policies: List[Policy] = []
        self._collect_from: Optional[int] = None
        self._collect_since = 0.0
        self._last_culprit: Optional[str] = None
        self._loss_was_bad = False
        dump_path = os.path.abspath(options.dump_path or ranks.rank_folder(DEFAULT_DUMP_PATH, self._ranks))
        self._training = Training(
            options, dump_path, model, rank=self._ranks.rank, world_size=self._ranks.world_size, device=self._ranks.device, say=self.say, fail=self.fail
        )
        self._manifest = self._new_manifest()
        self._active = True
        atexit.register(_at_exit, weakref.ref(self))
        self._collector, why = choose(options.collector)
        try:
            self._collector.prepare(self._training)
        except CannotCollect as error:
            self._turn_off(error)
            return
        self.say("watch.collector." + self._collector.name, why=why)
        self._check_every = self._looks_apart()
        self._manifest.collector = self._collector.name
        for optimizer in self._optimizers(model):
            self.add_optimizer(optimizer)

    @_harmless
    def add_optimizer(self, optimizer: Any) -> None:
        """Watch one more optimizer; one that is watched already is left alone."""
        assert self._training is not None
        reader = loss_scale.reader_for(optimizer)
        if any(known.optimizer is reader.optimizer for known in self._training.readers):
            return
        self._training.readers.append(reader)
        options = self.options
        policy = Policy(
            options.patience,
            options.window,
            options.warmup,
            options.min_scale,
            counts_skipped_steps=reader.counts_skipped_steps,
            floor=reader.floor,
            dynamic=reader.dynamic,
            guarded=reader.guarded,
        )
        policy.look(self._step, 0, reader.read())
        self._policies.append(policy)
        self._manifest.optimizers.append({"name": reader.name, "family": reader.family, "dynamic": reader.dynamic, "floor": reader.floor})
        if reader.blind:
            self.say("watch.blind", always=True, optimizer=reader.name)
        elif not reader.guarded:
            self.say("watch.unguarded", optimizer=reader.name)

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
        try:
            if self.state == "collecting":
                self._report()
            if self.state != "off" and not failed:
                self._closing_line()
        finally:
            if self._collector is not None:
                self._collector.close()
            if self._manifest.folder is not None:
                self._write_manifest()

    def _closing_line(self) -> None:
        seen = [(policy.overflowing_steps, policy.steps, policy.rate) for policy in self._policies if policy.overflowing_steps]
        for overflowing, steps, rate in seen:
            self.say("watch.rate", overflowing=overflowing, steps=steps, percent="%.2f" % (100 * rate))
        assert self._training is not None
        if self._calls >= 20 and not self._training.readers:
            self.say("watch.no_optimizer", always=True)

    def fail(self) -> None:
        """The watch itself failed: log it once, turn off, leave the training alone."""
        log.error(texts.say("watch.failed", self._language), exc_info=True)
        self.state = "off"
        with contextlib.suppress(Exception):
            if self._collector is not None:
                self._collector.close()

    def _turn_off(self, error: CannotCollect) -> None:
        self.state = "off"
        hint = error.hint(self._language)
        self.say("watch.off", always=True, reason=error.message(self._language) + (" " + hint if hint else ""))

    # --- steps ------------------------------------------------------------------------------------------------------------------

    @_harmless
    def before_fit_call(self, model: Any, steps: int) -> None:
        """``fit`` is about to run its training function over ``steps`` steps."""
        self._force(self._step, steps)
        if self.state == "collecting" and self._collector is not None:
            self._collector.arm_fit(model, self._step)

    @_harmless
    def after_steps(self, steps: int, finite: Optional[bool] = None) -> None:
        """``steps`` training steps have ended.

        Args:
            steps: how many since the last call.
            finite: whether the last step's loss was finite, where it is known.
        """
        self._step += steps
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
        call.result = proceed(*args, **kwargs)
        self._after_function(call)
        return call.result

    @_harmless
    def _before_function(self, call: Any) -> None:
        self._calls += 1
        self._force(self._step, 1)
        if self.state == "collecting" and self._collector is not None:
            self._collector.before_function(call, self._step)

    @_harmless
    def _after_function(self, call: Any) -> None:
        assert self._collector is not None
        if self.state == "collecting":
            self._collector.after_function(call, self._step)
        steps = self._moved()
        if steps:
            self._collector.moved(call)
            self.after_steps(steps)

    @_harmless
    def epoch_begins(self) -> None:
        """Keras starts its running mean of the loss again: after one non-finite step it says nothing until then."""
        self._loss_was_bad = False

    @property
    def needs_loss(self) -> bool:
        """Whether the loss is looked at: only where nothing skips an overflowing step, so that no loss scale tells."""
        if self.state == "off" or self._training is None or self._loss_was_bad:
            return False
        return not any(reader.guarded for reader in self._training.readers)

    @_harmless
    def surround(self, undo: List[Callable[[], None]]) -> None:
        """See the calls of tf.functions on this thread and the optimizers that are still to be made; ``undo`` gets what ends it."""
        from npu_overflow.collectors.functions import FunctionCalls

        calls = FunctionCalls(self.function_call)
        calls.install()
        undo.append(calls.remove)
        undo.append(loss_scale.watch_new_optimizers(self.add_optimizer))

    @contextlib.contextmanager
    def marked_step(self) -> Iterator[None]:
        """One step of a loop that nothing else reveals."""
        if self.state == "off" or self._collector is None:
            yield
            return
        self._force(self._step, 1)
        before, calls = self._step, self._calls
        if self.state == "collecting" and not self._collector.knows_functions:
            with self._collector.observed_step(self._step):
                yield
        else:
            yield
        if self._step == before:  # no tf.function in it has told of the step already
            self.after_steps(max(self._moved(), 1) if self._calls == calls else 1)

    @_harmless
    def told_step(self, scale: Optional[float], finite: Optional[bool]) -> None:
        """The user tells how a step went."""
        if not self._policies:
            self._policies.append(Policy(self.options.patience, self.options.window, self.options.warmup, self.options.min_scale,
                                         counts_skipped_steps=False, floor=None, dynamic=scale is not None, guarded=scale is not None))
        self._step += 1
        reading = None if scale is None else loss_scale.Reading(float(scale))
        self._judge(self._policies[0], self._policies[0].look(self._step - 1, 1, reading, finite))

    # --- parts ------------------------------------------------------------------------------------------------------------------

    def _force(self, step: int, steps: int) -> None:
        assert self._training is not None
        self._training.forced = any(step <= wanted < step + steps for wanted in self.options.at_steps)
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
                grown = max(1, reading.iterations - previous.iterations)
            steps = max(steps, grown)
        return max(0, steps - (self._step - self._looked)) if self._check_every > 1 else steps

    def _look(self, finite: Optional[bool]) -> None:
        assert self._training is not None and self._collector is not None
        steps, self._looked = self._step - self._looked, self._step
        for reader, policy in zip(self._training.readers, list(self._policies)):
            known = finite if not reader.guarded else None
            look = policy.look(self._step - 1, steps, reader.read(), known)
            self._collector.step_done(self._step - steps, steps, look.overflows, look.counted, look.pending)
            self._judge(policy, look)
        if self.state == "reported" and not any(policy.is_quiet(self._step) for policy in self._policies):
            self._change("watching")
        if self.state == "collecting":
            self._finish_if_enough()

    def _judge(self, policy: Policy, look: Look) -> None:
        if look.drop is not None:
            self.drops.append(look.drop)
        if look.trigger and self.state in ("watching", "reported") and len(self.reports) < self.options.max_reports:
            self._manifest.trigger = {"step": self._step - 1, "pending": list(look.pending), "scale": look.drop[2] if look.drop else None}
            if self._training is not None and self._training.bad_since is None and look.pending:
                self._training.bad_since = look.pending[0]
            self._start(self._step)

    def _start(self, step: int, forced: bool = False) -> None:
        assert self._collector is not None
        if len(self.reports) >= self.options.max_reports:
            return
        try:
            self._collector.start(step)
        except CannotCollect as error:
            self._request(error)
            return
        self._collect_from, self._collect_since, self._collect_forced = step, time.time(), forced
        if not forced:
            self.say("watch.trigger", step=step, drops=len(self.drops))
        self._change("collecting")

    def _request(self, error: CannotCollect) -> None:
        """Collecting is impossible in this process: record what is wanted, say what to do, and go on."""
        self._manifest.request = {"why": error.code, "step": self._step}
        hint = error.hint(self._language)
        self.say("watch.request", always=True, reason=error.message(self._language) + (" " + hint if hint else ""))
        for policy in self._policies:
            policy.reported(self._step)
        self._change("reported")

    def _finish_if_enough(self) -> None:
        assert self._collector is not None and self._collect_from is not None
        last_forced = self._collect_forced and not any(self._step <= step < self._step + self.options.max_collect_steps for step in self.options.at_steps)
        enough = self._collector.collected >= self.options.keep or last_forced
        over = self._step - self._collect_from >= self.options.max_collect_steps
        late = time.time() - self._collect_since >= self.options.max_collect_seconds
        if enough or over or late:
            self._report()

    def _report(self) -> None:
        """Analyze what was collected, save and print it."""
        assert self._collector is not None and self._training is not None
        self._collector.stop()
        tree = self._collector.tree
        self._manifest.remarks = [(code, dict(values)) for code, values in self._collector.remarks]
        self._manifest.reason = self._collector.reason
        for policy in self._policies:
            policy.reported(self._step)
        if tree is None and self._collector.reason is None:
            self._change("watching")
            self.say("watch.nothing_collected")
            return
        self._change("reported")
        folder = tree or self._training.dump_path
        report = saved.analyzed(folder, self._manifest) if tree else saved.empty(folder, self._manifest)
        self.reports.append(report)
        path = saved.save(report, folder, self._manifest, self._language)
        self._show(report, path, folder)
        if self.options.on_report is not None:
            self._tell_user(report)
        if self.options.on_overflow == "stop":
            self.stop_requested = True

    def _show(self, report: Report, path: Optional[str], folder: str) -> None:
        culprit = report.first.op_name if report.first is not None else None
        if culprit is not None and culprit == self._last_culprit:
            self.say("watch.same_culprit", name=culprit, step=self._step)
            return
        self._last_culprit = culprit
        if self.options.verbose and (report.first is not None or not self._ranks.several):
            from npu_overflow.report import terminal

            sys.stdout.write("\n")  # a progress bar may stand on this line
            terminal.print_report(report, limit=self.options.limit, saved=path, next_command="npu-overflow analyze %s" % saved.shown(folder),
                                  language=self._language)
            sys.stdout.flush()

    def _tell_user(self, report: Report) -> None:
        try:
            assert self.options.on_report is not None
            self.options.on_report(report)
        except Exception:
            log.error(texts.say("watch.on_report_failed", self._language), exc_info=True)

    def _change(self, state: str) -> None:
        self.state = state
        self._manifest.state = state
        self._manifest.state_history.append((self._step, state))
        self._write_manifest()

    def _write_manifest(self) -> None:
        assert self._training is not None
        self._manifest.drops = list(self.drops)
        self._manifest.rate = max([policy.rate for policy in self._policies], default=None)
        tree = self._collector.tree if self._collector is not None else None
        if self._collector is not None:
            # a collector of the user's own may lack them
            self._manifest.kept_folders = getattr(self._collector, "kept_folders", None)
            self._manifest.kept_steps = list(getattr(self._collector, "kept_steps", ()))
            self._manifest.train_steps = dict(getattr(self._collector, "train_steps", {}))
        folder = tree or self._training.dump_path
        try:
            os.makedirs(folder, exist_ok=True)
            self._manifest.write(folder)
        except OSError as error:
            if not getattr(self, "_disk_warned", False):
                self._disk_warned = True
                self.say("watch.no_disk", always=True, folder=folder, error=str(error))

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
            versions=saved.versions(),
            mode=loss_scale.npu_mode() or "inf_nan",
            options=saved.plain_options(self.options),
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

    @property
    def _language(self) -> str:
        return self.options.language or texts.language_of_user()

    def say(self, code: str, always: bool = False, **values: Any) -> None:
        """One line to the user: on stderr, so that results on stdout stay clean."""
        if self.options.verbose or always:
            sys.stderr.write("%snpu_overflow: %s\n" % (ranks.prefix(self._ranks), texts.say(code, self._language, **values)))
            sys.stderr.flush()


def _at_exit(reference: Any) -> None:
    session = reference()
    if session is not None:
        session.end(failed=True)


