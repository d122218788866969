"""TensorFlow on a CPU or GPU: from the trigger on, overflowed steps are replayed beside the training and land in a dump tree."""
from __future__ import annotations

import contextlib
import logging
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from npu_overflow.collectors import batches, compat, environment
from npu_overflow.collectors.base import Collector, Training
from npu_overflow.collectors.functions import Call, computes_gradients, giving_gradients, needed, writes_variables
from npu_overflow.collectors.graph_replay import findings_by_graph
from npu_overflow.collectors.hooks import Careful, Hooks, Turn
from npu_overflow.collectors.host_tree import HostTree
from npu_overflow.collectors.observe import StepWatcher
from npu_overflow.collectors.python_state import PythonState, Reached
from npu_overflow.collectors.replay import Replay, Scales, StepFindings, findings_by_flow, variable_names
from npu_overflow.collectors.snapshot import Snapshot, states
from npu_overflow.collectors.source import SourceLines
from npu_overflow.collectors.steps import MAX_STEPS_A_CALL, FitStep, FunctionStep, take_batches
from npu_overflow.collectors.undo import Unlogged
from npu_overflow.errors import CannotCollect
from npu_overflow.options import WatchOptions

__all__ = ["HostCollector"]

log = logging.getLogger("npu_overflow")

MAX_CALLS = 16  # calls of tf.functions that make one step of a custom loop

Otherwise = Union[StepFindings, CannotCollect, None]
Readings = List[Tuple[Any, Any]]  # reader, what it read


class HostCollector(Collector):
    """Replays overflowed steps; see ``replay`` for how, ``blame`` for whom it blames."""

    name = "host"

    def __init__(self) -> None:
        self._training: Optional[Training] = None
        self._tree: Optional[HostTree] = None
        self._path: Optional[str] = None
        self._armed = False
        self._collected = 0
        self.kept_steps: List[int] = []
        self._told: List[Tuple[str, Dict[str, Any]]] = []
        self._calls: List[Call] = []
        self._enders: List[Any] = []  # optimizers (None: the user's word) that ended the step which these calls made
        self._in_place = False  # the present step is observed in place
        self._readings_before: Readings = []
        self._snapshot: Optional[Snapshot] = None
        self._graph_tried = False
        self._own_function: Optional[Tuple[Any, Any]] = None  # fit's function, and the same over batches
        self._moving: Dict[int, Any] = {}  # functions seen to move an optimizer, held so that their ids stay theirs
        self._names: Optional[Callable[[Any], str]] = None
        self._living: Optional[List[Any]] = None  # the variables of the process, and the states among them
        self._moving_states: Optional[List[Any]] = None
        self._writers: Dict[int, Tuple[Any, bool]] = {}  # by function: whether it writes variables
        self._reached = Reached()
        self._python = PythonState(self._reached)  # when the present step began

    # --- the collector protocol -------------------------------------------------------------------------------------------------

    def prepare(self, training: Training) -> None:
        """Look at the process: what can't be replayed turns the collector off with one message."""
        self._training = training
        environment.check(training.model)
        lost = [item.name for item in compat.missing() if item.needed]
        if lost:
            raise CannotCollect("replay.internals", name=", ".join(lost))

    def start(self, step: int) -> None:
        """Be armed from ``step`` on."""
        self._armed = True
        self._collected = 0
        self.kept_steps = []
        self._tree = self._path = self._names = self._living = self._moving_states = self._snapshot = None
        self._graph_tried = False
        self._calls, self._enders, self._in_place = [], [], False
        self._readings_before = self._readings()
        self._told = [(item.lost, {"name": item.name}) for item in compat.missing()]
        self.reason = None

    @property
    def collected(self) -> int:
        """Overflowed steps since ``start``, whether or not their replay showed an overflow."""
        return self._collected

    def stop(self) -> None:
        """Disarm."""
        self._armed = False
        self._calls, self._tree, self._names, self._living, self._moving_states, self._snapshot = [], None, None, None, None, None

    @property
    def remarks(self) -> List[Tuple[str, Dict[str, Any]]]:  # type: ignore[override]
        """What was left out of the last collection, and why."""
        return self._told

    @property
    def tree(self) -> Optional[str]:
        """The time folder of this collection."""
        return self._path

    # --- fit --------------------------------------------------------------------------------------------------------------------

    def arm_fit(self, model: Any, step: int) -> None:
        """Stand between ``fit`` and its compiled function, for the next call only: an exception elsewhere leaves nothing behind."""
        real = model.train_function
        if real is None or not self._armed:
            return

        def train_function(iterator: Any) -> Any:
            if model.train_function is train_function:
                model.train_function = real
            return self._fit_call(model, step, real, iterator) if self._armed else real(iterator)

        model.train_function = train_function

    def _fit_call(self, model: Any, step: int, real: Callable[[Any], Any], iterator: Any) -> Any:
        """What ``fit`` calls instead of its compiled function. Only ``real`` and the pipeline may raise: that is the user's."""
        local = batches.can_feed(iterator)
        if not local and (type(model.distribute_strategy).__name__ != "MirroredStrategy" or compat.steps_per_execution(model) > 1):
            self._failed(step, CannotCollect("replay.distributed"))
            return real(iterator)
        drawn = batches.draw(iterator, compat.steps_per_execution(model))
        if not drawn:
            return real(iterator)  # the pipeline has ended: the function says so itself
        if local:
            given = batches.feed(drawn, iterator.element_spec)
        else:
            real, given = self._over_batches(real), drawn
        step_of_user = FitStep(model, drawn)
        with self._harmless():
            self._before(step, step_of_user)
        result = real(given)
        with self._harmless():
            self._after(step, step_of_user)
        return result

    def _over_batches(self, real: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """The training function over batches drawn by hand, for iterators that can't be stood in for.

        Keras 3's takes a list. That of tf.keras is compiled once more around a batch instead of an iterator: the same operators.
        """
        if not hasattr(real, "python_function"):
            return real
        if self._own_function is None or self._own_function[0] is not real:
            import tensorflow as tf

            compiled = tf.function(lambda batch: real.python_function(batches.Batches([batch], None)))
            self._own_function = (real, compiled)
        compiled = self._own_function[1]
        return lambda drawn: compiled(drawn[0])

    # --- loops of the user's own ------------------------------------------------------------------------------------------------

    def before_function(self, call: Call, step: int) -> None:
        """While armed, keep the call until an optimizer has moved; where nothing skips an overflowing step, replay it now."""
        if not self._armed:
            return
        if self._enders:
            self._calls, self._enders = [], []
        self._calls = [*self._calls[-MAX_CALLS + 1 :], call]
        take_batches(call)
        self._readings_before = self._readings()
        if len(self._calls) == 1 or self._snapshot is None:
            self._snapshot = self._take_snapshot()
        self._reached.search(call.function, call.function.python_function, call.args, call.kwargs)
        if len(self._calls) == 1:
            self._python = PythonState(self._reached)
        else:
            self._python.add_new()
        if self._early(self._readings_before) and id(call.function) in self._moving:
            self._attempt(step, self._function_step(), self._readings_before)

    def after_function(self, call: Call, step: int) -> None:
        """Replay the step that the call ended, if it overflowed."""
        before = self._readings_before
        if self._armed and not self._early(before) and _overflowed(before, self._readings(), 1):
            self._attempt(step, self._function_step(), before, self._snapshot)

    def step_ended(self, step: int, overflowed: Optional[bool] = None, optimizer: Any = None) -> None:
        """A step ended in Python: replay the calls that gave its gradients, if it overflowed. Without any nothing of it was seen."""
        if not self._armed or self._in_place:
            return
        if optimizer is None or optimizer in self._enders:
            self._calls, self._enders = self._calls if not self._enders else [], []
        self._enders.append(optimizer)
        before = self._readings_before
        if overflowed is None:
            overflowed = _overflowed(before, self._readings(), 1)
        unseen = None if any(computes_gradients(call) for call in self._calls) else CannotCollect("replay.unmarked")
        if self._calls and (overflowed or self._is_forced()):
            self._attempt(step, self._ended_step(), self._took_part(before), self._snapshot, otherwise=unseen if overflowed else None)
        elif overflowed and unseen is not None:
            self._failed(step, unseen)
        self._readings_before = self._readings()

    def moved(self, call: Call) -> None:
        """The call ended a training step."""
        self._moving[id(call.function)] = call.function
        self.knows_functions = True
        self._calls = []

    def on_accelerator(self) -> bool:
        """Whether TensorFlow places operators on a GPU."""
        return environment.core() == "GPU"

    def _function_step(self) -> FunctionStep:
        return FunctionStep(needed(self._calls, self._writes, self._several()))

    def _ended_step(self) -> FunctionStep:
        return FunctionStep(giving_gradients(self._calls, self._writes, self._several()))

    def _writes(self, call: Call) -> bool:
        key = id(call.function)
        if key not in self._writers:
            self._writers[key] = (call.function, writes_variables(call))
        return self._writers[key][1]

    @contextlib.contextmanager
    def observed_step(self, step: int) -> Iterator[None]:
        """Observe a step that runs eagerly anyway, in place: nothing is undone, as nothing is done twice. What happens inside calls of tf.functions
        is not seen so: where the fault lies there, they are replayed.
        """
        before, self._calls, self._enders = self._readings(), [], []
        watcher = StepWatcher(Unlogged(), {}, self._variable_names(), self._options().max_memory)
        try:
            hooks = Hooks(Careful(watcher), SourceLines(_nowhere.__code__, compat.original_line), apply="run", functions="compiled")
            hooks.__enter__()
        except CannotCollect as error:
            self._failed(step, error)
            yield
            return
        self._in_place = True
        try:
            yield
        finally:
            self._in_place = False
            hooks.__exit__(None, None, None)
        with self._harmless():
            if self._is_forced() or _overflowed(before, self._readings(), 1):
                found = findings_by_flow(watcher)
                if self._calls and found.is_vague:
                    self._attempt(step, self._ended_step(), self._took_part(before), self._snapshot, otherwise=found)
                else:
                    self._found(step, found)
            self._calls = []

    # --- parts ------------------------------------------------------------------------------------------------------------------

    def _early(self, readings: Readings) -> bool:
        """Whether the replay comes before the call: where the step is wanted whatever it does, or nothing skips it if it overflows."""
        return self._is_forced() or not any(reader.guarded for reader, _ in readings)

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """Our own failure beside a training step: the watch turns off, the training goes on."""
        try:
            yield
        except Exception:
            assert self._training is not None
            self._training.fail()

    def _before(self, step: int, step_of_user: FitStep) -> None:
        self._readings_before, self._snapshot = self._readings(), None
        self._reached.search(step_of_user.model, step_of_user.model)
        self._python = PythonState(self._reached)
        if self._early(self._readings_before):
            self._attempt(step, step_of_user, self._readings_before)
        elif step_of_user.steps <= MAX_STEPS_A_CALL:
            self._snapshot = self._take_snapshot(step_of_user.variables() if step_of_user.steps > 1 else ())

    def _after(self, step: int, step_of_user: FitStep) -> None:
        readings = self._readings_before
        if self._early(readings) or not _overflowed(readings, self._readings(), step_of_user.steps):
            return
        if step_of_user.steps > MAX_STEPS_A_CALL:
            self._failed(step, CannotCollect("replay.many_steps", steps=step_of_user.steps, most=MAX_STEPS_A_CALL))
        else:
            self._attempt(step, step_of_user, readings, self._snapshot)
        self._snapshot = None

    def _attempt(
        self, step: int, step_of_user: Any, readings: Readings, snapshot: Optional[Snapshot] = None, otherwise: Otherwise = None
    ) -> None:
        """Replay a step and write what it shows. Nothing that goes wrong here touches the training.

        Args:
            otherwise: what is known already, or why the replay may miss the overflow: it holds where the replay shows none.
        """
        scales: Scales = ()
        rewind = snapshot.without(self._scale_variables()) if snapshot else None  # each run of a replay has a scale of its own
        try:
            now = [(reader, then, reader.read()) for reader, then in readings]
            scales = [(reader.set_scale, then.scale, present.scale) for reader, then, present in now if then and present]
            replay = Replay(
                step_of_user.run,
                step_of_user.labels(),
                self._variable_names(),
                scales,
                self._options().max_memory,
                rewind=rewind,
                apply="run" if step_of_user.steps > 1 else "skip",
                workers=self._training.world_size if self._training else 1,
                python=self._python,
                max_seconds=self._options().max_collect_seconds,
                compiled=step_of_user.compiled,
            )
            found = replay.findings()
        except CannotCollect as error:
            if not self._settled(step, otherwise):
                self._by_graph(step, step_of_user, error, rewind, scales)
        except Exception as error:
            log.debug("replay failed", exc_info=True)
            self._failed(step, CannotCollect("replay.raised", error="%s: %s" % (type(error).__name__, error)))
        else:
            if found.reached or (self._is_forced() and otherwise is None) or step_of_user.steps > 1 or self._several():
                self._found(step, found)
            elif not self._settled(step, otherwise):
                self._by_graph(step, step_of_user, None, rewind, scales)

    def _settled(self, step: int, otherwise: Otherwise) -> bool:
        if isinstance(otherwise, StepFindings):
            self._found(step, otherwise)
        elif otherwise is not None:
            self._failed(step, otherwise)
        return otherwise is not None

    def _by_graph(self, step: int, step_of_user: Any, error: Optional[CannotCollect], rewind: Optional[Snapshot], scales: Scales) -> None:
        """The eager replay failed or showed nothing: once in a collection, try the step as a graph."""
        found = None
        if not self._graph_tried and step_of_user.steps == 1 and (error is None or error.code == "replay.raised"):
            self._graph_tried = True
            try:
                with Turn(), self._python.in_place():  # tracing runs the step's Python, too
                    found = findings_by_graph(step_of_user.run_on, step_of_user.arguments(), "batch", self._variable_names(), rewind, scales)
            except CannotCollect as problem:
                log.debug("no replay as a graph: %s", problem)
        if found is not None and found.reached:
            why = error or CannotCollect("replay.not_eagerly")
            self._told.append(("replay.by_graph", {"step": step, "why": why.message()}))
            self._found(step, found)
        elif error is not None:
            self._failed(step, error)
        else:
            self._found(step, StepFindings())

    def _several(self) -> bool:
        return self._training is not None and self._training.world_size > 1

    def _found(self, step: int, found: StepFindings) -> None:
        if not found.reached and self._is_forced():
            return  # a step that was asked for and is healthy
        self._collected += 1
        if found.reached:
            self.reason = None
            self._write(step, found)
            self._weights_lost(step, found)
        elif self._several():
            self.reason = self.reason or "other_rank"
            self._told.append(("replay.other_rank", {"step": step}))
        else:
            self.reason = self.reason or "not_reproduced_eagerly"
            self._told.append(("replay.not_reproduced", {"step": step}))

    def _weights_lost(self, step: int, found: StepFindings) -> None:
        """Say since when weights are non-finite, where a variable is to blame: the operator that did it ran in that step."""
        blamed = next((origin for origin in found.origins if origin.key == found.culprit), None)
        if blamed is None or blamed.kind != "variable" or any(code.startswith("host.weights_lost") for code, _ in self._told):
            return
        assert self._training is not None
        since = self._training.bad_since if self._training.bad_since is not None else step
        # Under MirroredStrategy Keras 3 asks only the first replica: it skips no step of another's, and the first sign comes later.
        wanted = [number for number in (since - 1, since) if number >= 0]
        name = blamed.source[0] if blamed.source else "?"
        replicas = environment.replicas(self._training.model)
        if any(reader.guarded and (replicas == 1 or reader.family != "keras_3") for reader in self._training.readers):
            self._told.append(("host.weights_lost.guarded", {"step": since, "name": name}))
        else:
            self._told.append(("host.weights_lost", {"step": since, "wanted": wanted, "name": name}))

    def _write(self, step: int, found: StepFindings) -> None:
        assert self._training is not None
        training = self._training
        if self._tree is None:
            name = getattr(training.model, "name", None) or "custom_loop"
            self._tree = HostTree(training.dump_path, str(name), training.device, environment.core(), training.options.max_disk)
            self._path = self._tree.path
        left_out = self._tree.write(step, found)
        if step not in self.kept_steps:
            self.kept_steps.append(step)
        if left_out:
            self._told.append(("host.disk_budget", {"step": step, "count": left_out}))

    def _failed(self, step: int, error: CannotCollect) -> None:
        if error.code != "replay.busy":
            self._collected += 1
        elif self.reason == error.code:
            return  # said already; it is no fault of these steps, so later ones are taken in their place
        self._told.append(("replay.failed", {"step": step, "error": error.message()}))
        self.reason = self.reason or error.code

    def _is_forced(self) -> bool:
        return self._training is not None and self._training.forced

    def _options(self) -> WatchOptions:
        assert self._training is not None
        return self._training.options

    def _variable_names(self) -> Callable[[Any], str]:
        if self._names is None:
            self._names = variable_names(self._variables())
        return self._names

    def _variables(self) -> List[Any]:
        if self._living is None:
            self._living = compat.living_variables()
        return self._living

    def _take_snapshot(self, more: Sequence[Any] = ()) -> Snapshot:
        """Variables as they are when a step begins."""
        return Snapshot.take([*self._states(), *self._scale_variables(), *more])

    def _scale_variables(self) -> List[Any]:
        assert self._training is not None
        found = [reader.scale_variable() for reader in self._training.readers]
        return [variable for variable in found if variable is not None]

    def _states(self) -> List[Any]:
        """What a step can change although it is skipped."""
        if self._moving_states is None:
            assert self._training is not None
            self._moving_states = states(self._variables(), [reader.optimizer for reader in self._training.readers])
        return self._moving_states

    @staticmethod
    def _took_part(before: Readings) -> Readings:
        """Of readings before a step that has ended, those of optimizers that took part in it: a process can have others."""
        now = [(reader, then, reader.read()) for reader, then in before]
        return [(reader, then) for reader, then, present in now if then is not None and present is not None and not _idle(reader, then, present, 1)]

    def _readings(self) -> Readings:
        return [(reader, reader.read()) for reader in (self._training.readers if self._training else [])]


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


def _nowhere() -> None:
    """The boundary of a step that is observed in place: no frame is below it."""
