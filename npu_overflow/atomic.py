"""The one way to write a file: aside, then renamed. Whoever finds the file finds all of it."""
from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from typing import BinaryIO, Callable, Iterator, Optional, Union

from npu_overflow.errors import CannotWrite

__all__ = ["Content", "atomic_write", "rename_part", "write_part"]

#: a text, bytes, or a function that fills the file
Content = Union[str, bytes, Callable[[BinaryIO], object]]

_LONGEST = 200
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL
_FLAGS |= sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_CLOEXEC", "O_BINARY"))
_numbers = itertools.count()


def atomic_write(
    path: str,
    content: Content,
    follow: bool = False,
    keep_mode: bool = False,
    part: Optional[str] = None,
) -> None:
    """Write ``content`` to a file beside ``path``, then rename that to ``path``.

    Args:
        content: of a text, what UTF-8 lacks becomes an escape.
        follow: replace the file behind a link at ``path``: for a path that the user typed.
        keep_mode: keep the permissions of the file that is replaced.
        part: the file beside it; None takes a name that no other writer has.

    Raises:
        CannotWrite (an OSError): the folder or the disk refuses. This error, and any that
            ``content`` raises, leaves what was there before unchanged and no file beside it.
    """
    target = os.path.realpath(path) if follow else path
    part = _part_of(target) if part is None else part
    write_part(part, content, path)
    with _removed_on_error(part, path):
        if keep_mode and os.path.exists(target):
            os.chmod(part, os.stat(target).st_mode & 0o777)
        os.replace(part, target)


def write_part(part: str, content: Content, path: str) -> None:
    """Only the first half: write ``part``, which ``rename_part`` makes ``path`` later.

    A file or link that a killed writer left at ``part`` is replaced.
    """
    with _removed_on_error(part, path):
        with contextlib.suppress(OSError):
            os.unlink(part)
        with os.fdopen(os.open(part, _FLAGS, 0o666), "wb") as file:
            if callable(content):
                content(file)
            elif isinstance(content, str):
                file.write(content.encode("utf-8", "backslashreplace"))
            else:
                file.write(content)


def rename_part(part: str, path: str) -> None:
    """The second half of ``write_part``; ``part`` stays where that is refused."""
    try:
        os.replace(part, path)
    except OSError as error:
        raise CannotWrite.of(path, error) from error


@contextlib.contextmanager
def _removed_on_error(part: str, path: str) -> Iterator[None]:
    """Any error removes ``part``; one of the system is raised as CannotWrite of ``path``."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(part)
        if isinstance(error, OSError):
            raise CannotWrite.of(path, error) from error
        raise


def _part_of(path: str) -> str:
    """A name of its own for every writer: of other processes, and of other threads of this one."""
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) > _LONGEST:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()[:32]
    return os.path.join(folder, ".%s.%d-%d.part" % (name, os.getpid(), next(_numbers)))
