"""Which lines of the user's code an operator comes from. A wrong line is worse than none."""
from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from typing import Iterable, List, Sequence, Tuple

__all__ = ["Location", "Place", "is_user_file", "locate", "package_roots", "shown"]

Place = Tuple[str, int, str]  # file, line, function

MAX_CALLS = 5  # frames of the user's that are told
_NOTEBOOK = re.compile(r"ipykernel_\d+|^<ipython-input-")
_FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "npu_device", "optree", "numpy")
#: TensorFlow's and Keras' own functions that run a training or trace a step: what is below them belongs to the step
_BEGINS = frozenset(("fit", "train_on_batch", "train_step_on_batch", "func_graph_from_py_func"))


@dataclass(frozen=True)
class Location:
    """The user's lines behind an operator.

    Args:
        places: the innermost first, at most five.
        kind: "call" (a line inside the model or step) or "fit" (only the training call is known).
    """

    places: Tuple[Place, ...]
    kind: str

    @property
    def text(self) -> str:
        """The innermost line as it stands in its file; "" where the file can't be read."""
        file, line, _ = self.places[0]
        return linecache.getline(file, line).strip()


@functools.lru_cache(maxsize=1)
def package_roots() -> Tuple[Tuple[str, ...], Tuple[str, ...]]:
    """Folders of code that is not the user's, and those of them that are never anybody's model: the standard library, TensorFlow,
    Keras, this package."""
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    paths = {name: sysconfig.get_paths().get(name) for name in names}
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    core = {paths["stdlib"], paths["platstdlib"], own}
    for name in _FRAMEWORKS:
        file = getattr(sys.modules.get(name), "__file__", None)
        if file:
            core.add(os.path.dirname(os.path.abspath(file)))
    every = core | set(paths.values())
    return tuple(os.path.join(p, "") for p in every if p), tuple(os.path.join(p, "") for p in core if p)


def is_user_file(name: str) -> bool:
    """Whether a file is the user's own: outside installed packages, or a notebook cell."""
    if _NOTEBOOK.search(name):
        return True
    return not _is_generated(name) and not name.startswith("<") and not _installed(name)


def _is_generated(name: str) -> bool:
    return "__autograph_generated_file" in name


def _installed(name: str) -> bool:
    path = os.path.abspath(name)
    parts = path.split(os.sep)
    return path.startswith(package_roots()[0]) or "site-packages" in parts or "dist-packages" in parts


def _is_library(name: str) -> bool:
    """Whether a file belongs to an installed package that can hold a model."""
    if name.startswith("<") or _is_generated(name) or not _installed(name):
        return False
    path = os.path.abspath(name)
    inside = re.split(r"(?:site|dist)-packages[/\\]", path)
    if len(inside) < 2:
        return False
    return re.split(r"[/\\]", inside[-1])[0] not in (*_FRAMEWORKS, "npu_overflow")


def locate(frames: Sequence[Place]) -> "Location | None":
    """The user's lines among the frames of a stack; those of the model's own package where none is the user's.

    Args:
        frames: the outermost first.
    """
    inside = _inside(frames)
    for wanted in (is_user_file, _is_library):
        found = _distinct(place for place in reversed(inside) if wanted(place[0]))
        if found:
            return Location(tuple(found[:MAX_CALLS]), "call")
    found = _distinct(place for place in reversed(frames) if is_user_file(place[0]))
    return Location(tuple(found[:MAX_CALLS]), "fit") if found else None


def _inside(frames: Sequence[Place]) -> Sequence[Place]:
    """The frames below the call that trains or traces; all where none is seen."""
    for i, (file, _line, function) in enumerate(frames):
        if function in _BEGINS and _installed(file) and not is_user_file(file):
            return frames[i + 1 :]
    return frames


def _distinct(places: Iterable[Place]) -> List[Place]:
    """Without lines that come twice: a line that AutoGraph rewrote is on the stack several times."""
    found: List[Place] = []
    for place in places:
        if not any(place[:2] == known[:2] for known in found):
            found.append(place)
    return found


def shown(place: Place) -> str:
    """``file.py:13``: relative below the working folder, the file's name elsewhere, ``<cell>:3`` in a notebook."""
    name, line, _ = place
    if _NOTEBOOK.search(name):
        return "<cell>:%d" % line
    try:
        relative = os.path.relpath(name)
    except ValueError:  # another drive
        relative = os.pardir
    return "%s:%d" % (os.path.basename(name) if relative.startswith(os.pardir) else relative, line)
