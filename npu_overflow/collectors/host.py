"""TensorFlow on a CPU or GPU: from the trigger on, overflowed steps are replayed beside the training and land in a dump tree."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from npu_overflow.collectors import batches, compat, environment
from npu_overflow.collectors.base import Collector, Training
from npu_overflow.collectors.functions import Call, mapped, pair_up
from npu_overflow.collectors.host_tree import HostTree
from npu_overflow.collectors.replay import Replay, variable_names
from npu_overflow.collectors.snapshot import Snapshot
from npu_overflow.errors import CannotCollect

__all__ = ["HostCollector"]

MAX_CALLS = 16  # calls of tf.functions that make one step of a custom loop
MAX_STEPS_A_CALL = 8  # weights move between the steps of one call: copies are kept for so many

Readings = List[Tuple[Any, Any]]  # reader, what it read


class HostCollector(Collector):
    """Replays overflowed steps; see ``replay`` for how, ``blame`` for whom it blames."""

    name = "host"

    def __init__(self) -> None:
        self._training: Optional[Training] = None
        self._tree: Optional[HostTree] = None
        self._path: Optional[str] = None
        self._armed = self._forced = False
        self._collected = 0
        self._calls: List[Call] = []
        self._moving: Dict[int, Any] = {}  # functions seen to move an optimizer, held so that their ids stay theirs
        self._names: Optional[Callable[[Any], str]] = None

    # --- the collector protocol -------------------------------------------------------------------------------------------------

    def prepare(self, training: Training) -> None:
        """Look at the process: what can't be replayed turns the collector off with one message."""
        self._training = training
        environment.check(training.model)
        lost = [item.name for item in compat.missing() if item.needed]
        if lost:
            raise CannotCollect("replay.internals", name=", ".join(lost))

    def start(self, step: int, forced: bool = False) -> None:
        """Be armed from ``step`` on."""
        self._armed, self._forced = True, forced
        self._collected = 0
        self._tree = self._path = self._names = None
        self._calls = []
        self.remarks, self.reason = [(item.lost, {"name": item.name}) for item in compat.missing()], None

    @property
    def collected(self) -> int:
        """Overflowed steps since ``start``, whether or not their replay showed an overflow."""
        return self._collected

    def stop(self) -> None:
        """Disarm."""
        self._armed = False
        self._calls, self._tree, self._names = [], None, None

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
        if not batches.can_feed(iterator):
            self._failed(step, CannotCollect("replay.distributed"))
            return real(iterator)
        drawn = batches.draw(iterator, compat.steps_per_execution(model))
        if not drawn:
            return real(iterator)  # the pipeline has ended: the function says so itself
        given = batches.feed(drawn, iterator.element_spec)
        step_of_user = _FitStep(model, drawn)
        before = self._prepare_call(step, step_of_user)
        result = real(given)
        self._finish_call(step, step_of_user, before)
        return result

    # --- loops of the user's own ------------------------------------------------------------------------------------------------

    def function_call(self, call: Call, proceed: Callable[..., Any], step: int) -> Any:
        """Run one outermost call of a tf.function; while armed, keep it until an optimizer has moved, then replay what overflowed."""
        if not self._armed:
            return proceed(*call.args, **call.kwargs)
        self._calls = [*self._calls[-MAX_CALLS + 1 :], call]
        return self._armed_call(call, proceed, step, self._readings())

    def moved(self, call: Call) -> None:
        """The call ended a training step."""
        self._moving[id(call.function)] = call.function
        self.knows_functions = True
        self._calls = []

    def on_accelerator(self) -> bool:
        """Whether TensorFlow places operators on a GPU."""
        return environment.core() == "GPU"

    def _armed_call(self, call: Call, proceed: Callable[..., Any], step: int, before: Readings) -> Any:
        recorders: List[batches.Recorder] = []
        args, kwargs = _with_recorders((call.args, call.kwargs), recorders)
        step_of_user = _FunctionStep(self._calls, recorders)
        if self._early(before) and id(call.function) in self._moving and not recorders:
            self._attempt(step, step_of_user, before)
        call.result = proceed(*args, **kwargs)
        if not self._early(before) and _overflowed(before, self._readings(), 1):
            self._attempt(step, step_of_user, before)
        return call.result

    # --- parts ------------------------------------------------------------------------------------------------------------------

    def _early(self, readings: Readings) -> bool:
        """Whether the replay comes before the call: where the step is wanted whatever it does, or nothing skips it if it overflows."""
        return self._forced or not any(reader.guarded for reader, _ in readings)

    def _prepare_call(self, step: int, step_of_user: Any) -> Tuple[Readings, Optional[Snapshot]]:
        readings = self._readings()
        if self._early(readings):
            self._attempt(step, step_of_user, readings)
        elif 1 < step_of_user.steps <= MAX_STEPS_A_CALL:
            return readings, Snapshot.take(step_of_user.variables())
        return readings, None

    def _finish_call(self, step: int, step_of_user: Any, before: Tuple[Readings, Optional[Snapshot]]) -> None:
        readings, snapshot = before
        if self._early(readings) or not _overflowed(readings, self._readings(), step_of_user.steps):
            return
        if step_of_user.steps > MAX_STEPS_A_CALL:
            self._failed(step, CannotCollect("replay.many_steps", steps=step_of_user.steps, most=MAX_STEPS_A_CALL))
        else:
            self._attempt(step, step_of_user, readings, snapshot)

    def _attempt(self, step: int, step_of_user: Any, readings: Readings, snapshot: Optional[Snapshot] = None) -> None:
        """Replay a step and write what it shows. Nothing that goes wrong here touches the training."""
        assert self._training is not None
        options = self._training.options
        if self._names is None:
            self._names = variable_names(compat.living_variables())
        try:
            scales = [(reader.set_scale, then.scale, now.scale) for (reader, then), (_, now) in zip(readings, self._readings()) if then and now]
            replay = Replay(
                step_of_user.run,
                step_of_user.labels(),
                self._names,
                scales if not snapshot else [],
                options.max_memory,
                rewind=snapshot,
                allow=step_of_user.resources,
                apply="run" if step_of_user.steps > 1 else "skip",
            )
            found = replay.findings()
        except CannotCollect as error:
            self._failed(step, error)
            return
        except Exception as error:
            self._failed(step, CannotCollect("replay.raised", error="%s: %s" % (type(error).__name__, error)))
            return
        if not found.reached and self._forced:
            return  # a step that was asked for and is healthy
        self._collected += 1
        if not found.reached:
            self.reason = self.reason or "not_reproduced_eagerly"
            self.remarks.append(("replay.not_reproduced", {"step": step}))
            return
        self.reason = None
        self._write(step, found)

    def _write(self, step: int, found: Any) -> None:
        assert self._training is not None
        training = self._training
        if self._tree is None:
            name = getattr(training.model, "name", None) or "custom_loop"
            self._tree = HostTree(training.dump_path, str(name), training.device, environment.core(), training.options.max_disk)
            self._path = self._tree.path
        left_out = self._tree.write(step, found)
        if left_out:
            self.remarks.append(("host.disk_budget", {"step": step, "count": left_out}))

    def _failed(self, step: int, error: CannotCollect) -> None:
        self._collected += 1
        self.remarks.append(("replay.failed", {"step": step, "error": error.message()}))
        self.reason = self.reason or error.code

    def _readings(self) -> Readings:
        return [(reader, reader.read()) for reader in (self._training.readers if self._training else [])]


class _FitStep:
    """One call of ``fit``'s compiled function."""

    resources: Tuple[Any, ...] = ()

    def __init__(self, model: Any, drawn: List[Any]) -> None:
        self._model, self._batches = model, drawn
        self.steps = len(drawn)

    def run(self) -> None:
        for batch in self._batches:
            self._model.train_step(batch)

    def labels(self) -> Dict[int, Tuple[str, str, Any]]:
        found: Dict[int, Tuple[str, str, Any]] = {}
        for batch in self._batches:
            found.update(batches.labels_of(batch, ("x", "y", "sample_weight")))
        return found

    def variables(self) -> List[Any]:
        optimizer = self._model.optimizer
        slots = optimizer.variables
        return list(self._model.variables) + list(slots() if callable(slots) else slots)


class _FunctionStep:
    """The calls of tf.functions that made one step of a loop of the user's own."""

    steps = 1

    def __init__(self, calls: List[Call], recorders: List[batches.Recorder]) -> None:
        self._calls, self._recorders = list(calls), recorders
        self.resources: Tuple[Any, ...] = ()

    def run(self) -> None:
        table: Dict[int, Any] = {}  # tensors of the real calls -> those of this replay
        for call in self._calls:
            args, kwargs = mapped((call.args, call.kwargs), table)
            result = call.function.python_function(*args, **kwargs)
            if call.result is not None:
                pair_up(call.result, result, table)

    def labels(self) -> Dict[int, Tuple[str, str, Any]]:
        found: Dict[int, Tuple[str, str, Any]] = {}
        for call in reversed(self._calls):
            found.update(batches.labels_of(call.args, call.names))
            found.update(batches.labels_of(call.kwargs))
        return found


def _overflowed(before: Readings, after: Readings, steps: int) -> bool:
    """Whether a step in between overflowed: the scale fell, or the growth counter did not advance although the scale did not grow."""
    for (_, then), (_, now) in zip(before, after):
        if then is None or now is None:
            continue
        if now.scale < then.scale or now.last_step_finite is False:
            return True
        if then.counter is not None and now.counter is not None and now.scale <= then.scale and now.counter < then.counter + steps:
            if now.counter == 0 or steps > 1:
                return True
    return False


def _with_recorders(structure: Any, recorders: List[batches.Recorder]) -> Any:
    """The structure with recorders in the place of iterators."""
    if isinstance(structure, tuple) and not hasattr(structure, "_fields"):
        return tuple(_with_recorders(item, recorders) for item in structure)
    if isinstance(structure, dict):
        return {key: _with_recorders(item, recorders) for key, item in structure.items()}
    if batches.can_feed(structure):
        recorders.append(batches.Recorder(structure))
        return recorders[-1].stand_in
    return structure
