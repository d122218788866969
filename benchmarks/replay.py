"""What collecting a step costs on a CPU or GPU, as ratios taken in one run.

    python benchmarks/replay.py [small transformer lstm resnet] [--child NAME]

For each model, each in a process of its own: the same training step run compiled, run eagerly, recorded, interpreted once, and examined (interpreted
as often as blame needs, a fault planted in the last layers). Peak memory is what the eager step and one interpretation add to the compiled training.
"""
from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import threading
import time
from typing import Any, Callable, Dict, List, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np
from timing import table

NAMES = ("small", "transformer", "lstm", "resnet")
TIMES = 7
BUDGET = 1 << 28


def scaled(keras: Any) -> Any:
    kind, inner = keras.mixed_precision.LossScaleOptimizer, keras.optimizers.Adam(1e-6)
    try:
        return kind(inner, initial_scale=2.0)
    except TypeError:
        return kind(inner, dynamic=True, initial_scale=2.0)


def model_of(name: str, keras: Any) -> Tuple[Any, Any, Any]:
    """A model whose last but one layer overflows where the input is large, and a batch."""
    random = np.random.RandomState(0)
    if name == "small":
        x = random.rand(32, 64).astype("f")
        inputs = h = keras.Input((64,))
        for _ in range(4):
            h = keras.layers.Dense(64, activation="relu")(h)
    elif name == "transformer":
        x = random.rand(2, 128, 256).astype("f")
        inputs = h = keras.Input((128, 256))
        for _ in range(24):
            a = keras.layers.MultiHeadAttention(8, 32)(h, h)
            h = keras.layers.LayerNormalization()(keras.layers.Add()([h, a]))
            f = keras.layers.Dense(256)(keras.layers.Dense(1024, activation="relu")(h))
            h = keras.layers.LayerNormalization()(keras.layers.Add()([h, f]))
        h = keras.layers.Flatten()(h)
    elif name == "lstm":
        x = random.rand(32, 200, 64).astype("f")
        inputs = keras.Input((200, 64))
        h = keras.layers.LSTM(128, activation="tanh", recurrent_dropout=0.01)(inputs)
    else:
        x = random.rand(8, 96, 96, 3).astype("f")
        body = keras.applications.ResNet50(weights=None, include_top=False, input_shape=(96, 96, 3), pooling="avg")
        inputs, h = body.input, body.output
    h = keras.layers.Dense(16, name="hot", kernel_initializer=keras.initializers.Constant(1e38), dtype="float32")(h)
    h = keras.layers.Activation(lambda v: v * 1e30, name="overflows", dtype="float32")(h)
    return keras.Model(inputs, keras.layers.Dense(1)(h)), x, np.zeros((len(x), 1), "f")


class Peak:
    """The largest resident memory of this process while entered, in MB above what it began with."""

    def __enter__(self) -> Peak:
        gc.collect()
        self._most, self._on = 0, True
        self._first = resident()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._on = False
        self._thread.join()
        self.megabytes = max(self._most - self._first, 0) / 1e6

    def _watch(self) -> None:
        while self._on:
            self._most = max(self._most, resident())
            time.sleep(0.001)


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def interleaved(runs: Dict[str, Callable[[], Any]]) -> Dict[str, float]:
    """The least seconds of each, taken in turn so that the machine's moods meet all of them."""
    taken: Dict[str, List[float]] = {name: [] for name in runs}
    for turn in range(TIMES + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                taken[name].append(time.perf_counter() - start)
    return {name: min(times) for name, times in taken.items()}


def child(name: str) -> Dict[str, Any]:
    import tensorflow as tf

    from npu_overflow.collect.replay import batches
    from npu_overflow.collect.replay import tensorflow as private
    from npu_overflow.collect.replay.blame import examine
    from npu_overflow.collect.replay.interpreter import Interpreter, Step
    from npu_overflow.collect.replay.recorder import Recorder

    keras = tf.keras
    model, x, y = model_of(name, keras)
    more = {} if tf.__version__ < "2.7" else {"jit_compile": False}
    model.compile(scaled(keras), "mse", **more)
    batch = (tf.constant(x), tf.constant(y))
    dataset = tf.data.Dataset.from_tensors(batch).repeat()
    model.fit(dataset, steps_per_epoch=1, verbose=0)
    function = model.make_train_function() if model.train_function is None else model.train_function
    iterator = iter(dataset)
    recorder = Recorder(BUDGET, lambda: False)
    scale = model.optimizer.dynamic_scale if hasattr(model.optimizer, "dynamic_scale") else model.optimizer._loss_scale._current_loss_scale
    record: List[Any] = []

    def recorded() -> None:
        given = batches.feed([batch], dataset.element_spec)
        recorder.on()
        recorder.begin_step([scale])
        try:
            function(given)
            record[:] = [recorder.record(), given]
        finally:
            recorder.off()

    def fed() -> None:
        function(batches.feed([batch], dataset.element_spec))

    def step() -> Step:
        number = private.tensor_id(record[1]._iterator_resource)
        found = record[0]
        for variable in model.trainable_variables:
            for handle in private.handles_of(variable):
                found.variables[private.tensor_id(handle)] = variable
        feeds = {number: batches.Feed([batch], dataset.element_spec)}
        return Step(found, recorder.programs, feeds=feeds, scales=frozenset(private.tensor_id(h) for h in private.handles_of(scale)))

    recorded()
    found = examine(step(), BUDGET)
    nodes = Interpreter(step()).run().count
    runs = {
        "compiled": lambda: function(iterator),
        "fed": fed,
        "recorded": recorded,
        "eager": lambda: model.train_step(batch),
        "interpreted": lambda: Interpreter(step(), budget=BUDGET).run(),
        "examined": lambda: examine(step(), BUDGET),
    }
    seconds = interleaved(runs)
    memory = {}
    for key in ("eager", "interpreted"):
        with Peak() as peak:
            runs[key]()
        memory[key] = peak.megabytes
    culprit = found.culprit.op.node.name if found.culprit is not None and found.culprit.op is not None else None
    return {"seconds": seconds, "memory": memory, "nodes": nodes, "runs": found.runs, "culprit": culprit}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--child")
    given = parser.parse_args()
    if given.child:
        sys.stdout.write("\n@" + json.dumps(child(given.child)) + "\n")
        return
    rows = []
    for name in given.names or NAMES:
        ran = subprocess.run([sys.executable, __file__, "--child", name], stdout=subprocess.PIPE, check=True, text=True)
        found = json.loads(next(line for line in ran.stdout.splitlines() if line.startswith("@"))[1:])
        seconds, memory = found["seconds"], found["memory"]
        assert found["culprit"], "nothing was blamed"
        rows.append([
            name, found["nodes"], "%.0f" % (1e3 * seconds["compiled"]), "%.0f" % (1e3 * seconds["eager"]),
            "%.2f" % (seconds["recorded"] / seconds["fed"]), "%.2f" % (seconds["interpreted"] / seconds["eager"]),
            "%.2f" % (seconds["examined"] / seconds["eager"]), found["runs"], "%.0f" % (1e6 * seconds["interpreted"] / found["nodes"]),
            "%.2f" % (memory["interpreted"] / max(memory["eager"], 1.0)),
        ])
    head = ["model", "operators", "compiled ms", "eager ms", "recorded / compiled", "interpreted / eager", "collected / eager", "runs", "us an operator",
            "memory / eager"]
    sys.stdout.write(table(rows, head) + "\n")


if __name__ == "__main__":
    main()
