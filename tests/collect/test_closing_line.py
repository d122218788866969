"""What is said at the end of a training: the rate of overflowing steps, and what to do where nothing was collected."""
from __future__ import annotations

from typing import Any, List

import pytest
import training

import npu_overflow

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]


def fixed_scale(keras: Any) -> Any:
    """An optimizer with a loss scale that nothing lowers."""
    if hasattr(keras, "ops"):  # Keras 3 has a fixed factor of any optimizer
        return keras.optimizers.Adam(1e-4, loss_scale_factor=4.0)
    return keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(1e-4), dynamic=False, initial_scale=4.0)


def rate(hot: List[int], steps: int, capsys: Any, epochs: int = 1, **options: Any) -> List[str]:
    """Lines about the rate, of a training with a fixed loss scale."""
    keras = training.set_up()
    model = training.functional(keras)
    model.compile(fixed_scale(keras), "mse", **({"auto_scale_loss": False} if hasattr(keras, "ops") else {}))
    training.weights(model)
    x, y = training.data(steps, hot)
    watch = npu_overflow.OverflowWatch(language="en", **options)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, epochs=epochs, callbacks=[watch])
    watch._session.end()
    return [line for line in capsys.readouterr().err.splitlines() if "steps overflowed" in line]


@pytest.mark.parametrize(("hot", "epochs", "said"), [(0, 1, "20 of 20 steps"), (0, 3, "60 of 60 steps"), (12, 1, "8 of 20 steps"), (12, 2, "28 of 40 steps")])
def test_a_fixed_loss_scale_counts_every_step_after_the_weights_were_lost(hot: int, epochs: int, said: str, capsys: Any) -> None:
    lines = rate(list(range(hot, 20)), 20, capsys, epochs)
    assert len(lines) == 1 and said in lines[0]


def test_a_healthy_fixed_loss_scale_has_no_rate(capsys: Any) -> None:
    assert rate([], 20, capsys) == []


def short(language: str, hot: List[int], capsys: Any, steps: int = 10, **options: Any) -> Any:
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(steps, hot)
    watch = npu_overflow.OverflowWatch(language=language, **options)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch])
    watch._session.end()
    return watch, capsys.readouterr().err


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_training_that_ends_within_warmup_is_told_what_to_set(language: str, capsys: Any) -> None:
    watch, said = short(language, list(range(10)), capsys)
    assert watch.reports == []
    assert said.count("warmup=0") == 1 and said.count("at_steps=[9]") == 1


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("en", "npu_overflow: 3 of 40 steps overflowed while the loss scale settled at 128, none since: nothing to do.\n"),
        ("zh", "npu_overflow: 40 步中有 3 步溢出，均发生在 loss scale 回落到 128 的过程中，此后没有溢出，无需处理。\n"),
    ],
)
def test_a_scale_that_settles_within_warmup_is_nothing_to_do(language: str, line: str, capsys: Any) -> None:
    watch, said = short(language, [0, 1, 2], capsys, steps=40)
    assert watch.reports == [] and said.endswith(line) and "0.5 %" not in said and "warmup=0" not in said


def test_one_overflow_after_the_scale_settled_is_counted(capsys: Any) -> None:
    assert "4 of 40 steps overflowed.\n" in short("en", [0, 1, 2, 30], capsys, steps=40)[1]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_fixed_loss_scale_collects_at_the_first_loss_that_is_not_finite(language: str, capsys: Any) -> None:
    keras = training.set_up()
    model = training.functional(keras)
    model.compile(fixed_scale(keras), "mse", **({"auto_scale_loss": False} if hasattr(keras, "ops") else {}))
    training.weights(model)
    x, y = training.data(20, range(12, 20))
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[npu_overflow.OverflowWatch(language=language)])
    said = capsys.readouterr().err
    line = {
        "en": "npu_overflow: step 13: the loss became non-finite and nothing skips such steps: collecting now.\n",
        "zh": "npu_overflow: 第 13 步：loss 变为非有限值，且没有机制跳过这样的步：立即开始采集。\n",
    }[language]
    assert said.count(line) == 1 and "stands still" not in said and "loss scale 未变" not in said


def test_nothing_is_advised_where_nothing_overflowed_or_a_report_was_made(capsys: Any) -> None:
    assert "warmup=0" not in short("en", [], capsys)[1]
    watch, said = short("en", list(range(2, 10)), capsys, warmup=0, patience=2)
    assert len(watch.reports) == 1 and "warmup=0" not in said
    watch, said = short("en", [3], capsys, steps=40)
    assert watch.reports == [] and "1 of 40 steps overflowed" in said and "warmup=0" not in said
