"""How near a step comes to float16's limits: the magnitudes of its layers in both passes."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Tuple

import numpy as np
import pytest
from collect import training
from collect.records import ROOM, recorded

import npu_overflow
from npu_overflow.collect.replay.blame import examine
from npu_overflow.collect.replay.names import Names
from npu_overflow.collect.replay.survey import survey

pytestmark = pytest.mark.tensorflow


def surveyed(step: Any, **layers: Any) -> Dict[Tuple[str, str], Any]:
    examine(step, ROOM)
    found = survey(step, Names(step.record, layers))
    assert found is not None
    rows = {(row["layer"], row["phase"]): row for row in found.pop("layers")}
    return {**rows, ("", ""): found}


@pytest.mark.parametrize("compiled", [True, False])
def test_magnitudes_past_both_ends_of_float16(compiled: bool) -> None:
    """What float16 makes Inf of, and what it flushes to zero, still has its magnitude."""
    import tensorflow as tf

    weight, scale = tf.Variable([300.0, 3e-4]), tf.Variable(1.0, trainable=False)

    def step() -> Any:
        with tf.GradientTape() as tape:
            half = tf.cast(weight, tf.float16)
            with tf.name_scope("square"):
                big = tf.square(half)  # 90000 and 9e-8
            with tf.name_scope("tiny"):
                # the gradient of half is 2 * half * 2e-8: 1.2e-5, and 1.2e-11, which is flushed
                tiny = tf.cast(big, tf.float32) * 2e-8
            loss = tf.reduce_sum(tiny) * scale
        weight.assign_sub(tape.gradient(loss, weight))
        return loss

    taken = recorded(tf.function(step) if compiled else step, scale=scale)
    found = surveyed(taken, square=[], tiny=[])
    assert found["", ""] == {"dtype": "float16", "loss_scale": 1.0}
    forward = found["square", "forward"]
    assert forward["largest"] == pytest.approx(90000.0, rel=1e-3)
    assert forward["smallest"] == pytest.approx(9e-8, rel=1e-2)
    assert forward["op_type"] == "Square"
    backward = [row for (_, phase), row in found.items() if phase == "backward"]
    assert min(row["smallest"] for row in backward) == pytest.approx(1.2e-11, rel=1e-2)
    # that, and the gradient of big: twice 2e-8
    assert sum(row["flushed"] for row in backward) == 3


def test_turns_of_a_loop_count_together() -> None:
    import tensorflow as tf

    weight = tf.Variable(1.0)

    @tf.function
    def step() -> None:
        value = tf.cast(weight, tf.float16)
        for _ in tf.range(5):
            with tf.name_scope("grow"):
                value = value * tf.constant(4.0, tf.float16)
        weight.assign(tf.cast(value, tf.float32))

    found = surveyed(recorded(step), grow=[])
    row = found["grow", "forward"]
    assert (row["smallest"], row["largest"], row["nonzero"]) == (4.0, 1024.0, 5)


def fitted(tmp_path: Path, policy: str = "mixed_float16", **options: Any) -> Any:
    """A watch around a training of 12 steps, all of them healthy."""
    keras = training.set_up(policy)
    try:
        model = training.functional(keras)
        training.weights(model)
        training.compiled(model, keras)
        watch = npu_overflow.OverflowWatch(dump_path=str(tmp_path), verbose=0, **options)
        x, y = training.data(12, [])
        model.fit(x, y, training.BATCH, shuffle=False, verbose=0, callbacks=[watch])
    finally:
        training.tear_down(keras)
    return watch, x, model


def test_a_healthy_step_that_was_asked_for(tmp_path: Path) -> None:
    watch, x, _ = fitted(tmp_path, at_steps=[4])
    (report,) = watch.reports
    assert report.first is None and report.headroom.step == 4
    assert report.headroom.dtype == "float16" and report.headroom.loss_scale == 1024.0
    rows = {(row.layer, row.phase): row for row in report.headroom.layers}
    random = np.random.RandomState(3)  # as training.weights draws them
    shapes = ((4, 8), (8,), (8, 6))
    kernel, bias, hot = (random.uniform(0.5, 1.0, shape).astype(np.float32) for shape in shapes)
    batch = x[4 * training.BATCH : 5 * training.BATCH]
    largest = ((batch @ kernel + bias) @ (100 * hot)).max()
    assert rows["hot", "forward"].largest == pytest.approx(largest, rel=0.1)
    assert rows["hot", "forward"].headroom_log2 == pytest.approx(np.log2(65504 / largest), abs=0.2)
    assert {("first", "backward"), ("hot", "backward")} <= set(rows)
    assert ("out", "forward") not in rows  # float32


def test_a_step_in_float32_is_compared_with_float16(tmp_path: Path) -> None:
    watch, _, _ = fitted(tmp_path, "float32", at_steps=[4])
    (report,) = watch.reports
    assert report.headroom.dtype == "float32"
    assert {row.layer for row in report.headroom.layers} == {"first", "hot", "out"}


def test_only_where_it_was_asked_for(tmp_path: Path) -> None:
    watch, _, _ = fitted(tmp_path)
    assert watch.reports == []


def test_weights_are_as_without(tmp_path: Path) -> None:
    asked, plain = fitted(tmp_path, at_steps=[4]), fitted(tmp_path)
    assert training.same(asked[2].get_weights(), plain[2].get_weights())
