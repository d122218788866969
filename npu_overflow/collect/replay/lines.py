"""Which lines of the user's code an operator comes from. A wrong line is worse than none."""
from __future__ import annotations

import functools
import linecache
import os
import re
import sys
import sysconfig
from dataclasses import dataclass
from typing import Dict, Sequence, Tuple

__all__ = ["Location", "Place", "is_user_file", "locate", "shown"]

Place = Tuple[str, int, str]  # file, line, function

MAX_CALLS = 5  # frames of the user's that are told
_NOTEBOOK = re.compile(r"ipykernel_\d+|^<ipython-input-")
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_GENERATED = "__autograph_generated_file"
_FRAMEWORKS = "tensorflow keras tf_keras npu_device optree numpy npu_overflow".split()
#: TensorFlow's and Keras' own functions that run a training or trace a step: what is below them
#: belongs to the step
_BEGINS = frozenset(("fit", "train_on_batch", "train_step_on_batch", "func_graph_from_py_func"))


@dataclass(frozen=True)
class Location:
    """The user's lines behind an operator."""

    places: Tuple[Place, ...]  # the innermost first
    kind: str  # "call" (inside the model or step) or "fit" (only the training call is known)

    @property
    def text(self) -> str:
        """The innermost line as it stands in its file; "" where the file can't be read."""
        file, line, _ = self.places[0]
        return linecache.getline(file, line).strip()


@functools.lru_cache(maxsize=1)
def _installed_roots() -> Tuple[str, ...]:
    """Folders of code that is not the user's: packages, and frameworks wherever they lie."""
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = [sysconfig.get_paths()[name] for name in names]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in _FRAMEWORKS]
    folders += [os.path.dirname(os.path.abspath(file)) for file in files if file]
    return tuple(os.path.join(folder, "") for folder in folders)


def is_user_file(name: str) -> bool:
    """Whether a file is the user's own: outside installed packages, or a notebook cell."""
    generated = name.startswith("<") or _GENERATED in name
    return bool(_NOTEBOOK.search(name)) or not (generated or _is_installed(name))


def _is_installed(name: str) -> bool:
    path = os.path.abspath(name)
    return path.startswith(_installed_roots()) or bool(_PACKAGES.search(path))


def _is_library(name: str) -> bool:
    """Whether a file belongs to an installed package that can hold a model."""
    inside = _PACKAGES.split(name)
    return len(inside) > 1 and re.split(r"[/\\]", inside[-1])[0] not in _FRAMEWORKS


def locate(frames: Sequence[Place]) -> Location | None:
    """The user's lines among the frames of a stack, the outermost first; those of the model's own
    package where none is the user's."""
    inside = frames  # the call that trains or traces
    for i, (file, _line, function) in enumerate(frames):
        if function in _BEGINS and _is_installed(file):
            inside = frames[i + 1 :]
            break
    for kind, places, wanted in (
        ("call", inside, is_user_file),
        ("call", inside, _is_library),
        ("fit", frames, is_user_file),
    ):
        found: Dict[Tuple[str, int], Place] = {}  # AutoGraph puts a line on the stack several times
        for place in reversed(places):
            if wanted(place[0]):
                found.setdefault(place[:2], place)
        if found:
            return Location(tuple(found.values())[:MAX_CALLS], kind)
    return None


def shown(place: Place) -> str:
    """``file.py:13``: relative below the working folder, else the file's name; ``<cell>:3``."""
    name, line, _ = place
    if _NOTEBOOK.search(name):
        return "<cell>:%d" % line
    try:
        relative = os.path.relpath(name)
    except ValueError:  # another drive
        relative = os.pardir
    return "%s:%d" % (os.path.basename(name) if relative.startswith(os.pardir) else relative, line)
