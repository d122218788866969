"""Does something right after a module is first imported, wherever that happens. Imports nothing by
itself."""
from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional

__all__ = ["after_import"]

Done = Callable[[ModuleType], None]

_waiting: Dict[str, List[Done]] = {}


class _Finder:
    """Finds the modules that are waited for as Python would, and tells when their code has run."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name not in _waiting:
            return None
        spec = PathFinder.find_spec(name, path, target)
        loader: Any = spec.loader if spec is not None else None
        if loader is None or not hasattr(loader, "exec_module"):
            return None
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            run(module)
            for done in _waiting.pop(name, []):
                done(module)

        try:
            loader.exec_module = exec_module
        except AttributeError:  # a loader without room for it: the module is only not told of
            return None
        return spec


_finder = _Finder()


def after_import(name: str, done: Done) -> None:
    """Call ``done(module)`` once the module ``name`` has been imported; at once where it is there
    already."""
    module = sys.modules.get(name)
    if module is not None:
        done(module)
        return
    _waiting.setdefault(name, []).append(done)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
