"""Several workers that exchange gradients in Python: one overflows, none waits for a replay."""
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
rank, folder = int(os.environ["RANK"]), sys.argv[1]
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
        pairs = zip(values, [theirs["arr_%%d" %% i] for i in range(len(values))])
        return [tf.constant((a.astype("float32") + b.astype("float32")) / 2) for a, b in pairs]

keras = training.set_up()
if rank == 1:
    test_loops.HOT.clear()  # only worker 0 gets the large batches

def train(kind):
    loop = test_loops.Loop(keras)
    cast = lambda x, y: [tf.cast(g, tf.float32) for g in loop.gradients(x, y)]
    gradients = tf.function(cast)
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
    found = [(r.first and training.named(r.first), r.reason) for r in watch.reports]
    print("FOUND", kind, found, "after", count[0])

train("between")
train("inside")
"""


def test_only_the_worker_that_overflows_has_a_culprit(tmp_path: Any) -> None:
    script = tmp_path / "worker.py"
    script.write_text(WORKER % {"tests": os.path.dirname(__file__)})
    workers = []
    for rank in (0, 1):
        folder = tmp_path / ("work%d" % rank)
        folder.mkdir()
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2")
        command = [sys.executable, str(script), str(tmp_path)]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        workers.append(subprocess.Popen(command, cwd=str(folder), env=environment, **pipes))
    said = [worker.communicate(timeout=240)[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0], said[0][-3000:] + said[1][-3000:]
    for kind, exchanges in (("between", 60), ("inside", 120)):  # no replay takes part in them
        ended = "after %d\n" % exchanges
        assert "FOUND %s [('net/hot/MatMul', None)] %s" % (kind, ended) in said[0]
        assert "FOUND %s [(None, 'other_rank')] %s" % (kind, ended) in said[1]
