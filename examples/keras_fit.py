"""A Keras training in mixed precision with an ordinary mistake: from step 30 on, one feature comes in other units.

    npu-overflow run examples/keras_fit.py

finds the layer whose float16 product overflows from then on. Nothing in here knows of npu_overflow.
"""
from __future__ import annotations

import argparse
from typing import Any, Tuple

import numpy as np
import tensorflow as tf

BATCH, FEATURES = 16, 8


def make_data(steps: int) -> Tuple[Any, Any]:
    x = np.random.RandomState(1).uniform(0.5, 1.0, (steps, BATCH, FEATURES)).astype(np.float32)
    x[30:] *= 300.0  # millimetres instead of metres, say
    return x.reshape(-1, FEATURES), np.ones((steps * BATCH, 1), np.float32)


def make_model() -> Any:
    keras = tf.keras
    large = keras.initializers.RandomUniform(15.0, 30.0, seed=3)
    inputs = keras.Input((FEATURES,), name="features")
    h = keras.layers.Dense(16, activation="relu", kernel_initializer=keras.initializers.RandomUniform(0.5, 1.0, seed=2), name="first")(inputs)
    h = keras.layers.Dense(8, kernel_initializer=large, name="hot")(h)
    outputs = keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(1e-4), dtype="float32", name="out")(h)
    return keras.Model(inputs, outputs, name="net")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    model = make_model()
    model.compile(optimizer=tf.keras.optimizers.Adam(1e-5), loss="mse")  # the policy adds loss scaling
    x, y = make_data(arguments.steps)
    model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=2)
    print("trained %d steps" % arguments.steps)


if __name__ == "__main__":
    main()
