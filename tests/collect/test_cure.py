"""What is tried on a record: which changes, in which order, and that nothing of the training moves."""
from __future__ import annotations

import re
from pathlib import Path
from typing import Any, List, Optional

import numpy as np
import pytest
from collect.records import ROOM, recorded

from npu_overflow.collect.replay.blame import examine
from npu_overflow.collect.replay.cure import trials_of
from npu_overflow.collect.replay.names import Names
from npu_overflow.dump.replay_info import TrialInfo

pytestmark = pytest.mark.tensorflow


def tried(step: Any, **layers: Any) -> List[TrialInfo]:
    found = examine(step, ROOM)
    assert found.culprit is not None
    return trials_of(step, found, Names(step.record, layers))


def weight_of(value: float) -> Any:
    import tensorflow as tf

    return tf.Variable(tf.fill([2], value))


@pytest.mark.parametrize("compiled", [True, False])
def test_scopes_are_widened_one_after_the_other_and_the_needless_left_out(compiled: bool) -> None:
    import tensorflow as tf

    weight, hundred = weight_of(300.0), tf.constant(100.0, tf.float16)

    def step() -> None:
        half = tf.cast(weight, tf.float16)
        with tf.name_scope("first"):
            big = tf.square(half)
        with tf.name_scope("second"):
            small = big / hundred
        weight.assign_add(tf.cast(small, tf.float32))

    taken = recorded(tf.function(step) if compiled else step, scale=None)
    taken.trainable = frozenset(taken.record.variables)
    trials = tried(taken, first=[], second=[])
    assert [(trial.layers, trial.finite) for trial in trials] == [
        (("first",), False),
        (("first", "second"), True),
    ]
    name = "second/truediv" if compiled else "second/RealDiv"
    assert trials[0].next == "RealDiv " + name
    assert trials[0].largest == 90000.0
    if not compiled:  # what was recorded is what the training did
        assert tf.reduce_all(tf.math.is_inf(weight)).numpy()


def test_the_highest_loss_scale_that_is_finite() -> None:
    import tensorflow as tf

    weight, scale = weight_of(1.0), tf.Variable(2.0**15, trainable=False)

    @tf.function
    def step() -> None:
        gradient = tf.cast(weight * scale, tf.float16) * tf.constant(100.0, tf.float16)
        weight.assign_sub(tf.cast(gradient, tf.float32) / scale)

    before = weight.numpy().tobytes()
    taken = recorded(step, scale=scale)
    taken.trainable = frozenset(n for n, v in taken.record.variables.items() if v is weight)
    after = weight.numpy().tobytes()
    assert after != before
    (trial,) = [trial for trial in tried(taken) if trial.change == "loss_scale"]
    assert (trial.value, trial.finite) == (512.0, True)  # 512 * 100 fits, 1024 * 100 does not
    assert weight.numpy().tobytes() == after and scale.numpy() == 2.0**15


def test_an_epsilon_that_the_gradient_sees_too() -> None:
    import tensorflow as tf

    weight = weight_of(0.0)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.sqrt(tf.cast(weight, tf.float16)))
        weight.assign_sub(tape.gradient(loss, weight))

    taken = recorded(step)
    taken.trainable = frozenset(taken.record.variables)
    trials = tried(taken)
    assert [trial.change for trial in trials] == ["epsilon", "float32"]
    assert trials[0].finite and trials[0].value == 6e-8
    assert not trials[1].finite and trials[1].largest is None


def float32_trials(keras: Any, *layers: Any, shape: Any = (4,)) -> List[Any]:
    """What was tried of float32 on a model that overflows in every step."""
    import npu_overflow

    out = keras.layers.Dense(1, dtype="float32", name="out")
    model = keras.Sequential([keras.layers.InputLayer(shape), *layers, out])
    scaling = keras.mixed_precision.LossScaleOptimizer
    model.compile(scaling(keras.optimizers.SGD(1e-30)), "mse")
    x = np.random.RandomState(0).rand(40, *shape).astype("f") + 1
    watch = npu_overflow.OverflowWatch(warmup=0, patience=2, keep=1, verbose=0)
    model.fit(x, np.zeros((40, 1), "f"), batch_size=4, verbose=0, callbacks=[watch])
    return [trial for trial in watch.reports[0].first.trials if trial.change == "float32"]


def dense(keras: Any, value: float, name: str = "d") -> Any:
    start = keras.initializers.Constant(value)
    return keras.layers.Dense(4, name=name, kernel_initializer=start)


def test_the_line_that_makes_the_layer_is_told(keras: Any) -> None:
    large = keras.initializers.Constant(300.0)
    layers = keras.layers
    made = layers.Dense(4, kernel_initializer=large, name="t")
    last = float32_trials(keras, made, dense(keras, 300.0))[-1]
    (line,) = [line for line in last.code if '"t"' in line]
    call = 'layers.Dense(4, kernel_initializer=large, name="t", dtype="float32")'
    assert line.endswith("test_cure.py:%d: %s" % (made_at("made = layers.Dense(4"), call))
    # of the other the name is a variable
    assert 'keras.layers.Dense(..., dtype="float32", name="d")' in last.code


def made_at(text: str) -> int:
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


def test_a_wrapper_hands_no_type_on(keras: Any) -> None:
    large = keras.initializers.Constant(200.0)
    inner = keras.layers.LSTM(4, activation="relu", kernel_initializer=large, name="inner")
    last = float32_trials(keras, keras.layers.Bidirectional(inner, name="bi"), shape=(6, 4))[-1]
    assert last.finite and any(
        'Bidirectional(keras.layers.LSTM(..., dtype="float32")' in line for line in last.code
    ), last


def test_what_names_the_narrow_type_keeps_it(keras: Any) -> None:
    class Narrow(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            import tensorflow as tf

            small = tf.constant(1e-3, tf.float16)
            return tf.square(tf.cast(x, tf.float16)) * small

    trials = float32_trials(keras, dense(keras, 300.0), Narrow(name="narrow"))
    assert trials and not any(trial.finite for trial in trials)


def test_sums_of_gradients_have_the_type_of_what_they_flow_into(keras: Any) -> None:
    class Twice(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            import tensorflow as tf

            return x + tf.reduce_sum(tf.square(x))

    last = float32_trials(keras, dense(keras, 300.0), Twice(name="twice"))[-1]
    assert last.finite and sorted(last.layers) == ["d", "twice"] and len(last.code) == 2


def test_a_gradient_that_float16_variables_need_is_nobodys_to_widen(keras: Any) -> None:
    class Table(keras.layers.Layer):
        def build(self, shape: Any) -> None:
            start = keras.initializers.Constant(300.0)
            self.table = self.add_weight(
                name="table", shape=(5, 4), initializer=start, dtype="float16"
            )

        def call(self, x: Any) -> Any:
            import tensorflow as tf

            return tf.square(tf.gather(self.table, tf.cast(x > 0, tf.int32)))

    trials = float32_trials(keras, Table(name="emb"), keras.layers.Flatten(name="flat"))
    assert trials and not any(trial.finite for trial in trials)


class TakesNoType:
    """A layer of the user's whose constructor takes no dtype."""

    name, compute_dtype = "own", "float16"

    def __init__(self) -> None:
        pass


class TakesAny(TakesNoType):
    def __init__(self, **kwargs: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("layers", "back"),
    [
        ({"own": [TakesNoType()]}, "self.compute_dtype"),
        ({}, "tf.float16"),
        ({"own": [TakesAny()]}, None),
    ],
)
def test_what_takes_no_type_is_cast_around_its_line(layers: Any, back: Optional[str]) -> None:
    import tensorflow as tf

    weight, hundred = weight_of(300.0), tf.constant(100.0, tf.float16)

    @tf.function
    def step() -> None:
        half = tf.cast(weight, tf.float16)
        with tf.name_scope("own"):
            small = tf.square(half) / hundred
        weight.assign_add(tf.cast(small, tf.float32))

    taken = recorded(step, scale=None)
    taken.trainable = frozenset(taken.record.variables)
    (trial,) = [trial for trial in tried(taken, **layers) if trial.finite]
    if back is None:
        assert trial.code == ('TakesAny(..., dtype="float32", name="own")',)
        return
    around, *casts = trial.code[:3]
    assert re.match(r"# around .*test_cure.py:\d+: small = tf.square\(half\) / hundred", around)
    assert casts == [
        "x = tf.cast(x, tf.float32)  # what it takes",
        "y = tf.cast(y, %s)  # what it gives" % back,
    ]
