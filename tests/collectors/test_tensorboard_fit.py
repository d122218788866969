"""A watched fit writes its loss scale and its report where TensorBoard looks."""
from __future__ import annotations

from pathlib import Path
from typing import Any, List, Tuple

import pytest
import training

import npu_overflow

pytestmark = pytest.mark.tensorflow

HOT = list(range(training.HOT_FROM, 60))


@pytest.fixture()
def keras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    keras = training.set_up()
    yield keras
    training.tear_down(keras)


def values(folder: Path) -> List[Tuple[str, int]]:
    """(tag, step) of everything in the folder's own event files."""
    import tensorflow as tf

    found = []
    for path in folder.glob("events.out.tfevents.*.npu_overflow"):
        found.extend((value.tag, event.step) for event in tf.compat.v1.train.summary_iterator(str(path)) for value in event.summary.value)
    return found


@pytest.mark.parametrize("beside", [True, False], ids=["callback", "option"])
def test_fit(keras: Any, beside: bool, tmp_path: Path) -> None:
    folder = tmp_path / "board"
    watch = npu_overflow.OverflowWatch(verbose=0) if beside else npu_overflow.OverflowWatch(verbose=0, tensorboard_dir=str(folder))
    callbacks = [watch]
    if beside:
        pytest.importorskip("tensorboard", reason="this TensorFlow's callback needs TensorBoard")
        callbacks.append(keras.callbacks.TensorBoard(str(folder), profile_batch=0))
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(60, HOT)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    found = values(folder)
    steps = [step for tag, step in found if tag == "npu_overflow/overflowing_steps"]
    assert steps == [step for step, _, _ in watch.drops] and len(steps) >= 5
    assert sum(tag == "npu_overflow/report" for tag, _ in found) == len(watch.reports) == 1
