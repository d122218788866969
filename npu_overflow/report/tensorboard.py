"""Scalars and text for TensorBoard, written as an event file of our own: no operator of TensorFlow
runs for it inside a watched training, and neither TensorBoard nor a certain TensorFlow need be
there.

An event file is a sequence of records: length (uint64), its masked CRC-32C, the bytes, their masked
CRC-32C; little endian. The bytes are ``tensorboard.Event`` messages in protobuf's wire format:
wall_time=1 double, step=2 int64, file_version=3 string, summary=5; a summary has value=1 {tag=1,
simple_value=2 float, tensor=8, metadata=9}. (tensorflow/core/util/event.proto,
framework/summary.proto, lib/io/record_writer.cc.)
"""
from __future__ import annotations

import contextlib
import io
import logging
import os
import socket
import struct
import sys
import time
from types import FrameType
from typing import Any, List, Optional, Tuple

from npu_overflow import messages
from npu_overflow.errors import CannotWrite
from npu_overflow.report.escape import clean
from npu_overflow.report.model import Report

__all__ = ["Board", "folder_beside"]

#: characters of a report's text
MOST_TEXT = 100_000

_STRING = 7  # DT_STRING


class Board:
    """Writes what the watch sees into ``folder``; without one it does nothing. A disk that refuses
    is logged once and never an error.

    Args:
        folder: where event files lie, or None. May be set until the first value is written.
    """

    def __init__(self, folder: Optional[str] = None) -> None:
        self.folder = folder
        self._file: Optional[io.BufferedWriter] = None
        self._last_step = -1
        self._overflows = 0
        self._broken = False

    def drop(self, drop: Tuple[int, float, float]) -> None:
        """The loss scale fell: (training step, before, after)."""
        step, before, after = drop
        self._overflows += 1
        events = []
        if step - 1 > self._last_step:
            events.append(_event(_scalar("npu_overflow/loss_scale", before), step - 1))
        events.append(
            _event(
                _scalar("npu_overflow/loss_scale", after)
                + _scalar("npu_overflow/overflowing_steps", float(self._overflows)),
                step,
            )
        )
        self._last_step = step
        self._write(events)

    def report(self, report: Report, step: int, language: str) -> None:
        """A report was made at ``step``."""
        if self.folder is None:
            return
        text = io.StringIO()
        report.print(file=text, language=language)
        # a block of code in Markdown
        body = "\n".join("    " + clean(line, 2000) for line in text.getvalue().splitlines())
        self._write([_event(_text("npu_overflow/report", body[:MOST_TEXT]), step)])

    def close(self) -> None:
        """No more values come; later ones make another file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()
            self._file = None
        self._last_step = -1

    def _write(self, events: List[bytes]) -> None:
        if self.folder is None or self._broken:
            return
        whole: Optional[int] = None
        path = self.folder
        try:
            if self._file is None:
                os.makedirs(self.folder, exist_ok=True)
                name = "events.out.tfevents.%010d.%s.%d.%d.npu_overflow" % (
                    time.time(),
                    socket.gethostname(),
                    os.getpid(),
                    time.time_ns() % 10**9,
                )
                path = os.path.join(self.folder, name)
                self._file = open(path, "xb")  # noqa: SIM115 - closed by close()
                self._file.write(_record(_double(1, time.time()) + _bytes(3, b"brain.Event:2")))
                self._file.flush()
            path, whole = self._file.name, self._file.tell()
            for event in events:
                self._file.write(_record(event))
            self._file.flush()
        except OSError as error:
            self._broken = True
            self._cut(whole)
            language = messages.language_of_user()
            refused = CannotWrite.of(path, error)
            message = messages.say(
                "tensorboard.stopped",
                language,
                error=refused.message(language),
                hint=refused.hint(language),
            )
            logging.getLogger("npu_overflow").warning("%s", message)

    def _cut(self, whole: Optional[int]) -> None:
        """Leave only whole records in the file; one that holds none is removed."""
        if self._file is None:
            return
        name = self._file.name
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            if whole is None:
                os.unlink(name)
            else:
                os.truncate(name, whole)
        self._file = None


def folder_beside(callback: Any) -> Optional[str]:
    """Folder of a TensorBoard callback in the same ``fit``, or None. Called from a hook: Keras'
    list of callbacks is a few frames above."""
    frame: Optional[FrameType] = sys._getframe(1)
    for _ in range(8):
        if frame is None:
            return None
        callbacks = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(callbacks, list) and any(item is callback for item in callbacks):
            for item in callbacks:
                folder = getattr(item, "log_dir", None)
                if type(item).__name__ == "TensorBoard" and folder is not None:
                    return os.fspath(folder) if isinstance(folder, (str, os.PathLike)) else None
            return None
        frame = frame.f_back
    return None


# -- messages


def _event(summary: bytes, step: int) -> bytes:
    return _double(1, time.time()) + _key(2, 0) + _varint(max(0, step)) + _bytes(5, summary)


def _scalar(tag: str, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:
        packed = struct.pack("<f", float("inf"))
    return _bytes(1, _bytes(1, tag.encode()) + _key(2, 5) + packed)


def _text(tag: str, text: str) -> bytes:
    shape = _bytes(2, _bytes(2, _key(1, 0) + _varint(1)))
    tensor = (
        _key(1, 0) + _varint(_STRING) + shape + _bytes(8, text.encode("utf-8", "backslashreplace"))
    )
    metadata = _bytes(1, _bytes(1, b"text")) + _key(4, 0) + _varint(2)  # DATA_CLASS_TENSOR
    return _bytes(1, _bytes(1, tag.encode()) + _bytes(8, tensor) + _bytes(9, metadata))


def _key(field: int, kind: int) -> bytes:
    return bytes([field << 3 | kind])


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 0x7F:
        made.append(value & 0x7F | 0x80)
        value >>= 7
    made.append(value)
    return bytes(made)


def _double(field: int, value: float) -> bytes:
    return _key(field, 1) + struct.pack("<d", value)


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, 2) + _varint(len(value)) + value


# -- records


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", _masked(length)) + data + struct.pack("<I", _masked(data))


def _table() -> List[int]:
    made = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        made.append(byte)
    return made


_CRC = _table()


def _masked(data: bytes) -> int:
    """CRC-32C (Castagnoli), masked as records want it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
