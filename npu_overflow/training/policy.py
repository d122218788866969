"""Sporadic or frequent: from readings of the loss scale to "wait" or "collect". Pure: no
TensorFlow, no clock, no files.

Overflow of single steps is normal with dynamic loss scaling. The scale doubles after a number of
good steps, overflows once, halves again: such a *probe* is healthy however often it happens. What
counts is a scale that falls below a value at which it was fine.

Words used here:
    look      one check of the scale; it covers the steps since the check before
    counted   an overflow that is no probe and lies outside calibration
    safe      the scale before its last growth: a halving that ends at or above it is a probe
    calibration   the beginning of a run whose first scale may be far too high
"""
from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Deque, List, Optional, Sequence, Tuple

from npu_overflow.training.loss_scale import Reading

__all__ = ["Observation", "Policy"]

_MAX_FLOAT32 = 3.4028234663852886e38
#: steps from which on a rate says something: here one overflow is the 0.5 % of the rule of thumb
_ENOUGH_STEPS = 200


@dataclass(frozen=True)
class Observation:
    """What one check of the scale says.

    Args:
        overflows: overflowing steps since the look before, probes included ("at least", where a
            look covers several steps).
        counted: those that count towards the trigger.
        probes: those that were probes of dynamic loss scaling.
        trigger: overflow is frequent: collect. Stays False for ``window`` steps after a report.
        drop: (step, scale before, scale after) where the scale fell.
        pending: steps of counted overflows that are still inside the window, oldest first.
        steps: optimizer steps that the look covered.
    """

    overflows: int = 0
    counted: int = 0
    probes: int = 0
    trigger: bool = False
    drop: Optional[Tuple[int, float, float]] = None
    pending: List[int] = field(default_factory=list)
    steps: int = 0


class Policy:
    """Judges one optimizer; one policy for each, made anew for each training.

    Args:
        patience: counted overflows within ``window`` steps that trigger.
        window: training steps.
        warmup: steps in which calibration is forgiven at least; 0 turns calibration off.
        min_scale: one counted overflow that leaves the scale at or below it triggers at once.
        counts_skipped_steps: the optimizer's ``iterations`` advances on skipped steps (tf.keras
            2.x), so it tells the number of steps.
        floor: the scale never falls below it, or None.
        dynamic: the scale moves by itself.
        guarded: a non-finite gradient makes the optimizer skip the step. Without, the first
            non-finite value triggers.
    """

    def __init__(
        self,
        patience: int = 5,
        window: int = 100,
        warmup: int = 20,
        min_scale: float = 1.0,
        *,
        counts_skipped_steps: bool = True,
        floor: Optional[float] = 1.0,
        dynamic: bool = True,
        guarded: bool = True,
    ) -> None:
        self.patience, self.window, self.warmup = patience, window, warmup
        self.min_scale, self.floor = min_scale, floor
        self.counts_skipped_steps = counts_skipped_steps
        self.dynamic, self.guarded = dynamic, guarded
        self.steps = 0
        self.overflowing_steps = 0
        #: a check covered several steps and its overflows could not be told apart
        self.at_least = False
        #: overflows came from elsewhere (records on disk)
        self.was_told = False
        #: the last step that overflowed
        self.last_overflow: Optional[int] = None
        self._stuck = 0  # overflows in a row at the lowest scale
        self._safe = math.inf
        self._calibrating = warmup > 0
        self._clean_seen = False
        self._forgiven = 0  # overflows that were part of calibration
        self._settled_at: Optional[float] = None  # the scale after the last of them
        self._previous: Optional[Reading] = None
        self._first_iterations: Optional[int] = None
        self._counted: Deque[int] = deque()
        self._quiet_until: Optional[int] = None

    @property
    def calibrating(self) -> bool:
        """Whether overflows are still forgiven, as the scale may have begun too high."""
        return self._calibrating and self.guarded

    @property
    def settled_at(self) -> Optional[float]:
        """Where the scale stood after calibration, if every overflow was a part of it and it is
        over; else None."""
        only = self._forgiven == self.overflowing_steps > 0
        return self._settled_at if only and self.guarded and not self._calibrating else None

    def lost(self, steps: int) -> None:
        """So many of the steps seen overflowed, as it turned out later: nothing guards the weights,
        and they were lost."""
        self.overflowing_steps = min(self.steps, self.overflowing_steps + steps)

    @property
    def rate(self) -> Optional[float]:
        """Overflowing steps, probes and calibration included, as a part of all steps seen; None
        while those are too few for a rate."""
        enough = self.steps >= _ENOUGH_STEPS
        return min(1.0, self.overflowing_steps / self.steps) if enough else None

    @property
    def short_of_patience(self) -> List[int]:
        """Steps that counted and were too few for the trigger, where the run was too short to call
        them sporadic."""
        short = self.steps < _ENOUGH_STEPS and len(self._counted) < self.patience
        return list(self._counted) if short else []

    @property
    def lowest_scale(self) -> Optional[float]:
        """The loss scale, where it can't fall any more and every step is skipped; else None."""
        scale = None if self._previous is None or not self.dynamic else self._previous.scale
        return scale if scale == 0 or self._stuck >= self.patience else None

    @property
    def previous(self) -> Optional[Reading]:
        """What the last look read."""
        return self._previous

    def forget(self) -> None:
        """The optimizer's state was set from outside: the next look has nothing to compare with."""
        self._previous = None

    def is_quiet(self, step: int) -> bool:
        """Whether the pause after a report still lasts at training step ``step``."""
        return self._quiet_until is not None and step < self._quiet_until

    def reported(self, step: int) -> None:
        """A report was made at training step ``step``: the next trigger comes ``window`` steps
        later at the earliest."""
        self._quiet_until = step + self.window

    def nothing_reported(self) -> None:
        """Nothing came of the last trigger: there is no pause, and patience begins anew."""
        self._quiet_until = None
        self._counted.clear()

    def check_scale(
        self,
        step: int,
        n: int,
        reading: Optional[Reading],
        finite: Optional[bool] = None,
        told: Sequence[int] = (),
    ) -> Observation:
        """Judge the steps since the look before.

        Args:
            step: the last training step that the look covers, counted from 0 (the one that just
                ended). The first look only says where the scale stands: make it before the first
                step, with ``n=0`` and any ``step``.
            n: training steps (batches) since the look before.
            reading: the optimizer's state now, or None where there is none to read.
            finite: what the caller knows of the last step by itself (loss and weights finite), or
                None. Decides where ``n`` is 1 or where nothing guards the training.
            told: training steps since the look before that are known from elsewhere to have
                overflowed (records on disk). They count, whatever the scale does: it is asked where
                the optimizer sees no overflow.

        Returns:
            an Observation. Where the look covers several steps its counts are "at least" and never
            more than really happened.
        """
        previous, self._previous = self._previous, reading
        if told:
            return self._told(step, n, told)
        if previous is None or reading is None:
            return self._first_look(step, n, reading, finite)
        steps = self._optimizer_steps(n, previous, reading)
        if steps <= 0 and finite is None:
            return Observation(pending=self._pending(step))
        steps = max(steps, 1)
        drop = (step, previous.scale, reading.scale) if reading.scale < previous.scale else None
        known = self._last_step(steps, reading, finite)
        if known is None:
            overflows, probes = self._by_scale(steps, previous, reading)
        else:
            overflows, probes = self._by_sign(known, previous, reading)
        if reading.scale > previous.scale:
            self._safe = max(previous.scale, reading.scale / 2)
        first = step - max(n, 1) + 1
        return self._judged(step, steps, overflows, probes, reading, drop, first)

    def _told(self, step: int, n: int, told: Sequence[int]) -> Observation:
        """Overflow that somebody else saw. The scale does not react to it, so there is neither
        calibration nor probing nor a floor."""
        self.was_told = True
        self._counted.extend(sorted(told))
        self.steps += max(n, 1)
        self.overflowing_steps += len(told)
        pending = self._pending(step)
        frequent = len(pending) >= self.patience or not self.guarded
        trigger = frequent and not self.is_quiet(step)
        return Observation(len(told), len(told), 0, trigger, None, pending, max(n, 1))

    def _first_look(
        self, step: int, n: int, reading: Optional[Reading], finite: Optional[bool]
    ) -> Observation:
        """Nothing to compare with: only what the caller knows counts, and nothing is known to have
        been clean."""
        if reading is not None and self._first_iterations is None:
            self._first_iterations = reading.iterations
        if finite is None:
            self.steps += n
            return Observation(pending=self._pending(step), steps=n)
        return self._judged(step, max(n, 1), 0 if finite else 1, 0, reading, None)

    def _optimizer_steps(self, n: int, previous: Reading, reading: Reading) -> int:
        before, now = previous.iterations, reading.iterations
        if self.counts_skipped_steps and before is not None and now is not None:
            return now - before  # below 0: a checkpoint was loaded, nothing to compare
        return n

    def _last_step(self, steps: int, reading: Reading, finite: Optional[bool]) -> Optional[bool]:
        """Whether the last step was finite, where that decides: it stands for the whole look
        then."""
        if finite is not None and (steps == 1 or not self.guarded):
            return finite
        sign = reading.last_step_finite
        if sign is None or reading.iterations in (None, self._first_iterations):
            return None  # the variable starts as False and says nothing before the first step
        return sign if steps == 1 or not self.dynamic else None

    def _by_sign(self, finite: bool, previous: Reading, reading: Reading) -> Tuple[int, int]:
        if finite:
            return 0, 0
        probe = reading.scale < previous.scale and reading.scale >= self._safe
        return 1, 1 if probe else 0

    def _by_scale(self, steps: int, previous: Reading, reading: Reading) -> Tuple[int, int]:
        """(overflows, probes among them) by scale and counter; see the rules in the module's
        description."""
        before, now = previous.scale, reading.scale
        if not self.dynamic:
            return 0, 0
        if not math.isfinite(now):
            return (steps, 0) if not math.isfinite(before) else (0, 0)
        if now == before == 0:  # nothing raises it: all that was not applied was skipped
            return steps - ((reading.iterations or 0) - (previous.iterations or 0)), 0
        if now < before:
            return self._halvings(steps, before, now)
        if now > before or previous.counter is None or reading.counter is None:
            return 0, 0
        reached = previous.counter + steps if self.counts_skipped_steps else previous.counter
        if reading.counter >= reached:
            return 0, 0
        return self._counter_fell(steps, previous.counter, reading)

    def _halvings(self, steps: int, before: float, now: float) -> Tuple[int, int]:
        ratio = math.log2(before / now) if now > 0 and math.isfinite(before) else 1.0
        count = max(1, round(ratio))
        if self.counts_skipped_steps:
            count = min(count, steps)  # a scale set by hand is no row of overflows
        if count < steps and now <= (self.floor or 0.0):
            self.at_least = True  # it can't fall further: more may have overflowed
        ends = [before / 2.0**i for i in range(1, count)] + [now]
        return count, sum(1 for end in ends if end >= self._safe)

    def _counter_fell(self, steps: int, before: int, reading: Reading) -> Tuple[int, int]:
        """The scale is what it was and the counter began anew: a scale at its floor, or a growth
        and a fall within the look."""
        growth = reading.growth_steps or 0
        self.at_least = self.at_least or steps > 1
        # growing takes the steps up to `growth`, falling at least one more
        if growth and steps > 1 and before + steps > growth:
            if self.floor is None or reading.scale > self.floor:
                self._safe = min(self._safe, reading.scale)
            return 1, 1
        if growth and before + steps >= growth and reading.scale * 2 > _MAX_FLOAT32:
            return 0, 0  # the growth would have made it infinite, so it was not done
        return 1, 0

    def _judged(
        self,
        step: int,
        steps: int,
        overflows: int,
        probes: int,
        reading: Optional[Reading],
        drop: Optional[Tuple[int, float, float]],
        first: Optional[int] = None,
    ) -> Observation:
        at_floor = reading is not None and reading.scale <= self.min_scale
        # an infinite scale never falls
        stuck = reading is not None and self.dynamic and not math.isfinite(reading.scale)
        was_calibrating = self._calibrating
        counted = self._outside_calibration(steps, overflows, probes)
        if overflows > probes and at_floor:
            counted = max(counted, 1)
        if was_calibrating and overflows and not counted and reading is not None:
            self._forgiven += overflows
            self._settled_at = reading.scale
        first = step if first is None else first
        for back in range(min(counted, self.window) - 1, -1, -1):
            self._counted.append(max(first, step - back))
        self.steps += steps
        self.overflowing_steps += overflows
        self._remember(step, overflows, reading)
        pending = self._pending(step)
        enough = len(pending) >= self.patience or at_floor or not self.guarded
        trigger = (stuck or (counted > 0 and enough)) and not self.is_quiet(step)
        return Observation(overflows, counted, probes, trigger, drop, pending, steps)

    def _remember(self, step: int, overflows: int, reading: Optional[Reading]) -> None:
        """What the closing lines need."""
        if overflows:
            self.last_overflow = step
        lowest = reading is not None and reading.scale <= (self.floor or 0.0)
        last_overflowed = overflows > 0 and reading is not None and not reading.counter
        self._stuck = self._stuck + overflows if lowest and last_overflowed else 0

    def _outside_calibration(self, steps: int, overflows: int, probes: int) -> int:
        """Overflows that count. Where the look covers several steps, its overflows are taken to be
        its first ones."""
        if not self.guarded:
            return overflows
        forgiven = 0
        if self._calibrating:
            left = max(0, self.warmup - self.steps) if self._clean_seen else overflows
            forgiven = min(overflows, left)
            self._clean_seen = self._clean_seen or overflows < steps
            self._calibrating = not (self._clean_seen and self.steps + steps >= self.warmup)
        return max(0, overflows - max(probes, forgiven))

    def _pending(self, step: int) -> List[int]:
        while self._counted and self._counted[0] <= step - self.window:
            self._counted.popleft()
        return list(self._counted)
