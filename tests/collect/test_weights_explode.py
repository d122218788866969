"""A weight that float32 holds and float16 does not: its Cast overflows first."""
from __future__ import annotations

from typing import Any

import pytest
import training

import npu_overflow

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]


@pytest.mark.parametrize("value", [-1e5, -3e9, 3e9])
def test_a_weight_out_of_range_is_no_mask(value: float) -> None:
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    kernel, bias = model.get_layer("hot").get_weights()

    class Explodes(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 25:
                kernel[2, 3] = value
                model.get_layer("hot").set_weights([kernel, bias])

    watch = npu_overflow.OverflowWatch(verbose=0)
    x, y = training.data(48, [])
    model.fit(x, y, batch_size=8, verbose=0, shuffle=False, callbacks=[watch, Explodes()])
    first = watch.reports[0].first
    assert first.op_type == "Cast" and training.named(first) in ("net/hot/Cast", "net/hot/MatMul/Cast", "net/hot/Cast/Cast")  # by version
    assert first.advice[0] == "weight_range" and not {"mask_constant", "cast_range"} & set(first.advice)
