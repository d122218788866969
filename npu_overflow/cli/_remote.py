"""Files at a URL (object stores, other machines), read through ``fsspec`` where that extra is
installed.

A listing and what it lists come from elsewhere: every name is checked before a file of that name is
made, every size is bounded, and links are never followed.
"""
from __future__ import annotations

import itertools
import os
import re
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from npu_overflow.errors import (
    CannotWrite,
    DumpFormatError,
    MissingExtra,
    NpuOverflowError,
    PathError,
    UsageError,
    reason_of,
)

__all__ = ["INSTALL", "FetchedTree", "fetch_tree", "is_url", "read", "reports_at"]

INSTALL = "pip install 'npu_overflow[fsspec]'"

#: a scheme of one letter is a drive of Windows
_URL = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+(::[A-Za-z][A-Za-z0-9+.-]+)*://")
_REPORT = re.compile(r"^report(-\d{1,7})?\.json$")
_MANIFEST = re.compile(r"^session-\d{1,7}\.json$")
_MOST_DEPTH = 32
_MOST_FILES = 1_000_000
_LONGEST_NAME = 255
_PIECE = 1 << 20
#: records are fetched so many at a time
_BATCH = 256


def is_url(path: str) -> bool:
    """Whether a path names a place that ``fsspec`` reads."""
    return _URL.match(path) is not None


def _open(url: str) -> Tuple[Any, str]:
    """(file system, path in it).

    Raises:
        MissingExtra: fsspec or the package for this scheme is not installed. UsageError: no such
            scheme. PathError: it can't be reached.
    """
    try:
        import fsspec
    except ImportError:
        raise MissingExtra("remote.no_fsspec", url=url, command=INSTALL) from None
    scheme = url.split("://", 1)[0].split("::")[-1]
    try:
        system, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise MissingExtra(
            "remote.no_driver", url=url, scheme=scheme, reason=reason_of(error)
        ) from None
    except ValueError as error:
        if "rotocol" not in str(error):
            raise PathError("remote.unreadable", path=url, reason=_reason(error)) from error
        known = ", ".join(
            sorted(name for name in fsspec.available_protocols() if name.isidentifier())
        )
        raise UsageError("remote.scheme", scheme=scheme, url=url, known=known) from None
    except Exception as error:
        raise PathError("remote.unreadable", path=url, reason=_reason(error)) from error
    return system, str(path)


def _reason(error: BaseException) -> str:
    text = reason_of(error)
    return str(text).strip().rstrip(".")[:500]


def reports_at(url: str, most: int) -> Iterator[Tuple[str, Callable[[int], bytes]]]:
    """The saved reports that a URL names: itself, those that its ``*`` stands for, or those in a
    folder and below it.

    Returns:
        pairs: the name to show, and what reads at most so many bytes of it (see ``read``).

    Raises:
        PathError: there is none, or it can't be listed. See also ``_open``.
    """
    system, path = _open(url)
    try:
        if any(character in path for character in "*?["):
            found: Iterator[str] = iter(sorted(str(name) for name in system.glob(path)))
        elif system.isdir(path):
            found = (
                item.path
                for item in _walk(system, path, [])
                if _REPORT.match(item.path.rsplit("/", 1)[-1])
            )
        else:
            yield url, partial(_read, system, path, url)
            return
        count = 0
        for name in itertools.islice(found, most):
            count += 1
            shown = str(system.unstrip_protocol(name))
            yield shown, partial(_read, system, name, shown)
    except NpuOverflowError:
        raise
    except Exception as error:
        raise PathError("remote.unreadable", path=url, reason=_reason(error)) from error
    if not count:
        raise PathError("merge.none_in_folder", path=url)


def read(url: str, most: int) -> bytes:
    """The bytes of one file.

    Raises:
        PathError: missing, unreadable, or of more than ``most`` bytes. See also ``_open``.
    """
    system, path = _open(url)
    return _read(system, path, url, most)


def _read(system: Any, path: str, shown: str, most: int) -> bytes:
    pieces, left = [], most + 1
    try:
        with system.open(path, "rb") as file:
            while left > 0:
                piece = file.read(min(left, _PIECE))
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
    except FileNotFoundError:
        raise PathError("path.missing", path=shown) from None
    except Exception as error:
        raise PathError("remote.unreadable", path=shown, reason=_reason(error)) from error
    if left <= 0:
        raise PathError("remote.large_file", path=shown, most=most)
    return b"".join(pieces)


@dataclass(frozen=True)
class _Item:
    """A file of a listing: its path there, the levels below the root, its size where that is known.
    """

    path: str
    levels: Tuple[str, ...]
    size: Optional[int]


@dataclass(frozen=True)
class FetchedTree:
    """A tree at a URL as it stands in a local folder.

    Args:
        path: what to analyze there.
        refused: what was left out: names that are not safe as file names, too deep, or links;
            records that could not be read.
        fetch: brings one file of the tree; until then it is empty. Raises DumpFormatError where
            that can't be.
    """

    path: str
    refused: List[str] = field(default_factory=list)
    fetch: Callable[[str], None] = lambda path: None


def fetch_tree(
    url: str,
    folder: str,
    most_bytes: int,
    wanted: Callable[[str], bool],
    step: Callable[[int, int], None] = lambda done, total: None,
) -> FetchedTree:
    """Bring the tree at ``url`` into ``folder``, which is empty and only the user's: the files that
    are ``wanted`` and manifests at once, of the others the names; these come when ``fetch`` is
    called with their path.

    Args:
        most_bytes: of all files that are brought.
        wanted: by file name, whether its content is needed in any case.
        step: called with (files brought, files in all).

    Raises:
        PathError: nothing there, unreadable, too many files, or more bytes than allowed.
    """
    system, root = _open(url)
    refused: List[str] = []
    single: Optional[str] = None
    try:
        if system.isfile(root):
            root, single = root.rsplit("/", 1) if "/" in root else ("", root)
        elif not system.isdir(root):
            raise PathError("path.missing", path=url)
        items = list(_walk(system, root, refused, _MOST_DEPTH if single is None else 0))
    except NpuOverflowError:
        raise
    except Exception as error:
        raise PathError("remote.unreadable", path=url, reason=_reason(error)) from error
    # the levels above tell run and device where the URL names a folder inside a tree
    base = os.path.join(folder, *[level for level in root.split("/") if _is_safe(level)][-8:])
    os.makedirs(base, exist_ok=True)
    fetching = _Fetching(system, url, most_bytes, refused)
    for item in items:
        local = os.path.join(base, *item.levels)
        try:
            os.makedirs(os.path.dirname(local), exist_ok=True)
            with open(local, "xb"):
                pass
        except (FileExistsError, NotADirectoryError):  # listed twice, or as a file and as a folder
            refused.append(item.path[:200])
            continue
        except OSError as error:
            raise CannotWrite.of(local, error) from error
        fetching.waiting[local] = item
    now = [
        local
        for local, item in fetching.waiting.items()
        if _MANIFEST.match(item.levels[-1]) or wanted(item.levels[-1])
    ]
    for start in range(0, len(now), _BATCH):
        step(start, len(now))
        fetching.together(now[start : start + _BATCH])
    return FetchedTree(
        base if single is None else os.path.join(base, single), refused, fetching.one
    )


def _walk(
    system: Any, root: str, refused: List[str], most_depth: int = _MOST_DEPTH
) -> Iterator[_Item]:
    """The files below ``root``. What the listing says is believed only where it is one safe name in
    the folder that was asked for."""
    root = root.rstrip("/")
    folders: List[Tuple[str, Tuple[str, ...]]] = [(root, ())]
    count = 0
    while folders:
        folder, levels = folders.pop()
        for info in system.ls(folder or "/" if root == "" else folder, detail=True):
            name = str(info.get("name", ""))
            level = _level(folder, name)
            if level == "":
                continue
            if (
                level is None
                or info.get("islink")
                or info.get("type") not in ("file", "directory")
                or len(levels) > most_depth
            ):
                refused.append(name[:200])
            elif info["type"] == "directory":
                if most_depth:
                    folders.append((folder + "/" + level, (*levels, level)))
            else:
                size = info.get("size")
                yield _Item(
                    folder + "/" + level,
                    (*levels, level),
                    size if isinstance(size, int) and size >= 0 else None,
                )
            count += 1
            if count > _MOST_FILES:
                raise PathError("remote.many", path=root, most=_MOST_FILES)


def _level(folder: str, name: str) -> Optional[str]:
    """The one level that ``name`` lies below ``folder``; "" for the folder itself (object stores
    list it), None where it is not safe."""
    name, folder = name.rstrip("/").lstrip("/"), folder.strip("/")
    if name == folder:
        return ""
    if folder and not name.startswith(folder + "/"):
        return None
    level = name[len(folder) :].lstrip("/") if folder else name
    return level if _is_safe(level) else None


def _is_safe(level: str) -> bool:
    if level in ("", ".", "..") or any(
        character in level for character in ("/", "\0", os.sep, os.altsep or "/")
    ):
        return False
    try:
        return len(os.fsencode(level)) <= _LONGEST_NAME
    except UnicodeEncodeError:
        return False


class _Fetching:
    """Brings files until a number of bytes is used up."""

    def __init__(self, system: Any, url: str, most: int, refused: List[str]) -> None:
        self._refused = refused
        self.waiting: Dict[str, _Item] = {}
        self._system = system
        self._url = url
        self._most = most
        self._left = most

    def together(self, paths: List[str]) -> None:
        """Small files, as many at once as the store can serve."""
        sizes = {path: self.waiting[path].size for path in paths}
        known = [path for path in paths if 0 < (sizes[path] or 0) <= _PIECE]
        if sum(sizes[path] or 0 for path in known) > self._left:
            raise PathError("remote.large", path=self._url, most=self._most)
        items = [self.waiting[path] for path in known]
        try:
            contents = self._system.cat_ranges(
                [item.path for item in items],
                [0] * len(items),
                [item.size for item in items],
                on_error="return",
            )
        except Exception:
            contents = [None] * len(items)  # one by one, to see which it is
        for path, item, content in zip(known, items, contents):
            if isinstance(content, bytes) and len(content) <= (item.size or 0):
                del self.waiting[path]
                self._left -= len(content)
                with open(path, "wb") as file:
                    file.write(content)
        for path in paths:
            if path in self.waiting and sizes[path] != 0:
                self._now(path)

    def _now(self, path: str) -> None:
        try:
            self.one(path)
        except DumpFormatError as error:
            if error.code == "remote.left_out":
                raise PathError("remote.large", path=self._url, most=self._most) from None
            self._refused.append(self.waiting[path].path[:200])

    def one(self, path: str) -> None:
        """Bring one file, if it was not brought yet.

        Raises:
            DumpFormatError: it is gone or unreadable there, or larger than what is left of the
                bound.
        """
        item = self.waiting.get(path)
        if item is None:
            return
        if (item.size or 0) > self._left:
            raise DumpFormatError("remote.left_out", bytes=item.size, most=self._most)
        left = self._left
        try:
            with self._system.open(item.path, "rb") as source, open(path, "wb") as file:
                while True:
                    piece = source.read(min(_PIECE, left + 1))
                    if not piece:
                        break
                    left -= len(piece)
                    if left < 0:
                        raise DumpFormatError("remote.left_out", bytes=item.size, most=self._most)
                    file.write(piece)
        except DumpFormatError:
            os.truncate(path, 0)
            raise
        except Exception as error:
            os.truncate(path, 0)
            raise DumpFormatError("remote.not_read", reason=_reason(error)) from error
        self._left = left
        del self.waiting[path]
