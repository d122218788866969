"""Kills, full disks, folders that can't be written or vanish: what was collected stays readable, and the training goes on."""
from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import pytest
import training
from fake_npu_device import adapter

from npu_overflow.analysis.analyzer import analyze

DUMP = Path("precision_data/overflow/dump")

HOST = """
import os, signal, sys
import numpy as np, tensorflow as tf
import npu_overflow
{before}
keras = tf.keras
keras.mixed_precision.set_global_policy("mixed_float16")
inputs = keras.Input((4,))
h = keras.layers.Dense(8, kernel_initializer="ones", name="first")(inputs)
h = keras.layers.Dense(6, kernel_initializer=keras.initializers.Constant(100.0), name="hot")(h)
model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer=keras.initializers.Constant(1e-3), dtype="float32", name="out")(h), name="net")
model.compile("adam", "mse")
x = np.ones((60, 8, 4), "float32")
x[30:] *= 300.0
callbacks = [npu_overflow.OverflowWatch({options}), {callback}]
model.fit(x.reshape(-1, 4), np.zeros((480, 1), "float32"), batch_size=8, shuffle=False, verbose=0, callbacks=callbacks)
print("TRAINED")
"""

ASCEND = """
import os, signal, sys
sys.path.insert(0, {double!r})
import npu_device, npu_overflow
{before}
npu_overflow.npu_device_dump_config(npu_device{path})
npu_device.open().as_default()
import numpy as np, tensorflow as tf
layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= 30)
model = tf.keras.Sequential([layer])
model.compile(npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**30), "mse")
watch = npu_overflow.OverflowWatch(warmup=0, check_every=1{options})
model.fit(np.ones((240, 4), "float32"), np.ones((240, 1), "float32"), batch_size=4, verbose=0, callbacks=[watch, {callback}])
print("TRAINED")
"""

AT_STEP = "tf.keras.callbacks.LambdaCallback(on_batch_end=lambda batch, logs: {what} if batch == {step} else None)"
NOTHING = AT_STEP.format(what="None", step=0)
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def run(text: str) -> subprocess.CompletedProcess[str]:
    Path("script.py").write_text(text)
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")
    return subprocess.run([sys.executable, "script.py"], capture_output=True, encoding="utf-8", env=environment, timeout=300)


def host(before: str = "", options: str = "", callback: str = NOTHING) -> subprocess.CompletedProcess[str]:
    return run(HOST.format(before=before, options=options, callback=callback))


def ascend(before: str = "", options: str = "", callback: str = NOTHING, path: str = "") -> subprocess.CompletedProcess[str]:
    return run(ASCEND.format(double=adapter.FOLDER, before=before, options=options, callback=callback, path=path))


def warnings_of(done: Any) -> List[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("npu_overflow: ") and ("can't be" in line or "off:" in line)]


# --- kill -9


@pytest.mark.tensorflow
def test_killed_between_collected_steps_the_tree_is_whole(tmp_path: Path) -> None:
    # "kill -9 in the middle of collecting leaves a tree that analyze reads and calls unfinished where it is"
    done = host(callback=AT_STEP.format(what=KILL, step=36))
    assert done.returncode == -signal.SIGKILL
    report = analyze(str(tmp_path / DUMP))
    assert report.first is not None and training.named(report.first) == "net/hot/MatMul"
    assert report.problems == ()


KILL_WHILE_WRITING = """
from npu_overflow.dump import writer
real, written = os.replace, []

def replace(one, other):
    written.append(other)
    if len([name for name in written if "Opdebug" not in name and not name.endswith(".json")]) > 25:
        os.kill(os.getpid(), signal.SIGKILL)
    real(one, other)

os.replace = replace
"""


@pytest.mark.tensorflow
def test_killed_while_a_step_is_written_it_is_called_unfinished(tmp_path: Path) -> None:
    done = host(before=KILL_WHILE_WRITING)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / DUMP).rglob(".*.part"))
    report = analyze(str(tmp_path / DUMP))
    assert report.first is not None and training.named(report.first) == "net/hot/MatMul"
    assert [remark.code for remark in report.remarks if remark.code == "remark.unfinished"] == ["remark.unfinished"]
    assert report.problems == ()


@pytest.mark.tensorflow("<2.7")
def test_killed_on_ascend_while_the_device_writes(tmp_path: Path) -> None:
    done = ascend(before=KILL_WHILE_GROWING, callback=AT_STEP.format(what="kill()", step=45))
    assert done.returncode == -signal.SIGKILL, done.stderr
    report = analyze(str(tmp_path / DUMP))
    assert report.first is not None and report.first.op_name == "model/faulty/MatMul"


KILL_WHILE_GROWING = """
import glob, time
from npu_overflow.dump.record import read_record
from npu_overflow.errors import DumpFormatError
npu_device._device.piece_bytes, npu_device._device.piece_seconds = 256, 0.005

def whole(path):
    try:
        return bool(read_record(path).parts)
    except (DumpFormatError, OSError):
        return False

def kill():
    while not any(map(whole, glob.glob("precision_data/**/Opdebug*", recursive=True))):
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
"""


# --- disks and folders

FULL = """
import builtins, errno
real = builtins.open

def full(file, mode="r", *args, **kwargs):
    if ("w" in mode or "a" in mode) and "precision_data" in os.path.abspath(str(file)):
        raise OSError(errno.ENOSPC, "No space left on device", str(file))
    return real(file, mode, *args, **kwargs)

real_open = os.open

def full_open(path, flags, *args, **kwargs):
    if flags & (os.O_WRONLY | os.O_RDWR) and "precision_data" in os.path.abspath(str(path)) and not os.path.isdir(path):
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    return real_open(path, flags, *args, **kwargs)

builtins.open, os.open = full, full_open
"""


@pytest.mark.tensorflow
def test_a_full_disk_is_one_clear_warning(tmp_path: Path) -> None:
    done = host(before=FULL)
    assert done.returncode == 0 and "TRAINED" in done.stdout, done.stderr
    said = warnings_of(done)
    assert said and all("the disk is full" in line for line in said), done.stderr
    assert len(set(said)) == len(said) <= 2  # one for each file that could not be written
    assert "Traceback" not in done.stderr


@pytest.mark.tensorflow
def test_a_dump_path_below_a_file_is_one_clear_warning(tmp_path: Path) -> None:
    """As a read-only folder, but for root too."""
    (tmp_path / "file").write_text("")
    done = host(options="dump_path='file/dump'")
    assert done.returncode == 0 and "TRAINED" in done.stdout
    assert len(warnings_of(done)) == 1, done.stderr
    assert "file/dump" in warnings_of(done)[0] and "Not a directory" in warnings_of(done)[0]
    assert "Traceback" not in done.stderr


@pytest.mark.tensorflow("<2.7")
def test_on_ascend_a_path_that_cannot_be_written_is_one_clear_error_before_open(tmp_path: Path) -> None:
    # "dump_path is not checked in Python: the folder must exist, be readable and writable; a bad one shows only when the first graph runs (C++)."
    (tmp_path / "file").write_text("")
    done = ascend(path=", dump_path='file/dump'")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    path = re.escape(str(tmp_path / "file" / "dump"))
    wanted = r"npu_overflow\.errors\.PathError: %s can't be written: Not a directory\. Give another dump_path; " % path
    assert re.match(wanted + r"it must be readable and writable, on a disk with room\.$", last), last


@pytest.mark.tensorflow
def test_a_folder_that_vanishes_while_collecting(tmp_path: Path) -> None:
    gone = AT_STEP.format(what="__import__('shutil').rmtree('precision_data')", step=36)
    done = host(callback=gone)
    assert done.returncode == 0 and "TRAINED" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    assert len(warnings_of(done)) <= 1


@pytest.mark.tensorflow("<2.7")
def test_a_folder_that_vanishes_on_ascend(tmp_path: Path) -> None:
    gone = AT_STEP.format(what="__import__('shutil').rmtree('precision_data')", step=32)
    done = ascend(callback=gone)
    assert done.returncode == 0 and "TRAINED" in done.stdout, done.stderr
    assert "Traceback" not in done.stderr, done.stderr


def test_a_tree_without_its_manifest_still_works(tmp_path: Path) -> None:
    corpus = Path(__file__).resolve().parent.parent / "data" / "corpus"
    trees = sorted(path for path in corpus.iterdir() if path.is_dir())
    shutil.copytree(str(trees[0]), str(tmp_path / "tree"))
    assert analyze(str(tmp_path / "tree")).operators
