"""Replays one training step beside the training: eager, observed, without effect.

A step is run once to see which origins reach a gradient. Where values of several origins mix, flow alone can't tell the guilty from the harmless (an
attention mask of -inf flows into the same softmax as a real overflow), so the step is run again with origins repaired: guilty is an origin
that alone, with every other one repaired, makes a gradient non-finite. A last run with a low loss scale tells whether a lower scale would cure it.
"""
from __future__ import annotations

import contextlib
import math
import re
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from npu_overflow.collectors import compat
from npu_overflow.collectors.blame import Origin, key_of
from npu_overflow.collectors.hooks import Hooks, Turn
from npu_overflow.collectors.observe import Draws, Held, StepWatcher, TooLong
from npu_overflow.collectors.python_state import PythonState, Reached
from npu_overflow.collectors.quiet import quiet
from npu_overflow.collectors.snapshot import Snapshot
from npu_overflow.collectors.source import SourceLines
from npu_overflow.collectors.undo import UndoLog
from npu_overflow.errors import CannotCollect

__all__ = ["Replay", "Scales", "StepFindings", "findings_by_flow", "scaled", "variable_names"]

#: (set_scale, value at the step, value now) of each loss-scale optimizer
Scales = Sequence[Tuple[Callable[[float], None], float, float]]

_STYLES = re.compile(r"\x1b\[[0-9;]*m")  # Keras prints in bold

MAX_ORIGINS = 8  # origins that are tested one by one
#: a run with repaired values may take so many times the operators of the step: a loop that only the overflow ends would never end
_LONGER, _AT_LEAST = 4, 1000


@dataclass
class StepFindings:
    """What the replay of one step found.

    Args:
        culprit: key of the origin to blame, or None.
        guilty: keys of all origins found guilty or not cleared, the culprit first.
        held: operators with their tensors, in the order of execution.
        origins: all origins of the first run.
        reached: whether any gradient was non-finite.
        cured_by_scale: whether a low loss scale leaves the gradients finite; None where there is none.
        operators: operators that ran in the step.
        not_held: operators with non-finite outputs beyond those held.
    """

    culprit: Optional[str] = None
    guilty: Tuple[str, ...] = ()
    held: List[Held] = field(default_factory=list)
    origins: List[Origin] = field(default_factory=list)
    reached: bool = False
    cured_by_scale: Optional[bool] = None
    operators: int = 0
    not_held: int = 0

    @property
    def is_vague(self) -> bool:
        """Whether nothing was found, or only that it lies inside a call of a tf.function."""
        guilty = [origin.op for origin in self.origins if origin.key in self.guilty]
        return not self.reached or any(op is not None and op.type.startswith("__") for op in guilty)


class Replay:
    """Runs one step again and again, each time undone.

    Args:
        run: runs the step once, eagerly; its argument is to be called before each further call of a tf.function.
        labels: tensors from outside by number: (kind, name, tensor).
        variable_name: names the variable behind a resource handle.
        scales: (set_scale, value at this step, value now) of each loss-scale optimizer.
        max_memory: bytes of tensors held.
        rewind: variables as they were when the step began, where they have moved since.
        python: random generators of Python as they were then.
        max_seconds: for all runs together.
        allow: resources that the step may use up.
        apply: "skip" (optimizers do nothing) or "run" (several optimizer steps in one call).
        workers: processes that train together; only this one's own values are looked at.
    """

    def __init__(
        self,
        run: Callable[[Callable[[], None]], Any],
        labels: Mapping[int, Tuple[str, str, Any]],
        variable_name: Callable[[Any], str],
        scales: Scales,
        max_memory: int,
        rewind: Optional[Snapshot] = None,
        allow: Tuple[Any, ...] = (),
        apply: str = "skip",
        workers: int = 1,
        python: Optional[PythonState] = None,
        max_seconds: float = math.inf,
        compiled: bool = True,
    ) -> None:
        self._run, self._labels, self._variable_name = run, labels, variable_name
        self._scales, self._max_memory, self._allow, self._apply = scales, max_memory, allow, apply
        self._rewind, self._workers, self._python = rewind, workers, python or PythonState(Reached())
        self._draws: Draws = {}
        self._most: Optional[int] = None  # operators a run may take
        self._until = time.monotonic() + max_seconds
        self._compiled, self._asked, self._functions = compiled, False, "eager"

    def findings(self) -> StepFindings:
        """Replay the step and say whom to blame.

        Raises:
            CannotCollect: the step can't be replayed; the training is as it was.
        """
        first = self._observed(budget=self._max_memory)
        if self._python.learned:
            first = self._observed(budget=self._max_memory)
        if first is None:
            raise CannotCollect("replay.too_long")
        if self._asked and self._compiled:
            first = self._rewritten(first)
        self._most = _LONGER * first.operators + _AT_LEAST
        found = StepFindings(held=first.kept, origins=first.flow.origins, operators=first.operators, not_held=first.not_held)
        candidates = first.flow.of_bits(first.consequences)
        found.reached = bool(candidates)
        if not candidates:
            return found
        found.guilty = self._guilty(candidates, found, first.seen)
        found.culprit = found.guilty[0]
        if self._scales:
            low = self._observed(lower_scale=True)
            found.cured_by_scale = None if low is None else not low.consequences
        return found

    def _rewritten(self, first: StepWatcher) -> StepWatcher:
        """The step once more, as AutoGraph rewrites it: where Python asked tensors which way to go, the names in the training's graph are those of
        TensorFlow's loops and branches. ``first`` where that shows something else, such as a loop over a data set, which is a graph even eagerly.
        """
        self._functions = "rewritten"
        try:
            again = self._observed(budget=self._max_memory)
        except CannotCollect:
            again = None
        if again is not None and bool(again.consequences) == bool(first.consequences):
            return again
        self._functions = "eager"
        return first

    def _guilty(self, candidates: List[Origin], found: StepFindings, ran: Set[str]) -> Tuple[str, ...]:
        """Keys of the guilty, by repair: the first that alone makes a gradient non-finite comes first. What only a repaired run does (one more
        turn of a loop) is nobody's fault: ``ran`` has the keys of the operators of the step itself.
        """
        keys = [origin.key for origin in candidates]
        for _ in range(4):  # repairing an origin can uncover one behind it
            rest = self._observed(frozenset(keys), budget=self._max_memory)
            if rest is None:
                break
            reached = rest.flow.of_bits(rest.consequences)
            hidden = [origin for origin in reached if origin.key not in keys and (origin.op is None or key_of(origin.op) in ran)]
            if not hidden:
                break
            keys += [origin.key for origin in hidden]
            known = {held.op.name for held in found.held}
            found.held += [held for held in rest.kept if held.origin in hidden and held.op.name not in known]
            found.origins += hidden
        if len(keys) == 1:
            return tuple(keys)
        order = {origin.key: origin.op.number if origin.op else 0 for origin in found.origins}
        keys.sort(key=lambda key: order.get(key, 0))
        tested = keys[:MAX_ORIGINS]
        for key in tested:
            alone = self._observed(frozenset(keys) - {key})
            if alone is None or alone.consequences:
                return (key, *[other for other in keys if other != key and other not in tested[: tested.index(key)]])
        return tuple(keys)  # harmful only together: the first of them

    def _observed(self, repaired: FrozenSet[str] = frozenset(), lower_scale: bool = False, budget: int = 0) -> Optional[StepWatcher]:
        """One run, or None where it took too long."""
        # its turn first: another thread's replay may have the generators of the process in its hands
        with Turn() as turn, self._python.in_place(), UndoLog(self._workers, self._rewind) as undo:
            for resource in self._allow:
                undo.allow(resource)
            watcher = StepWatcher(undo, self._labels, self._variable_name, budget, repaired, self._draws, self._may_run)
            try:
                self._run_undone(turn, undo, watcher, lower_scale)
            except TooLong:
                return None
            return watcher

    def _may_run(self, operators: int) -> bool:
        if self._most is not None and operators > self._most:
            return False
        return bool(operators % 64) or time.monotonic() < self._until

    def _run_undone(self, turn: Turn, undo: UndoLog, watcher: StepWatcher, lower_scale: bool) -> None:
        """One run at the step's loss scale, or at a low one; everything it writes is put back."""
        with scaled(self._scales, lower_scale):
            try:
                with Hooks(watcher, SourceLines(_boundary.__code__, compat.original_line), self._apply, self._functions, turn) as hooks:
                    try:
                        self._run_step(hooks, undo)
                    finally:
                        self._asked = self._asked or hooks.asked
            finally:
                undo.undo()  # before the scale: the step itself may have written it

    def _run_step(self, hooks: Hooks, undo: UndoLog) -> None:
        """The step; whatever it raises is the replay's failure, never the training's."""
        try:
            with quiet():
                _boundary(lambda: self._run(hooks.next_call))
        except Exception as error:
            if undo.refused is not None:
                raise undo.refused from None
            if isinstance(error, CannotCollect):
                raise
            # Keras wraps the message in its own, the cause in the middle: one line of it all
            text = " ".join(_STYLES.sub("", str(error)).split())[:300]
            raise CannotCollect("replay.raised", error="%s: %s" % (type(error).__name__, text)) from error


def findings_by_flow(watcher: StepWatcher) -> StepFindings:
    """What one run shows without running again: blame by flow alone."""
    candidates = [origin.key for origin in watcher.flow.of_bits(watcher.consequences)]
    return StepFindings(
        candidates[0] if candidates else None,
        tuple(candidates),
        watcher.kept,
        watcher.flow.origins,
        bool(candidates),
        operators=watcher.operators,
        not_held=watcher.not_held,
    )


@contextlib.contextmanager
def scaled(scales: Scales, low: bool = False) -> Iterator[None]:
    """The loss scales of the step, or low ones, inside the context; afterwards what they are now."""
    try:
        for set_scale, then, _ in scales:
            set_scale(_lower(then) if low else then)
        yield
    finally:
        for set_scale, _, after in scales:
            set_scale(after)


def _lower(scale: float) -> float:
    """A loss scale that would cure whatever a loss scale can cure: 1, the usual floor, or far below where it stands there already."""
    return 1.0 if scale > 1.0 else scale / 2**16


def _boundary(run: Callable[[], Any]) -> None:
    """Frames above this one belong to the step, frames below it to the training call."""
    run()


def variable_names(variables: List[Any]) -> Callable[[Any], str]:
    """A function that names the variable behind a resource handle, from variables that are known.

    Args:
        variables: TensorFlow's and Keras 3's; of one that is both, the later name is taken.
    """
    names: Dict[int, str] = {}
    for variable in variables:
        try:
            handle = getattr(variable, "handle", None)
            if handle is None:
                handle = getattr(getattr(variable, "_value", None), "handle", None)
        except ValueError:  # a variable of several replicas has none of its own; its parts are in the list too
            continue
        if handle is not None and hasattr(handle, "_id"):
            names[handle._id] = str(getattr(variable, "path", None) or getattr(variable, "name", "variable")).split(":")[0]
    return lambda handle: names.get(getattr(handle, "_id", -1), "variable")
