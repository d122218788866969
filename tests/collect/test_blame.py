"""Blame on records that are made directly: bits of a repaired run never leak into what is told."""

from __future__ import annotations

from typing import Any

import pytest
from records import ROOM, recorded

from npu_overflow.collect.replay.blame import attempt, examine
from npu_overflow.errors import CannotCollect

pytestmark = pytest.mark.tensorflow


def masked(eager: bool) -> Any:
    """An infinite mask, which a softmax absorbs, meets a product that overflows."""
    import tensorflow as tf

    weight = tf.Variable(tf.fill((4, 4), tf.constant(300.0, tf.float16)))

    def step(x: Any) -> None:
        mask = tf.constant([[0.0, 0.0, 0.0, -float("inf")]] * 4, tf.float16) * tf.constant(
            2.0, tf.float16
        )
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.nn.softmax(tf.matmul(x, weight) + mask))
        weight.assign_sub(tape.gradient(loss, weight))

    class Model:
        trainable_variables = (weight,)

    run = step if eager else tf.function(step)
    hot, fine = tf.fill((4, 4), tf.constant(100.0, tf.float16)), tf.ones((4, 4), tf.float16)
    run(fine)
    return lambda x: recorded(lambda: run(hot if x == "hot" else fine), Model)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_bits_of_repaired_runs_never_leak(eager: bool) -> None:
    found = examine(masked(eager)("hot"), ROOM)
    assert found.runs >= 3  # the mask alone, then the product alone
    assert [(origin.kind, origin.op.type) for origin in found.origins][:2] == [
        ("constant", "Mul"),
        ("operator", "MatMul"),
    ]
    culprit = found.culprit
    assert culprit is found.origins[1] and culprit.bit == 2
    by_type = {held.op.type: held for held in reversed(found.held)}  # the first of each
    assert by_type["MatMul"].origin is culprit and by_type["MatMul"].bits == culprit.bit
    assert by_type["Mul"].origin is found.origins[0] and by_type["Mul"].bits == 1
    assert by_type["AddV2"].bits == by_type["Softmax"].bits == 3
    orders = [held.op.order for held in found.held]
    assert orders == sorted(orders) and len(set(orders)) == len(orders)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_a_mask_alone_is_nobodys_fault(eager: bool) -> None:
    found = examine(masked(eager)("fine"), ROOM)
    assert found.culprit is None and found.guilty == () and found.runs == 1


def test_a_variable_that_an_eager_operator_takes_as_it_is_counts_as_a_variable() -> None:
    """TensorFlow reads it inside the operator, which no callback sees."""
    import tensorflow as tf

    weight, other = tf.Variable([float("inf")], name="bad"), tf.Variable([1.0])

    class Model:
        trainable_variables = (other,)

    found = examine(recorded(lambda: other.assign_sub(tf.multiply(weight, 2.0)), Model), ROOM)
    assert found.culprit is not None and found.culprit.kind == "variable"


def test_what_a_step_wrote_is_what_a_later_operator_takes_from_the_variable() -> None:
    import tensorflow as tf

    total, weight = tf.Variable([0.0]), tf.Variable([1.0])
    given = tf.constant([1e30])

    class Model:
        trainable_variables = (weight,)

    def step() -> None:
        total.assign_add(tf.square(given))
        weight.assign_sub(tf.multiply(total, 2.0))

    found = examine(recorded(step, Model), ROOM)
    assert found.culprit is not None and found.culprit.op.type == "Square"


@pytest.mark.parametrize(
    ("error", "said"),
    [(AssertionError(), "raises AssertionError"), (ValueError("no  such"), "ValueError: no such")],
)
def test_what_an_operator_raises_is_named_even_where_it_says_nothing(
    error: Exception, said: str
) -> None:
    def make(**finite: Any) -> Any:
        raise error

    with pytest.raises(CannotCollect) as caught:
        attempt(make)
    assert caught.value.message().endswith(said)
