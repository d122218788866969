"""The optimizers under watch: each with what reads its loss scale and the policy that judges it."""
from __future__ import annotations

import sys
import weakref
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from npu_overflow.training import loss_scale
from npu_overflow.training.console import Console
from npu_overflow.training.loss_scale import Reader, Reading
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.policy import Observation, Policy

__all__ = ["ToldSteps", "TrackedOptimizer", "TrackedOptimizers", "in_use"]


def _policy(options: WatchOptions, **about: Any) -> Policy:
    return Policy(options.patience, options.window, options.warmup, options.min_scale, **about)


class TrackedOptimizer:
    """One optimizer under watch.

    Args:
        reader: reads its loss scale.
        policy: judges what the reader reads.

    Attributes:
        moved: it has been seen to apply gradients, or to skip a step.
    """

    def __init__(self, reader: Reader, policy: Policy) -> None:
        self.reader, self.policy = reader, policy
        self.moved = False

    @classmethod
    def begun(cls, reader: Reader, options: WatchOptions, step: int) -> TrackedOptimizer:
        """Watched from training step ``step`` on: later readings are compared with the first."""
        policy = _policy(
            options,
            counts_skipped_steps=reader.counts_skipped_steps,
            floor=reader.floor,
            dynamic=reader.dynamic,
            # blind: overflow records tell, and they are judged by their number
            guarded=reader.guarded or reader.blind,
        )
        policy.check_scale(step, 0, reader.read())
        return cls(reader, policy)

    @property
    def facts(self) -> Dict[str, Any]:
        """What a manifest says of it."""
        reader = self.reader
        return {
            "name": reader.name,
            "family": reader.family,
            "dynamic": reader.dynamic,
            "floor": reader.floor,
        }

    @property
    def remark(self) -> Optional[str]:
        """Code of the sentence on what it does not see or skip; None where all is well."""
        if self.reader.blind:
            return "watch.blind"
        if self.reader.guarded:
            return None
        return "watch.unguarded.fixed" if self.reader.family != "none" else "watch.unguarded"

    @property
    def sees_no_overflow(self) -> bool:
        """In saturation mode overflow looks healthy, unless the optimizer asks the device."""
        return not self.reader.asks_device and loss_scale.npu_mode() == "saturation"

    def check(
        self, step: int, steps: int, finite: Optional[bool], signs: Sequence[int]
    ) -> Observation:
        """Read the loss scale and judge the last ``steps`` steps.

        Args:
            step: the last of them.
            finite: whether its loss was finite; counts where nothing guards the weights.
            signs: steps with overflow records; they count where this optimizer sees no overflow.
        """
        known = None if self.reader.guarded else finite
        told = signs if self.sees_no_overflow else ()
        reading = self.reader.read()
        self.moved = self.moved or reading != self.policy.previous
        return self.policy.check_scale(step, steps, reading, known, told)

    def device_became_default(self) -> None:
        """Only now is it known what the optimizer sees of an Ascend device."""
        self.reader.read()
        self.policy.guarded = self.reader.guarded or self.reader.blind

    def steps_made(self) -> int:
        """Steps since the last check: by its own count, else 1 where its scaling changed."""
        reading, previous = self.reader.read(), self.policy.previous
        if reading is None or reading == previous:
            return 0
        if previous is None or reading.iterations is None or previous.iterations is None:
            return 1
        skipped = 0 if self.reader.counts_skipped_steps else previous.halvings(reading)
        return max(1, reading.iterations - previous.iterations + skipped)


def in_use(items: Sequence[TrackedOptimizer]) -> Sequence[TrackedOptimizer]:
    """Those that train, as far as that has been seen: a model can be compiled with an optimizer
    that its own ``train_step`` never asks."""
    return [item for item in items if item.moved] or items


class ToldSteps:
    """Steps whose outcome the user tells, judged by a policy of their own."""

    def __init__(self, options: WatchOptions) -> None:
        self._options = options
        self._until = 0
        self.policy: Optional[Policy] = None

    def is_new(self, step: int) -> bool:
        """Whether nobody counted a step since the one told of last; ``step``: steps that ended."""
        new, self._until = step == self._until, step
        return new

    @property
    def guarded(self) -> bool:
        """Whether the user's loop skips steps that overflow: it has a loss scale."""
        return self.policy is not None and self.policy.guarded

    def check(self, step: int, scale: Optional[float], finite: Optional[bool]) -> Observation:
        """Judge training step ``step``."""
        self._until = step + 1
        if self.policy is None:
            scaled = scale is not None
            about = {"floor": None, "dynamic": scaled, "guarded": scaled}
            self.policy = _policy(self._options, counts_skipped_steps=False, **about)
        reading = None if scale is None else Reading(float(scale))
        return self.policy.check_scale(step, 1, reading, finite)


class TrackedOptimizers:
    """All optimizers of one training, in the order in which they were found.

    Args:
        options: of the watch.
        console: says what an optimizer does not see, and how many steps overflowed.
        places_known: whether it is clear where optimizers train: an open Ascend device that is not
            the default yet may become it.

    Attributes:
        items: those under watch now.
        told: the steps that the user tells of.
        facts: what a manifest says of all that were watched.
    """

    def __init__(self, options: WatchOptions, console: Console, places_known: bool) -> None:
        self._options, self._console, self._places_known = options, console, places_known
        self.items: List[TrackedOptimizer] = []
        self.told = ToldSteps(options)
        self.facts: List[Dict[str, Any]] = []
        self._finished: List[Policy] = []
        self._parked: List[Tuple[weakref.ReferenceType[Any], Policy]] = []
        self._made: List[Any] = []
        self._said: Set[Tuple[Optional[str], str]] = set()  # remarks, with names of optimizers
        self._modules = 0
        self._loss_was_bad = False
        self._lost_since: Optional[int] = None  # the step after the last whose loss was not finite

    # --- which are watched

    def find(self, model: Any) -> List[Any]:
        """The optimizers of a training: given by the user, of its model, or all that there are."""
        given = self._options.optimizer
        if given is not None:
            return list(given) if isinstance(given, (list, tuple)) else [given]
        return loss_scale.find_optimizers() if model is None else loss_scale.find_in_model(model)

    def made(self, optimizer: Any) -> None:
        """An optimizer is being made: ``late`` gives it when it is whole."""
        self._made.append(optimizer)

    def late(self, model: Any) -> List[Any]:
        """Optimizers that have come since the watch began. Keras can be loaded after it: nobody saw
        the making of its optimizers then."""
        found, self._made = self._made, []
        watches_none = not found and not self.items and model is None
        if watches_none and self._options.optimizer is None and len(sys.modules) != self._modules:
            self._modules = len(sys.modules)
            found = loss_scale.find_optimizers()
        return found

    def add(self, optimizer: Any, step: int) -> Optional[TrackedOptimizer]:
        """Watch one more; None where it is watched already."""
        reader = loss_scale.reader_for(optimizer)
        if any(known.reader.optimizer is reader.optimizer for known in self.items):
            return None
        item = TrackedOptimizer.begun(reader, self._options, step)
        self.items.append(item)
        self.facts.append(item.facts)
        if self._places_known:
            self._say_remark(item)
        return item

    def _say_remark(self, item: TrackedOptimizer) -> None:
        remark = item.remark, item.reader.name
        if item.remark is not None and remark not in self._said:
            self._said.add(remark)
            always = item.remark == "watch.blind"
            self._console.say(item.remark, always=always, optimizer=item.reader.name)

    def device_became_default(self) -> None:
        """Only now is it known what the optimizers see of an Ascend device."""
        self._places_known = True
        for item in self.items:
            item.device_became_default()
            self._say_remark(item)

    def clear(self) -> List[Any]:
        """Watch none of them any more; returns the optimizers that were."""
        gone = [item.reader.optimizer for item in self.items]
        self.items.clear()
        self.facts.clear()
        return gone

    def park(self) -> None:
        """Keep what is known of the optimizers, and nothing of them: their model may be dropped."""
        self._parked = [(weakref.ref(item.reader.optimizer), item.policy) for item in self.items]
        self.items.clear()

    def resume(self, model: Any) -> List[Any]:
        """Go on with the optimizers of a model; returns those that are new, to be added."""
        parked, self._parked = self._parked, []
        self._loss_was_bad, new = False, []
        for optimizer in self.find(model):
            reader = loss_scale.reader_for(optimizer)
            policy = next((known for made, known in parked if made() is reader.optimizer), None)
            if policy is None:
                new.append(optimizer)
            else:
                self.items.append(TrackedOptimizer(reader, policy))
        used = [item.policy for item in self.items]
        self._finished += [
            policy for _, policy in parked if all(policy is not item for item in used)
        ]
        return new

    # --- what they tell

    @property
    def policies(self) -> List[Policy]:
        """One for each optimizer, and one for what the user tells."""
        known = [item.policy for item in self.items]
        return known if self.told.policy is None else [*known, self.told.policy]

    @property
    def _parked_policies(self) -> List[Policy]:
        return [policy for _, policy in self._parked]

    @property
    def _all_policies(self) -> List[Policy]:
        return [*self._finished, *self.policies, *self._parked_policies]

    @property
    def rate(self) -> Optional[float]:
        """Overflowing steps as a part of all, of the worst; None where none is watched for long
        enough."""
        rates = [policy.rate for policy in [*self.policies, *self._parked_policies]]
        return max([rate for rate in rates if rate is not None], default=None)

    @property
    def have_overflowed(self) -> bool:
        """Whether any step was seen to overflow."""
        return any(policy.overflowing_steps for policy in self._all_policies)

    @property
    def guarded(self) -> bool:
        """Whether any optimizer skips a step whose gradients are not finite."""
        return any(item.reader.guarded for item in in_use(self.items))

    @property
    def see_no_overflow(self) -> bool:
        """Whether any of them depends on the overflow records of a device."""
        return any(item.sees_no_overflow for item in self.items)

    def steps_made(self) -> int:
        """Steps that any optimizer made since the last check."""
        return max([item.steps_made() for item in self.items], default=0)

    def reported(self, step: int) -> None:
        """A report was made at ``step``: no trigger for ``window`` steps."""
        for policy in self.policies:
            policy.reported(step)

    def nothing_reported(self) -> None:
        """Nothing came of the last trigger: no pause, and patience begins anew."""
        for policy in self.policies:
            policy.nothing_reported()

    def is_quiet(self, step: int) -> bool:
        """Whether the pause after a report lasts."""
        return any(policy.is_quiet(step) for policy in self.policies)

    def forget(self) -> None:
        """Their state was set from outside."""
        for item in self.items:
            item.policy.forget()

    def say_trigger(self, step: int, lost: bool, drops: List[Tuple[int, float, float]]) -> None:
        """Say why steps are collected from ``step`` on; ``lost``: the loss told of the overflow."""
        count = max([policy.overflowing_steps for policy in self.policies], default=0)
        if lost:
            self._console.say("watch.trigger.lost", step=step)
        elif drops:
            before, after = "%g" % drops[0][1], "%g" % drops[-1][2]
            self._console.say("watch.trigger", step=step, count=count, before=before, after=after)
        else:
            self._console.say("watch.trigger.signs", step=step, count=count)

    def late_signs(self, count: int) -> None:
        """So many overflow records of a device have come after the last check."""
        for policy in self._all_policies:
            if policy.was_told:
                policy.lost(count)

    def say_rates(self, calm: bool, whole: bool = True) -> None:
        """At the end: how many steps overflowed, and what to do.

        Args:
            calm: nothing was ever collected.
            whole: no overflow has left anything behind.
        """
        policies, say = self._all_policies, self._console.say
        for policy in policies:
            if calm and whole and policy.settled_at is not None:
                self._say_count("watch.rate.settled", policy, scale="%g" % policy.settled_at)
            elif policy.overflowing_steps:
                self._say_rate(policy)
        warming = [item.last_overflow for item in policies if item.calibrating]
        early = [step for step in warming if step is not None]
        counted = max([item.short_of_patience for item in policies], key=len, default=[])
        if calm and early:
            say("watch.rate.warmup", step=max(early))
        elif calm and counted:
            # one less: what comes after the trigger is collected
            count = len(counted)
            say("watch.rate.patience", count=count, steps=counted, patience=max(1, count - 1))

    def _say_rate(self, policy: Policy) -> None:
        rate, lowest = policy.rate, policy.lowest_scale
        code = "watch.rate" if rate is not None else "watch.rate.few"
        percent = "" if rate is None else "%.2f" % (100 * rate)
        self._say_count(code + (".at_least" if policy.at_least else ""), policy, percent=percent)
        if lowest is not None:
            self._console.say("watch.dead" if lowest == 0 else "watch.floor", scale="%g" % lowest)

    def _say_count(self, code: str, policy: Policy, **values: Any) -> None:
        overflowing, steps = policy.overflowing_steps, policy.steps
        self._console.say(code, overflowing=overflowing, steps=steps, **values)

    # --- the loss, where nothing guards the weights

    @property
    def needs_loss(self) -> bool:
        """Whether the loss is asked for: where no loss scale tells, and it still says something."""
        used = in_use(self.items)
        unguarded = not used or any(not item.reader.guarded for item in used)
        return unguarded and not self._loss_was_bad

    def epoch_begins(self) -> None:
        """Keras starts its running mean of the loss again: after one non-finite step it says
        nothing until then."""
        self._loss_was_bad = False

    def loss_seen(self, step: int, finite: bool) -> None:
        """Steps between two non-finite losses, whose own are hidden in a mean, overflowed too."""
        self._loss_was_bad = self._loss_was_bad or not finite
        if not finite and self._lost_since is not None:
            for item in self.items:
                if not item.reader.guarded:
                    item.policy.lost(step - self._lost_since)
        self._lost_since = None if finite else step + 1

    def asks_weights(self, step: int) -> bool:
        """At an end: whether the weights have to tell how the steps since the last loss went."""
        return self._lost_since is not None and step > self._lost_since

    def last_loss_seen(self, step: int, lost: bool) -> None:
        """No further loss will be seen; ``lost``: weights are not finite."""
        if lost:
            self.loss_seen(step, False)
        self._lost_since = None
