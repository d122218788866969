"""Files that a report or a command makes: written aside, then renamed. Whoever finds one finds all of it."""
from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from typing import BinaryIO, Iterator

from npu_overflow.errors import CannotWrite

__all__ = ["write_text", "written_aside"]

_LONGEST = 200
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_numbers = itertools.count()


def write_text(path: str, text: str, follow: bool = False, keep_mode: bool = False) -> None:
    """Write ``text`` to ``path``; see ``written_aside``. What UTF-8 lacks becomes an escape."""
    with written_aside(path, follow, keep_mode) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


@contextlib.contextmanager
def written_aside(path: str, follow: bool = False, keep_mode: bool = False) -> Iterator[BinaryIO]:
    """A file to fill; it takes the place of ``path`` when the block ends, and vanishes where that fails.

    Args:
        follow: behind a link it is the file that is replaced: for a path that the user typed.
        keep_mode: keep the permissions of the file that is replaced.

    Raises:
        CannotWrite: the folder or the disk refuses. What was there before is unchanged.
    """
    given, path = path, os.path.realpath(path) if follow else path
    aside = _aside(path)
    made = False
    try:
        handle = os.open(aside, _FLAGS, 0o666)
        made = True
        with os.fdopen(handle, "wb") as file:
            yield file
        if keep_mode and os.path.exists(path):
            os.chmod(aside, os.stat(path).st_mode & 0o777)
        os.replace(aside, path)
    except BaseException as error:
        if made:
            with contextlib.suppress(OSError):
                os.unlink(aside)
        if isinstance(error, OSError):
            raise CannotWrite.of(given, error) from error
        raise


def _aside(path: str) -> str:
    """A name of its own for every writer: of other processes, and of other threads of this one."""
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) > _LONGEST:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return os.path.join(folder, ".%s.%d-%d.part" % (name, os.getpid(), next(_numbers)))
