"""What watching costs, as ratios taken in one run; what a collected step costs is in replay.py.

    python benchmarks/watch.py [--quick]

``on_train_batch_end`` while watching: median microseconds, and the ratio of a watched step to a plain one (float32 model with an explicit
loss-scale optimizer: float16 kernels are slow in odd ways on a CPU).
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any, List

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np
import tensorflow as tf

import npu_overflow

keras = tf.keras


def scaled(optimizer: Any) -> Any:
    kind = keras.mixed_precision.LossScaleOptimizer
    try:
        return kind(optimizer, initial_scale=2.0)
    except TypeError:
        return kind(optimizer, dynamic=True, initial_scale=2.0)


def small() -> Any:
    inputs = keras.Input((64,))
    h = inputs
    for _ in range(4):
        h = keras.layers.Dense(64, activation="relu")(h)
    model = keras.Model(inputs, keras.layers.Dense(1)(h))
    model.compile(scaled(keras.optimizers.Adam()), "mse")
    return model, (np.random.rand(32, 64).astype(np.float32), np.random.rand(32, 1).astype(np.float32))


class Timed(npu_overflow.OverflowWatch):
    """The watch, with the time of each ``on_train_batch_end``."""

    def __init__(self) -> None:
        super().__init__(verbose=0)
        self.taken: List[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        begin = time.perf_counter()
        super().on_train_batch_end(batch, logs)
        self.taken.append(time.perf_counter() - begin)


def watching(steps: int) -> None:
    model, (x, y) = small()
    data = tf.data.Dataset.from_tensors((x, y)).repeat(steps)
    nothing = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None)
    model.fit(data, verbose=0, callbacks=[nothing])
    ratios, watch = [], Timed()
    for _ in range(3):
        begin = time.perf_counter()
        model.fit(data, verbose=0, callbacks=[nothing])
        plain = time.perf_counter() - begin
        begin = time.perf_counter()
        model.fit(data, verbose=0, callbacks=[nothing, watch])
        ratios.append((time.perf_counter() - begin) / plain)
    print("on_train_batch_end while watching  median %6.1f us" % (1e6 * statistics.median(watch.taken)))
    print("a watched step / a plain step      %6.3f   (plain step %.2f ms)" % (statistics.median(ratios), 1e3 * plain / steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    os.chdir(tempfile.mkdtemp())
    print("TensorFlow %s, Keras %s" % (tf.__version__, getattr(keras, "__version__", "2")))
    watching(50 if arguments.quick else 300)


if __name__ == "__main__":
    main()
