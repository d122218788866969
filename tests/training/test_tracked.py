"""Optimizers under watch: one list, each with its reader and its policy."""
from __future__ import annotations

import gc
from types import SimpleNamespace
from typing import Any, List

import pytest
from optimizers import LossScaleOptimizer, Plain

from npu_overflow.training.console import Console
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.tracked import ToldSteps, TrackedOptimizers

OPTIONS = WatchOptions(warmup=0, patience=2)


def tracked(*optimizers: Any, options: WatchOptions = OPTIONS) -> TrackedOptimizers:
    found = TrackedOptimizers(options, Console(options), places_known=True)
    for optimizer in optimizers:
        found.add(optimizer, 0)
    return found


def check(found: TrackedOptimizers, step: int, finite: Any = None) -> List[int]:
    return [item.check(step, 1, finite, ()).overflows for item in found.items]


def test_an_optimizer_is_watched_once_whatever_wraps_it() -> None:
    optimizer = LossScaleOptimizer()
    found = tracked(optimizer, SimpleNamespace(optimizer=optimizer), optimizer)
    assert [item.reader.optimizer for item in found.items] == [optimizer]
    assert found.facts == [
        {"name": "LossScaleOptimizer", "family": "tf_keras_2", "dynamic": True, "floor": 1.0}
    ]
    assert found.guarded and not found.needs_loss and not found.see_no_overflow


def test_steps_are_those_of_the_optimizer_that_made_most() -> None:
    one, other = LossScaleOptimizer(), Plain()
    found = tracked(one, other)
    assert found.steps_made() == 0
    one.apply_gradients()
    other.apply_gradients()
    other.apply_gradients()
    assert found.steps_made() == 2
    assert check(found, 1) == [0, 0] and found.steps_made() == 0


def test_what_is_known_outlives_a_pause_and_the_optimizer_does_not(capsys: Any) -> None:
    """The optimizer of before goes on; one that is gone still counts in the closing line."""
    stays, goes = LossScaleOptimizer(), LossScaleOptimizer()
    found = tracked(stays, goes)
    for step in range(3):
        stays.apply_gradients(overflow=True)
        goes.apply_gradients(overflow=step == 0)
        check(found, step)
    found.park()
    assert found.items == [] and found.rate is None
    del goes
    gc.collect()
    fresh = LossScaleOptimizer()
    options = SimpleNamespace(optimizer=stays, other=fresh)
    assert found.resume(options) == [fresh]
    assert [item.policy.overflowing_steps for item in found.items] == [3]
    found.say_rates(calm=False)
    said = capsys.readouterr().err
    assert "1 of 3 steps overflowed" in said and "3 of 3 steps overflowed" in said


def test_losses_that_are_hidden_in_a_mean_count_where_nothing_guards() -> None:
    optimizer = Plain()
    found = tracked(optimizer)
    for step in range(4):
        optimizer.apply_gradients()
        check(found, step, finite=False if step == 0 else None)
    assert found.needs_loss
    found.loss_seen(0, False)
    assert not found.needs_loss and found.asks_weights(4)
    found.last_loss_seen(4, lost=True)
    assert found.items[0].policy.overflowing_steps == 4 and not found.asks_weights(4)
    found.epoch_begins()
    assert found.needs_loss


@pytest.mark.parametrize("scale", [None, 8.0])
def test_a_step_that_is_told_counts_once(scale: Any) -> None:
    told = ToldSteps(OPTIONS)
    assert told.is_new(0)
    assert told.check(0, scale, False).overflows == 1 and told.guarded is (scale is not None)
    assert told.is_new(1)
    assert not told.is_new(5)  # an optimizer was seen to end steps meanwhile


def test_optimizers_that_come_late_are_found_once(monkeypatch: Any) -> None:
    asked: List[int] = []
    monkeypatch.setattr(
        "npu_overflow.training.loss_scale.find_optimizers", lambda: asked.append(1) or []
    )
    found, made = tracked(), LossScaleOptimizer()
    assert found.late(None) == [] and found.late(None) == [] and len(asked) == 1
    found.made(made)
    assert found.late(None) == [made] and found.late(None) == [] and len(asked) == 1


@pytest.mark.parametrize(
    ("overflows", "said"),
    [
        ([False, True, False, False], "1 of 4 steps overflowed.\nnpu_overflow: 1 of them counts"),
        ([False, True, True, True], "at_steps=[1, 2, 3]), or, if it overflows again"),
    ],
)
def test_a_short_run_ends_with_what_to_type(overflows: List[bool], said: str, capsys: Any) -> None:
    optimizer = LossScaleOptimizer()
    found = tracked(optimizer, options=WatchOptions(warmup=0, language="en"))
    for step, overflow in enumerate(overflows):
        optimizer.apply_gradients(overflow)
        check(found, step)
    found.say_rates(calm=True)
    assert said in capsys.readouterr().err


def test_a_dead_loss_scale_is_told(capsys: Any) -> None:
    optimizer = LossScaleOptimizer(1.0)
    found = tracked(optimizer, options=WatchOptions(warmup=0, language="en"))
    for step in range(5):
        optimizer.apply_gradients(overflow=True)
        optimizer._loss_scale._current_loss_scale.now = 1.0
        check(found, step)
    found.say_rates(calm=False)
    said = capsys.readouterr().err
    assert "5 of 5 steps overflowed.\n" in said and "%" not in said
    assert "stands at 1, the lowest" in said and "A lower loss scale can't cure it" in said
