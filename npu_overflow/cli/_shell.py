"""What all commands share: how they end, how they complain, and types of their arguments."""
from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import sys
import traceback
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from npu_overflow import messages
from npu_overflow.errors import CannotWrite, DumpFormatError, NpuOverflowError, reason_of
from npu_overflow.report.escape import clean
from npu_overflow.report.flow import plain, wrap

if TYPE_CHECKING:
    from npu_overflow.report.model import Report

__all__ = [
    "PROGRAM",
    "HelpFormatter",
    "complain",
    "count",
    "found_overflow",
    "guarded",
    "read_report",
    "saved_report",
    "write_out",
]

PROGRAM = "npu-overflow"

#: set to anything, an internal error prints its traceback
TRACEBACK = "NPU_OVERFLOW_TRACEBACK"

DONE, FAILED, FOUND, INTERRUPTED = 0, 1, 3, 130

_NO_ROOM = {getattr(errno, name, None) for name in ("ENOSPC", "EDQUOT", "EFBIG")} - {None}
#: a saved report of tens of thousands of operators has less
MOST_REPORT_BYTES = 256 << 20


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Help that keeps the lines of descriptions and is no wider than reads well."""

    def __init__(self, prog: str, **options: Any) -> None:
        options.setdefault("max_help_position", 28)
        options.setdefault("width", min(100, shutil.get_terminal_size().columns - 2))
        super().__init__(prog, **options)

    def _split_lines(self, text: str, width: int) -> List[str]:
        """Help of an option in lines; Chinese takes two cells a character and breaks anywhere."""
        return [plain(line) for line in wrap([(text, "")], width)]


def count(text: str) -> int:
    """An argument that is a whole number of at least 0."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(
            messages.say("cli.count", messages.language_of_user(), value=repr(text))
        )
    return value


def found_overflow(report: Report) -> bool:
    """Whether there is something to act on; values that reach no gradient are not."""
    return report.first is not None or report.reason not in (None, "absorbed")


def complain(message: str, hint: str = "") -> None:
    """An error on standard error, without a traceback."""
    lines = ["%s: %s" % (PROGRAM, clean(message, 4000))]
    if hint:
        lines.append("  " + clean(hint, 4000))
    text = "".join(line + "\n" for line in lines)
    try:
        sys.stderr.write(text)
    except UnicodeEncodeError:
        sys.stderr.write(text.encode("ascii", "backslashreplace").decode("ascii"))
    sys.stderr.flush()


def complain_of(error: NpuOverflowError, language: str) -> int:
    """Print one of the package's errors; returns its exit status."""
    complain(error.message(language), error.hint(language))
    return error.exit_status


def guarded(
    run: Callable[[argparse.Namespace], int], arguments: argparse.Namespace, language: str
) -> int:
    """Run a command; every way it can end becomes an exit status and at most a message."""
    try:
        status = run(arguments)
        sys.stdout.flush()
        return status
    except NpuOverflowError as error:
        return complain_of(error, language)
    except KeyboardInterrupt:
        complain(messages.say("cli.interrupted", language))
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except OSError as error:
        # standard output is a file on a disk that refuses
        if error.filename is None and error.errno in _NO_ROOM:
            return complain_of(
                CannotWrite.of(messages.say("cli.stdout", language), error), language
            )
        complain(
            messages.say(
                "cli.os_error",
                language,
                what=reason_of(error),
                file=error.filename if error.filename is not None else "-",
            )
        )
        return FAILED
    except MemoryError:
        complain(messages.say("cli.memory", language))
        return FAILED
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        what = "%s: %s" % (type(error).__name__, error)
        complain(
            messages.say("cli.internal", language, what=what),
            messages.say("cli.internal.hint", language, variable=TRACEBACK),
        )
        return FAILED


def _reader_left() -> int:
    """The reader of a pipe has read enough, as ``head`` does; nothing is wrong."""
    # where no file is behind it, nothing will be flushed at exit
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return DONE


def saved_report(path: str) -> Optional[Report]:
    """The report in a ``.json`` file, or None where ``path`` is none: then it names a dump.

    Raises:
        DumpFormatError: the file holds no report.
    """
    if not path.endswith(".json") or not os.path.isfile(path):
        return None
    return read_report(path)


def read_report(path: str) -> Report:
    """The saved report at ``path``.

    Raises:
        DumpFormatError: the file can't be read, is larger than any report, or holds none.
    """
    from npu_overflow.report.model import Report

    return Report.from_json(report_bytes(path).decode("utf-8", "replace"))


def report_bytes(path: str, most: int = MOST_REPORT_BYTES) -> bytes:
    """What ``read_report`` reads."""
    from npu_overflow.dump.files import open_regular, read_exactly

    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise DumpFormatError("report.large", bytes=size, most=most)
        return read_exactly(file, size)


def write_out(text: str) -> None:
    """``text`` on standard output, whatever its encoding; JSON stays JSON, because there an escape
    means the same."""
    try:
        sys.stdout.write(text)
    except UnicodeEncodeError:
        sys.stdout.write("".join(char if ord(char) < 0x80 else _escaped(char) for char in text))


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x10000:
        return "\\u%04x" % code
    code -= 0x10000
    return "\\u%04x\\u%04x" % (0xD800 + (code >> 10), 0xDC00 + (code & 0x3FF))
