"""On an accelerator answers come late: one read a run. Here the CPU plays one, whose tensors can't be looked at in place."""
from __future__ import annotations

from typing import Any

import pytest
import training

import npu_overflow
from npu_overflow.collect.replay import environment, finite
from npu_overflow.collect.replay import tensorflow as private

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]


def blamed(model_of: Any, keras: Any) -> Any:
    model = training.compiled(model_of(keras), keras)
    training.weights(model)
    x, y = training.data(24, list(range(8, 24)))
    watch = npu_overflow.OverflowWatch(verbose=0, warmup=0)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch])
    return [(item.op_type, item.op_name, item.verdict, item.inherited_from) for report in watch.reports for item in report.operators]


def two_faults(keras: Any) -> Any:
    """An overflow that a minimum absorbs, and one that it does not: blame needs repaired runs."""
    import tensorflow as tf

    inputs = keras.Input((training.FEATURES,))
    h = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    absorbed = keras.layers.Lambda(lambda v: tf.minimum(tf.square(v * 400.0), 2.0), output_shape=(8,), name="absorbs")(h)
    h = keras.layers.Add(name="sum")([keras.layers.Dense(8, name="hot")(h), absorbed])
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")


@pytest.mark.parametrize("model_of", [training.functional, two_faults], ids=lambda part: part.__name__)
def test_it_finds_the_same_with_one_read_a_run(model_of: Any, monkeypatch: Any) -> None:
    keras = training.set_up()
    at_once = blamed(model_of, keras)
    asked = []
    real = finite.Asked.answers

    def answers(self: Any) -> Any:
        asked.append(len(self._answers))
        return real(self)

    monkeypatch.setattr(environment, "core", lambda: "GPU")
    monkeypatch.setattr(private, "host_view", lambda tensor: None)
    monkeypatch.setattr(finite.Asked, "answers", answers)
    keras = training.set_up()
    assert blamed(model_of, keras) == at_once
    assert at_once[0][0] == "MatMul" and max(asked) > 10
