"""Whom to blame for an overflowed step: the origin that alone, with every other one repaired, still
has a consequence.

Where values of several origins mix, their flow alone can't tell the guilty from the harmless: an
attention mask of -inf flows into the same softmax as a real overflow. So the record is run again
with origins repaired.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, List, Optional, Set, Tuple

from npu_overflow.collect.replay import environment
from npu_overflow.collect.replay.finite import Asked
from npu_overflow.collect.replay.interpreter import Interpreter, Step, TooLong
from npu_overflow.collect.replay.taint import Held, Origin
from npu_overflow.errors import CannotCollect

__all__ = ["Findings", "attempt", "examine"]

MAX_TESTED = 8  # origins that are tested one by one
_MOST_UNCOVERED = 4  # times that repairing an origin may uncover others behind it
# operators of a changed run: a loop that only the overflow ends would never end
_LONGER, _AT_LEAST = 4, 1000


@dataclass
class Findings:
    """What the runs of one step showed.

    Args:
        culprit: the origin to blame, or None.
        guilty: all origins found guilty or not cleared, the culprit first.
        held: operators with their tensors, in the order of execution.
        origins: all origins of the first run.
        cured_by_scale: whether a low loss scale would leave the step finite; None: can't be told.
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
        CannotCollect: the record can't be run again. The training is as it was in any case.
    """
    first = attempt(partial(Interpreter, step, budget=max_memory))
    if first is None:
        raise CannotCollect("replay.too_long")
    step.most_nodes, step.reaches = _LONGER * first.count + _AT_LEAST, first.reaches
    found = Findings(
        held=first.kept, origins=first.origins, operators=first.count, not_held=first.not_held
    )
    candidates = first.of_bits(first.consequence)
    if candidates:
        candidates.sort(key=lambda origin: origin.op.order if origin.op else 0)
        found.guilty = _guilty(step, candidates, found)
        found.culprit = found.guilty[0]
        found.cured_by_scale = _cured_by_scale(step, found)
    return found


def attempt(make: Callable[..., Interpreter]) -> Optional[Interpreter]:
    """One run, or None where it took too long. What an operator raises is the replay's failure,
    never the training's.

    Args:
        make: makes the run; takes ``finite``.
    """
    try:
        if environment.core() == "CPU":
            return make().run()
        asked = Asked()
        make(finite=asked).run()
        return make(finite=asked.answers()).run()
    except TooLong:
        return None
    except CannotCollect:
        raise
    except Exception as error:
        kind, said = type(error).__name__, " ".join(str(error).split())[:300]
        text = "%s: %s" % (kind, said) if said else kind
        raise CannotCollect("replay.raised", error=text) from error


def _guilty(step: Step, candidates: List[Origin], found: Findings) -> Tuple[Origin, ...]:
    """The first candidate that is guilty alone, then all that were not cleared before it."""
    behind: Set[Any] = set()  # keys of origins that only repaired runs have
    for i, origin in enumerate(candidates[:MAX_TESTED] if len(candidates) > 1 else ()):
        others = {item.key for item in candidates if item is not origin}
        if _is_guilty(step, origin, others, behind, found):
            return tuple(candidates[i:])
    return tuple(candidates)  # one that needs no test, or harmful only together


def _is_guilty(
    step: Step, origin: Origin, others: Set[Any], behind: Set[Any], found: Findings
) -> bool:
    """Whether it alone has a consequence. What repairing the others uncovers behind them is
    nobody's fault: it is repaired, too."""
    itself = False
    for _ in range(_MOST_UNCOVERED):
        found.runs += 1
        alone = attempt(partial(Interpreter, step, frozenset(others | behind)))
        if alone is None:
            return True
        reached = {item.key for item in alone.of_bits(alone.consequence)}
        itself, uncovered = origin.key in reached, reached - {origin.key}
        if uncovered <= behind:
            return bool(reached)
        behind |= uncovered
    return itself


def _cured_by_scale(step: Step, found: Findings) -> Optional[bool]:
    """Whether a low loss scale would cure the step. It can't where it does not go into what the
    culprit was given."""
    begin = step.record.begin
    present = [begin[number][1] for number in step.scales if number in begin]
    if not present or found.culprit is None:
        return None
    if not found.culprit.scaled:
        return False
    scale = float(present[0].numpy())
    found.runs += 1
    # 1, the usual floor, cures whatever a loss scale can cure; where it stands there, far below
    floor = 1.0 if scale > 1.0 else scale / 2**16
    low = attempt(partial(Interpreter, step, scale=floor))
    return None if low is None else not low.consequence
