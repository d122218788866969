"""Several worker processes: gradients are exchanged in Python, one worker overflows, nobody waits for a replay."""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.tensorflow

WORKER = """
import os, sys, time
sys.path[:0] = [%(tests)r]
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
rank, folder, kind = int(os.environ["RANK"]), sys.argv[1], sys.argv[2]
import numpy as np
import tensorflow as tf
import training, test_loops
import npu_overflow

count = [0]

def exchange(*gradients):
    "The mean over both workers, through files: as a collective, it waits for the other."
    count[0] += 1
    mine, other = (os.path.join(folder, "%%d-%%d.npz" %% (count[0], r)) for r in (rank, 1 - rank))
    values = [np.array(g) for g in gradients]
    np.savez(mine + ".part.npz", *values)
    os.replace(mine + ".part.npz", mine)
    end = time.time() + 60
    while not os.path.exists(other):
        if time.time() > end:
            raise SystemExit("worker %%d waited in vain" %% rank)
        time.sleep(0.002)
    with np.load(other) as theirs:
        return [tf.constant((v.astype(np.float32) + theirs["arr_%%d" %% i].astype(np.float32)) / 2) for i, v in enumerate(values)]

keras = training.set_up()
loop = test_loops.Loop(keras)
if rank == 1:
    test_loops.HOT.clear()  # only worker 0 gets the large batches
gradients = tf.function(lambda x, y: [tf.cast(g, tf.float32) for g in loop.gradients(x, y)])
apply = tf.function(lambda reduced: loop.apply(reduced))

@tf.function
def whole(x, y):
    local = gradients(x, y)
    reduced = tf.py_function(exchange, local, [g.dtype for g in local])
    for a, b in zip(reduced, local):
        a.set_shape(b.shape)
    loop.apply(reduced)

with npu_overflow.overflow_dump(language="en") as watch:
    for x, y in loop.batches():
        whole(x, y) if kind == "inside" else apply(exchange(*gradients(x, y)))
print("EXCHANGES", count[0])
print("FOUND", [(r.first and training.named(r.first), r.reason) for r in watch.reports])
"""


@pytest.mark.parametrize("kind", ["between", "inside"])
def test_only_the_worker_that_overflows_has_a_culprit(tmp_path: Any, kind: str) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER % {"tests": os.path.dirname(__file__)})
    workers = []
    for rank in (0, 1):
        folder = tmp_path / ("work%d" % rank)
        folder.mkdir()
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2")
        command = [sys.executable, str(script), str(tmp_path), kind]
        workers.append(subprocess.Popen(command, cwd=str(folder), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [worker.communicate(timeout=240)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said[0][-3000:] + said[1][-3000:]
    assert all("EXCHANGES 60" in text for text in said)  # no replay took part in an exchange
    assert "FOUND [('net/hot/MatMul', None)]" in said[0]
    assert "FOUND [(None, 'other_rank')]" in said[1]
