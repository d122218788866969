"""Every order of calls around ``npu_device.open()``, each in a process of its own: opening really replaces TensorFlow's context there."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_npu_device import adapter

pytestmark = pytest.mark.tensorflow("<2.7")

BEGIN = """
import sys
sys.path.insert(0, {double!r})
import npu_overflow
STEPS, BEGIN = 60, 30

def parts():
    import npu_device, tensorflow as tf
    layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= BEGIN)
    model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), layer])
    optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**8)
    return tf, model, optimizer

def loop(made=None):
    tf, model, optimizer = made or parts()

    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32) - y)))
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for _ in range(STEPS):
        step(tf.ones((8, 4)), tf.ones((8, 1)))

def fit(watch, made=None):
    import numpy as np
    tf, model, optimizer = made or parts()
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(np.ones((8 * STEPS, 4), "float32"), np.ones((8 * STEPS, 1), "float32"), batch_size=8, verbose=0, callbacks=[watch])

OPTIONS = dict(warmup=0, check_every=1)
"""

END = """
npu_device.testing.flush()
print("STATE", watch.state, [report.first.op_name for report in watch.reports], [report.first.core for report in watch.reports])
"""

ORDERS = {
    "watch_before_open": """
watch = npu_overflow.OverflowWatch(**OPTIONS)
import npu_device
npu_overflow.npu_device_dump_config(npu_device)
npu_device.open().as_default()
fit(watch)
""",
    "watch_after_compile": """
import npu_device
npu_overflow.npu_device_dump_config(npu_device)
npu_device.open().as_default()
made = parts()
watch = npu_overflow.OverflowWatch(**OPTIONS)
fit(watch, made)
""",
    "config_twice": """
import npu_device
npu_overflow.npu_device_dump_config(npu_device)
npu_overflow.npu_device_dump_config(npu_device)
npu_device.open().as_default()
npu_device.open()
watch = npu_overflow.OverflowWatch(**OPTIONS)
fit(watch)
""",
    "dump_around_open": """
import npu_device
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    npu_device.open().as_default()
    loop()
""",
    "dump_around_import": """
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    import npu_device
    npu_overflow.npu_device_dump_config(npu_device)
    npu_device.open().as_default()
    loop()
""",
    "dump_between_open_and_default": """
import npu_device
npu_overflow.npu_device_dump_config(npu_device)
handle = npu_device.open()
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    handle.as_default()
    loop()
""",
    "dump_inside": """
import npu_device
npu_overflow.npu_device_dump_config(npu_device)
npu_device.open().as_default()
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    loop()
""",
    "optimizer_before_the_dump": """
import npu_device
npu_overflow.npu_device_dump_config(npu_device)
npu_device.open().as_default()
made = parts()
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    loop(made)
""",
    "dead_optimizer_of_before": """
import npu_device, tensorflow as tf
dead = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0))
_ = dead.iterations, dead.loss_scale
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    npu_device.open().as_default()
    loop()
""",
    "fit_inside_the_dump_around_open": """
import npu_device
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    npu_device.open().as_default()
    inner = npu_overflow.OverflowWatch(verbose=0, max_reports=1)
    import numpy as np
    tf, model, optimizer = parts()
    model.compile(optimizer=optimizer, loss="mse")
    model.fit(np.ones((8 * STEPS, 4), "float32"), np.ones((8 * STEPS, 1), "float32"), batch_size=8, verbose=0)
""",
}


def python(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(BEGIN.format(double=adapter.FOLDER) + text)
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    return subprocess.run([sys.executable, "script.py"], capture_output=True, encoding="utf-8", env=environment, timeout=300)


@pytest.mark.parametrize("name", ORDERS)
def test_the_culprit_is_found_in_whatever_order(tmp_path: Path, name: str) -> None:
    # "open() replaces TensorFlow's eager context: variables, models, traced functions, iterators, summary writers, generators made before it are dead"
    # "as_default() assigns Function.__call__: a wrapper put there before is lost; patch after it, and on leaving put back only what is still yours."
    done = python(tmp_path, ORDERS[name] + END)
    assert done.returncode == 0, done.stderr
    assert "STATE reported ['model/faulty/MatMul'] ['AI Core']" in done.stdout, done.stdout + done.stderr
    assert "turned itself off" not in done.stderr


def test_on_leaving_only_what_is_ours_is_put_back(tmp_path: Path) -> None:
    # "on leaving put back only what is still yours"
    done = python(
        tmp_path,
        """
import npu_device
import tensorflow
from tensorflow.python.eager import def_function
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    handle = npu_device.open().as_default()
    theirs = npu_device.npu_device.NpuDeviceHandle.as_default
print("PLACE", def_function.Function.__call__ is npu_device.npu_device._never_nested_function_call)
print("WRAPPED", hasattr(npu_device.npu_device.NpuDeviceHandle.as_default, "__wrapped__"), hasattr(npu_device.open, "__wrapped__"))
""",
    )
    assert "PLACE True" in done.stdout, done.stdout + done.stderr
    assert "WRAPPED False False" in done.stdout


def test_no_tensorflow_object_is_made_before_open(tmp_path: Path) -> None:
    # "Create nothing of the kind before it; a callback made early may hold only plain Python state."
    done = python(
        tmp_path,
        """
watch = npu_overflow.OverflowWatch(**OPTIONS)
print("LOADED", [name for name in ("tensorflow", "keras", "npu_device") if name in sys.modules])
import npu_device
with npu_overflow.overflow_dump(**OPTIONS):
    context = sys.modules["tensorflow.python.eager.context"]
    print("CONTEXT", getattr(context.context_safe(), "_context_handle", None))
""",
    )
    assert "LOADED []" in done.stdout, done.stdout + done.stderr
    assert "CONTEXT None" in done.stdout


LATE = """
import npu_device
npu_overflow.npu_device_dump_config(npu_device)
handle = npu_device.open()
tf, model, _ = parts()
made = {kind}(tf.keras.optimizers.SGD(1e-4), dynamic={dynamic}, initial_scale=2.0**8)
with npu_overflow.overflow_dump(**OPTIONS) as watch:
    handle.as_default()
    loop((tf, model, made))
"""
NPU, STOCK = "npu_device.train.optimizer.NpuLossScaleOptimizer", "tf.keras.mixed_precision.LossScaleOptimizer"


@pytest.mark.parametrize(("kind", "dynamic", "warned"), [(NPU, True, 0), (NPU, False, 0), (STOCK, True, 1), (STOCK, False, 1)])
def test_what_an_optimizer_sees_is_known_once_the_device_is_the_default(tmp_path: Path, kind: str, dynamic: bool, warned: int) -> None:
    done = python(tmp_path, LATE.format(kind=kind, dynamic=dynamic) + END)
    assert "STATE reported ['model/faulty/MatMul'] ['AI Core']" in done.stdout, done.stdout + done.stderr
    assert done.stderr.count("sees no overflow on this device") == warned, done.stderr
    assert "nothing skips" not in done.stderr and "fixed" not in done.stderr


def test_as_default_never_called(tmp_path: Path) -> None:
    # "Is it the default? npu_device.npu_device.global_npu_ctx() is not None": the device is open and nothing runs on it
    done = python(
        tmp_path,
        """
import npu_device
npu_overflow.npu_device_dump_config(npu_device)
npu_device.open()
watch = npu_overflow.OverflowWatch(**OPTIONS)
fit(watch)
print("STATE", watch.state, len(watch.reports), npu_device.npu_device.global_npu_ctx())
""",
    )
    assert done.returncode == 0, done.stderr
    assert "turned itself off" not in done.stderr and " steps overflowed" not in done.stderr
    message = (
        "npu_overflow: the Ascend device is open but not the default, so only what is placed on it by name runs there. "
        "To run everything on it, call npu_device.open().as_default().\n"
    )
    assert done.stderr.count(message) == 1
