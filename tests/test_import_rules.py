"""Who may import whom. The rooms of the package have arrows that point one way; this test reads every import of every file."""
from __future__ import annotations

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Optional, Sequence, Tuple

import pytest

PACKAGE = "npu_overflow"

#: room -> what of the package it may import besides itself. The room of a module is the longest entry that it is or lies in; "" stands for any other module.
#: "*": anything.
ROOMS: Dict[str, Tuple[str, ...]] = {
    "__init__": (),
    "__main__": ("cli",),
    "version": (),
    "messages": (),
    "errors": ("messages",),
    "atomic": ("errors",),
    "jsonform": (),
    "dump": (),
    "analysis": ("dump", "training.manifest", "report.model"),
    "report": (),
    "collect": (
        *("dump", "training.options", "training.loss_scale", "training.tracked"),
        *("training.console", "training.job"),
    ),
    # the lower half of the room: no arrow leads from it to a collector, so collectors may use it
    "training.options": (),
    "training.manifest": (),
    "training.console": ("training.options",),
    "training.objects": (),
    "training.loss_scale": ("training.objects",),
    "training.policy": ("training.loss_scale",),
    "training.tracked": (
        *("training.options", "training.loss_scale", "training.policy", "training.console"),
    ),
    "training.job": (),
    "training": ("dump", "analysis", "report", "collect"),
    "launcher": ("*",),
    "cli": ("*",),
}

#: the bottom of the house: every room above may use it
EVERYWHERE = ("version", "errors", "messages", "atomic", "jsonform")

#: imports inside functions of these modules are how public names are loaded when first used, and how
#: a report reaches what shows it
LAZY: Dict[str, Tuple[str, ...]] = {"__init__": ("*",), "report": ("report",)}

#: frameworks: only here, and only inside functions
FRAMEWORKS = ("tensorflow", "keras", "tf_keras", "npu_device")
MAY_USE_FRAMEWORKS = ("collect", "training", "launcher", "report.tensorboard", "cli.demo")

#: what must not be loaded before it is used
HEAVY = (*FRAMEWORKS, "fsspec", "numpy", "google.protobuf", "rich", "jinja2")

#: package -> rooms that may import it
LIBRARIES: Dict[str, Tuple[str, ...]] = {
    "numpy": ("dump", "analysis", "cli", "collect", "training", "report"),
    "google": ("dump",),
    "rich": ("report", "cli"),
    "jinja2": ("report",),
    "markupsafe": ("report",),  # comes with jinja2
    "fsspec": ("cli",),  # an extra
    "pkg_resources": ("cli",),  # the versions of packages on Python 3.7
    "IPython": ("launcher", "training"),
}


@dataclass(frozen=True)
class Import:
    """One import: the module it names, where, and whether it runs only when a function is called."""

    module: str
    line: int
    lazy: bool


def _name(path: Path, folder: Path) -> str:
    """"dump.reader" of .../dump/reader.py; a package's own file is named by the package, the top one "__init__"."""
    parts = path.relative_to(folder).with_suffix("").parts
    if parts[-1] == "__init__" and len(parts) > 1:
        parts = parts[:-1]
    return ".".join(parts)


def _targets(node: ast.AST, package: Sequence[str]) -> List[str]:
    """Dotted names that an import statement, or ``importlib.import_module("name")``, may load."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            kept = list(package[: len(package) - node.level + 1])
            base = ".".join(kept + ([base] if base else []))
        return ["%s.%s" % (base, alias.name) for alias in node.names]
    if isinstance(node, ast.Call) and node.args:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__"):
            try:
                return [str(ast.literal_eval(node.args[0]))]
            except ValueError:  # a name made at run time
                return []
    return []


def _imports(path: Path, folder: Path) -> List[Import]:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    package = (PACKAGE,) + path.relative_to(folder).parent.parts
    found: List[Import] = []

    def visit(node: ast.AST, lazy: bool) -> None:
        for target in _targets(node, package):
            found.append(Import(target, getattr(node, "lineno", 0), lazy))
        only_types = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.iter_child_nodes(node):
            visit(child, lazy or only_types or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)))

    visit(tree, False)
    return found


def _inside(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


def _room(module: str) -> Optional[str]:
    rooms = [room for room in ROOMS if _inside(module, room)]
    return max(rooms, key=len) if rooms else None


def _modules(folder: Path) -> List[Path]:
    return sorted(path for path in folder.rglob("*.py") if "__pycache__" not in path.parts)


def test_every_module_lies_in_a_room(package_folder: Path) -> None:
    assert [name for name in (_name(path, package_folder) for path in _modules(package_folder)) if _room(name) is None] == []


def test_rooms_import_only_what_they_may(package_folder: Path) -> None:
    wrong: List[str] = []
    for path in _modules(package_folder):
        name = _name(path, package_folder)
        room = _room(name) or ""
        for item in _imports(path, package_folder):
            if not _inside(item.module, PACKAGE) or item.module == PACKAGE:
                continue
            target = item.module[len(PACKAGE) + 1 :]
            allowed = ROOMS.get(room, ()) + (LAZY.get(name, ()) if item.lazy else ())
            allowed += () if room in EVERYWHERE else EVERYWHERE
            if target == "annotations" or _room(target) == room or _inside(target, room) or "*" in allowed:
                continue
            if not any(_inside(target, entry) for entry in allowed):
                wrong.append("%s line %d imports %s; it may import: %s" % (name, item.line, target, ", ".join(allowed)))
    assert wrong == []


def _graph(folder: Path) -> Dict[str, List[str]]:
    """Module -> modules of the package that it imports, inside functions too, but for lazy loading."""
    paths = {_name(path, folder): path for path in _modules(folder)}
    graph: Dict[str, List[str]] = {}
    for name, path in paths.items():
        graph[name] = []
        for item in _imports(path, folder):
            target = item.module[len(PACKAGE) + 1 :] if _inside(item.module, PACKAGE) else ""
            if target not in paths:  # a name in a module
                target = target.rpartition(".")[0]
            if target in paths and target != name and not (item.lazy and name in LAZY):
                graph[name].append(target)
    return graph


def test_no_modules_import_each_other_in_a_circle(package_folder: Path) -> None:
    graph = _graph(package_folder)
    assert len(graph) > 100 and sum(map(len, graph.values())) > 300
    while True:  # take away what imports nothing that is left, and what nothing left imports
        imported = {target for targets in graph.values() for target in targets}
        left = {name: targets for name, targets in graph.items() if targets and name in imported}
        left = {name: [item for item in targets if item in left] for name, targets in left.items()}
        if left == graph:
            break
        graph = left
    assert graph == {}


def test_frameworks_are_imported_by_few_and_inside_functions(package_folder: Path) -> None:
    wrong: List[str] = []
    for path in _modules(package_folder):
        name = _name(path, package_folder)
        for item in _imports(path, package_folder):
            if item.module.split(".")[0] not in FRAMEWORKS:
                continue
            if not any(_inside(name, room) for room in MAY_USE_FRAMEWORKS):
                wrong.append("%s line %d imports %s, which only %s may" % (name, item.line, item.module, ", ".join(MAY_USE_FRAMEWORKS)))
            elif not item.lazy:
                wrong.append("%s line %d imports %s outside a function" % (name, item.line, item.module))
    assert wrong == []


@pytest.mark.skipif(sys.version_info < (3, 10), reason="the list of standard modules comes with Python 3.10")
def test_other_packages_are_imported_where_they_belong(package_folder: Path) -> None:
    standard = set(sys.stdlib_module_names)  # type: ignore[attr-defined]
    wrong: List[str] = []
    for path in _modules(package_folder):
        name = _name(path, package_folder)
        for item in _imports(path, package_folder):
            top = item.module.split(".")[0]
            if top in standard or top == PACKAGE or top in FRAMEWORKS:
                continue
            if not any(_inside(name, room) for room in LIBRARIES.get(top, ())):
                wrong.append("%s line %d imports %s" % (name, item.line, item.module))
    assert wrong == []


def _loaded_by(code: str) -> List[str]:
    """Modules that are loaded after ``code`` ran in a fresh Python."""
    program = code + "\nimport sys\nprint('\\n'.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = _loaded_by("import npu_overflow")
    assert PACKAGE in loaded
    assert [name for name in loaded if name in HEAVY] == []


def test_importing_every_module_loads_no_framework() -> None:
    code = (
        "import importlib, pkgutil, npu_overflow\n"
        "for item in pkgutil.walk_packages(npu_overflow.__path__, 'npu_overflow.'):\n"
        "    if not item.name.endswith('__main__'):\n"
        "        importlib.import_module(item.name)\n"
    )
    loaded = _loaded_by(code)
    assert "numpy" in loaded
    assert [name for name in loaded if name in FRAMEWORKS] == []
