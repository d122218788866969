"""Several ranks on the double: who prints, and what the others say."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_npu_device import adapter

pytestmark = pytest.mark.tensorflow("<2.7")

SCRIPT = """
import sys
sys.path.insert(0, {double!r})
import npu_device, npu_overflow
npu_overflow.npu_device_dump_config(npu_device, dump_path={path!r})
npu_device.open().as_default()
import numpy as np, tensorflow as tf
mine = {mine}
npu_device._device.others_overflow = lambda step: step >= 30
layer = npu_device.testing.dense(1, "model/faulty_{rank}/MatMul", lambda step: mine and step >= 30)
model = tf.keras.Sequential([layer])
model.compile(npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**30), "mse")
watch = npu_overflow.OverflowWatch(warmup=0, check_every=1, dump_path={path!r})
model.fit(np.ones((200, 4), "float32"), np.ones((200, 1), "float32"), batch_size=4, verbose=0, callbacks=[watch])
"""

OTHER = "[rank 1] npu_overflow: step {step}: the loss scale fell because of another rank's overflow; this rank has none of its own.\n"
NAMED = "[rank 1] npu_overflow: step {step}: the loss scale fell because of an overflow on rank 0 (model/faulty_0/MatMul); this rank has none of its own.\n"


def rank(folder: Path, number: int, mine: bool, path: Any = None) -> subprocess.CompletedProcess[str]:
    script = folder / ("rank_%d.py" % number)
    script.write_text(SCRIPT.format(double=adapter.FOLDER, rank=number, mine=mine, path=path))
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", RANK_ID=str(number), RANK_SIZE="2", RANK_TABLE_FILE="table.json", ASCEND_DEVICE_ID=str(number))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, encoding="utf-8", env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "turned itself off" not in done.stderr
    return done


def test_each_rank_has_its_own_folder_and_says_whose_lines_they_are(tmp_path: Path) -> None:
    # "With several ranks the register is summed over all: one rank's overflow halves every rank's scale, and only that rank has a dump."
    with_finding, without = rank(tmp_path, 0, True), rank(tmp_path, 1, False)
    lines = [line for line in with_finding.stdout.splitlines() if line.strip()]
    assert lines[0] == "[rank 0] First overflowing AI Core operator"
    assert "[rank 0]   model/faulty_0/MatMul" in lines
    assert [line for line in lines if not line.startswith("[rank 0] ")] == []
    assert without.stdout.strip() == ""
    assert without.stderr.count(OTHER.format(step=without.stderr.split("step ")[2].split(":")[0])) == 1
    dumps = tmp_path / "precision_data" / "overflow" / "dump"
    assert sorted(path.name for path in dumps.iterdir()) == ["rank_0", "rank_1"]
    (manifest,) = dumps.glob("rank_0/*/session-0.json")
    assert json.loads(manifest.read_text(encoding="utf-8"))["finding"]["op_name"] == "model/faulty_0/MatMul"


def test_on_a_shared_path_the_lowest_rank_speaks_and_the_others_name_it(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    first, second = rank(tmp_path, 0, True, shared), rank(tmp_path, 1, False, shared)
    assert "[rank 0]   model/faulty_0/MatMul" in first.stdout.splitlines()
    assert second.stdout.strip() == ""
    assert "because of an overflow on rank 0 (model/faulty_0/MatMul); this rank has none of its own.\n" in second.stderr


def test_on_a_shared_path_a_higher_rank_with_a_finding_is_quiet(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    rank(tmp_path, 0, True, shared)
    second = rank(tmp_path, 1, True, shared)
    assert second.stdout.strip() == ""
    assert list((tmp_path / "shared").glob("*/report-1.json"))


# --- at the same time, on a shared path


TOGETHER = """
import os, sys, time
sys.path.insert(0, {double!r})
import npu_device, npu_overflow
from npu_overflow.training import delivery
delivery.LISTEN_SECONDS = {listen}
npu_overflow.npu_device_dump_config(npu_device, dump_path="shared")
npu_device.open().as_default()
import numpy as np, tensorflow as tf
mine = {mine}
npu_device._device.others_overflow = lambda step: step >= 30
layer = npu_device.testing.dense(1, "model/faulty_{rank}/MatMul", lambda step: mine and step >= 30)

def until(name):
    while not os.path.exists(name):
        time.sleep(0.02)

class Gate(tf.keras.callbacks.Callback):
    # both are there before either goes on; then {rank} waits at step 20 for what the other does
    def on_train_batch_end(self, batch, logs=None):
        if batch == 0:
            open("began_{rank}", "w").close()
            until("began_{other}")
        if batch == 20 and {waits_for!r}:
            until({waits_for!r})

    def on_train_end(self, logs=None):  # before the watch's, which may wait for the other
        open("trained_{rank}", "w").close()

model = tf.keras.Sequential([layer])
model.compile(npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**30), "mse")
watch = npu_overflow.OverflowWatch(warmup=0, check_every=1, max_reports=1, dump_path="shared")
model.fit(np.ones((200, 4), "float32"), np.ones((200, 1), "float32"), batch_size=4, verbose=0, callbacks=[Gate(), watch])
open("ended_{rank}", "w").close()
{ending}
"""


def together(folder: Path, mine: Any, waits_for: Any, listen: float = 60.0, ending: Any = ("", "")) -> Any:
    """Two ranks at once; what they printed. ``waits_for`` holds back each of them, in whose step 20 the other has done that."""
    processes = []
    for number in (0, 1):
        text = TOGETHER.format(
            double=adapter.FOLDER, rank=number, other=1 - number, mine=mine[number], waits_for=waits_for[number], listen=listen, ending=ending[number]
        )
        (folder / ("rank_%d.py" % number)).write_text(text)
        environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", RANK_ID=str(number), RANK_SIZE="2", RANK_TABLE_FILE="table.json", ASCEND_DEVICE_ID=str(number))
        processes.append(subprocess.Popen([sys.executable, "rank_%d.py" % number], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
                                          env=environment, cwd=str(folder)))
    done = [(*process.communicate(timeout=300), process.returncode) for process in processes]
    assert [status for _out, _errors, status in done] == [0, 0], done
    assert not [errors for _out, errors, _status in done if "turned itself off" in errors]
    return [(out, errors) for out, errors, _status in done]


SPEAKS = "[rank %d] First overflowing AI Core operator\n[rank %d]   MatMul\n[rank %d]   model/faulty_%d/MatMul\n"


@pytest.mark.parametrize("waits_for", [("trained_1", ""), ("", "ended_0")], ids=["the_higher_ends_first", "the_lower_ends_first"])
def test_the_lowest_rank_with_a_finding_speaks_whoever_ends_first(tmp_path: Path, waits_for: Any) -> None:
    # "who prints: the lowest rank with a finding if the path is shared"
    (first, _), (second, _) = together(tmp_path, (True, True), waits_for)
    assert first.count("[rank 0] First overflowing AI Core operator\n[rank 0]   MatMul\n[rank 0]   model/faulty_") == 1
    assert second.strip() == ""


@pytest.mark.parametrize("waits_for", [("trained_1", ""), ("", "trained_0")], ids=["the_higher_ends_first", "the_lower_ends_first"])
def test_a_higher_rank_speaks_once_the_lower_has_found_nothing_and_is_named(tmp_path: Path, waits_for: Any) -> None:
    # "a rank whose scale fell because of another rank's overflow says so and names it when the path is shared"
    (first, errors), (second, _) = together(tmp_path, (False, True), waits_for)
    assert first.strip() == ""
    assert SPEAKS % (1, 1, 1, 1) in second
    named = "because of an overflow on rank 1 (model/faulty_1/MatMul); this rank has none of its own.\n"
    assert errors.count("[rank 0] npu_overflow: step ") >= 1 and errors.count(named) == 1


def test_a_rank_without_a_finding_does_not_wait_for_ever(tmp_path: Path) -> None:
    # the other goes on only after this one has ended, so its name can't be known
    (first, errors), (second, _) = together(tmp_path, (False, True), ("", "ended_0"), listen=1.0)
    assert first.strip() == ""
    assert errors.count("the loss scale fell because of another rank's overflow; this rank has none of its own.\n") == 1
    assert SPEAKS % (1, 1, 1, 1) in second


def test_a_higher_rank_does_not_wait_for_ever(tmp_path: Path) -> None:
    # the lower one stands still until the higher has ended: it must not keep that from its report
    (_first, _), (second, _) = together(tmp_path, (True, True), ("ended_1", ""), listen=1.0)
    assert SPEAKS % (1, 1, 1, 1) in second
