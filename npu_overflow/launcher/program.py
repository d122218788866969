"""Runs a script or module as Python itself would: same ``argv``, ``__main__``, ``sys.path[0]``, and
tracebacks without frames of this package."""
from __future__ import annotations

import builtins
import os
import runpy
import sys
import zipfile
from types import ModuleType, TracebackType
from typing import Any, List, Optional

from npu_overflow.errors import UsageError

__all__ = ["Program", "own_traceback"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


class Program:
    """What the command line says is to be run.

    Args:
        words: ``script.py args…`` or ``-m module args…``. A folder or archive with a ``__main__``
            is a script too.

    Raises:
        UsageError: nothing is given, or the script is not there.
    """

    def __init__(self, words: List[str]) -> None:
        self.module: Optional[str] = None
        self.path = ""
        if words[:1] == ["-m"]:
            if len(words) < 2:
                raise UsageError("run.no_module")
            self.module, self.arguments = words[1], words[2:]
        elif not words:
            raise UsageError("run.nothing")
        else:
            self.path, self.arguments = words[0], words[1:]
            if not os.path.exists(self.path):
                raise UsageError("run.missing", path=self.path)

    def run(self) -> None:
        """Run it to its end; whatever it raises is the program's own."""
        sys.modules["__main__"] = main = ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        if self.module is not None:
            self._put_first(os.getcwd())
            sys.argv[:] = ["-m", *self.arguments]
            _as_main(self.module, True)
        elif os.path.isdir(self.path) or zipfile.is_zipfile(self.path):
            self._put_first(os.path.abspath(self.path) if sys.version_info >= (3, 9) else self.path)
            sys.argv[:] = [self.path, *self.arguments]
            _as_main("__main__", False)
        else:
            self._put_first(os.path.dirname(os.path.realpath(self.path)))
            sys.argv[:] = [self.path, *self.arguments]
            self._script(main)

    def _script(self, main: ModuleType) -> None:
        name = os.path.abspath(self.path) if sys.version_info >= (3, 9) else self.path
        with open(self.path, "rb") as file:
            source = file.read()
        main.__dict__.update(__file__=name, __cached__=None)
        exec(compile(source, name, "exec", dont_inherit=True), main.__dict__)

    @staticmethod
    def _put_first(folder: str) -> None:
        """What Python puts first on the path for the program, in place of what it put there for
        this command."""
        if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
            sys.path[:1] = [folder]


def _as_main(module: str, alter_argv: bool) -> None:
    run: Any = getattr(runpy, "_run_module_as_main")  # noqa: B009 (what ``python -m`` itself calls)
    run(module, alter_argv)


def own_traceback(trace: Optional[TracebackType]) -> Optional[TracebackType]:
    """The traceback without the frames of this package and of ``runpy``; all of it where nothing
    else is left."""
    frames = []
    step = trace
    while step is not None:
        frames.append(step)
        step = step.tb_next
    hidden = (os.path.abspath(runpy.__file__), "<frozen runpy>")
    kept = [
        item
        for item in frames
        if not item.tb_frame.f_code.co_filename.startswith(_PACKAGE)
        and item.tb_frame.f_code.co_filename not in hidden
    ]
    if not kept and frames and not frames[-1].tb_frame.f_code.co_filename.startswith(_PACKAGE):
        return trace
    for item, following in zip(kept, [*kept[1:], None]):
        item.tb_next = following
    return kept[0] if kept else None
