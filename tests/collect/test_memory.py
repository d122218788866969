"""A large step is collected in bounded memory: a transformer of 24 layers, all of it non-finite from its first layer on."""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow

MAX_MEMORY = 64 * 10**6

SCRIPT = """
import resource, sys
import numpy as np
import tensorflow as tf
from npu_overflow.collectors.replay import Replay
keras = tf.keras
kind, layers, width, length = sys.argv[1], 24, 128, 128
inputs = keras.Input((length, width))
h = keras.layers.Dense(width, dtype="mixed_float16", kernel_initializer="ones", name="hot")(inputs)
h = keras.layers.Activation("linear", dtype="float32")(h)
for _ in range(layers):
    a = keras.layers.MultiHeadAttention(4, width // 4)(h, h)
    h = keras.layers.LayerNormalization()(keras.layers.Add()([h, a]))
    f = keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="relu")(h))
    h = keras.layers.LayerNormalization()(keras.layers.Add()([h, f]))
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(h)))
model.compile("sgd", "mse")
x, y = np.full((2, length, width), 1.0, np.float32), np.zeros((2, 1), np.float32)
model.train_on_batch(x, y)
batch = (tf.constant(x * 1e4), tf.constant(y))

def eager():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(batch[0], training=True) - batch[1]))
    tape.gradient(loss, model.trainable_variables)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

eager()
before = peak()
if kind == "replay":
    found = Replay(lambda next_call: model.train_step(batch), {}, lambda handle: "variable", [], %d).findings()
    print("CULPRIT", found.held[0].op.name, len(found.held), sum(item.cut is not None for held in found.held for item in held.inputs + held.outputs))
else:
    eager()
print("PEAK", peak() - before, before)
"""


def run(kind: str, folder: Any) -> Any:
    script = folder / "memory.py"
    script.write_text(SCRIPT % MAX_MEMORY)
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", MALLOC_ARENA_MAX="1")
    done = subprocess.run([sys.executable, str(script), kind], env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("PEAK", "CULPRIT")))
    extra, plain = (int(part) for part in lines["PEAK"].split())
    return extra, plain, lines.get("CULPRIT", "")


def test_the_extra_peak_stays_below_the_bound(tmp_path: Any) -> None:
    extra, plain, culprit = run("replay", tmp_path)
    assert "hot/Tensordot/MatMul" in culprit
    assert extra < MAX_MEMORY + 0.1 * plain, "%d MB above the %d MB of the eager step" % (extra / 1e6, plain / 1e6)
