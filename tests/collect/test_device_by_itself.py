"""A watch that is made before the device opens configures the overflow dump by itself."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_npu_device import adapter

pytestmark = pytest.mark.tensorflow("<2.7")

SCRIPT = """
import sys
sys.path.insert(0, {double!r})
import npu_device, npu_overflow
{before}
npu_device.open().as_default()
import numpy as np, tensorflow as tf
layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= 30)
model = tf.keras.Sequential([layer])
optimizer = tf.keras.optimizers.SGD(1e-4)
model.compile(npu_device.train.optimizer.NpuLossScaleOptimizer(optimizer, initial_scale=2.0**30), "mse")
{during}
print("FOUND", [report.first.op_name for report in watch.reports if report.first])
"""
FIT = (
    'model.fit(np.ones((200, 4), "float32"), np.ones((200, 1), "float32"), batch_size=4, verbose=0,'
    " callbacks=[watch])"
)
MADE = "watch = npu_overflow.OverflowWatch(warmup=0, check_every=1, max_reports=1%s)"


def said(folder: Path, before: str, during: str = FIT) -> str:
    script = folder / "train.py"
    script.write_text(SCRIPT.format(double=adapter.FOLDER, before=before, during=during))
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        encoding="utf-8",
        env=environment,
        cwd=str(folder),
        timeout=300,
    )
    assert done.returncode == 0 and "turned itself off" not in done.stderr, done.stderr
    return done.stdout + done.stderr


def test_the_callback(tmp_path: Path) -> None:
    text = said(tmp_path, MADE % "")
    assert "FOUND ['model/faulty/MatMul']" in text
    assert "can't be collected" not in text


def test_told_not_to_it_leaves_the_options_alone(tmp_path: Path) -> None:
    text = said(tmp_path, MADE % ", dump=False")
    assert "FOUND []" in text
    assert "was opened without the overflow dump" in text


def test_what_the_script_configures_stands(tmp_path: Path) -> None:
    own = "npu_overflow.npu_device_dump_config(npu_device, dump_path='own')"
    text = said(tmp_path, "%s\n%s" % (MADE % "", own))
    assert "FOUND ['model/faulty/MatMul']" in text
    assert list(tmp_path.glob("own/*/report.json"))
