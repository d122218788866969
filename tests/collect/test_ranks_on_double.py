"""Several ranks on the double: what each of them says."""
from __future__ import annotations

import os
import re
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
npu_device._device._opened = "20991231235959"  # all ranks in the same second
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


def rank(folder: Path, number: int, mine: bool, path: Any = None) -> subprocess.CompletedProcess[str]:
    script = folder / ("rank_%d.py" % number)
    script.write_text(SCRIPT.format(double=adapter.FOLDER, rank=number, mine=mine, path=path))
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", RANK_ID=str(number), RANK_SIZE="2", RANK_TABLE_FILE="table.json", ASCEND_DEVICE_ID=str(number))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, encoding="utf-8", env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "turned itself off" not in done.stderr
    return done


def test_each_rank_says_one_line_of_its_own(tmp_path: Path) -> None:
    # the register is summed over all ranks: one rank's overflow halves every rank's scale, and only
    # that rank has a dump
    with_finding, without = rank(tmp_path, 0, True), rank(tmp_path, 1, False)
    assert with_finding.stdout.strip() == without.stdout.strip() == ""
    (line,) = [text for text in with_finding.stderr.splitlines() if "overflowed first" in text]
    assert re.match(r"\[rank 0\] npu_overflow: step \d+: MatMul model/faulty_0/MatMul ", line)
    dumps = tmp_path / "precision_data" / "overflow" / "dump"
    assert line.endswith("npu-overflow merge precision_data/overflow/dump")
    assert list(dumps.glob("rank_0/*/report-0.txt"))
    assert without.stderr.count(OTHER.format(step=without.stderr.split("step ")[2].split(":")[0])) == 1
    assert sorted(path.name for path in dumps.iterdir()) == ["rank_0", "rank_1"]


def test_on_a_shared_path_each_says_its_own_and_merge_names_the_first(tmp_path: Path) -> None:
    for number in (1, 0):  # the second was the first to overflow
        done = rank(tmp_path, number, True, "shared")
        assert "MatMul model/faulty_%d/MatMul overflowed first" % number in done.stderr
        assert list((tmp_path / "shared").glob("*/report-%d.json" % number))
    command = [sys.executable, "-m", "npu_overflow", "merge", "shared"]
    merged = subprocess.run(
        command, capture_output=True, encoding="utf-8", timeout=300, cwd=str(tmp_path)
    )
    assert merged.returncode == 0, merged.stderr
    assert "rank 1 overflowed first; ranks with a finding (2): 0, 1." in merged.stdout
