"""A watched fit writes its loss scale and its report where TensorBoard looks."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import training

import npu_overflow

pytest.importorskip("tensorboard", reason="the callback needs TensorBoard, which comes with the extra \"test\" where TensorFlow does not bring it")
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


def as_tensorboard_reads_it(folder: Path) -> Dict[str, List[Tuple[int, Any]]]:
    """Step and value of each tag, by TensorBoard's own loader of a run's folder, whoever else writes there."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    found: Dict[str, List[Tuple[int, Any]]] = {}
    for path in sorted(folder.glob("*.npu_overflow")):
        loaded = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
        loaded.Reload()
        for tag in loaded.Tags()["scalars"]:
            found.setdefault(tag, []).extend((event.step, event.value) for event in loaded.Scalars(tag))
        for tag in loaded.Tags()["tensors"]:
            for event in loaded.Tensors(tag):
                value = make_ndarray(event.tensor_proto).reshape(-1)[0]
                found.setdefault(tag, []).append((event.step, value.decode("utf-8") if isinstance(value, bytes) else float(value)))
    return found


@pytest.mark.parametrize("beside", [True, False], ids=["callback", "option"])
def test_fit(keras: Any, beside: bool, tmp_path: Path) -> None:
    folder = tmp_path / "board"
    watch = npu_overflow.OverflowWatch(verbose=0) if beside else npu_overflow.OverflowWatch(verbose=0, tensorboard_dir=str(folder))
    callbacks = [watch]
    if beside:
        callbacks.append(keras.callbacks.TensorBoard(str(folder), profile_batch=0))
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(60, HOT)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    found = values(folder)
    steps = [step for tag, step in found if tag == "npu_overflow/overflowing_steps"]
    assert steps == [step for step, _, _ in watch.drops] and len(steps) >= 5
    assert sum(tag == "npu_overflow/report" for tag, _ in found) == len(watch.reports) == 1
    shown = as_tensorboard_reads_it(folder)
    fallen = [(step, after) for step, _, after in watch.drops]
    assert [item for item in shown["npu_overflow/loss_scale"] if item in fallen] == fallen
    assert shown["npu_overflow/overflowing_steps"] == [(step, float(number)) for number, (step, _, _) in enumerate(watch.drops, 1)]
    (text,) = shown["npu_overflow/report"]
    assert watch.reports[0].first.op_name in text[1] and text[0] >= fallen[0][0]
