"""A Keras training on an Ascend NPU, with a feature that comes in other units from step 40 on.

    npu-overflow run examples/ascend_fit.py             the overflow dump is configured before the device opens
    npu-overflow run --restart examples/ascend_fit.py   it stays off until overflow is frequent; then the script is started once more with it

Nothing in here knows of npu_overflow.
"""
from __future__ import annotations

import argparse
from typing import Any

import npu_device
import numpy as np

npu_device.open().as_default()  # before anything of TensorFlow is made

import tensorflow as tf  # noqa: E402

BATCH, FEATURES = 16, 8


def make_model() -> Any:
    keras = tf.keras
    return keras.Sequential(
        [
            keras.layers.InputLayer((FEATURES,)),
            keras.layers.Dense(16, activation="relu", kernel_initializer=keras.initializers.RandomUniform(0.5, 1.0, seed=2), name="first"),
            keras.layers.Dense(8, kernel_initializer=keras.initializers.RandomUniform(15.0, 30.0, seed=3), name="hot"),
            keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(1e-4), dtype="float32", name="out"),
        ],
        name="net",
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    arguments = parser.parse_args()
    tf.keras.mixed_precision.set_global_policy("mixed_float16")
    model = make_model()
    optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.Adam(1e-5), initial_scale=2.0**10)
    model.compile(optimizer=optimizer, loss="mse")
    x = np.random.RandomState(1).uniform(0.5, 1.0, (arguments.steps, BATCH, FEATURES)).astype(np.float32)
    x[40:] *= 300.0
    model.fit(x.reshape(-1, FEATURES), np.ones((arguments.steps * BATCH, 1), np.float32), batch_size=BATCH, shuffle=False, verbose=2)
    print("trained %d steps" % arguments.steps)


if __name__ == "__main__":
    main()
