"""Which line of the user's code an operator comes from. A wrong line is worse than none."""
from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Callable, Collection, Dict, Optional, Tuple

__all__ = ["Location", "SourceLines", "is_user_file", "package_roots"]

Place = Tuple[str, int]  # file, line
Location = Tuple[str, int, str]  # file, line, kind: "call" (inside the model or step) or "fit" (only the training call is known)

_NOTEBOOK = re.compile(r"ipykernel_\d+|^<ipython-input-")
_AUTOGRAPH = "ag__"  # what the code that AutoGraph generates calls AutoGraph


@functools.lru_cache(maxsize=1)  # some 2 ms, and asked for in every replay
def package_roots() -> Tuple[str, ...]:
    """Folders of code that is not the user's: the standard library, installed packages and the commands that came with them, this package."""
    paths = {sysconfig.get_paths().get(name) for name in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    paths |= {os.path.dirname(os.path.dirname(os.path.abspath(__file__)))}
    for name in ("tensorflow", "keras", "tf_keras", "npu_device", "optree", "numpy"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            paths.add(os.path.dirname(os.path.abspath(file)))
    return tuple(os.path.join(path, "") for path in paths if path)


def is_user_file(name: str, roots: Tuple[str, ...]) -> bool:
    """Whether a code object's file name is the user's own: a file outside installed packages, or a notebook cell."""
    if _NOTEBOOK.search(name):
        return True
    if name.startswith("<") or "__autograph_generated_file" in name:
        return False
    path = os.path.abspath(name)
    parts = path.split(os.sep)
    return not (path.startswith(roots) or "site-packages" in parts or "dist-packages" in parts)


class SourceLines:
    """Finds the user's line on the current stack; remembers per code object whether it is the user's, as this is asked for every operator.

    Args:
        boundary: code of the function that runs the replayed step: frames above it belong to the step, frames below to the training call.
        original: the line that a line of AutoGraph's code was made from, or None.
    """

    def __init__(self, boundary: CodeType, original: Callable[[str, int], Optional[Place]] = lambda file, line: None) -> None:
        self._boundary, self._original = boundary, original
        self._roots = package_roots()
        self._known: Dict[CodeType, str] = {}

    def here(self, frame: Optional[FrameType], until: Collection[CodeType] = ()) -> Optional[Location]:
        """The nearest user line from ``frame`` outwards, or None where there is none before a frame that runs one of ``until``."""
        inside = True
        while frame is not None and frame.f_code not in until:
            code = frame.f_code
            if code is self._boundary:
                inside = False
            else:
                kind = self.kind(code)
                if kind:
                    place = (code.co_filename, frame.f_lineno) if kind == "user" else self._original(code.co_filename, frame.f_lineno)
                    if place is not None and (kind == "user" or is_user_file(place[0], self._roots)):
                        return place[0], place[1], "call" if inside else "fit"
            frame = frame.f_back
        return None

    def kind(self, code: CodeType) -> str:
        """"user", "generated" (AutoGraph's code, whose file has any name) or ""."""
        kind = self._known.get(code)
        if kind is None:
            users = "user" if is_user_file(code.co_filename, self._roots) else ""
            kind = self._known[code] = "generated" if _AUTOGRAPH in code.co_freevars else users
        return kind


def shown(location: Location) -> str:
    """``file.py:13``: relative below the working folder, the file's name elsewhere, ``<cell>:3`` in a notebook."""
    name, line, _ = location
    if _NOTEBOOK.search(name):
        return "<cell>:%d" % line
    try:
        relative = os.path.relpath(name)
    except ValueError:  # another drive
        relative = os.pardir
    return "%s:%d" % (os.path.basename(name) if relative.startswith(os.pardir) else relative, line)
