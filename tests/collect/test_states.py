"""States that the overflowing step itself moves: a replay begins where the step began."""
from __future__ import annotations

from typing import Any, Optional

import numpy as np
import pytest
import training

import npu_overflow

pytestmark = pytest.mark.tensorflow


def counting(keras: Any) -> Any:
    """A layer that overflows in every third step, by a counter of its own that each step moves on."""

    class Counting(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.count = self.add_weight(name="count", shape=(), initializer="zeros", trainable=False, dtype="float32")

        def call(self, x: Any) -> Any:
            import tensorflow as tf

            factor = tf.where(tf.math.floormod(tf.cast(self.count, tf.float32), 3.0) == 0.0, 6e4, 1.0)
            self.count.assign_add(1.0)
            return x * tf.cast(factor, tf.float16) * tf.cast(factor, tf.float16)

    inputs = keras.Input((training.FEATURES,))
    h = keras.layers.Dense(6, name="hot")(keras.layers.Dense(8, activation="relu", name="first")(inputs))
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(Counting(name="counting")(h)), name="net")


def trained(keras: Any, watch: Optional[Any], model_of: Any) -> Any:
    training.set_up()
    model = training.compiled(model_of(keras), keras)
    random = np.random.RandomState(3)
    model.set_weights([random.uniform(0.5, 1.0, value.shape).astype(value.dtype) if value.ndim else value for value in model.get_weights()])
    x, y = training.data(60, [])
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[watch] if watch else [])
    return training.state(model)


def test_a_counter_in_the_model(keras: Any) -> None:
    watch = npu_overflow.OverflowWatch(verbose=0)
    assert training.same(trained(keras, None, counting), trained(keras, watch, counting))
    first = watch.reports[0].first
    assert (first.op_type, first.phase, first.verdict) == ("Mul", "forward", "computed_here")
    assert training.named(first).startswith("net/counting/mul")


def test_a_python_function_is_not_run_again(keras: Any) -> None:
    import tensorflow as tf

    drawn = []

    def draw(x: Any) -> Any:
        drawn.append(1)
        return x

    def net(keras: Any) -> Any:
        class Draws(keras.layers.Layer):  # type: ignore[misc, name-defined]
            def call(self, x: Any) -> Any:
                result = tf.numpy_function(draw, [x], x.dtype)
                result.set_shape(x.shape)
                return result * tf.constant(6e4, tf.float16) * tf.constant(6e4, tf.float16)

            def compute_output_shape(self, shape: Any) -> Any:
                return shape

        inputs = keras.Input((training.FEATURES,))
        h = Draws(name="draws")(keras.layers.Dense(6, name="first")(inputs))
        return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")

    watch = npu_overflow.OverflowWatch(verbose=0)
    trained(keras, None, net)
    plain = len(drawn)
    drawn.clear()
    trained(keras, watch, net)
    assert len(drawn) == plain
    assert watch.reports[0].first is None and watch.reports[0].reason == "replay.python"
    assert "tf.numpy_function" in watch.reports[0].remarks[0].text
