"""TensorFlow on a CPU or GPU: from the trigger on, steps are recorded; those that overflowed are run again beside the training."""
from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Dict, Iterator, List, Optional, Set, Tuple

from npu_overflow.collect.base import Collector, Training
from npu_overflow.collect.replay import batches, environment
from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.blame import Findings, examine
from npu_overflow.collect.replay.cure import Trial, trials_of
from npu_overflow.collect.replay.interpreter import Step
from npu_overflow.collect.replay.names import Names, layers_known_by_variables, variable_name
from npu_overflow.collect.replay.recorder import Record, Recorder
from npu_overflow.collect.replay.tree import HostTree
from npu_overflow.errors import CannotCollect
from npu_overflow.training import console

__all__ = ["ReplayCollector"]

log = logging.getLogger("npu_overflow")

_BATCH = ("x", "y", "sample_weight")
_MOST_BATCHES = 64  # drawn by hand for one call

Readings = List[Tuple[Any, Any]]  # reader, what it read


class _Given:
    """What a step was given, as far as its record does not tell: names, and the batches behind iterators."""

    def __init__(self) -> None:
        self.labels: Dict[int, str] = {}
        self.names: List[str] = []
        self.arguments: List[List[str]] = []  # of each call of a function
        self.steps = 1

    def take(self, drawn: List[Any]) -> None:
        """The step is given an iterator over these batches."""
        self.name(drawn[0])
        self.steps = len(drawn)

    def name(self, batch: Any) -> None:
        """Name the tensors of a batch."""
        self.names = [name for name, _ in batches.names_in(batch, _BATCH)]
        self.labels.update(batches.labels_of(batch, _BATCH))

    def call(self, call: Any) -> None:
        """Name what a function is called with. Arrays become tensors only inside the call: their names are kept in order."""
        args, names = call.args, call.names
        if call.is_of_keras and names[:1] == ("data",) and args:
            self.name(args[0])
            args, names = args[0], _BATCH
        known = [*batches.names_in(args, names), *batches.names_in(call.kwargs)]
        self.labels.update(batches.labels_of(args, names))
        self.labels.update(batches.labels_of(call.kwargs))
        self.arguments.append([name for name, value in known if hasattr(value, "dtype") and hasattr(value, "shape")])

    def name_arguments(self, record: Record) -> None:
        """Name the tensors that arrays became, by the places of the arguments in the functions' graphs."""
        waiting = list(self.arguments)
        for entry in reversed([entry for entry in record.entries if entry.graph is not None]):
            given = list(zip(entry.numbers, entry.graph.inputs))
            named = [(number, _own_name(tensor)) for number, tensor in given if _own_name(tensor)]
            if not named:
                continue
            names = waiting.pop() if waiting else []
            for i, (number, name) in enumerate(named):
                self.labels.setdefault(number, names[i] if len(names) == len(named) else name)


class ReplayCollector(Collector):
    """Runs the records of overflowed steps again; see ``interpreter`` for how, ``blame`` for whom it blames."""

    name = "host"

    def __init__(self) -> None:
        self._training: Optional[Training] = None
        self._recorder: Optional[Recorder] = None
        self._tree: Optional[HostTree] = None
        self._path: Optional[str] = None
        self._collected = 0
        self.kept_steps: List[int] = []
        self._told: List[Tuple[str, Dict[str, Any]]] = []
        self._tried: Set[str] = set()  # names of operators that advice was tried for
        self._given = _Given()
        self._step_has_ended = False
        self._before: Readings = []  # when the present step began
        self._own_function: Optional[Tuple[Any, Any]] = None  # fit's function, and the same over batches

    # --- the collector protocol -------------------------------------------------------------------------------------------------

    def prepare(self, training: Training) -> None:
        """Look at the process: what can't be recorded turns the collector off with one message."""
        self._training = training
        environment.check(training.model)
        lost = [item.name for item in private.missing() if item.needed]
        if lost:
            raise CannotCollect("replay.internals", name=", ".join(lost))

    def start(self, step: int) -> None:
        """Record from ``step`` on."""
        self._collected, self.kept_steps, self._tree, self._path, self.reason = 0, [], None, None, None
        self._told = [(item.lost, {"name": item.name}) for item in private.missing()]
        self._recorder = Recorder(self._known().options.max_memory, self._keeps_all)
        if self._known().model is None:
            self._recorder.on()
        self._begin_step()

    @property
    def collected(self) -> int:
        """Overflowed steps since ``start``, whether or not running them again showed an overflow."""
        return self._collected

    def stop(self) -> None:
        """Stop recording."""
        if self._recorder is not None:
            self._recorder.off()
            batches.fed.clear()
        self._recorder, self._tree, self._given = None, None, _Given()

    @property
    def remarks(self) -> List[Tuple[str, Dict[str, Any]]]:  # type: ignore[override]
        """What was left out of the last collection, and why."""
        return self._told

    @property
    def tree(self) -> Optional[str]:
        """The time folder of this collection."""
        return self._path

    def on_accelerator(self) -> bool:
        """Whether TensorFlow places operators on a GPU."""
        return environment.core() == "GPU"

    # --- fit --------------------------------------------------------------------------------------------------------------------

    def arm_fit(self, model: Any, step: int) -> None:
        """Stand between ``fit`` and its compiled function, for the next call only: an exception elsewhere leaves nothing behind."""
        real = model.train_function
        if real is None or self._recorder is None:
            return

        def train_function(iterator: Any) -> Any:
            if model.train_function is train_function:
                model.train_function = real
            return self._fit_call(model, step, real, iterator) if self._recorder is not None else real(iterator)

        model.train_function = train_function

    def _fit_call(self, model: Any, step: int, real: Callable[[Any], Any], iterator: Any) -> Any:
        """What ``fit`` calls instead of its compiled function. Only ``real`` and the pipeline may raise: that is the user's."""
        assert self._recorder is not None
        local, steps = batches.can_feed(iterator), private.steps_per_execution(model)
        if not local and (type(model.distribute_strategy).__name__ != "MirroredStrategy" or steps > 1):
            self._failed(step, CannotCollect("replay.distributed"))
            return real(iterator)
        if steps > _MOST_BATCHES:
            self._failed(step, CannotCollect("replay.many_steps", steps=steps, most=_MOST_BATCHES))
            return real(iterator)
        drawn = batches.draw(iterator, steps)
        if not drawn:
            return real(iterator)  # the pipeline has ended: the function says so itself
        self._given = _Given()
        if local:
            given = batches.feed(drawn, iterator.element_spec)
            self._given.take(drawn)
        else:
            real, given = self._over_batches(real), drawn
            self._given.name(drawn[0])
        with self._never_raises():
            self._recorder.on()
            self._begin_step(keep_given=True)
        try:
            result = real(given)
            with self._never_raises():
                self._end_step(step)
        finally:
            if self._recorder is not None:
                self._recorder.off()
        return result

    def _over_batches(self, real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The training function over batches drawn by hand, for iterators that can't be stood in for.

        Keras 3's takes a list. That of tf.keras is compiled once more around a batch instead of an iterator: the same operators.
        """
        if not hasattr(real, "python_function"):
            return real
        if self._own_function is None or self._own_function[0] is not real:
            import tensorflow as tf

            compiled = tf.function(lambda batch: real.python_function(batches.Batches([batch])))
            self._own_function = (real, compiled)
        compiled = self._own_function[1]
        return lambda drawn: compiled(drawn[0])

    # --- loops of the user's own ------------------------------------------------------------------------------------------------

    def before_function(self, call: Any, step: int) -> None:
        """Name what the call is given, and draw by hand the batches that it is going to draw."""
        if self._recorder is None:
            return
        self._given.call(call)
        call.take_batches(_MOST_BATCHES)
        if call.drawn:
            self._given.take(call.drawn)

    def step_ended(self, step: int, overflowed: Optional[bool] = None) -> None:
        """Run the step's record again, if it overflowed."""
        self._step_has_ended = True
        if self._recorder is not None:
            self._end_step(step, overflowed)
            self._begin_step()

    @contextlib.contextmanager
    def observed_step(self, step: int) -> Iterator[None]:
        """A step that the user marked: it begins and ends here, unless a function or an optimizer inside ends it."""
        if self._recorder is not None:
            self._recorder.forget()
            self._begin_step()
        self._step_has_ended = False
        yield
        if not self._step_has_ended:
            with self._never_raises():
                self.step_ended(step)

    # --- steps ------------------------------------------------------------------------------------------------------------------

    def _begin_step(self, keep_given: bool = False) -> None:
        assert self._recorder is not None
        if not keep_given:
            self._given = _Given()
        self._before = self._readings()
        self._recorder.begin_step([variable for reader, _ in self._before for variable in reader.state_variables()])

    def _end_step(self, step: int, overflowed: Optional[bool] = None) -> None:
        assert self._recorder is not None
        if overflowed is None:
            overflowed = _overflowed(self._before, self._readings(), self._given.steps)
        if not overflowed and not self._is_wanted_anyway():
            return
        with self._recorder.paused():
            record = self._recorder.record()
            try:
                if self._recorder.gave_up:
                    raise CannotCollect("replay.incomplete")
                if record.too_large:
                    raise CannotCollect("replay.memory")
                taken = self._step(record, overflowed)
                found = examine(taken, self._known().options.max_memory)
                self._check_begin(record, found)
            except CannotCollect as error:
                self._failed(step, error)
            else:
                self._found(step, taken, found, overflowed)

    def _step(self, record: Record, overflowed: bool) -> Step:
        """The record with what is known besides it."""
        assert self._recorder is not None
        training = self._known()
        for variable in getattr(training.model, "trainable_variables", ()):
            for handle in private.handles_of(variable):
                record.variables[private.tensor_id(handle)] = variable
        self._given.name_arguments(record)
        scales = [reader.scale_variable() for reader, _ in self._before]
        return Step(
            record,
            self._recorder.programs,
            self._given.labels,
            batches.fed,
            self._given.names,
            frozenset(private.tensor_id(handle) for variable in scales if variable is not None for handle in private.handles_of(variable)),
            several=self._given.steps > 1,
            workers=training.world_size,
            skipped=overflowed and self._is_guarded(),
            most_seconds=training.options.max_collect_seconds,
        )

    def _check_begin(self, record: Record, found: Findings) -> None:
        """A variable can be blamed only where its value at the beginning of the step is known: the step itself may have spoiled it.
        A step that was skipped has not."""
        source = found.culprit.source if found.culprit is not None else None
        if source is None or source.kind != "variable" or source.handle in record.begin:
            return
        assert self._recorder is not None
        if self._recorder.may_have_written(source.handle, self._keeps_all()):
            raise CannotCollect("replay.begin", name=self._variable_names(record)(source.handle))

    def _found(self, step: int, taken: Step, found: Findings, overflowed: bool) -> None:
        harmless = not found.reached and (not found.absorbed or self._is_guarded())
        if harmless and not (overflowed and self._is_guarded()):
            return  # a step that was asked for and is healthy
        self._collected += 1
        if found.reached:
            self.reason = None
            self._write(step, taken, found)
            self._weights_lost(step, taken.record, found)
        elif self._known().world_size > 1 and overflowed:
            self.reason = self.reason or "other_rank"
            self._told.append(("replay.other_rank", {"step": step}))
        elif overflowed and self._is_guarded():
            self.reason = self.reason or "not_reproduced"
            self._told.append(("replay.not_reproduced", {"step": step}))
        elif found.absorbed:
            self._write(step, taken, found)
            self.reason = self.reason or "absorbed"

    def _weights_lost(self, step: int, record: Record, found: Findings) -> None:
        """Say since when weights are non-finite, where a variable is to blame: the operator that did it ran in that step."""
        blamed = found.culprit
        if blamed is None or blamed.kind != "variable" or any(code.startswith("host.weights_lost") for code, _ in self._told):
            return
        training = self._known()
        since = training.bad_since if training.bad_since is not None else step
        # Under MirroredStrategy Keras 3 asks only the first replica: it skips no step of another's, and the first sign comes later.
        wanted = [number for number in (since - 1, since) if number >= 0]
        name = self._variable_names(record)(blamed.source.handle) if blamed.source is not None else "?"
        replicas = environment.replicas(training.model)
        if any(reader.guarded and (replicas == 1 or reader.family != "keras_3") for reader in training.readers):
            self._told.append(("host.weights_lost.guarded", {"step": since, "name": name}))
        else:
            self._told.append(("host.weights_lost", {"step": since, "wanted": wanted, "name": name}))

    def _write(self, step: int, taken: Step, found: Findings) -> None:
        training, record = self._known(), taken.record
        model = training.model
        if self._tree is None:
            name = getattr(model, "name", None) or "custom_loop"
            self._tree = HostTree(
                training.dump_path,
                str(name),
                training.device,
                environment.core(),
                training.options.max_disk,
            )
            self._path = self._tree.path
        variable = self._variable_names(record)
        layers: Dict[str, List[Any]] = {}
        for layer in private.layers_of(model) if model is not None else ():
            layers.setdefault(str(getattr(layer, "name", "")), []).append(layer)
        for name in layers_known_by_variables(variable(number) for number in record.variables):
            layers.setdefault(name, [])
        names = Names(record, layers, str(getattr(model, "name", "")))
        trials = self._trials(taken, found, names)
        left_out = self._tree.write(step, found, trials, names.of, variable)
        if step not in self.kept_steps:
            self.kept_steps.append(step)
        if left_out:
            self._told.append(("host.disk_budget", {"step": step, "count": left_out}))

    def _trials(self, taken: Step, found: Findings, names: Names) -> List[Trial]:
        """What would help, tried once for each operator to blame."""
        culprit = found.culprit
        blamed = "" if culprit is None or culprit.op is None else names.name(culprit.op)
        if not blamed or blamed in self._tried:
            return []
        self._tried.add(blamed)
        try:
            return trials_of(taken, found, names)
        except Exception:  # advice is worth no report
            console.log_failure("trying advice on the step failed; the report lacks it")
            return []

    def _variable_names(self, record: Record) -> Callable[[int], str]:
        """Names variables by the numbers of their handles; those of Keras 3 by their paths."""
        training = self._known()
        known = dict(record.variables)
        for holder in [training.model, *(reader.optimizer for reader in training.readers)]:
            for attribute in ("variables", "_trainable_variables"):
                for variable in _listed(holder, attribute):
                    for handle in private.handles_of(variable):
                        known[private.tensor_id(handle)] = variable
        return lambda number: variable_name(known.get(number))

    def _failed(self, step: int, error: CannotCollect) -> None:
        self._collected += 1
        self._told.append(("replay.failed", {"step": step, "error": error.message()}))
        self.reason = self.reason or error.code

    # --- parts ------------------------------------------------------------------------------------------------------------------

    def _known(self) -> Training:
        assert self._training is not None
        return self._training

    def _readings(self) -> Readings:
        return [(reader, reader.read()) for reader in (self._training.readers if self._training else [])]

    def _is_guarded(self) -> bool:
        """Whether anything skips a step that overflows."""
        return any(reader.guarded for reader, _ in self._before)

    def _is_wanted_anyway(self) -> bool:
        """Whether the step is run again whatever the loss scale says."""
        return self._known().forced or not self._is_guarded()

    def _keeps_all(self) -> bool:
        return self._is_wanted_anyway() or self._given.steps > 1

    @contextlib.contextmanager
    def _never_raises(self) -> Iterator[None]:
        """Our own failure beside a training step: the watch turns off, the training goes on."""
        try:
            yield
        except Exception:
            self._known().fail()


def _own_name(placeholder: Any) -> str:
    """The name that the signature gives an argument of a function; "" of what a graph takes from outside."""
    if placeholder.dtype.name in ("resource", "variant"):
        return ""
    return str(placeholder.op.node_def.attr["_user_specified_name"].s.decode())


def _listed(holder: Any, attribute: str) -> List[Any]:
    try:
        found = getattr(holder, attribute, ())
        return list(found() if callable(found) else found)
    except Exception:  # a model or optimizer of the user's own, not built
        return []


def _overflowed(before: Readings, after: Readings, steps: int) -> bool:
    """Whether a step in between overflowed: the scale fell, or the growth counter did not advance although the scale did not grow."""
    for (reader, then), (_, now) in zip(before, after):
        if then is None or now is None or _idle(reader, then, now, steps):
            continue
        if now.scale < then.scale or now.last_step_finite is False:
            return True
        stands = now.scale <= then.scale and then.counter is not None and now.counter is not None
        if stands and now.counter < then.counter + steps and (now.counter == 0 or steps > 1):
            return True
    return False


def _idle(reader: Any, then: Any, now: Any, steps: int) -> bool:
    """Whether an optimizer took no part: a process can have several. Without a count of skipped steps, one without a floor would have fallen."""
    if reader.counts_skipped_steps and then.iterations is not None:
        return bool(now.iterations == then.iterations)
    return steps == 1 and reader.floor is None and now.scale == then.scale
