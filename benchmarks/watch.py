"""What watching and collecting cost, as ratios taken in one run.

    python benchmarks/watch.py [--layers 24] [--quick]

1. ``on_train_batch_end`` while watching: median microseconds, and the ratio of a watched step to a plain one (float32 model with an explicit
   loss-scale optimizer: float16 kernels are slow in odd ways on a CPU).
2. A replayed step against the same step run eagerly, on a small model and on a transformer.
"""
from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from typing import Any, Callable, List

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np
import tensorflow as tf

import npu_overflow
from npu_overflow.collectors import batches
from npu_overflow.collectors.hooks import Hooks
from npu_overflow.collectors.observe import StepWatcher
from npu_overflow.collectors.source import SourceLines
from npu_overflow.collectors.undo import UndoLog

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


def transformer(layers: int, width: int = 256, length: int = 128, batch: int = 2) -> Any:
    inputs = keras.Input((length, width))
    h = inputs
    for _ in range(layers):
        a = keras.layers.MultiHeadAttention(8, width // 8)(h, h)
        h = keras.layers.LayerNormalization()(keras.layers.Add()([h, a]))
        f = keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="relu")(h))
        h = keras.layers.LayerNormalization()(keras.layers.Add()([h, f]))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(h)))
    model.compile(scaled(keras.optimizers.Adam()), "mse")
    return model, (np.random.rand(batch, length, width).astype(np.float32), np.random.rand(batch, 1).astype(np.float32))


def median(run: Callable[[], Any], times: int) -> float:
    run()
    taken: List[float] = []
    for _ in range(times):
        begin = time.perf_counter()
        run()
        taken.append(time.perf_counter() - begin)
    return statistics.median(taken)


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


def eager_step(model: Any, batch: Any) -> None:
    """The same step run eagerly, the optimizer included."""
    tf.config.run_functions_eagerly(True)
    try:
        model.train_step(batch)
    finally:
        tf.config.run_functions_eagerly(False)


def replayed_step(model: Any, batch: Any) -> None:
    """One observed run of the training step, as the collector makes it."""
    with UndoLog() as undo:
        watcher = StepWatcher(undo, batches.labels_of(batch, ("x", "y")), lambda handle: "variable", 256 * 10**6)
        with Hooks(watcher, SourceLines(replayed_step.__code__)):
            model.train_step(batch)


def collecting(name: str, made: Any, times: int) -> None:
    model, arrays = made
    batch = tuple(tf.constant(item) for item in arrays)
    model.fit(*arrays, batch_size=len(arrays[0]), verbose=0)
    eager, replayed = median(lambda: eager_step(model, batch), times), median(lambda: replayed_step(model, batch), times)
    print("%-20s eager step %8.1f ms   replayed %8.1f ms   ratio %5.2f" % (name, 1e3 * eager, 1e3 * replayed, replayed / eager))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    os.chdir(tempfile.mkdtemp())
    print("TensorFlow %s, Keras %s" % (tf.__version__, getattr(keras, "__version__", "2")))
    watching(50 if arguments.quick else 300)
    collecting("small model", small(), 3 if arguments.quick else 15)
    collecting("transformer, %d" % arguments.layers, transformer(arguments.layers), 1 if arguments.quick else 3)


if __name__ == "__main__":
    main()
