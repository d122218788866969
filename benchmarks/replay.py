"""What collecting a step costs on a CPU or GPU, as ratios taken in one run.

    python benchmarks/replay.py [small transformer lstm resnet]

For each model, each in a process of its own: the same training step compiled, run eagerly, recorded
and interpreted once; then all of a collected step: an overflow in the last layers mixes with a mask
of -inf, so that the record is run again to tell which is to blame. Memory is what the first eager
step and the first interpretation add to the process, each in a process of its own.
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
from typing import Any, Callable, Dict, List, Optional, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np
from timing import table

NAMES = ("small", "transformer", "lstm", "resnet")
TIMES = 7
BUDGET = 1 << 28


def body_of(name: str, keras: Any) -> Tuple[Any, Any, Any]:
    """The input of a model, the output of its body, and a batch."""
    layers, random = keras.layers, np.random.RandomState(0)
    if name == "small":
        inputs = h = keras.Input((64,))
        for _ in range(4):
            h = layers.Dense(64, activation="relu")(h)
        return inputs, h, random.rand(32, 64).astype("f")
    if name == "transformer":
        inputs = h = keras.Input((128, 256))
        for _ in range(24):
            a = layers.MultiHeadAttention(8, 32)(h, h)
            h = layers.LayerNormalization()(layers.Add()([h, a]))
            f = layers.Dense(256)(layers.Dense(1024, activation="relu")(h))
            h = layers.LayerNormalization()(layers.Add()([h, f]))
        return inputs, layers.Flatten()(h), random.rand(2, 128, 256).astype("f")
    if name == "lstm":
        inputs = keras.Input((200, 64))
        h = layers.LSTM(128, activation="tanh", recurrent_dropout=0.01)(inputs)
        return inputs, h, random.rand(32, 200, 64).astype("f")
    shape = (96, 96, 3)
    resnet = keras.applications.ResNet50
    body = resnet(weights=None, include_top=False, input_shape=shape, pooling="avg")
    return body.input, body.output, random.rand(8, *shape).astype("f")


def model_of(name: str, keras: Any) -> Tuple[Any, Any, Any]:
    """A model that overflows in its last layers, and a batch."""
    inputs, h, x = body_of(name, keras)
    mask = np.zeros(16, "f")
    mask[0] = -np.inf
    big = keras.initializers.Constant(1e20)
    h = keras.layers.Dense(16, name="hot", kernel_initializer=big, dtype="float32")(h)

    def overflows(v: Any) -> Any:
        import tensorflow as tf

        return tf.nn.softmax(v * 1e30 + mask)

    h = keras.layers.Activation(overflows, name="overflows", dtype="float32")(h)
    return keras.Model(inputs, keras.layers.Dense(1)(h)), x, np.zeros((len(x), 1), "f")


def scaled(keras: Any) -> Any:
    """An optimizer whose loss scale skips steps that overflow."""
    kind, inner = keras.mixed_precision.LossScaleOptimizer, keras.optimizers.Adam(1e-6)
    try:
        return kind(inner, initial_scale=2.0)
    except TypeError:
        return kind(inner, dynamic=True, initial_scale=2.0)


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
    """Bytes of memory that this process holds."""
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


def child(name: str, peak: Optional[str]) -> Dict[str, Any]:
    """Measure one model: the time of everything, or the peak of memory of one thing."""
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
    function = model.train_function or model.make_train_function()
    recorder = Recorder(BUDGET, lambda: False)
    optimizer = model.optimizer
    scale = getattr(optimizer, "dynamic_scale", None)
    scale = optimizer._loss_scale._current_loss_scale if scale is None else scale
    record: List[Any] = []

    def fed() -> None:
        function(batches.feed([batch], dataset.element_spec))

    def recorded() -> None:
        given = batches.feed([batch], dataset.element_spec)
        recorder.on()
        recorder.begin_step([scale])
        try:
            function(given)
            record[:] = [recorder.record(), given]
        finally:
            recorder.off()

    def step() -> Step:
        found, given = record
        for variable in model.trainable_variables:
            for handle in private.handles_of(variable):
                found.variables[private.tensor_id(handle)] = variable
        feed = batches.Feed([batch], dataset.element_spec)
        feeds = {private.tensor_id(given._iterator_resource): feed}
        scales = frozenset(private.tensor_id(handle) for handle in private.handles_of(scale))
        return Step(found, recorder.programs, feeds=feeds, scales=scales)

    recorded()
    runs = {
        "fed": fed,
        "recorded": recorded,
        "eager": lambda: model.train_step(batch),
        "interpreted": lambda: Interpreter(step(), budget=BUDGET).run(),
        "examined": lambda: examine(step(), BUDGET),
    }
    if peak is not None:
        with Peak() as measured:
            runs[peak]()
        return {"megabytes": measured.megabytes}
    found = examine(step(), BUDGET)
    assert found.culprit is not None and found.culprit.op is not None, "nothing was blamed"
    assert found.culprit.op.type == "Mul", found.culprit
    nodes = Interpreter(step()).run().count
    return {"seconds": interleaved(runs), "nodes": nodes, "runs": found.runs}


def measured(name: str, *more: str) -> Dict[str, Any]:
    """What a process of its own measures."""
    command = [sys.executable, __file__, "--child", name, *more]
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(ran.stdout[ran.stdout.rindex("\n@") + 2 :]))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        sys.stdout.write("\n@" + json.dumps(child(given.child, given.peak)) + "\n")
        return
    rows = []
    for name in given.names or NAMES:
        found = measured(name)
        seconds = found["seconds"]
        peaks = ("eager", "interpreted")
        memory = {peak: measured(name, "--peak", peak)["megabytes"] for peak in peaks}
        rows.append(
            [
                name,
                found["nodes"],
                "%.0f" % (1e3 * seconds["fed"]),
                "%.0f" % (1e3 * seconds["eager"]),
                "%.2f" % (seconds["recorded"] / seconds["fed"]),
                "%.2f" % (seconds["interpreted"] / seconds["eager"]),
                "%.2f" % (seconds["examined"] / seconds["eager"]),
                found["runs"],
                "%.2f" % (memory["interpreted"] / max(memory["eager"], 1.0)),
            ]
        )
    ratios = ["recorded / compiled", "interpreted / eager", "collected / eager", "runs"]
    head = ["model", "operators", "compiled ms", "eager ms", *ratios, "memory / eager"]
    sys.stdout.write(table(rows, head) + "\n")


if __name__ == "__main__":
    main()
