"""What the watch says beside a training on the CPU, word for word."""
from __future__ import annotations

import logging
from typing import Any

import pytest
import training

import npu_overflow
from npu_overflow.collect.replay import collector

pytestmark = pytest.mark.tensorflow("<2.16")


def fit(keras: Any, watch: Any, hot: Any = (), optimizer: Any = None, steps: int = 60) -> Any:
    model = training.functional(keras)
    if optimizer is None:
        training.compiled(model, keras)
    else:
        model.compile(optimizer, "mse")
    training.weights(model)
    x, y = training.data(steps, list(hot))
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch])
    return watch


def lines(capsys: Any) -> Any:
    return [line for line in capsys.readouterr().err.splitlines() if line.startswith("npu_overflow: ")]


def test_a_collection_that_catches_nothing(keras: Any, capsys: Any) -> None:
    fit(keras, npu_overflow.OverflowWatch(max_collect_steps=5), hot=range(30, 35))
    assert lines(capsys)[1:] == [
        "npu_overflow: step 35: 5 steps overflowed, the loss scale fell from 1024 to 32, overflow is frequent: collecting the operators of overflowing steps.",
        "npu_overflow: no further step overflowed while collecting; watching on.",
        "npu_overflow: 5 of 60 steps overflowed.",
    ]


def test_a_collection_that_the_end_of_the_training_cuts_off(keras: Any, capsys: Any) -> None:
    fit(keras, npu_overflow.OverflowWatch(max_collect_steps=50), hot=range(30, 35))
    assert "npu_overflow: no further step overflowed until the training ended." in lines(capsys)


def test_a_collection_that_is_interrupted(keras: Any, capsys: Any, monkeypatch: Any) -> None:
    """Nobody has looked for further steps: nothing is said of them."""

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(collector, "examine", interrupted)
    watch = npu_overflow.OverflowWatch()
    with pytest.raises(KeyboardInterrupt):
        fit(keras, watch, hot=range(30, 60))
    watch._session.end(failed=True)  # as at the end of the process
    assert "collecting" in lines(capsys)[-1] and watch.state == "watching"


def test_nothing_to_watch(own_folder: Any, capsys: Any) -> None:
    with npu_overflow.overflow_dump(optimizer=[]):
        pass
    assert lines(capsys)[-1] == (
        "npu_overflow: no loss-scale optimizer was found, so nothing could be watched. Give it: overflow_dump(optimizer=…), or tell each step: "
        "watch.step(loss_scale=…). Estimators and sessions can't be watched; npu-overflow analyze reads dumps made elsewhere."
    )


def test_an_optimizer_without_loss_scaling(keras: Any, capsys: Any) -> None:
    training.tear_down(keras)
    fit(keras, npu_overflow.OverflowWatch(), optimizer=keras.optimizers.SGD(1e-4), steps=3)
    assert (
        "npu_overflow: the optimizer SGD has no loss scaling: nothing skips a step with non-finite gradients, so an overflow reaches the weights. "
        "The first non-finite loss starts a collection."
    ) in lines(capsys)


def test_a_fixed_loss_scale(keras: Any, capsys: Any) -> None:
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1e-9), dynamic=False, initial_scale=8.0)
    fit(keras, npu_overflow.OverflowWatch(), optimizer=optimizer, steps=3)
    name = type(optimizer).__name__
    assert (
        "npu_overflow: the optimizer %s has a fixed loss scale: nothing skips a step with non-finite gradients, so an overflow reaches the weights. "
        "The first non-finite loss starts a collection." % name
    ) in lines(capsys)


def test_a_disk_that_refuses_the_manifest(keras: Any, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from npu_overflow.training.manifest import Manifest

    def refuse(manifest: Any, folder: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Manifest, "write", refuse)
    watch = fit(keras, npu_overflow.OverflowWatch(), hot=range(30, 60))
    said = [line for line in lines(capsys) if "can't be written" in line]
    assert len(said) == 1 and said[0].endswith(
        "/precision_data/overflow/dump can't be written: the disk is full. Make room on that disk, or give a path on another one. "
        "Nothing half written was left. Until then reports are printed only."
    )
    assert watch.reports and watch.state != "off"


@pytest.mark.parametrize(
    ("broken", "message", "state"),
    [
        ("on_report", "the on_report function raised; the training goes on.", "reported"),
        ("policy", "npu_overflow failed and turned itself off; the training is not affected. Please report this traceback.", "off"),
    ],
)
def test_failures_are_logged_once_with_their_traceback(
    keras: Any, caplog: Any, monkeypatch: pytest.MonkeyPatch, broken: str, message: str, state: str
) -> None:
    # "an exception in the watch turns it off with one logged traceback and training goes on"
    def fails(*_args: Any, **_more: Any) -> Any:
        raise RuntimeError("broken")

    options = {}
    if broken == "policy":
        monkeypatch.setattr("npu_overflow.training.policy.Policy._judged", fails)
    else:
        options["on_report"] = fails
    with caplog.at_level(logging.ERROR, "npu_overflow"):
        watch = fit(keras, npu_overflow.OverflowWatch(verbose=0, max_reports=1, **options), hot=range(30, 60))
    assert [(record.getMessage(), record.exc_info is not None) for record in caplog.records] == [(message, True)]
    assert watch.state == state
