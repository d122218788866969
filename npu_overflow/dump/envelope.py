"""The envelope that dumps and records share: a length, a protobuf header, then the data of its
tensors.

Nothing is allocated on a file's word alone: lengths are held against the file's size, counts
against limits, before protobuf sees them.
"""
from __future__ import annotations

import os
from dataclasses import dataclass
from io import FileIO
from typing import Any, Dict, Optional

from npu_overflow import jsonform
from npu_overflow.dump import schema
from npu_overflow.dump.files import open_regular, read_exactly
from npu_overflow.errors import DumpFormatError

__all__ = ["Envelope", "Source", "open_envelope", "untrusted_json"]

#: a header may be as large only because the oldest dumps keep their data in it
_MOST_HEADER_BYTES = 256 << 20
#: up to here a header is too small to do harm and goes straight to protobuf
_SMALL_HEADER_BYTES = 16 << 10
_MOST_FIELDS = 100000
_MOST_TENSORS = 8192
_MOST_AXES = 32
_MOST_JSON_BYTES = 1 << 20
_MOST_JSON_DEPTH = 32


@dataclass(frozen=True)
class Source:
    """Where a tensor's bytes lie: a file, known by its identity so that another one in its place is
    noticed."""

    path: str
    device: int
    inode: int

    def open(self) -> FileIO:
        """The file, opened anew.

        Raises:
            DumpFormatError: it is gone, unreadable or another file.
        """
        file = open_regular(self.path)
        state = os.fstat(file.fileno())
        if (state.st_dev, state.st_ino) != (self.device, self.inode):
            file.close()
            raise DumpFormatError("file.replaced")
        return file


@dataclass(frozen=True)
class Envelope:
    """A file's header and where its data lie.

    Args:
        message: the DumpData.
        source: the file.
        data_start: first byte after the header.
        file_size: bytes of the file when it was opened; it may still be growing.
    """

    message: Any
    source: Source
    data_start: int
    file_size: int


def open_envelope(path: str) -> Envelope:
    """Read the header of a dump or record.

    Raises:
        DumpFormatError: the file can't be read, or its header is none.
    """
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        size = state.st_size
        if size == 0:
            raise DumpFormatError("file.empty")
        if size < 8:
            raise DumpFormatError("dump.short", bytes=size)
        first = read_exactly(file, 8)
        length = int.from_bytes(first, "little")
        start = 8
        if length > size - 8:
            # the first version of the format had no length: the whole file is the message, which
            # begins with its version string
            if first[0] != 0x0A or size > _MOST_HEADER_BYTES:
                raise DumpFormatError("dump.header_length", length=length, size=size)
            length, start = size, 0
            file.seek(0)
        if length > _MOST_HEADER_BYTES:
            raise DumpFormatError("dump.header_large", length=length, most=_MOST_HEADER_BYTES)
        header = read_exactly(file, length)
    try:
        message = _message(header)
        if start == 0 and not (message.version and (message.input or message.output)):
            raise ValueError("a message, but none of a dump")
    except (ValueError, IndexError) as error:
        if start == 0:
            raise DumpFormatError(
                "dump.header_length", length=int.from_bytes(first, "little"), size=size
            ) from error
        raise DumpFormatError("dump.header", length=length) from error
    return Envelope(message, Source(path, state.st_dev, state.st_ino), start + length, size)


def _message(header: bytes) -> Any:
    """The DumpData in ``header``.

    Raises:
        ValueError, IndexError: it is none, or too large a one.
        DumpFormatError: it has more tensors or axes than are read.
    """
    if len(header) > _SMALL_HEADER_BYTES:
        _count_fields(header, 0, len(header), "DumpData", _MOST_FIELDS)
    message = schema.parse(header)
    tensors = len(message.input) + len(message.output) + len(message.buffer) + len(message.space)
    if tensors > _MOST_TENSORS:
        raise DumpFormatError("dump.tensors", count=tensors, most=_MOST_TENSORS)
    for item in list(message.input) + list(message.output):
        axes = max(len(item.shape.dim), len(item.original_shape.dim))
        if axes > _MOST_AXES:
            raise DumpFormatError("dump.axes", count=axes, most=_MOST_AXES)
    return message


_NESTED: Dict[str, Dict[int, str]] = {
    message: {number: kind for _, number, kind, _ in fields if kind[0].isupper()}
    for message, fields in schema.MESSAGES.items()
}


def _count_fields(data: bytes, start: int, end: int, kind: str, budget: int) -> int:
    """Walk a message without building it; the budget that is left. ValueError where it is malformed
    or the budget is spent.

    A field of two bytes can cost protobuf a hundred: this bounds the memory that a header of given
        size takes.
    """
    at = start
    while at < end:
        budget -= 1
        if budget < 0:
            raise ValueError("too many fields")
        tag, at = _varint(data, at, end)
        wire = tag & 7
        if wire == 0:
            _, at = _varint(data, at, end)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            length, at = _varint(data, at, end)
            if length > end - at:
                raise ValueError("a field is longer than its message")
            inner = _NESTED[kind].get(tag >> 3)
            if inner is not None:
                budget = _count_fields(data, at, at + length, inner, budget)
            elif kind == "Shape":
                budget -= length
            at += length
        else:
            raise ValueError("a group, which the format has not")
    if at != end:
        raise ValueError("a field is longer than its message")
    return budget


def _varint(data: bytes, at: int, end: int) -> Any:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a broken number")


def untrusted_json(text: bytes) -> Optional[Dict[str, Any]]:
    """The JSON object in ``text``, or None where it is none or larger or deeper than any that is
    meant."""
    if len(text) > _MOST_JSON_BYTES:
        return None
    try:
        value = jsonform.parse(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) and not _is_deep(value) else None


def _is_deep(value: Any) -> bool:
    """Whether objects and lists lie so deep in each other that whoever walks through them, or
    prints them, runs out of stack."""
    level = [value]
    for _ in range(_MOST_JSON_DEPTH):
        inner = [item for one in level for item in (one.values() if isinstance(one, dict) else one)]
        level = [item for item in inner if isinstance(item, (dict, list))]
        if not level:
            return False
    return True
