"""A training step of the user's that can be run again: one call of ``fit``'s function, or the calls of tf.functions that made one step."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

from npu_overflow.collectors import batches
from npu_overflow.collectors.functions import Call, draws_of, mapped, pair_up
from npu_overflow.errors import CannotCollect

__all__ = ["MAX_STEPS_A_CALL", "FitStep", "FunctionStep", "take_batches"]

MAX_STEPS_A_CALL = 8  # weights move between the steps of one call: copies are kept for so many


class FitStep:
    """One call of ``fit``'s compiled function."""

    def __init__(self, model: Any, drawn: List[Any]) -> None:
        self.model, self._batches = model, drawn
        self.steps = len(drawn)
        self.compiled = not getattr(model, "run_eagerly", False)
        strategy = getattr(model, "distribute_strategy", None)
        self._strategy = strategy if strategy is not None and "Default" not in type(strategy).__name__ else None

    def run(self, next_call: Callable[[], None]) -> None:
        """Run the step eagerly; ``next_call`` before each further one."""
        for i, batch in enumerate(self._batches):
            if i:
                next_call()
            self._one(batch)

    def _one(self, batch: Any) -> None:
        self._strategy.run(self.model.train_step, args=(batch,)) if self._strategy is not None else self.model.train_step(batch)

    def arguments(self) -> Any:
        """The batch, for a replay as a graph."""
        return self._batches[0]

    def run_on(self, batch: Any) -> None:
        """The step on the graph's own inputs."""
        self._one(batch)

    def labels(self) -> Dict[int, Tuple[str, str, Any]]:
        """Names of the tensors that the step is given."""
        found: Dict[int, Tuple[str, str, Any]] = {}
        for batch in self._batches:
            found.update(batches.labels_of(batch, ("x", "y", "sample_weight")))
        return found

    def variables(self) -> List[Any]:
        """What moves between several steps of one call: everything."""
        optimizer = self.model.optimizer
        slots = optimizer.variables
        return list(self.model.variables) + list(slots() if callable(slots) else slots)


class FunctionStep:
    """The calls of tf.functions that made one step of a loop of the user's own."""

    steps = 1
    compiled = True

    def __init__(self, calls: List[Call]) -> None:
        self._calls = calls

    def run(self, next_call: Callable[[], None]) -> None:
        """Run the calls eagerly, each on what the one before gave; ``next_call`` before each further one."""
        table: Dict[int, Any] = {}  # tensors of the real calls -> those of this replay
        for i, call in enumerate(self._calls):
            if i:
                next_call()
            args, kwargs = mapped(call.again(), table)
            result = call.function(*args, **kwargs)  # observed, it runs operator by operator
            if call.result is not None:
                pair_up(call.result, result, table)
                for exchanged in call.exchanged:  # reduced over workers: here this worker's own values stand for them
                    pair_up(exchanged, result, table)

    def arguments(self) -> Any:
        """The arguments of every call, for a replay as a graph."""
        return [call.again() for call in self._calls]

    def run_on(self, arguments: Any) -> None:
        """The step on the graph's own inputs. Tensors that one call hands to the next are those of this trace."""
        if len(self._calls) > 1:
            raise CannotCollect("replay.raised", error="several functions")
        for call, (args, kwargs) in zip(self._calls, arguments):
            call.function.python_function(*args, **kwargs)

    def labels(self) -> Dict[int, Tuple[str, str, Any]]:
        """Names of the tensors that the step is given."""
        found: Dict[int, Tuple[str, str, Any]] = {}
        for call in reversed(self._calls):
            args, kwargs = call.as_tensors()
            found.update(batches.labels_of(args, call.names))
            found.update(batches.labels_of(kwargs))
            for batch in [*call.drawn, *(args[:1] if call.is_of_keras and call.names[:1] == ("data",) else ())]:
                found.update(batches.labels_of(batch, ("x", "y", "sample_weight")))
        return found


def _iterators_in(structure: Any) -> List[Any]:
    """Dataset iterators among the arguments of a call."""
    if isinstance(structure, (tuple, list)):
        return [found for item in structure for found in _iterators_in(item)]
    if isinstance(structure, dict):
        return _iterators_in(list(structure.values()))
    return [structure] if batches.can_feed(structure) else []


def take_batches(call: Call) -> None:
    """Draw by hand what the call is going to draw from an iterator argument, so that a replay can be fed the same.

    Where the graph doesn't tell how much that is, the function draws for itself and its replay will say that it can't.
    """
    iterators = _iterators_in((call.args, call.kwargs))
    count = draws_of(call) if len(iterators) == 1 else None
    if count is not None and 0 < count <= MAX_STEPS_A_CALL:
        call.take(batches.draw(iterators[0], count), iterators[0])
