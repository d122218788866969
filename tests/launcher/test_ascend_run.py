"""``npu-overflow run`` on the double of npu_device: trainings that end early, trainings of many ``fit`` calls, and devices that nobody opens."""
from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, List

import launching
import pytest

pytestmark = pytest.mark.tensorflow("<2.7")

DUMP = Path("precision_data/overflow/dump")
ON_ASCEND = "npu_overflow: watching the loss scale; overflow dumps of the Ascend device are analyzed after repeated overflows (npu_device is loaded).\n"
ON_HOST = "npu_overflow: watching the loss scale; after repeated overflows the host collector (TensorFlow on CPU or GPU) replays the overflowing steps (%s).\n"
FIRST = "First overflowing AI Core operator\n  MatMul\n  model/faulty/MatMul\n"
REMARK = "the training ended before overflow was frequent; the dumps of 2 overflowing steps were there."

TRAINING = """
import sys, time
import npu_device
npu_device.open().as_default()
import numpy as np, tensorflow as tf

class Calls(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 44:
            at_step_44()

layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step in {steps})
model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), layer])
optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**30)

def fit():
    model.compile(optimizer, "mse")
    model.fit(np.ones((240, 4), "float32"), np.ones((240, 1), "float32"), batch_size=4, verbose=0, callbacks=[Calls()])

def loop():
    @tf.function
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = optimizer.get_scaled_loss(tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32) - y)))
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    for number in range(60):
        step(tf.ones((4, 4)), tf.ones((4, 1)))
        if number == 44:
            at_step_44()

def at_step_44():
    {what}

{train}()
print("trained")
"""

CRASH = "raise ValueError(\"the script's own\")"


def run(*words: Any, **changes: str) -> Any:
    return launching.run(list(words), PYTHONPATH=str(launching.DOUBLE), **changes)


def script(tmp_path: Path, text: str, **values: str) -> Path:
    path = tmp_path / "train.py"
    path.write_text(text.format(**values) if values else text)
    return path


def reports(folder: Path) -> List[Any]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / DUMP).glob("*/report.json"))]


# --- ends before the trigger


@pytest.mark.parametrize("train", ["fit", "loop"])
def test_a_crash_before_the_trigger_leaves_the_analysis_of_what_was_dumped(tmp_path: Path, train: str) -> None:
    # "a crash of the script still leaves the analysis of what was collected, short, above its traceback"
    path = script(tmp_path, TRAINING, steps="(41, 43)", what=CRASH, train=train)
    environment = launching.environment(PYTHONPATH=str(launching.DOUBLE))
    words = [*launching.RUN, "--check-every", "1", str(path)]
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    assert done.returncode == 1
    report, trace = done.stdout.index(FIRST), done.stdout.index("Traceback (most recent call last):")
    assert report < trace
    assert REMARK in " ".join(done.stdout[:trace].split())
    assert done.stdout.rstrip().endswith("ValueError: the script's own")
    assert "overflow is frequent" not in done.stdout
    (saved,) = reports(tmp_path)
    assert [item["train_step"] for item in saved["operators"]] == [41, 43]


def test_it_is_short(tmp_path: Path) -> None:
    # one operator is opened, the others are counted
    got = run(script(tmp_path, TRAINING, steps="(41, 42, 43)", what=CRASH, train="fit"))
    assert got.stdout.count("model/faulty/MatMul") < 4 and "\nOther operators, in order of time" in got.stdout


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_sigterm_before_the_trigger_leaves_it_too(tmp_path: Path) -> None:
    # "SIGTERM flushes"
    path = script(tmp_path, TRAINING, steps="(41, 43)", what="print('ready', flush=True); [time.sleep(0.1) for _ in range(600)]", train="fit")
    process = subprocess.Popen([*launching.RUN, str(path)], env=launching.environment(PYTHONPATH=str(launching.DOUBLE)), **launching.PIPES)
    assert process.stdout is not None
    assert any(line == "ready\n" for line in iter(process.stdout.readline, ""))
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert FIRST in out and "Traceback" not in errors
    assert len(reports(tmp_path)) == 1


def test_a_crash_without_any_overflow_is_only_a_crash(tmp_path: Path) -> None:
    got = run(script(tmp_path, TRAINING, steps="()", what=CRASH, train="fit"))
    assert (got.returncode, got.stdout) == (1, "")
    # Keras may add that callbacks are slow, on a busy machine
    assert [line for line in got.stderr.splitlines(True) if line.startswith("npu_overflow: ")] == [ON_ASCEND]
    assert got.stderr.index(ON_ASCEND) < got.stderr.index("Traceback (most recent call last):\n")


def test_an_exit_before_the_trigger_is_no_crash(tmp_path: Path) -> None:
    # sporadic overflow is normal: an orderly end says its rate, and no more
    got = run(script(tmp_path, TRAINING, steps="(41, 43)", what="sys.exit(7)", train="fit"))
    assert (got.returncode, got.stdout, reports(tmp_path)) == (7, "", [])


def test_a_crash_after_the_training_is_none_of_it(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINING, steps="(41, 43)", what="pass", train="fit")
    path.write_text(path.read_text() + CRASH + "\n")
    got = run(path)
    assert (got.returncode, got.stdout, reports(tmp_path)) == (1, "trained\n", [])
    assert "of 60 steps overflowed" in got.stderr and got.stderr.rstrip().endswith("ValueError: the script's own")


# --- many calls of fit

MANY = """
import npu_device
npu_device.open().as_default()
import numpy as np, tensorflow as tf
layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= 60)
model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), layer])
model.compile(npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**60), "mse")
for epoch in range(16):
    model.fit(np.ones((24, 4), "float32"), np.ones((24, 1), "float32"), batch_size=4, verbose=0)
"""


def test_many_short_fits_of_one_model_are_one_training(tmp_path: Path) -> None:
    """Six steps each, less than the warm-up and less than two looks: only together they show anything."""
    got = run("--window", "30", script(tmp_path, MANY))
    assert got.returncode == 0, got.stderr
    assert got.stderr.count(ON_ASCEND) == 1
    assert got.stdout.count(FIRST) == 1
    assert "turned itself off" not in got.stderr
    assert got.stderr.count("npu_overflow: 36 of 96 steps overflowed.\n") == 1
    (manifest,) = (tmp_path / DUMP).glob("*/session-0.json")
    assert json.loads(manifest.read_text(encoding="utf-8"))["kept_steps"][0] >= 60


# --- loaded, and not opened

UNOPENED = """
import sys
sys.path.insert(0, {examples!r})
{before}
import {example} as example
{after}
sys.argv[1:] = []
{train}
"""


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("example", ["keras_fit", "custom_loop"])
def test_an_adapter_that_opens_no_device_leaves_the_host_collector(tmp_path: Path, example: str, when: str) -> None:
    # 'collector "auto": "ascend" if npu_device is loaded when training begins', and one that nobody opens trains nothing
    values = {"before": "", "after": "", when: "import npu_device"}
    got = run(script(tmp_path, UNOPENED, examples=str(launching.EXAMPLES), example=example, train="example.main()", **values))
    assert got.returncode == 0, got.stderr
    assert "First overflowing operator\n  MatMul\n  net/hot/MatMul\n" in launching.unnumbered(got.stdout)
    assert got.stderr.count(ON_HOST % "npu_device is loaded, but no device is open") == 1
    assert ON_ASCEND not in got.stderr and "sees no overflow on this device" not in got.stderr


@pytest.mark.parametrize(("options", "why"), [("", "npu_device is loaded, but no device is open"), ("collector='host'", "collector='host'")])
def test_an_overflow_dump_around_a_training_without_a_device(tmp_path: Path, options: str, why: str) -> None:
    train = "import npu_overflow\nwith npu_overflow.overflow_dump({options}) as watch:\n    example.main()\nprint('FOUND', watch.reports[0].first.op_name)"
    train = train.format(options=options)
    path = script(tmp_path, UNOPENED, examples=str(launching.EXAMPLES), example="custom_loop", before="import npu_device", after="", train=train)
    got = launching.plain([path], PYTHONPATH=str(launching.DOUBLE))
    assert "FOUND net/hot/MatMul" in launching.unnumbered(got.stdout), got.stderr
    assert ON_HOST % why in got.stderr


def test_an_adapter_that_is_loaded_and_opened_late(tmp_path: Path) -> None:
    """The script imports TensorFlow first, and the adapter in the middle of a function."""
    text = (
        "import sys\nimport tensorflow\nsys.argv[1:] = []\n"
        "def main():\n    exec(compile(open({path!r}).read(), {path!r}, 'exec'), {{'__name__': '__main__'}})\nmain()\n"
    )
    got = run(script(tmp_path, text, path=str(launching.EXAMPLES / "ascend_fit.py")))
    assert got.returncode == 0, got.stderr
    assert "First overflowing AI Core operator\n  MatMul\n  net/hot/MatMul\n" in got.stdout
    assert got.stderr.count(ON_ASCEND) == 1


def test_an_adapter_that_is_installed_and_not_loaded(tmp_path: Path) -> None:
    got = run(launching.EXAMPLES / "keras_fit.py")
    assert got.stderr.count(ON_HOST % "no Ascend NPU in use") == 1
    assert "net/hot/MatMul" in got.stdout
