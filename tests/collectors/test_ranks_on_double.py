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
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", RANK_ID=str(number), RANK_SIZE="2", ASCEND_DEVICE_ID=str(number))
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
