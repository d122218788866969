"""TensorFlow on a CPU or GPU: from the trigger on, steps are recorded; those that overflowed are
run again beside the training."""
from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from npu_overflow.collect.base import Collector, Training
from npu_overflow.collect.replay import batches, environment
from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.blame import Findings, examine
from npu_overflow.collect.replay.cure import trials_of
from npu_overflow.collect.replay.interpreter import Step
from npu_overflow.collect.replay.names import Names, layers_known_by_variables, variable_name
from npu_overflow.collect.replay.recorder import Record, Recorder
from npu_overflow.collect.replay.survey import survey
from npu_overflow.collect.replay.tree import HostTree
from npu_overflow.dump.replay_info import TrialInfo
from npu_overflow.errors import CannotCollect
from npu_overflow.training import console
from npu_overflow.training.tracked import TrackedOptimizer

__all__ = ["ReplayCollector"]

_BATCH = ("x", "y", "sample_weight")
_MOST_BATCHES = 64  # drawn by hand for one call


class _Given:
    """What a step was given, as far as its record does not tell."""

    def __init__(self) -> None:
        self.labels: Dict[int, str] = {}
        self.names: List[str] = []
        self.arguments: List[List[str]] = []  # of each call of a function
        self.steps = 1

    def take(self, drawn: List[Any]) -> None:
        """The step is given these batches."""
        self.steps = len(drawn)
        named = batches.names_in(drawn[0], _BATCH)
        self.names = [name for name, _ in named]
        self.labels.update(batches.labels_of(named))

    def call(self, call: Any) -> None:
        """Name what a function is called with; of arrays, tensors only inside, names in order."""
        args, names = call.args, call.names
        if call.is_of_keras and names[:1] == ("data",) and args:
            self.take(args[:1])
            args, names = args[0], _BATCH
        known = [*batches.names_in(args, names), *batches.names_in(call.kwargs)]
        self.labels.update(batches.labels_of(known))
        self.arguments.append([name for name, value in known if hasattr(value, "shape")])

    def name_arguments(self, record: Record) -> None:
        """Name the tensors that arrays became, by their places in the functions' graphs."""
        for entry in reversed([entry for entry in record.entries if entry.graph is not None]):
            own = zip(entry.numbers, map(_own_name, entry.graph.inputs))
            named = [(number, name) for number, name in own if name]
            names = self.arguments.pop() if named and self.arguments else []
            for i, (number, name) in enumerate(named):
                self.labels.setdefault(number, names[i] if len(names) == len(named) else name)


class ReplayCollector(Collector):
    """Records steps and runs those that overflowed again; see ``interpreter`` and ``blame``."""

    name = "host"
    collected = 0
    tree: Optional[str] = None
    _training: Training
    _recorder: Optional[Recorder] = None
    _writer: Optional[HostTree] = None

    def __init__(self) -> None:
        self.kept_steps: List[int] = []
        self.remarks: List[Tuple[str, Dict[str, Any]]] = []
        self._tried: Set[str] = set()  # names of operators that advice was tried for
        self._given = _Given()
        self._surveyed = False  # in the present collection
        self._step_has_ended = False
        self._before: List[TrackedOptimizer] = []  # as the present step began
        self._own_function: Tuple[Any, Any] = (None, None)  # fit's, and the same over batches

    # --- the collector protocol -------------------------------------------------------------------

    def prepare(self, training: Training) -> None:
        """Raises CannotCollect for what can't be recorded in this process."""
        self._training = training
        environment.check(training.model)
        lost = [item.name for item in private.missing() if item.needed]
        if lost:
            raise CannotCollect("replay.internals", name=", ".join(lost))

    def start(self, step: int) -> None:
        """Record from ``step`` on."""
        self.collected, self.kept_steps, self._surveyed = 0, [], False
        self._writer = self.tree = self.reason = None
        self.remarks = [(item.lost, {"name": item.name}) for item in private.missing()]
        self._recorder = Recorder(self._training.options.max_memory, self._keeps_all)
        if self._training.model is None:
            self._recorder.on()
        self._begin_step(step)

    def stop(self) -> None:
        """Stop recording."""
        if self._recorder is not None:
            self._recorder.off()
            batches.fed.clear()
        self._recorder, self._writer, self._given = None, None, _Given()

    def on_accelerator(self) -> bool:
        """Whether TensorFlow places operators on a GPU."""
        return environment.core() == "GPU"

    # --- fit --------------------------------------------------------------------------------------

    def arm_fit(self, model: Any, step: int) -> None:
        """Stand between ``fit`` and its compiled function, for the next call only."""
        real = model.train_function
        if real is None or self._recorder is None:
            return

        def train_function(iterator: Any) -> Any:
            if model.train_function is train_function:
                model.train_function = real
            return self._fit_call(model, step, real, iterator)

        model.train_function = train_function

    def _fit_call(self, model: Any, step: int, real: Callable[[Any], Any], iterator: Any) -> Any:
        """What ``fit`` calls instead. Only what is the user's may raise: ``real``, the pipeline."""
        recorder, drawn = self._recorder, []
        local, steps = batches.can_feed(iterator), private.steps_per_execution(model)
        if not (local or (environment.is_mirrored(model) and steps == 1)):
            self._failed(step, CannotCollect("replay.distributed"))
        elif steps > _MOST_BATCHES:
            self._failed(step, CannotCollect("replay.many_steps", steps=steps, most=_MOST_BATCHES))
        elif recorder is not None:
            drawn = batches.draw(iterator, steps)
        if not drawn or recorder is None:  # also where the pipeline has ended: ``real`` says so
            return real(iterator)
        function = real if local else self._over_batches(real)
        given = batches.feed(drawn, iterator.element_spec) if local else drawn
        with self._never_raises():
            recorder.on()
            self._begin_step(step)
            self._given.take(drawn)
        try:
            result = function(given)
            with self._never_raises():
                self._end_step(step)
        finally:
            recorder.off()
        return result

    def _over_batches(self, real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The training function over batches drawn by hand, for distributed iterators. Keras 3's
        takes a list; that of tf.keras is compiled once more around a batch: the same operators."""
        if not hasattr(real, "python_function"):
            return real
        if self._own_function[0] is not real:
            import tensorflow as tf

            compiled = tf.function(lambda batch: real.python_function(iter([batch])))
            self._own_function = (real, lambda drawn: compiled(drawn[0]))
        ours: Callable[[Any], Any] = self._own_function[1]
        return ours

    # --- loops of the user's own ------------------------------------------------------------------

    def before_function(self, call: Any, step: int) -> None:
        """Name what the call is given, and draw by hand the batches that it is going to draw."""
        if self._recorder is not None:
            self._given.call(call)
            call.take_batches(_MOST_BATCHES)
            if call.drawn:
                self._given.take(call.drawn)

    def step_ended(self, step: int, overflowed: Optional[bool] = None) -> None:
        """Run the step's record again, if it overflowed."""
        self._step_has_ended = True
        if self._recorder is not None:
            self._end_step(step, overflowed)
            self._begin_step(step + 1)

    @contextlib.contextmanager
    def observed_step(self, step: int) -> Iterator[None]:
        """A marked step begins and ends here, unless a function or an optimizer inside ends it."""
        if self._recorder is not None:
            self._recorder.forget()
            self._begin_step(step)
        self._step_has_ended = False
        yield
        if not self._step_has_ended:
            with self._never_raises():
                self.step_ended(step)

    # --- steps ------------------------------------------------------------------------------------

    def _begin_step(self, step: int) -> None:
        assert self._recorder is not None
        self._given = _Given()
        options, readers = self._training.options, self._training.readers
        self._before = [TrackedOptimizer.begun(reader, options, step) for reader in readers]
        self._recorder.begin_step(v for reader in readers for v in reader.state_variables())

    def _end_step(self, step: int, overflowed: Optional[bool] = None) -> None:
        recorder = self._recorder
        assert recorder is not None
        if overflowed is None:
            looks = [item.check(step, self._given.steps, None, ()) for item in self._before]
            overflowed = any(look.overflows for look in looks)
        if not overflowed and not self._is_wanted_anyway():
            return
        with recorder.paused():
            record = recorder.record()
            try:
                if recorder.gave_up:
                    raise CannotCollect("replay.incomplete")
                if record.too_large:
                    raise CannotCollect("replay.memory")
                taken = self._step(recorder, record, overflowed)
                found = examine(taken, self._training.options.max_memory)
                self._check_begin(recorder, record, found)
            except CannotCollect as error:
                self._failed(step, error)
            else:
                self._found(step, taken, found, overflowed)
                if self._training.forced:
                    self._survey(step, taken)

    def _step(self, recorder: Recorder, record: Record, overflowed: bool) -> Step:
        """The record with what is known besides it."""
        training = self._training
        for holder in (training.model, *(reader.optimizer for reader in training.readers)):
            for variable in _listed(holder, "variables") + _listed(holder, "_trainable_variables"):
                numbers = private.handles_by_number([variable])
                record.variables.update(dict.fromkeys(numbers, variable))
        self._given.name_arguments(record)
        scales = [item.reader.scale_variable() for item in self._before]
        return Step(
            record,
            recorder.programs,
            self._given.labels,
            batches.fed,
            self._given.names,
            frozenset(private.handles_by_number(scale for scale in scales if scale is not None)),
            several=self._given.steps > 1,
            workers=training.world_size,
            skipped=overflowed and self._is_guarded(),
            most_seconds=training.options.max_collect_seconds,
        )

    def _check_begin(self, recorder: Recorder, record: Record, found: Findings) -> None:
        """A variable can be blamed only where its value at the beginning of the step is known: the
        step itself may have spoiled it. A step that was skipped has not."""
        source = found.culprit.source if found.culprit is not None else None
        if source is None or source.kind != "variable" or source.handle in record.begin:
            return
        if recorder.may_have_written(source.handle, self._keeps_all()):
            raise CannotCollect("replay.begin", name=_name(record, source.handle))

    def _found(self, step: int, taken: Step, found: Findings, overflowed: bool) -> None:
        guarded = self._is_guarded()
        skipped = overflowed and guarded
        if not (found.reached or skipped or (found.absorbed and not guarded)):
            return  # a step that was asked for and is healthy
        self.collected += 1
        if found.reached:
            self.reason = None
            self._write(step, taken, found)
            self._weights_lost(step, taken.record, found)
        elif skipped or (overflowed and self._training.world_size > 1):
            told = "other_rank" if self._training.world_size > 1 else "not_reproduced"
            self.reason = self.reason or told
            self.remarks.append(("replay." + told, {"step": step}))
        else:
            self._write(step, taken, found)
            self.reason = self.reason or "absorbed"

    def _weights_lost(self, step: int, record: Record, found: Findings) -> None:
        """Say since when weights are non-finite, where a variable is to blame."""
        source = found.culprit.source if found.culprit is not None else None
        if source is None or source.kind != "variable":
            return
        if any(code.startswith("host.weights_lost") for code, _ in self.remarks):
            return
        training = self._training
        since = training.bad_since if training.bad_since is not None else step
        values: Dict[str, Any] = {"step": since, "name": _name(record, source.handle)}
        # Under MirroredStrategy Keras 3 asks only the first replica: it skips no step of another's,
        # and the first sign comes later.
        one = environment.replicas(training.model) == 1
        if any(item.guarded and (one or item.family != "keras_3") for item in training.readers):
            self.remarks.append(("host.weights_lost.guarded", values))
        else:
            values["wanted"] = [number for number in (since - 1, since) if number >= 0]
            self.remarks.append(("host.weights_lost", values))

    def _write(self, step: int, taken: Step, found: Findings) -> None:
        names = self._names(taken.record)
        trials = self._trials(taken, found, names)
        variable = partial(_name, taken.record)
        left_out = self._tree().write(step, found, trials, names.of, variable)
        if step not in self.kept_steps:
            self.kept_steps.append(step)
        if left_out:
            self.remarks.append(("host.disk_budget", {"step": step, "count": left_out}))

    def _tree(self) -> HostTree:
        """Where this collection is written; made when there is something to write."""
        if self._writer is None:
            training, core = self._training, environment.core()
            name = str(getattr(training.model, "name", None) or "custom_loop")
            room = training.options.max_disk
            self._writer = HostTree(training.dump_path, name, training.device, core, room)
            self.tree = self._writer.path
        return self._writer

    def _names(self, record: Record) -> Names:
        model = self._training.model
        layers: Dict[str, List[Any]] = {}
        for layer in private.layers_of(model) if model is not None else ():
            layers.setdefault(str(getattr(layer, "name", "")), []).append(layer)
        for name in layers_known_by_variables(map(variable_name, record.variables.values())):
            layers.setdefault(name, [])
        return Names(record, layers, str(getattr(model, "name", "")))

    def _survey(self, step: int, taken: Step) -> None:
        """How near a step that was asked for comes to float16's limits; the first of several."""
        if self._surveyed:
            return
        self._surveyed = True
        try:
            found = survey(taken, self._names(taken.record))
        except CannotCollect as error:
            self.remarks.append(("replay.no_survey", {"step": step, "error": error.message()}))
            return
        if found is not None:
            self._tree().write_survey(step, found)

    def _trials(self, taken: Step, found: Findings, names: Names) -> List[TrialInfo]:
        """What would help, tried once for each operator to blame."""
        op = found.culprit.op if found.culprit is not None else None
        if op is None or names.name(op) in self._tried:
            return []
        self._tried.add(names.name(op))
        try:
            return trials_of(taken, found, names)
        except Exception:  # advice is worth no report
            console.log_failure("trying advice on the step failed; the report lacks it")
            return []

    def _failed(self, step: int, error: CannotCollect) -> None:
        self.collected += 1
        self.remarks.append(("replay.failed", {"step": step, "error": error.message()}))
        self.reason = self.reason or error.code

    # --- parts ------------------------------------------------------------------------------------

    def _is_guarded(self) -> bool:
        """Whether anything skips a step that overflows."""
        return any(item.reader.guarded for item in self._before)

    def _is_wanted_anyway(self) -> bool:
        """Whether the step is run again whatever the loss scale says."""
        return self._training.forced or not self._is_guarded()

    def _keeps_all(self) -> bool:
        return self._is_wanted_anyway() or self._given.steps > 1

    @contextlib.contextmanager
    def _never_raises(self) -> Iterator[None]:
        """Our own failure beside a training step: the watch turns off, the training goes on."""
        try:
            yield
        except Exception:
            self._training.fail()


def _own_name(placeholder: Any) -> str:
    """The name that the signature gives an argument of a function; "" of a captured tensor."""
    if placeholder.dtype.name in ("resource", "variant"):
        return ""
    return str(placeholder.op.node_def.attr["_user_specified_name"].s.decode())


def _name(record: Record, handle: int) -> str:
    """Name of the variable with this number of its handle."""
    return variable_name(record.variables.get(handle))


def _listed(holder: Any, attribute: str) -> List[Any]:
    try:
        found = getattr(holder, attribute, ())
        return list(found() if callable(found) else found)
    except Exception:  # a model or optimizer of the user's own, not built
        return []
