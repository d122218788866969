"""Operators of a replay have the names that TensorFlow gave them in the graph of the training step."""
from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Set, Tuple

import numpy as np
import pytest
import training

import npu_overflow
from npu_overflow.collectors import observe

pytestmark = pytest.mark.tensorflow

FEATURES = 12

#: what graphs work out while they are traced, and what gradients do otherwise where shapes are known then
FOLDED = set(
    "Const Identity IdentityN NoOp Placeholder ReadVariableOp VarHandleOp Shape ShapeN Size Rank Fill Range Prod StridedSlice Pack Unpack ConcatV2 "
    "ExpandDims Squeeze ZerosLike OnesLike BroadcastGradientArgs BroadcastTo Sum Reshape SplitV Slice Maximum FloorDiv InvertPermutation StopGradient "
    "IteratorGetNext AssignVariableOp AssignAddVariableOp AssignSubVariableOp".split()
)
LOOPS = ("TensorList", "While", "StatelessWhile", "Less", "LogicalAnd", "EmptyTensorList")


def normalized(keras: Any) -> Any:
    inputs = keras.Input((FEATURES,))
    h = keras.layers.Dense(8, activation="gelu", name="wide")(inputs)
    h = keras.layers.Dense(8, activation="softmax", name="soft")(h)
    h = keras.layers.LayerNormalization(name="normed")(h)
    h = keras.layers.BatchNormalization(name="batched")(h)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")


def convolutional(keras: Any) -> Any:
    inputs = keras.Input((FEATURES,))
    h = keras.layers.Reshape((2, 2, 3))(inputs)
    h = keras.layers.Conv2D(4, 2, padding="same", activation="relu", name="conv")(h)
    h = keras.layers.DepthwiseConv2D(2, padding="same", name="depth")(h)
    h = keras.layers.SeparableConv2D(3, 1, name="separable")(h)
    h = keras.layers.Conv2DTranspose(2, 2, name="transposed")(h)
    h = keras.layers.Reshape((9, 2))(h)
    h = keras.layers.GlobalAveragePooling1D()(keras.layers.Conv1D(3, 2, name="line")(h))
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")


def attention(keras: Any) -> Any:
    inputs = keras.Input((FEATURES,))
    h = keras.layers.Reshape((4, 3))(inputs)
    h = keras.layers.MultiHeadAttention(2, 4, name="heads")(h, h)
    h = keras.layers.Flatten()(keras.layers.Attention(name="attend")([h, h]))
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")


def own_operators(keras: Any) -> Any:
    import tensorflow as tf

    class Own(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            self.w = self.add_weight(name="w", shape=(FEATURES, 4))
            self.v = self.add_weight(name="v", shape=(4,))

        def call(self, h: Any) -> Any:
            a = tf.nn.bias_add(tf.matmul(h, self.w) * self.v + self.v, self.v)
            b = tf.einsum("bi,bj->bij", a, a)
            c = tf.nn.softmax(tf.linalg.matmul(b, b, transpose_b=True)) / tf.reduce_sum(tf.exp(-tf.abs(b)), keepdims=True)
            d = tf.math.l2_normalize(c, -1) + tf.norm(c)
            return tf.reshape(tf.pow(tf.abs(d), 2.0) - tf.nn.moments(d, [1], keepdims=True)[1], (-1, 16))

    inputs = keras.Input((FEATURES,))
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(Own(name="own")(inputs)), name="net")


def shared(keras: Any) -> Any:
    inputs = keras.Input((FEATURES,))
    twice = keras.layers.Dense(FEATURES, name="twice")
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(twice(twice(inputs))), name="net")


def recurrent(keras: Any) -> Any:  # in tf.keras its layers are graphs of their own, whose names start anew
    inputs = keras.Input((FEATURES,))
    h = keras.layers.Reshape((4, 3))(inputs)
    h = keras.layers.GRU(4, return_sequences=True, name="gru")(keras.layers.LSTM(4, return_sequences=True, name="lstm")(h))
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(keras.layers.SimpleRNN(4, name="simple")(h)), name="net")


def graphs_of(monkeypatch: Any) -> List[Any]:
    """Collects the graphs that are traced from now on."""
    from tensorflow.python.framework import func_graph

    found: List[Any] = []
    real = func_graph.FuncGraph.__init__

    def init(graph: Any, *args: Any, **kwargs: Any) -> None:
        real(graph, *args, **kwargs)
        found.append(graph)

    monkeypatch.setattr(func_graph.FuncGraph, "__init__", init)
    return found


def without_numbers_of_layers(name: str, keras: Any) -> str:
    """Keras 3 enters each layer twice, so its graphs number all of them; a replay does not."""
    return re.sub(r"_\d+(?=/)", "", name) if hasattr(keras, "Variable") else name


BEFORE_KERAS_3, KERAS_3 = pytest.mark.tensorflow("<2.16"), pytest.mark.tensorflow(">=2.16")


@pytest.mark.parametrize(
    "build",
    [normalized, convolutional, attention, own_operators, pytest.param(shared, marks=BEFORE_KERAS_3), pytest.param(recurrent, marks=KERAS_3)],
)
def test_names_are_those_of_the_graph(build: Callable[[Any], Any], monkeypatch: Any) -> None:
    keras = training.set_up()
    graphs = graphs_of(monkeypatch)
    model = training.compiled(build(keras), keras, keras.optimizers.SGD(1e-6), scale=8.0)
    watched: Dict[Tuple[str, str], str] = {}
    before = observe.StepWatcher.before

    def look(watcher: Any, op: Any, inputs: Any, attrs: Any, ctx: Any) -> Any:
        watched[op.type, without_numbers_of_layers(op.name, keras)] = op.phase
        return before(watcher, op, inputs, attrs, ctx)

    monkeypatch.setattr(observe.StepWatcher, "before", look)
    x = np.random.RandomState(0).rand(4 * training.BATCH, FEATURES).astype(np.float32)
    watch = npu_overflow.OverflowWatch(verbose=0, at_steps=[2])
    model.fit(x, np.zeros((len(x), 1), np.float32), batch_size=training.BATCH, verbose=0, shuffle=False, callbacks=[watch])
    named: Set[Tuple[str, str]] = {(op.type, without_numbers_of_layers(op.name, keras)) for graph in graphs for op in graph.get_operations()}
    computing = {key: phase for key, phase in watched.items() if key[0] not in FOLDED and not key[0].startswith(LOOPS)}
    if build is recurrent:  # in the gradient of a loop, "gradients/…_grad" is left out
        computing = {key: phase for key, phase in computing.items() if phase == "forward"}
    assert len(computing) > 15
    assert sorted(key for key in computing if key not in named) == []
