"""Files of a tree that nobody vouches for: opened only if regular, never through a link, never
blocking."""
from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from io import FileIO
from typing import Any, Mapping

from npu_overflow.errors import DumpFormatError, NpuOverflowError, reason_of

__all__ = ["FileProblem", "open_regular", "read_exactly", "read_small"]

# O_NONBLOCK: opening a FIFO that took a file's place must not wait for a writer
_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


@dataclass(frozen=True)
class FileProblem:
    """What is wrong with one file.

    Args:
        path: absolute path.
        code: key of the sentence in ``messages``.
        values: what the sentence mentions.
    """

    path: str
    code: str
    values: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, path: str, error: NpuOverflowError) -> FileProblem:
        """The problem that ``error`` describes."""
        return cls(path, error.code, dict(error.values))


def open_regular(path: str) -> FileIO:
    """Open a regular file for reading, unbuffered.

    Raises:
        DumpFormatError: it is gone, unreadable, a link, or no regular file (those are never waited
            for).
    """
    try:
        handle = os.open(path, _FLAGS)
    except FileNotFoundError as error:
        raise DumpFormatError("file.gone") from error
    except (OSError, ValueError) as error:
        raise DumpFormatError("file.unreadable", reason=reason_of(error)) from error
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise DumpFormatError("file.special")
        return os.fdopen(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def read_small(path: str, most: int) -> bytes:
    """The whole of a regular file of at most ``most`` bytes in one read; b"" where it is larger,
    empty or no such file.

    Whoever gets nothing opens the file with ``open_regular``, which says why. A tree holds tens of
    thousands of records.
    """
    try:
        handle = os.open(path, _FLAGS)
    except (OSError, ValueError):
        return b""
    try:
        state = os.fstat(handle)
        content = (
            os.read(handle, most)
            if stat.S_ISREG(state.st_mode) and 0 < state.st_size <= most
            else b""
        )
        return content if len(content) == state.st_size else b""
    except OSError:
        return b""
    finally:
        os.close(handle)


def read_exactly(file: FileIO, count: int) -> bytes:
    """The next ``count`` bytes.

    Raises:
        DumpFormatError: the file ends before (it shrank while it was read) or can't be read.
    """
    pieces = []
    left = count
    try:
        while left > 0:
            piece = file.read(min(left, 1 << 24))
            if not piece:
                raise DumpFormatError("file.shrank")
            pieces.append(piece)
            left -= len(piece)
    except OSError as error:
        raise DumpFormatError("file.unreadable", reason=reason_of(error)) from error
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
