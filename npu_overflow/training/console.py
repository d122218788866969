"""Lines to the user of a training, on streams that may be missing, closed, full or unread."""
from __future__ import annotations

import contextlib
import logging
import sys
from typing import Any, Iterator, Optional, Set

from npu_overflow import messages
from npu_overflow.errors import CannotWrite, NpuOverflowError
from npu_overflow.training.options import WatchOptions

__all__ = ["Console", "Script", "ignore_closed_stream", "log_failure", "say"]

#: said once in a process, however many trainings it has
_ONCE = (
    *("watch.blind", "watch.step_outside", "ascend.opened_without_dump.note"),
    *("watch.restart_alone", "watch.restart_notebook"),
)
_said: Set[str] = set()


class Script:
    """What the watches of one script have said: each need not say it again.

    Attributes:
        announced: codes of the lines on how a training is watched.
        culprit: the operator that the last printed report named.
    """

    def __init__(self) -> None:
        self.announced: Set[str] = set()
        self.culprit: Optional[str] = None


class Console:
    """What one watch says, in the user's language.

    Args:
        options: ``language`` and ``verbose`` of the watch.
        prefix: stands before each line: whose it is, where a job has several ranks.

    Attributes:
        apart: a progress bar may stand on the terminal's line, so a line begins on the next.
    """

    def __init__(self, options: WatchOptions, prefix: str = "") -> None:
        self._options, self._prefix = options, prefix
        self.apart = False

    @property
    def language(self) -> str:
        """"en" or "zh"."""
        return self._options.language or messages.language_of_user()

    def say(self, code: str, always: bool = False, **values: Any) -> None:
        """One line on stderr, so that results on stdout stay clean; ``always``: also if quiet."""
        if (code in _ONCE and code in _said) or not (self._options.verbose or always):
            return
        _said.add(code)
        line = messages.say(code, self.language, **values)
        say("%snpu_overflow: %s" % (self._prefix, line), apart=self.apart)

    def say_refused(self, code: str, path: str, error: OSError) -> None:
        """The disk refuses: which file, why, and what helps."""
        refused = CannotWrite.of(path, error)
        message, hint = refused.message(self.language), refused.hint(self.language)
        self.say(code, always=True, error=message, hint=hint)

    def reason(self, error: NpuOverflowError) -> str:
        """What an error says and advises."""
        return ("%s %s" % (error.message(self.language), error.hint(self.language))).strip()

    def log_failure(self, code: str) -> None:
        """The exception that is being handled, with its traceback."""
        log_failure(messages.say(code, self.language))


def say(line: str, apart: bool = False) -> None:
    """One line on stderr; ``apart`` begins another line of a terminal first."""
    with ignore_closed_stream("stderr"):
        sys.stderr.write("%s%s\n" % ("\n" if apart and sys.stderr.isatty() else "", line))
        sys.stderr.flush()


def log_failure(text: str) -> None:
    """The exception that is being handled, with its traceback."""
    with contextlib.suppress(Exception):  # a handler whose stream is closed
        logging.getLogger("npu_overflow").error(text, exc_info=True)


@contextlib.contextmanager
def ignore_closed_stream(name: str) -> Iterator[None]:
    """What is written inside is lost where ``sys.stdout`` or ``sys.stderr`` can't take it."""
    try:
        yield
    except OSError:
        pass
    except (AttributeError, ValueError):
        stream = getattr(sys, name, None)
        if stream is not None and not getattr(stream, "closed", False):
            raise
