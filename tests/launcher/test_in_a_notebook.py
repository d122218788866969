"""In a notebook nothing is restarted and nothing ended: the kernel belongs to its user and lives on."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import launching
import pytest

pytestmark = pytest.mark.tensorflow("<2.7")

SAYS = (
    "npu_overflow: in a notebook nothing is restarted or ended: restart the kernel, call npu_overflow.npu_device_dump_config(npu_device) before "
    "npu_device.open() and run the cells again.\n"
)
REQUEST = (
    "npu_overflow: The device was opened without the overflow dump, and reads its options only when it opens: the operators that overflow can't be collected "
    "in this process. Call npu_overflow.npu_device_dump_config(npu_device) before npu_device.open() and start the training anew.\n"
)

TRAINING = """
import npu_device, npu_overflow
npu_device.open().as_default()
import numpy as np, tensorflow as tf
layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= 20)
model = tf.keras.Sequential([layer])
model.compile(npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**8), "mse")
watch = npu_overflow.OverflowWatch(on_overflow="restart", warmup=0, check_every=1, max_reports=1)
model.fit(np.ones((300, 4), "float32"), np.ones((300, 1), "float32"), batch_size=5, verbose=0, callbacks=[watch])
print("went on", watch.state, len(watch.reports))
"""

#: the names that a Jupyter kernel has
KERNEL = """
import sys, types

class ZMQInteractiveShell:
    kernel = object()

shell = ZMQInteractiveShell()
sys.modules["IPython"] = types.ModuleType("IPython")
sys.modules["IPython"].get_ipython = lambda: shell
"""

#: IPython at a terminal has no kernel
TERMINAL = KERNEL.replace("ZMQInteractiveShell", "TerminalInteractiveShell").replace("kernel = object()", "pass")


@pytest.mark.parametrize("words", [None, ["--restart"]], ids=["alone", "supervised"])
def test_nothing_is_ended_and_it_says_what_to_do(tmp_path: Path, words: Any) -> None:
    # "With several ranks, or in a notebook, nobody restarts"
    (tmp_path / "train.py").write_text(KERNEL + TRAINING)
    double = {"PYTHONPATH": str(launching.DOUBLE)}
    got = launching.plain(["train.py"], **double) if words is None else launching.run([*words, "train.py"], **double)
    assert (got.returncode, got.stdout) == (0, "went on reported 0\n"), got.stderr
    assert got.stderr.count(SAYS) == 1 and got.stderr.count(REQUEST) == 1
    assert "started once more" not in got.stderr and "needs a supervisor" not in got.stderr
    written = json.loads((tmp_path / "precision_data/overflow/dump/session-0.json").read_text(encoding="utf-8"))
    assert written["request"]["why"] == "ascend.opened_without_dump"


def test_ipython_at_a_terminal_is_no_notebook(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TERMINAL + TRAINING)
    got = launching.run(["--restart", "train.py"], PYTHONPATH=str(launching.DOUBLE))
    assert got.returncode == 0 and "is started once more, with the dump" in got.stderr, got.stderr
    assert SAYS not in got.stderr


def test_a_real_kernel_survives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    for name, value in launching.environment(PYTHONPATH=str(launching.DOUBLE)).items():
        monkeypatch.setenv(name, value)
    cells = ["import os\nprint(os.getpid())", TRAINING, "print(os.getpid(), watch.state)"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=200, kernel_name="python3").execute()

    def output(cell: int, name: str) -> str:
        streams = [item for item in book.cells[cell]["outputs"] if item["output_type"] == "stream"]
        return "".join(item["text"] for item in streams if item["name"] == name)

    assert output(1, "stdout") == "went on reported 0\n"
    assert SAYS in output(1, "stderr") and REQUEST in output(1, "stderr")
    assert output(2, "stdout") == output(0, "stdout").strip() + " reported\n"
