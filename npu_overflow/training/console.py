"""The streams of a training: missing, closed, full, or with nobody who reads them, that is no matter of the training's."""
from __future__ import annotations

import contextlib
import logging
import sys
from typing import Iterator

__all__ = ["forgiving", "log_failure", "say"]


def say(line: str, apart: bool = False) -> None:
    """One line on stderr, so that results on stdout stay clean.

    Args:
        apart: a progress bar may stand on the line of a terminal, so begin another.
    """
    with forgiving("stderr"):
        sys.stderr.write("%s%s\n" % ("\n" if apart and sys.stderr.isatty() else "", line))
        sys.stderr.flush()


def log_failure(text: str) -> None:
    """The exception that is being handled, with its traceback."""
    with contextlib.suppress(Exception):  # a handler whose stream is closed
        logging.getLogger("npu_overflow").error(text, exc_info=True)


@contextlib.contextmanager
def forgiving(name: str) -> Iterator[None]:
    """What is written inside is lost where ``sys.stdout`` or ``sys.stderr`` can't take it."""
    try:
        yield
    except OSError:
        pass
    except (AttributeError, ValueError):
        stream = getattr(sys, name, None)
        if stream is not None and not getattr(stream, "closed", False):
            raise
