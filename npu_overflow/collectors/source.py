"""Which line of the user's code an operator comes from. A wrong line is worse than none."""
from __future__ import annotations

import functools
import os
import re
import sys
import sysconfig
from types import CodeType, FrameType
from typing import Dict, Optional, Tuple

__all__ = ["Location", "SourceLines", "is_user_file", "package_roots"]

Location = Tuple[str, int, str]  # file, line, kind: "call" (inside the model or step) or "fit" (only the training call is known)

_NOTEBOOK = re.compile(r"ipykernel_\d+|^<ipython-input-")


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
    """

    def __init__(self, boundary: CodeType) -> None:
        self._boundary = boundary
        self._roots = package_roots()
        self._known: Dict[CodeType, bool] = {}

    def here(self, frame: Optional[FrameType]) -> Optional[Location]:
        """The nearest user line from ``frame`` outwards, or None."""
        inside = True
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                inside = False
            else:
                user = self._known.get(code)
                if user is None:
                    user = self._known[code] = is_user_file(code.co_filename, self._roots)
                if user:
                    return code.co_filename, frame.f_lineno, "call" if inside else "fit"
            frame = frame.f_back
        return None


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
