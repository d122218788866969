"""Whom to blame for an overflowed step: the origin that alone, with every other one repaired, still has a consequence.

Where values of several origins mix, their flow alone can't tell the guilty from the harmless: an attention mask of
-inf flows into the same softmax as a real overflow. So the record is run again with origins repaired.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, FrozenSet, List, Optional, Tuple

from npu_overflow.collect.replay import environment
from npu_overflow.collect.replay.finite import Asked
from npu_overflow.collect.replay.interpreter import Interpreter, Step, TooLong
from npu_overflow.collect.replay.taint import Held, Origin
from npu_overflow.errors import CannotCollect

__all__ = ["Findings", "examine"]

MAX_TESTED = 8  # origins that are tested one by one
_MOST_UNCOVERED = 4  # times that repairing an origin may uncover others behind it
#: a run with repaired values may take so many times the operators of the step: a loop that only the overflow ends would never end
_LONGER, _AT_LEAST = 4, 1000


@dataclass
class Findings:
    """What the runs of one step showed.

    Args:
        culprit: the origin to blame, or None.
        guilty: all origins found guilty or not cleared, the culprit first.
        held: operators with their tensors, in the order of execution.
        origins: all origins of the first run.
        cured_by_scale: whether a low loss scale would leave the step finite; None where that can't be told.
        operators: operators of the step.
        not_held: operators with non-finite outputs beyond those held.
        runs: how often the record was run.
    """

    culprit: Optional[Origin] = None
    guilty: Tuple[Origin, ...] = ()
    held: List[Held] = field(default_factory=list)
    origins: List[Origin] = field(default_factory=list)
    cured_by_scale: Optional[bool] = None
    operators: int = 0
    not_held: int = 0
    runs: int = 1

    @property
    def reached(self) -> bool:
        """Whether anything non-finite had a consequence."""
        return bool(self.guilty)

    @property
    def absorbed(self) -> bool:
        """Whether something was non-finite and had none."""
        return not self.guilty and any(held.origin is not None for held in self.held)


def examine(step: Step, max_memory: int) -> Findings:
    """Run a step's record and say whom to blame.

    Args:
        max_memory: bytes of tensors held for the dump.

    Raises:
        CannotCollect: the record can't be run again. Nothing of the training has changed in any case.
    """
    first = _run(step, budget=max_memory)
    if first is None:
        raise CannotCollect("replay.too_long")
    step.most_nodes = _LONGER * first.count + _AT_LEAST
    found = Findings(held=first.kept, origins=first.origins, operators=first.count, not_held=first.not_held)
    candidates = first.of_bits(first.consequence)
    if not candidates:
        return found
    found.guilty = _Trial(step, candidates, found).guilty()
    found.culprit = found.guilty[0]
    found.cured_by_scale = _cured_by_scale(step, found)
    return found


def _run(step: Step, repair: FrozenSet[Any] = frozenset(), scale: Optional[float] = None, budget: int = 0) -> Optional[Interpreter]:
    """One run, or None where it took too long. What an operator raises is the replay's failure, never the training's."""
    try:
        if environment.core() == "CPU":
            return Interpreter(step, repair, scale, budget).run()
        asked = Asked()
        Interpreter(step, repair, scale, finite=asked).run()
        return Interpreter(step, repair, scale, budget, asked.answers()).run()
    except TooLong:
        return None
    except CannotCollect:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise CannotCollect("replay.raised", error="%s: %s" % (type(error).__name__, text)) from error


class _Trial:
    """Tests the candidates in the order of execution."""

    def __init__(self, step: Step, candidates: List[Origin], found: Findings) -> None:
        self._step, self._found = step, found
        self._candidates = sorted(candidates, key=lambda origin: origin.op.order if origin.op else 0)
        self._behind: FrozenSet[Any] = frozenset()  # keys of origins that only repaired runs have

    def guilty(self) -> Tuple[Origin, ...]:
        """The first that is guilty alone, then all that were not cleared before it."""
        cleared = []
        for origin in self._candidates[:MAX_TESTED] if len(self._candidates) > 1 else ():
            if self._is_guilty(origin):
                return (origin, *[other for other in self._candidates if other is not origin and other not in cleared])
            cleared.append(origin)
        return tuple(self._candidates)  # one that needs no test, or harmful only together: the first of them

    def _is_guilty(self, origin: Origin) -> bool:
        """Whether it alone has a consequence. What repairing the others uncovers behind them is nobody's fault: it is repaired, too."""
        others = frozenset(item.key for item in self._candidates if item is not origin)
        for _ in range(_MOST_UNCOVERED):
            self._found.runs += 1
            alone = _run(self._step, others | self._behind)
            if alone is None:
                return True
            reached = alone.of_bits(alone.consequence)
            uncovered = frozenset(item.key for item in reached if item.key != origin.key)
            if any(item.key == origin.key for item in reached) and not uncovered:
                return True
            if not uncovered or uncovered <= self._behind:
                return bool(reached)
            self._behind |= uncovered
        return any(item.key == origin.key for item in reached)


def _cured_by_scale(step: Step, found: Findings) -> Optional[bool]:
    """Whether a low loss scale would cure the step. It can't where it does not go into what the culprit was given."""
    assert found.culprit is not None
    present = [step.record.begin[number][1] for number in step.scales if number in step.record.begin]
    if not present:
        return None
    if not found.culprit.scaled:
        return False
    scale = float(present[0].numpy())
    found.runs += 1
    # 1, the usual floor, cures whatever a loss scale can cure; where it stands there already, far below
    low = _run(step, scale=1.0 if scale > 1.0 else scale / 2**16)
    return None if low is None else not low.consequence
