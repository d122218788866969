"""Progress of something long on standard error: a line now and then, with bytes and time left, no
control bytes."""
from __future__ import annotations

import sys
import time
from typing import IO, Any, Callable, Optional, Tuple

from npu_overflow import messages

__all__ = ["Progress"]

#: seconds of silence at the start, and between two lines
QUIET = 2.0
#: seconds between two lines of a log that nobody watches
QUIET_LOG = 10.0

_UNITS = (("GB", 10**9), ("MB", 10**6), ("KB", 10**3))


class Progress:
    """Says how far something is, from two seconds on.

    Args:
        shown: False says nothing; an interrupt still ends an analysis with what was found so far.
        language: "en" or "zh"; None takes the user's.
        clock: seconds.
        file: where the lines go; None takes standard error as it is then.
    """

    def __init__(
        self,
        shown: bool = True,
        language: Optional[str] = None,
        clock: Callable[[], float] = time.monotonic,
        file: Optional[IO[str]] = None,
    ) -> None:
        self._shown = shown
        self._language = language
        self._clock = clock
        self._file = file
        self._next = clock() + QUIET
        self._code: Optional[str] = None
        self._began = 0.0

    def step(
        self,
        code: str,
        done: int,
        total: Optional[int] = None,
        bytes_done: Callable[[], int] = lambda: 0,
        bytes_total: Callable[[], int] = lambda: 0,
    ) -> None:
        """``done`` of ``total`` are done.

        Args:
            code: names the sentence; another one begins the count of time anew.
            bytes_done, bytes_total: give the bytes of files that are done, and of all; called only
                when a line is due. 0 where they are not known.
        """
        if not self._shown:
            return
        now = self._clock()
        if code != self._code:
            self._code, self._began = code, now
        if now < self._next:
            return
        file = self._file if self._file is not None else sys.stderr
        self._next = now + (QUIET if file.isatty() else QUIET_LOG)
        all_bytes = bytes_total()
        read_bytes = bytes_done() if all_bytes else 0
        line = self._say(code, done=done, total=total)
        if all_bytes:
            line += self._say("progress.bytes", done=_size(read_bytes), total=_size(all_bytes))
        share = read_bytes / all_bytes if all_bytes else done / total if total else 0.0
        if 0 < share < 1:
            number, unit = _time((now - self._began) * (1 - share) / share)
            line += self._say("progress.left", time=self._say("progress." + unit, count=number))
        try:
            print(line, file=file, flush=True)
        except (OSError, ValueError):  # nobody listens, or the encoding lacks the characters
            self._shown = False

    def _say(self, code: str, **values: Any) -> str:
        return messages.say(code, self._language or messages.language_of_user(), **values)


def _size(count: int) -> str:
    for unit, size in _UNITS:
        if count >= size:
            return "%.1f %s" % (count / size, unit)
    return "%d B" % count


def _time(seconds: float) -> Tuple[int, str]:
    """A round number of seconds, minutes or hours, never less than there is left."""
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return int(-(-seconds // size)), unit
    return max(1, int(-(-seconds // 1))), "seconds"
