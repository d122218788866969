"""State beside the weights that a step spoiled although it was skipped."""
from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from collect import training

import npu_overflow

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]


def lines(capsys: Any) -> List[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "Inf or NaN (" in line]


def with_normalization(keras: Any) -> Any:
    inputs = keras.Input((training.FEATURES,), name="features")
    h = keras.layers.Dense(6, name="hot")(inputs)
    h = keras.layers.BatchNormalization(name="norm")(h)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")


def fitted(hot: List[int], callbacks: Any = ()) -> Any:
    """A watch around 40 steps; the batches in ``hot`` overflow before the normalization."""
    keras = training.set_up()
    try:
        model = training.compiled(with_normalization(keras), keras)
        training.weights(model)
        watch = npu_overflow.OverflowWatch(language="en")
        x, y = training.data(40, hot)
        model.fit(x, y, training.BATCH, shuffle=False, verbose=0, callbacks=[*callbacks, watch])
        watch._session.end()
    finally:
        training.tear_down(keras)
    return watch


def test_moving_statistics_after_one_overflow(capsys: Any) -> None:
    watch = fitted([25])
    (line,) = lines(capsys)
    assert line.startswith("npu_overflow: the moving statistics ")
    assert "norm/moving_mean hold Inf or NaN (2 variables in all)" in line
    assert watch.reports == []


def test_the_report_says_it_too(capsys: Any) -> None:
    watch = fitted(list(range(25, 40)))
    assert len(lines(capsys)) == 1
    codes = [remark.code for remark in watch.reports[0].remarks]
    assert "watch.spoiled.normalization" in codes


def test_of_a_healthy_run_nothing_is_said(capsys: Any) -> None:
    fitted([])
    assert lines(capsys) == []


def test_statistics_that_were_set_back_are_no_longer_told(capsys: Any) -> None:
    import tensorflow as tf

    class Back(tf.keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 30:
                for variable in self.model.get_layer("norm").non_trainable_weights:
                    variable.assign(np.zeros(variable.shape))

    fitted([25], callbacks=[Back()])
    assert lines(capsys) == []


def looped(hot: List[int], begins: float) -> None:
    """A loop of the user's own with a running average and a state that begins as ``begins``."""
    import tensorflow as tf

    keras = training.set_up()
    try:
        model = training.compiled(training.functional(keras), keras)
        training.weights(model)
        average = tf.Variable(0.0, trainable=False, name="running_average")
        best = tf.Variable(begins, trainable=False, name="best")
        optimizer = model.optimizer
        legacy = hasattr(optimizer, "get_scaled_loss")

        @tf.function
        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                out = model(x, training=True)
                average.assign(0.9 * average + tf.reduce_mean(out))
                best.assign(best + 0.0)
                loss = tf.reduce_mean(tf.square(out - y))
                scaled = optimizer.get_scaled_loss(loss) if legacy else optimizer.scale_loss(loss)
            gradients = tape.gradient(scaled, model.trainable_variables)
            if legacy:
                gradients = optimizer.get_unscaled_gradients(gradients)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))
            return loss

        x, y = training.data(40, hot)
        with npu_overflow.overflow_dump(language="en"):
            for i in range(40):
                part = slice(i * training.BATCH, (i + 1) * training.BATCH)
                step(tf.constant(x[part]), tf.constant(y[part]))
    finally:
        training.tear_down(keras)


@pytest.mark.parametrize("begins", [0.0, float("inf")])
def test_an_average_in_a_loop(begins: float, capsys: Any) -> None:
    """State that began non-finite is nobody's fault."""
    looped([25], begins)
    (line,) = lines(capsys)
    assert "the state variable running_average holds Inf or NaN (1 variable in all)" in line


def test_a_loop_whose_overflow_spoils_nothing(capsys: Any) -> None:
    looped([], float("inf"))
    assert lines(capsys) == []
