"""Event files for TensorBoard: framed and summed as TensorFlow wants them, read back by TensorFlow itself."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List

import pytest
import report_samples

from npu_overflow.report.tensorboard import Board, _masked, folder_beside


def written(folder: Path) -> List[Path]:
    return sorted(folder.glob("events.out.tfevents.*")) if folder.exists() else []


def test_known_checksum() -> None:
    """CRC-32C of nine digits is 0xE3069283 by RFC 3720's polynomial."""
    crc = 0xE3069283
    assert _masked(b"123456789") == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_without_a_folder_nothing_is_written(tmp_path: Path) -> None:
    board = Board()
    board.drop((3, 2.0, 1.0))
    board.report(report_samples.NPU, 3, "en")
    board.close()
    assert os.listdir(str(tmp_path)) == []


def test_a_disk_that_refuses_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    board = Board(str(tmp_path / "file" / "board"))
    board.drop((3, 2.0, 1.0))
    board.drop((4, 2.0, 1.0))
    assert len(caplog.records) == 1 and "TensorBoard" in caplog.text


@pytest.mark.tensorflow
def test_tensorflow_reads_what_was_written(tmp_path: Path) -> None:
    import tensorflow as tf

    board = Board(str(tmp_path / "board"))
    board.drop((10, 1024.0, 512.0))
    board.drop((11, 512.0, 1e300))
    board.report(report_samples.NPU, 12, "zh")
    board.close()
    (path,) = written(tmp_path / "board")
    events = list(tf.compat.v1.train.summary_iterator(str(path)))
    assert events[0].file_version == "brain.Event:2"
    scalars = [(value.tag, event.step, value.simple_value) for event in events for value in event.summary.value if value.tag != "npu_overflow/report"]
    assert scalars == [
        ("npu_overflow/loss_scale", 9, 1024.0),
        ("npu_overflow/loss_scale", 10, 512.0),
        ("npu_overflow/overflowing_steps", 10, 1.0),
        ("npu_overflow/loss_scale", 11, float("inf")),
        ("npu_overflow/overflowing_steps", 11, 2.0),
    ]
    text = events[-1].summary.value[0]
    assert (events[-1].step, text.metadata.plugin_data.plugin_name, list(tf.make_ndarray(text.tensor).shape)) == (12, "text", [1])
    assert "FusedMulAdd" in tf.make_ndarray(text.tensor)[0].decode("utf-8") and "处理建议" in tf.make_ndarray(text.tensor)[0].decode("utf-8")


class TensorBoard:
    """Looks like Keras' callback."""

    log_dir = "logs"


def test_a_callback_in_the_same_list_is_found() -> None:
    class Watch:
        def on_train_begin(self) -> Any:
            return folder_beside(self)

    class Callbacks:
        def __init__(self, *callbacks: Any) -> None:
            self.callbacks = list(callbacks)

        def on_train_begin(self) -> List[Any]:
            return [item.on_train_begin() for item in self.callbacks if isinstance(item, Watch)]

    assert Callbacks(TensorBoard(), Watch()).on_train_begin() == ["logs"]
    assert Callbacks(Watch()).on_train_begin() == [None]
    assert Watch().on_train_begin() is None
