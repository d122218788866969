"""What is tried on a record: which changes, in which order, and that nothing of the training moves."""
from __future__ import annotations

from typing import Any, List

import pytest
from collect.records import ROOM, recorded

from npu_overflow.collect.replay.blame import examine
from npu_overflow.collect.replay.cure import trials_of
from npu_overflow.collect.replay.names import Names
from npu_overflow.dump.replay_info import TrialInfo

pytestmark = pytest.mark.tensorflow


def tried(step: Any, **layers: Any) -> List[TrialInfo]:
    found = examine(step, ROOM)
    assert found.culprit is not None
    return trials_of(step, found, Names(step.record, layers))


def weight_of(value: float) -> Any:
    import tensorflow as tf

    return tf.Variable(tf.fill([2], value))


@pytest.mark.parametrize("compiled", [True, False])
def test_scopes_are_widened_one_after_the_other_and_the_needless_left_out(compiled: bool) -> None:
    import tensorflow as tf

    weight = weight_of(300.0)

    def step() -> None:
        half = tf.cast(weight, tf.float16)
        with tf.name_scope("first"):
            big = tf.square(half)
        with tf.name_scope("second"):
            small = big / tf.constant(100.0, tf.float16)
        weight.assign_add(tf.cast(small, tf.float32))

    taken = recorded(tf.function(step) if compiled else step, scale=None)
    taken.trainable = frozenset(taken.record.variables)
    trials = tried(taken, first=[], second=[])
    assert [(trial.layers, trial.finite) for trial in trials] == [
        (("first",), False),
        (("first", "second"), True),
    ]
    name = "second/truediv" if compiled else "second/RealDiv"
    assert trials[0].next == "RealDiv " + name
    assert trials[0].largest == 90000.0
    if not compiled:  # what was recorded is what the training did
        assert tf.reduce_all(tf.math.is_inf(weight)).numpy()


def test_the_highest_loss_scale_that_is_finite() -> None:
    import tensorflow as tf

    weight, scale = weight_of(1.0), tf.Variable(2.0**15, trainable=False)

    @tf.function
    def step() -> None:
        gradient = tf.cast(weight * scale, tf.float16) * tf.constant(100.0, tf.float16)
        weight.assign_sub(tf.cast(gradient, tf.float32) / scale)

    before = weight.numpy().tobytes()
    taken = recorded(step, scale=scale)
    taken.trainable = frozenset(n for n, v in taken.record.variables.items() if v is weight)
    after = weight.numpy().tobytes()
    assert after != before
    (trial,) = [trial for trial in tried(taken) if trial.change == "loss_scale"]
    assert (trial.value, trial.finite) == (512.0, True)  # 512 * 100 fits, 1024 * 100 does not
    assert weight.numpy().tobytes() == after and scale.numpy() == 2.0**15


def test_an_epsilon_that_the_gradient_sees_too() -> None:
    import tensorflow as tf

    weight = weight_of(0.0)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sqrt(tf.cast(weight, tf.float16)))
        weight.assign_sub(tape.gradient(loss, weight))

    taken = recorded(step)
    taken.trainable = frozenset(taken.record.variables)
    trials = tried(taken)
    assert [trial.change for trial in trials] == ["epsilon", "float32"]
    assert trials[0].finite and trials[0].value == 6e-8
    assert not trials[1].finite and trials[1].largest is None
