"""A training loop of one's own in mixed precision, with the same mistake as in keras_fit.py.

    npu-overflow run examples/custom_loop.py

Nothing in here knows of npu_overflow.
"""
from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf

BATCH, FEATURES = 16, 8


def make_model() -> Any:
    keras = tf.keras
    return keras.Sequential(
        [
            keras.Input((FEATURES,)),
            keras.layers.Dense(16, activation="relu", kernel_initializer=keras.initializers.RandomUniform(0.5, 1.0, seed=2), name="first"),
            keras.layers.Dense(8, kernel_initializer=keras.initializers.RandomUniform(15.0, 30.0, seed=3), name="hot"),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(1e-4), dtype="float32", name="out"),
        ],
        name="net",
    )


def main(steps: int = 60) -> int:
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    model = make_model()
    optimizer = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam(1e-5))
    scaled = getattr(optimizer, "get_scaled_loss", None) or optimizer.scale_loss  # Keras 2 or 3
    unscaled = getattr(optimizer, "get_unscaled_gradients", lambda gradients: gradients)  # Keras 3 does it in apply_gradients

    @tf.function  # type: ignore[untyped-decorator]
    def train_step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            scaled_loss = scaled(loss)
        gradients = tape.gradient(scaled_loss, model.trainable_variables)
        optimizer.apply_gradients(zip(unscaled(gradients), model.trainable_variables))
        return loss

    random = np.random.RandomState(1)
    for step in range(steps):
        x = random.uniform(0.5, 1.0, (BATCH, FEATURES)).astype(np.float32) * (300.0 if step >= 30 else 1.0)
        loss = train_step(tf.constant(x), tf.ones((BATCH, 1)))
        if step % 20 == 0:
            print("step %d loss %g" % (step, float(loss)))
    print("trained %d steps" % steps)
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
