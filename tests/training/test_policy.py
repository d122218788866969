"""The policy against a simulated dynamic loss scale whose every overflow is known."""
from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, List, Optional, Sequence, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow.training.loss_scale import Reading
from npu_overflow.training.policy import Observation, Policy


@dataclass
class Scale:
    """A dynamic loss scale as the optimizers have it, and the truth about each step."""

    scale: float = 2.0**15
    growth_steps: int = 2000
    keras_3: bool = False
    counter: int = 0
    iterations: int = 0
    safe: float = math.inf
    last_finite: Optional[bool] = None
    overflows: int = 0
    counted: int = 0

    def step(self, overflow: bool) -> None:
        self.last_finite = not overflow
        if overflow:
            self.overflows += 1
            after = self.scale / 2 if self.keras_3 else max(self.scale / 2, 1.0)
            if after < self.safe or after == self.scale:
                self.counted += 1
            self.scale, self.counter = after, 0
        elif self.counter + 1 >= self.growth_steps:
            self.safe, self.scale, self.counter = self.scale, self.scale * 2, 0
        else:
            self.counter += 1
        if not (overflow and self.keras_3):
            self.iterations += 1

    def reading(self, sign: bool = False) -> Reading:
        return Reading(self.scale, self.counter, self.iterations, self.growth_steps, (self.last_finite or False) if sign else None)


def policy_for(scale: Scale, **options: Any) -> Policy:
    options.setdefault("warmup", 0)
    return Policy(counts_skipped_steps=not scale.keras_3, floor=None if scale.keras_3 else 1.0, **options)


def run(scale: Scale, policy: Policy, overflows: Sequence[bool], every: int = 1, sign: bool = False) -> List[Observation]:
    """Train over ``overflows``, looking after every ``every`` steps."""
    looks = [policy.check_scale(-1, 0, scale.reading(sign))]
    for start in range(0, len(overflows), every):
        batch = overflows[start : start + every]
        for overflow in batch:
            scale.step(overflow)
        looks.append(policy.check_scale(start + len(batch) - 1, len(batch), scale.reading(sign)))
    return looks


def triggers(looks: Sequence[Observation]) -> List[int]:
    """Positions of triggering looks: 0 is the look before the first step."""
    return [index for index, look in enumerate(looks) if look.trigger]


STEPS = st.lists(st.booleans(), max_size=120)
SCALES = st.builds(
    Scale, scale=st.sampled_from([1.0, 2.0, 1.5, 64.0, 2.0**15, 2.0**32]), growth_steps=st.sampled_from([1, 2, 3, 7, 10, 2000]), keras_3=st.booleans()
)


# --- a simulated loss scale, compared with the truth


@given(SCALES, STEPS)
def test_each_step_is_told_exactly_when_looked_at_every_step(scale: Scale, steps: List[bool]) -> None:
    policy = policy_for(scale)
    policy.check_scale(-1, 0, scale.reading())
    for index, overflow in enumerate(steps):
        before = scale.counted
        scale.step(overflow)
        look = policy.check_scale(index, 1, scale.reading())
        assert (look.overflows, look.counted) == (int(overflow), scale.counted - before)
        assert look.probes == look.overflows - look.counted
    assert policy.steps == len(steps)
    assert policy.overflowing_steps == sum(steps)


@given(SCALES, STEPS, st.integers(2, 25))
def test_several_steps_a_look_never_say_more_than_happened(scale: Scale, steps: List[bool], every: int) -> None:
    policy = policy_for(scale)
    looks = [policy.check_scale(-1, 0, scale.reading())]
    for start in range(0, len(steps), every):
        batch = steps[start : start + every]
        for overflow in batch:
            scale.step(overflow)
        looks.append(policy.check_scale(start + len(batch) - 1, len(batch), scale.reading()))
        assert looks[-1].overflows <= sum(batch)
        assert sum(look.counted for look in looks) <= scale.counted
        assert looks[-1].overflows > 0 or sum(batch) == 0 or scale.growth_steps < every * 2
        assert all(start + len(batch) - every <= step < start + len(batch) for step in looks[-1].pending[len(looks[-1].pending) - looks[-1].counted :])


@given(SCALES, STEPS)
def test_the_npu_sign_and_the_scale_agree(scale: Scale, steps: List[bool]) -> None:
    scale.keras_3 = False
    other = replace(scale)
    by_sign = run(scale, policy_for(scale), steps, sign=True)
    by_scale = run(other, policy_for(other), steps)
    assert [(look.overflows, look.counted, look.trigger) for look in by_sign] == [(look.overflows, look.counted, look.trigger) for look in by_scale]


@given(st.integers(2, 60), st.integers(200, 400), st.integers(1, 12), st.booleans())
def test_probing_never_triggers_however_often(growth_steps: int, steps: int, every: int, keras_3: bool) -> None:
    scale = Scale(scale=1024.0, growth_steps=growth_steps, keras_3=keras_3)
    policy = policy_for(scale)
    looks = [policy.check_scale(-1, 0, scale.reading())]
    for index in range(steps):
        scale.step(scale.scale > 1024.0)
        if (index + 1) % every == 0:
            looks.append(policy.check_scale(index, every, scale.reading()))
    assert scale.overflows > 0
    assert triggers(looks) == []
    assert sum(look.counted for look in looks) == 0


# --- the trigger


def test_five_overflows_within_a_hundred_steps_trigger() -> None:
    looks = run(Scale(), policy_for(Scale()), [index in (10, 30, 50, 70, 109) for index in range(200)])
    assert triggers(looks) == [110]
    assert looks[110].pending == [10, 30, 50, 70, 109]


def test_five_overflows_over_more_than_the_window_do_not() -> None:
    looks = run(Scale(), policy_for(Scale()), [index in (10, 30, 50, 70, 110) for index in range(200)])
    assert triggers(looks) == []
    assert looks[111].pending == [30, 50, 70, 110]
    assert looks[131].pending == [50, 70, 110]


def test_one_overflow_in_forty_steps_is_sporadic() -> None:
    looks = run(Scale(), policy_for(Scale(), warmup=20), [index % 40 == 35 for index in range(400)])
    assert triggers(looks) == []
    assert sum(look.overflows for look in looks) == 10


def test_a_scale_that_reaches_the_minimum_triggers_at_once() -> None:
    looks = run(Scale(scale=2.0), policy_for(Scale()), [False, True, False])
    assert triggers(looks) == [2]
    assert looks[2].drop == (1, 2.0, 1.0)


def test_overflow_at_the_floor_is_seen_by_the_counter() -> None:
    scale = Scale(scale=1.0)
    looks = run(scale, policy_for(scale), [False, True])
    assert (looks[2].overflows, looks[2].counted, looks[2].trigger, looks[2].drop) == (1, 1, True, None)


def test_the_step_that_would_have_grown_overflows_at_the_floor() -> None:
    scale = Scale(scale=1.0, growth_steps=2)
    looks = run(scale, policy_for(scale), [False, True])
    assert (looks[2].counted, looks[2].probes) == (1, 0)


def test_a_growth_refused_at_the_end_of_float32_is_no_overflow() -> None:
    policy = Policy(warmup=0)
    policy.check_scale(-1, 0, Reading(2.0**127, 9, 100, 10))
    assert policy.check_scale(0, 1, Reading(2.0**127, 0, 101, 10)).overflows == 0


def test_growth_and_fall_within_a_look_are_a_probe() -> None:
    policy = Policy(warmup=0)
    policy.check_scale(-1, 0, Reading(1024.0, 8, 100, 10))
    look = policy.check_scale(9, 10, Reading(1024.0, 6, 110, 10))
    assert (look.overflows, look.counted, look.probes) == (1, 0, 1)


@pytest.mark.parametrize("keras_3", [False, True])
def test_an_infinite_scale_is_frequent_at_once(keras_3: bool) -> None:
    policy = policy_for(Scale(keras_3=keras_3))
    policy.check_scale(-1, 0, Reading(2.0**127, 9, 100, 10))
    assert policy.check_scale(0, 1, Reading(math.inf, 0, 101, 10)).trigger
    look = policy.check_scale(1, 1, Reading(math.inf, 0, 101 if keras_3 else 102, 10))
    assert (look.overflows, look.trigger) == (1, True)


def test_a_scale_of_zero_counts_one() -> None:
    policy = policy_for(Scale(keras_3=True))
    policy.check_scale(-1, 0, Reading(2.0**-149, 0, 100, 10))
    assert policy.check_scale(0, 1, Reading(0.0, 0, 100, 10)).overflows == 1


def test_several_halvings_in_one_look_count_each() -> None:
    scale = Scale()
    looks = run(scale, policy_for(scale), [False] * 10 + [True, False, True, True, False, True, False, False, True, False], every=10)
    assert (looks[2].overflows, looks[2].trigger) == (5, True)
    assert looks[2].drop == (19, 2.0**15, 2.0**10)
    assert looks[2].pending == [15, 16, 17, 18, 19]


def test_only_halvings_below_safe_count() -> None:
    scale = Scale(scale=512.0, growth_steps=5)
    looks = run(scale, policy_for(scale), [False] * 5 + [True, True, True])
    assert [(look.counted, look.probes) for look in looks[6:]] == [(0, 1), (1, 0), (1, 0)]


def test_after_a_report_the_trigger_waits_for_a_window() -> None:
    scale, policy = Scale(), Policy(warmup=0, window=50)
    fired: List[int] = []
    policy.check_scale(-1, 0, scale.reading())
    for index in range(200):
        scale.step(index % 4 == 0)
        if policy.check_scale(index, 1, scale.reading()).trigger:
            fired.append(index)
            policy.reported(index)
            assert (policy.is_quiet(index + 49), policy.is_quiet(index + 50)) == (True, False)
    assert fired == [16, 68, 120, 172]


# --- calibration


@pytest.mark.parametrize("every", [1, 10])
def test_a_scale_that_begins_far_too_high_is_forgiven(every: int) -> None:
    scale = Scale(scale=2.0**32)
    looks = run(scale, policy_for(scale, warmup=20), [True] * 24 + [False] * 200, every=every)
    assert triggers(looks) == []
    assert sum(look.counted for look in looks) == 0
    assert sum(look.overflows for look in looks) == 24


def test_calibration_lasts_until_warmup() -> None:
    scale = Scale()
    looks = run(scale, policy_for(scale, warmup=20), [False] + [True] * 9 + [False] * 9 + [True, True])
    assert [look.counted for look in looks[-3:]] == [0, 0, 1]


def test_calibration_ends_with_the_first_good_step_after_warmup() -> None:
    scale = Scale(scale=2.0**60)
    looks = run(scale, policy_for(scale, warmup=20), [True] * 30 + [False] + [True] * 5)
    assert triggers(looks) == [36]


def test_no_warmup_no_calibration() -> None:
    scale = Scale(scale=2.0**32)
    assert triggers(run(scale, policy_for(scale, warmup=0), [True] * 6)) == [5, 6]


def test_calibration_does_not_forgive_the_minimum() -> None:
    scale = Scale(scale=4.0)
    looks = run(scale, policy_for(scale, warmup=20), [True, True, True])
    assert [look.counted for look in looks] == [0, 0, 1, 1]
    assert triggers(looks) == [2, 3]


# --- signs other than the scale


def test_the_npu_sign_is_ignored_before_the_first_step() -> None:
    policy = Policy(warmup=0)
    policy.check_scale(-1, 0, Reading(8.0, 0, 0, 2000, False))
    assert policy.check_scale(0, 1, Reading(8.0, 0, 0, 2000, False)).overflows == 0
    assert policy.check_scale(1, 1, Reading(8.0, 1, 1, 2000, True)).overflows == 0


def test_a_fixed_scale_in_saturation_mode_has_the_sign_only() -> None:
    policy = Policy(warmup=0, dynamic=False, floor=None)
    policy.check_scale(-1, 0, Reading(1024.0, None, 0, None, False))
    looks = [policy.check_scale(index, 1, Reading(1024.0, None, index + 1, None, index % 3 == 0)) for index in range(9)]
    assert [look.counted for look in looks] == [0, 1, 1, 0, 1, 1, 0, 1, 1]
    assert triggers(looks) == [7, 8]
    many = policy.check_scale(18, 10, Reading(1024.0, None, 19, None, False))
    assert many.overflows == 1


def test_without_a_guard_the_first_non_finite_value_triggers() -> None:
    policy = Policy(dynamic=False, guarded=False, floor=None)
    policy.check_scale(-1, 0, Reading(1.0, None, 0))
    assert not policy.check_scale(0, 1, Reading(1.0, None, 1), finite=True).trigger
    assert not policy.check_scale(1, 1, Reading(1.0, None, 2)).trigger
    look = policy.check_scale(11, 10, Reading(1.0, None, 12), finite=False)
    assert (look.overflows, look.counted, look.trigger) == (1, 1, True)


def test_a_caller_who_knows_the_step_needs_no_reading() -> None:
    policy = Policy(warmup=0, patience=2)
    assert [policy.check_scale(index, 1, None, finite=index % 2 == 0).trigger for index in range(4)] == [False, False, False, True]


def test_a_scale_alone_is_enough() -> None:
    policy = Policy(warmup=0, patience=2)
    assert [policy.check_scale(index, 1, Reading(scale)).counted for index, scale in enumerate([8192.0, 4096.0, 4096.0, 1024.0])] == [0, 1, 0, 1]


# --- steps


def test_nothing_happens_where_iterations_stand_still() -> None:
    policy = Policy(warmup=0)
    policy.check_scale(-1, 0, Reading(8.0, 3, 10, 2000))
    assert policy.check_scale(5, 6, Reading(8.0, 3, 10, 2000)) == Observation()
    assert policy.steps == 0


def test_a_loaded_checkpoint_is_no_overflow() -> None:
    policy = Policy(warmup=0)
    policy.check_scale(-1, 0, Reading(32768.0, 30, 1000, 2000))
    assert policy.check_scale(0, 1, Reading(64.0, 2, 500, 2000)).overflows == 0
    assert policy.check_scale(1, 1, Reading(32.0, 0, 501, 2000)).overflows == 1


def test_a_scale_set_by_hand_is_one_overflow_at_most() -> None:
    policy = Policy(warmup=0)
    policy.check_scale(-1, 0, Reading(2.0**32, 30, 1000, 2000))
    look = policy.check_scale(0, 1, Reading(2.0**10, 31, 1001, 2000))
    assert (look.overflows, look.trigger) == (1, False)


def test_the_rate() -> None:
    scale = Scale()
    policy = policy_for(scale)
    run(scale, policy, [index % 50 == 7 for index in range(199)])
    assert policy.rate is None  # one step more or less would change it too much
    run(scale, policy, [index % 50 == 7 for index in range(801)])
    assert policy.rate == pytest.approx(0.02)


def _drops(looks: Sequence[Observation]) -> List[Tuple[int, float, float]]:
    return [look.drop for look in looks if look.drop]


def test_drops_are_listed_with_step_and_values() -> None:
    scale = Scale(scale=64.0)
    assert _drops(run(scale, policy_for(scale), [False, True, False, True])) == [(1, 64.0, 32.0), (3, 32.0, 16.0)]


def test_overflow_known_from_elsewhere_counts_although_the_scale_stands() -> None:
    policy = Policy(patience=3, window=10)
    policy.check_scale(-1, 0, Reading(8.0, 0, 0, 2000))
    looks = [policy.check_scale(step, 1, Reading(8.0, step + 1, step + 1, 2000), told=[step] if step in (0, 4, 9) else ()) for step in range(10)]
    assert [look.overflows for look in looks] == [1, 0, 0, 0, 1, 0, 0, 0, 0, 1]
    assert [look.trigger for look in looks] == [False] * 9 + [True]
    assert looks[-1].pending == [0, 4, 9]


def test_overflow_known_from_elsewhere_leaves_the_window() -> None:
    policy = Policy(patience=2, window=10)
    policy.check_scale(-1, 0, Reading(8.0, 0, 0, 2000))
    assert not policy.check_scale(0, 1, Reading(8.0, 1, 1, 2000), told=[0]).trigger
    assert not policy.check_scale(10, 10, Reading(8.0, 11, 11, 2000), told=[10]).trigger
    assert policy.check_scale(20, 10, Reading(8.0, 21, 21, 2000), told=[11, 19]).trigger


@pytest.mark.parametrize("every", [1, 10])
def test_a_scale_that_settled_in_calibration_is_known(every: int) -> None:
    scale, policy = Scale(scale=2.0**20), Policy(warmup=20)
    policy.check_scale(-1, 0, scale.reading())
    for step in range(60):
        scale.step(step < 5)
        if step % every == every - 1:
            policy.check_scale(step, every, scale.reading())
        assert policy.settled_at == (2.0**15 if step >= 19 else None)
    scale.step(True)
    policy.check_scale(60, 1, scale.reading())
    assert policy.settled_at is None


def test_a_scale_that_never_fell_has_not_settled() -> None:
    scale, policy = Scale(), Policy(warmup=20)
    for step in range(30):
        scale.step(False)
        policy.check_scale(step, 1, scale.reading())
    assert policy.settled_at is None and not policy.calibrating


# --- what the closing lines need


@pytest.mark.parametrize("keras_3", [False, True], ids=["keras_2", "keras_3"])
def test_a_scale_that_can_not_fall_any_more_is_known(keras_3: bool) -> None:
    scale = Scale(scale=2.0 if not keras_3 else 0.0, keras_3=keras_3)
    policy = policy_for(scale, patience=5)
    run(scale, policy, [True] * 9)
    assert policy.lowest_scale == (0.0 if keras_3 else 1.0)
    assert policy.overflowing_steps == 9


@pytest.mark.parametrize("steps", [[True] * 4, [True] * 9 + [False]])
def test_a_scale_at_its_floor_that_does_well_is_none(steps: List[bool]) -> None:
    scale = Scale(scale=1.0)
    policy = policy_for(scale, patience=5)
    run(scale, policy, steps)
    assert policy.lowest_scale is None


def test_at_a_scale_of_0_all_is_skipped_that_is_not_applied() -> None:
    """A look that covers several steps."""
    scale = Scale(scale=0.0, keras_3=True)
    policy = policy_for(scale)
    run(scale, policy, [True] * 20, every=10)
    assert policy.overflowing_steps == 20


def test_steps_that_counted_are_known_while_the_run_is_short() -> None:
    scale = Scale()
    policy = policy_for(scale)
    run(scale, policy, [index in (3, 40, 41) for index in range(60)])
    assert policy.short_of_patience == [3, 40, 41] and policy.last_overflow == 41
    run(scale, policy, [False] * 140)
    assert policy.short_of_patience == []
