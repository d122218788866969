"""A large step is collected in bounded memory: a transformer, all of it non-finite."""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow

MAX_MEMORY = 16 * 10**6

SCRIPT = """
import resource, sys
sys.path[:0] = [%r]
import numpy as np
import tensorflow as tf
from records import recorded
from npu_overflow.collect.replay.blame import examine
keras = tf.keras
kind, layers, width, length = sys.argv[1], 8, 128, 256
inputs = keras.Input((length, width))
h = keras.layers.Dense(width, dtype="mixed_float16", kernel_initializer="ones", name="hot")(inputs)
h = keras.layers.Activation("linear", dtype="float32")(h)
for _ in range(layers):
    a = keras.layers.MultiHeadAttention(4, width // 4)(h, h)
    h = keras.layers.LayerNormalization()(keras.layers.Add()([h, a]))
    f = keras.layers.Dense(width)(keras.layers.Dense(4 * width, activation="relu")(h))
    h = keras.layers.LayerNormalization()(keras.layers.Add()([h, f]))
model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(h)))
optimizer = keras.optimizers.SGD(0.0)
x, y = tf.fill((4, length, width), 1e4), tf.zeros((4, 1))

def step(x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

if kind == "eager":
    before = peak()
    step(x * 1e-4)
    step(x)
    print("PEAK", peak() - before)
else:
    compiled = tf.function(step)
    compiled(x * 1e-4)
    made = recorded(lambda: compiled(x), model)
    before = peak()
    found = examine(made, %d)
    held = [item for held in found.held for item in held.inputs + held.outputs]
    print("CULPRIT", found.culprit.op.node.name, sum(item.cut is not None for item in held))
    print("PEAK", peak() - before)
"""


def run(kind: str, folder: Any) -> Any:
    script = folder / "memory.py"
    script.write_text(SCRIPT % (os.path.dirname(__file__), MAX_MEMORY))
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", MALLOC_ARENA_MAX="1")
    command = [sys.executable, str(script), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [line for line in done.stdout.splitlines() if line.startswith(("PEAK", "CULPRIT"))]
    lines = dict(line.split(" ", 1) for line in said)
    return int(lines["PEAK"]), lines.get("CULPRIT", "")


def test_the_peak_stays_below_that_of_an_eager_step_and_the_bound(tmp_path: Any) -> None:
    eager, _ = run("eager", tmp_path)
    extra, culprit = run("replay", tmp_path)
    assert "hot" in culprit and "Tensordot/MatMul" in culprit and int(culprit.split()[1]) > 0
    said = "%d MB above, an eager step takes %d MB" % (extra / 1e6, eager / 1e6)
    assert extra < MAX_MEMORY + 1.3 * eager, said
