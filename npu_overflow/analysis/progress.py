"""Progress of a long analysis on standard error: a line now and then, no control bytes."""
from __future__ import annotations

import sys
import time

from npu_overflow.analysis.sentences import english

__all__ = ["Progress"]

#: seconds of silence at the start, and between two lines
QUIET = 2.0


class Progress:
    """Says how far the analysis is, from two seconds on.

    Args:
        shown: False says nothing.
    """

    def __init__(self, shown: bool) -> None:
        self._shown = shown
        self._next = time.monotonic() + QUIET

    def step(self, code: str, done: int, total: int) -> None:
        """``done`` of ``total`` are done; ``code`` names the sentence."""
        if not self._shown or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + QUIET
        print(english(code, done=done, total=total), file=sys.stderr, flush=True)
