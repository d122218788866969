"""What it costs to train under the watch, and under TensorFlow's own debuggers, as ratios to the same plain training.

    python benchmarks/debuggers.py [--steps 300]

Each in a process of its own, warm, the compilation left out: the median of five fits of the same small float32 model with a loss-scale
optimizer. ``enable_check_numerics`` and ``enable_dump_debug_info`` look at every tensor of every step; the watch reads the loss scale and
looks at one step where overflow is frequent.
"""
from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Dict

import timing

WAYS = ("plain", "watch", "check_numerics", "dump_debug_info")


def train(way: str, steps: int) -> None:
    """Print the seconds of a fit in one way."""
    import tensorflow as tf
    import watch as models

    callbacks = []
    if way == "watch":
        callbacks = [models.npu_overflow.OverflowWatch(verbose=0)]
    elif way == "check_numerics":
        tf.debugging.enable_check_numerics()
    elif way == "dump_debug_info":
        tf.debugging.experimental.enable_dump_debug_info(tempfile.mkdtemp(), tensor_debug_mode="CONCISE_HEALTH")
    model, (x, y) = models.small()
    data = tf.data.Dataset.from_tensors((x, y)).repeat(steps)
    model.fit(data, verbose=0, callbacks=callbacks)
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        model.fit(data, verbose=0, callbacks=callbacks)
        taken.append(time.perf_counter() - begin)
    print("SECONDS", statistics.median(taken))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        train(arguments.way, arguments.steps)
        return
    seconds: Dict[str, float] = {}
    for way in WAYS:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, os.path.abspath(__file__), "--way", way, "--steps", str(arguments.steps)]
            environment = dict(os.environ, PYTHONPATH=timing.ROOT, TMPDIR=folder, TF_CPP_MIN_LOG_LEVEL="3")
            done = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        seconds[way] = next(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("SECONDS"))
    rows = [(way, "%.2f" % (1e3 * taken / arguments.steps), "%.2f" % (taken / seconds["plain"])) for way, taken in seconds.items()]
    print(timing.table(rows, ("training", "ms a step", "of plain")))


if __name__ == "__main__":
    main()
