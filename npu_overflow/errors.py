"""The error tree of the package.

    NpuOverflowError              everything this package raises on purpose
    ├── UsageError                a wrong option or argument (exit status 2; also a ValueError)
    ├── PathError                 a path that is missing, unreadable, or holds something else
    │   └── CannotWrite           a file that can't be written: the disk is full … (an OSError, too)
    ├── DumpFormatError           one file that is not what its name promises
    ├── CannotCollect             a collector that can't work here; says what to do instead
    └── MissingExtra              an optional package that is not installed

Each error is a code with values. The sentences live in ``messages``, in every language the package
speaks, so that the same error reads well in a terminal, in a report and in a log.
"""
from __future__ import annotations

import errno
import os
from typing import Any, Dict, Optional

from npu_overflow import messages

__all__ = [
    "NpuOverflowError",
    "UsageError",
    "PathError",
    "CannotWrite",
    "DumpFormatError",
    "CannotCollect",
    "MissingExtra",
]

#: why a file can't be written -> its sentence; where a system lacks one of the numbers it has no
#: such error
_WRITING: Dict[Optional[int], str] = {
    getattr(errno, name, None): code
    for name, code in (
        ("ENOSPC", "write.full"),
        ("EDQUOT", "write.quota"),
        ("EROFS", "write.read_only"),
        ("EACCES", "write.denied"),
        ("EPERM", "write.denied"),
        ("ENAMETOOLONG", "write.long"),
        ("ENOENT", "write.no_folder"),
        ("ENOTDIR", "write.no_folder"),
        ("EISDIR", "write.is_folder"),
        ("EFBIG", "write.large"),
    )
}


class NpuOverflowError(Exception):
    """Base of all errors of this package.

    Args:
        code: key of the sentence in ``messages``. What to do next is the sentence ``<code>.hint``,
            where there is one.
        values: what the sentence mentions.
    """

    exit_status = 1

    def __init__(self, code: str, **values: Any) -> None:
        super().__init__(code)
        self.code = code
        self.values = values

    def message(self, language: str = "en") -> str:
        """What came and what is accepted, in ``language`` ("en" or "zh")."""
        return messages.say(self.code, language, **self.values)

    def hint(self, language: str = "en") -> str:
        """What to do next, or an empty string."""
        code = self.code + ".hint"
        return messages.say(code, language, **self.values) if messages.known(code) else ""

    def for_user(self) -> str:
        """Message and hint in the user's language."""
        language = messages.language_of_user()
        return (self.message(language) + " " + self.hint(language)).strip()

    def __str__(self) -> str:
        hint = self.hint()
        return self.message() + (" " + hint if hint else "")


def reason_of(error: BaseException) -> str:
    """What ``error`` says, for a sentence: the system's words, its own, or the name of its type
    where it says nothing."""
    return getattr(error, "strerror", None) or str(error).strip() or type(error).__name__


class UsageError(NpuOverflowError, ValueError):
    """An option or argument that is not accepted."""

    exit_status = 2


class PathError(NpuOverflowError):
    """A path that does not exist, can't be read or written, or holds something else."""


class CannotWrite(PathError, OSError):
    """A file that can't be written. What was there before is unchanged, and nothing half written is
    left under its name."""

    @classmethod
    def of(cls, path: str, error: OSError) -> CannotWrite:
        """The error that says what the system's ``error`` means for writing ``path``."""
        if isinstance(error, cls):
            return error
        reason = reason_of(error)
        made = cls(_WRITING.get(error.errno, "write.other"), path=os.fspath(path), reason=reason)
        made.errno, made.strerror, made.filename = error.errno, reason, os.fspath(path)
        return made


class DumpFormatError(NpuOverflowError):
    """A file in a dump tree that can't be read as what it should be; reported as a problem, never
    fatal to the others."""


class CannotCollect(NpuOverflowError):
    """A collector that can't collect in this process; the watch reports the message and goes on
    watching or turns off."""


class MissingExtra(NpuOverflowError):
    """An optional package that is needed for what was asked and is not installed."""
