"""Kinds of training that can't be replayed: the watch is off with one message that says what works there."""
from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any, List

import pytest
import training

import npu_overflow
from npu_overflow.collect.replay import environment
from npu_overflow.errors import CannotCollect

pytestmark = pytest.mark.tensorflow


def run(script: str, folder: Any, variables: Any = ()) -> subprocess.Popen:  # type: ignore[type-arg]
    path = folder / "script.py"
    path.write_text("import sys\nsys.path[:0] = [%r]\n%s" % (os.path.dirname(__file__), script))
    environment = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", **dict(variables))
    return subprocess.Popen([sys.executable, str(path)], cwd=str(folder), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


GRAPH_MODE = """
import tensorflow as tf
tf.compat.v1.disable_eager_execution()
import numpy as np
import npu_overflow
watch = npu_overflow.OverflowWatch(language="en")
keras = tf.keras
if not hasattr(keras, "ops"):  # Keras 2
    model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
    model.fit(np.ones((16, 4)), np.ones((16, 1)), verbose=0, callbacks=[watch])
else:
    with npu_overflow.overflow_dump(language="en") as watch:
        pass
print("STATE", watch.state)
"""


def test_graph_mode(tmp_path: Any) -> None:
    said, errors = run(GRAPH_MODE, tmp_path).communicate(timeout=120)
    assert "STATE off" in said, errors[-2000:]
    assert errors.count("npu_overflow: off: TensorFlow runs in graph mode") == 1
    assert "npu-overflow analyze" in errors


@pytest.mark.tensorflow(">=2.16")
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_keras_on_another_backend(backend: str, monkeypatch: Any, tmp_path: Any, capsys: Any) -> None:
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    import keras as keras_itself

    watch = npu_overflow.OverflowWatch(language="en")
    monkeypatch.setattr(keras_itself.backend, "backend", lambda: backend)
    watch.set_model(model)
    watch.on_train_begin()
    monkeypatch.undo()
    training.tear_down(keras)
    assert watch.state == "off"
    assert capsys.readouterr().err.count("off: this Keras runs on %s" % backend) == 1


# No TPU is at hand: for its strategy the name has to do. The other two have a test with the real one below.
@pytest.mark.parametrize("name", ["ParameterServerStrategyV2", "TPUStrategy", "MultiWorkerMirroredStrategy"])
def test_strategies_that_cant_be_replayed(name: str) -> None:
    model = type("Model", (), {"distribute_strategy": type(name, (), {})()})()
    with pytest.raises(CannotCollect) as refused:
        environment.check(model)
    assert name in refused.value.message() and "npu-overflow analyze" in refused.value.hint()


def test_a_loop_without_any_loss_scale_optimizer_is_told_what_to_give(monkeypatch: Any, capsys: Any) -> None:
    import tensorflow as tf

    from npu_overflow.training import loss_scale

    monkeypatch.setattr(loss_scale, "find_optimizers", lambda: [])  # other tests' may still be alive

    weight = tf.Variable(1.0)
    step = tf.function(lambda: weight.assign_add(1.0))
    with npu_overflow.overflow_dump(language="en"):
        for _ in range(30):
            step()
    assert capsys.readouterr().err.count("no loss-scale optimizer was found") == 1


ESTIMATOR = """
import numpy as np
import tensorflow as tf
import npu_overflow

def model_fn(features, labels, mode):
    weight = tf.compat.v1.get_variable("w", (4, 1))
    loss = tf.reduce_mean(tf.square(tf.matmul(features["x"], weight) - labels))
    step = tf.compat.v1.train.GradientDescentOptimizer(0.1).minimize(loss, tf.compat.v1.train.get_global_step())
    return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

def data():
    return tf.data.Dataset.from_tensor_slices(({"x": np.ones((16, 4), "f4")}, np.ones((16, 1), "f4"))).batch(4).repeat()

with npu_overflow.overflow_dump(language="en") as watch:
    tf.estimator.Estimator(model_fn).train(data, steps=5)
print("REPORTS", watch.reports)
"""


@pytest.mark.tensorflow("<2.16")
def test_an_estimator_is_told_of_once(tmp_path: Any) -> None:
    said, errors = run(ESTIMATOR, tmp_path).communicate(timeout=120)
    assert "REPORTS []" in said, errors[-2000:]
    assert errors.count("Estimators and sessions can't be watched; npu-overflow analyze reads dumps made elsewhere.") == 1


PARAMETER_SERVER = """
import socket
import numpy as np
import tensorflow as tf
ports = []
for _ in range(2):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ports.append(free.getsockname()[1])
cluster = tf.train.ClusterSpec({"worker": ["127.0.0.1:%d" % ports[0]], "ps": ["127.0.0.1:%d" % ports[1]]})
servers = [tf.distribute.Server(cluster, job, 0, protocol="grpc", start=True) for job in ("worker", "ps")]
resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(cluster, rpc_layer="grpc")
strategy = tf.distribute.experimental.ParameterServerStrategy(resolver)
coordinator_of = getattr(getattr(tf.distribute, "coordinator", None), "ClusterCoordinator", None) or tf.distribute.experimental.coordinator.ClusterCoordinator
import npu_overflow
keras = tf.keras
x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")

def by_fit():
    watch = npu_overflow.OverflowWatch(language="en")
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1, input_shape=(4,))])
        model.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=1)
    data = lambda context: tf.data.Dataset.from_tensor_slices((x, y)).batch(8).repeat()
    before = np.array(model.get_weights()[0])
    model.fit(keras.utils.experimental.DatasetCreator(data), epochs=1, steps_per_epoch=8, verbose=0, callbacks=[watch])
    return watch, bool(np.any(before != np.array(model.get_weights()[0])))

def by_loop():
    with strategy.scope():
        weight = tf.Variable(np.zeros((4, 1), "float32"))
    coordinator = coordinator_of(strategy)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(tf.matmul(tf.constant(x), weight) - y))
        weight.assign_sub(0.01 * tape.gradient(loss, weight))

    with strategy.scope(), npu_overflow.overflow_dump(language="en") as watch:
        for _ in range(8):
            coordinator.schedule(step)
        coordinator.join()
    return watch, bool(np.any(weight.numpy() != 0))

# Keras 3 does not train under this strategy: there, a loop of the user's own
watch, moved = by_loop() if hasattr(keras, "ops") else by_fit()
print("STATE", watch.state, watch.reports, "MOVED", moved, flush=True)
import os
os._exit(0)  # servers in this process can't be stopped
"""


def test_a_real_parameter_server_trains_to_the_end(tmp_path: Any) -> None:
    process = run(PARAMETER_SERVER, tmp_path)
    try:
        said, errors = process.communicate(timeout=150)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert "STATE off [] MOVED True" in said, errors[-3000:]
    assert errors.count("npu_overflow: off:") == 1 and "ParameterServerStrategy" in errors and "npu-overflow analyze" in errors


WORKER = """
import os
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
import training, npu_overflow
keras = training.set_up()
with strategy.scope():
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
x, y = training.data(48, list(range(30, 48)) if os.environ["HOT"] == "1" else [])
watch = npu_overflow.OverflowWatch(language="en")
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8).with_options(options)
model.fit(data, verbose=0, callbacks=[watch])
print("STATE", watch.state)
"""


@pytest.mark.tensorflow("<2.16")
def test_two_workers_under_a_strategy_train_to_the_end(tmp_path: Any) -> None:
    ports: List[int] = []
    for _ in range(2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            ports.append(free.getsockname()[1])
    workers = []
    for index in (0, 1):
        folder = tmp_path / str(index)
        folder.mkdir()
        config = {"cluster": {"worker": ["127.0.0.1:%d" % port for port in ports]}, "task": {"type": "worker", "index": index}}
        workers.append(run(WORKER, folder, {"TF_CONFIG": json.dumps(config), "HOT": str(1 - index), "GRPC_ENABLE_FORK_SUPPORT": "0"}))
    said = [worker.communicate(timeout=240) for worker in workers]
    for text, errors in said:
        assert "STATE off" in text, errors[-3000:]
        assert errors.count("npu_overflow: off:") == 1 and "run the model in one process" in errors
