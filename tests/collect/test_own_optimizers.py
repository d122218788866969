"""Models whose ``train_step`` has optimizers of its own, beside the one that ``compile`` makes."""
from __future__ import annotations

from typing import Any, List

import numpy as np
import pytest
from collect import training

import npu_overflow
from npu_overflow.training.loss_scale import find_in_model

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]


def gan(keras: Any, optimizers: List[Any], hot_from: int) -> Any:
    """Two layers, an optimizer each; from step ``hot_from`` on the second's output overflows."""
    import tensorflow as tf

    class Gan(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = keras.layers.Dense(4, name="first", kernel_initializer="ones")
            self.hot = keras.layers.Dense(4, name="hot", kernel_initializer="ones")
            self.first_optimizer, self.hot_optimizer = optimizers
            self.count = tf.Variable(0, trainable=False)

        def call(self, x: Any) -> Any:
            return self.hot(self.first(x))

        def train_step(self, data: Any) -> Any:
            x = data[0] if isinstance(data, (list, tuple)) else data
            self.count.assign_add(1)
            factor = tf.where(self.count > hot_from, 6e4, 1.0)
            losses = []
            for layer, optimizer in (
                (self.first, self.first_optimizer),
                (self.hot, self.hot_optimizer),
            ):
                with tf.GradientTape() as tape:
                    out = self.hot(self.first(x) * tf.cast(factor, tf.float16))
                    loss = tf.reduce_mean(tf.cast(out, tf.float32)) * 1e-6
                weights = layer.trainable_variables
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
                losses.append(loss)
            return {"d_loss": losses[0], "g_loss": losses[1]}

    model = Gan()
    model(np.ones((1, 4), np.float32))
    model.compile()
    return model


def fitted(hot_from: int) -> Any:
    keras = training.set_up()
    try:
        model = gan(keras, [keras.optimizers.SGD(1e-6), keras.optimizers.SGD(1e-6)], hot_from)
        watch = npu_overflow.OverflowWatch(language="en")
        data = np.ones((30 * 4, 4), np.float32)
        model.fit(data, batch_size=4, verbose=0, callbacks=[watch])
        watch._session.end()
    finally:
        training.tear_down(keras)
    return watch


def test_a_loss_of_any_name_tells_where_nothing_guards(capsys: Any) -> None:
    """The optimizer that ``compile`` wraps in a loss scale never steps: it is no guard."""
    watch = fitted(12)
    said = capsys.readouterr().err
    assert said.count("has no loss scaling") == 1  # two of one class
    assert "step 13: the loss became non-finite" in said
    assert watch.reports


def test_a_healthy_one_is_quiet(capsys: Any) -> None:
    watch = fitted(99)
    assert watch.reports == [] and "overflowed" not in capsys.readouterr().err


class Optimizer:
    """What has gradients applied."""

    def __init__(self, inside: Any = None) -> None:
        if inside is not None:
            self.inner_optimizer = inside

    def apply_gradients(self, gradients: Any) -> None:
        pass


class LossScaleOptimizer(Optimizer):
    initial_scale = 2.0**15


class Model:
    def __init__(self, compiled: Any, **own: Any) -> None:
        self.optimizer = compiled
        vars(self).update(own)


def test_which_optimizers_a_model_has() -> None:
    plain, other, third = Optimizer(), Optimizer(), Optimizer()
    scaled, wrapped = LossScaleOptimizer(plain), LossScaleOptimizer(third)
    assert find_in_model(Model(plain)) == [plain]
    assert find_in_model(Model(scaled, mine=plain)) == [scaled]  # what is inside counts once
    assert find_in_model(Model(other, mine=scaled)) == [scaled]  # compile's own says nothing
    assert find_in_model(Model(other, one=plain, two=third)) == [plain, third]
    assert find_in_model(Model(wrapped, one=other)) == [wrapped, other]
    assert find_in_model(Model(None)) == []
