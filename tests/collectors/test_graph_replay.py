"""Steps that are not legal eagerly are replayed as a graph."""
from __future__ import annotations

from typing import Any, Optional

import pytest
import test_loops
import training

import npu_overflow

pytestmark = pytest.mark.tensorflow


class GraphLoop(test_loops.Loop):
    """Gradients by ``tf.gradients``, which raises eagerly."""

    def gradients(self, x: Any, y: Any) -> Any:
        tf = self.tf
        loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
        scaled = self.optimizer.get_scaled_loss(loss) if hasattr(self.optimizer, "get_scaled_loss") else self.optimizer.scale_loss(loss)
        inner = [getattr(value, "value", None) for value in self.model.trainable_variables]  # Keras 3 wraps TensorFlow's variables
        return tf.gradients(scaled, [value if part is None or callable(part) else part for value, part in zip(self.model.trainable_variables, inner)])


def weights(keras: Any, watch: Optional[Any]) -> Any:
    import contextlib

    training.set_up()
    loop = GraphLoop(keras)
    with watch if watch is not None else contextlib.nullcontext() as seen:
        test_loops.one_function(loop, seen)
    return loop.weights(), seen


def test_a_step_with_tf_gradients(keras: Any) -> None:
    plain, _ = weights(keras, None)
    watched, watch = weights(keras, npu_overflow.overflow_dump(verbose=0))
    assert training.same(plain, watched)
    report = watch.reports[0]
    assert (report.first.op_type, report.first.phase, report.first.verdict) == ("MatMul", "forward", "computed_here")
    assert report.first.op_name == "net/hot/MatMul" and report.first.location is None
    assert any(remark.code == "replay.by_graph" and "tf.gradients" in remark.text for remark in report.remarks)


def test_a_fit_whose_step_raises_eagerly(keras: Any) -> None:
    class Net(keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Any:
            import tensorflow as tf

            if tf.executing_eagerly():
                raise RuntimeError("only as a graph")
            return super().train_step(data)

    def fit(watch: Optional[Any]) -> Any:
        training.set_up()
        base = training.functional(keras)
        model = training.compiled(Net(base.inputs, base.outputs, name="net"), keras)
        training.weights(model)
        x, y = training.data(60, list(range(training.HOT_FROM, 60)))
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[watch] if watch else [])
        return training.state(model)

    watch = npu_overflow.OverflowWatch(verbose=0)
    assert training.same(fit(None), fit(watch))
    first = watch.reports[0].first
    assert first.op_type == "MatMul" and first.op_name == "net/hot/MatMul"
    assert first.outputs[0].pos_inf > 0


@pytest.mark.parametrize("place", ["inside", "before"])
def test_functions_that_such_a_step_calls_are_looked_into(keras: Any, place: str) -> None:
    """A nested tf.function, with a loop that autograph makes fit for a graph: the overflow is in it, or flows through it."""
    import tensorflow as tf

    @tf.function
    def nested(x: Any) -> Any:
        for _ in tf.range(1):
            x = x * tf.constant(1.0, x.dtype)
        return tf.square(x) if place == "inside" else x * 0.5

    class Own(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            return nested(x) + 0.0 if place == "inside" else nested(tf.square(x)) + 0.0

    training.set_up()
    inputs = keras.Input((training.FEATURES,))
    hidden = Own(name="own")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, name="out", dtype="float32", kernel_initializer=keras.initializers.Constant(1e-6))(hidden), name="net")

    loop = GraphLoop(keras)
    loop.model = model
    with npu_overflow.overflow_dump(verbose=0) as watch:
        test_loops.one_function(loop, watch)
    report = watch.reports[0]
    assert report.first.op_type == "Square" and report.first.op_name.startswith("net/own/")
    assert report.first.verdict == "computed_here"
    assert any(remark.code == "replay.by_graph" for remark in report.remarks)
