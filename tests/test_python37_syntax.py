"""The adapter for Ascend lives on Python 3.7 to 3.9: every file must be Python 3.7, on whatever Python the tests run."""
from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import List

#: standard module -> names that came after Python 3.7
TOO_NEW = {
    "typing": {"Annotated", "Final", "Literal", "Protocol", "Self", "TypeAlias", "TypeGuard", "TypedDict", "final", "get_args", "get_origin"},
    "functools": {"cache", "cached_property", "singledispatchmethod"},
    "math": {"comb", "dist", "isqrt", "lcm", "nextafter", "perm", "prod", "ulp"},
    "importlib": {"metadata"},
    "itertools": {"batched", "pairwise"},
}


def _sources(package_folder: Path) -> List[Path]:
    root = Path(__file__).resolve().parent.parent
    folders = [package_folder] + [root / name for name in ("tests", "examples", "benchmarks", ".ci")]
    return sorted(path for folder in folders if folder.is_dir() for path in folder.rglob("*.py"))


def _parse(path: Path) -> ast.Module:
    source = path.read_text(encoding="utf-8")
    if sys.version_info >= (3, 8):
        return ast.parse(source, str(path), feature_version=(3, 7))
    return ast.parse(source, str(path))


def _complaint(path: Path) -> str:
    try:
        _parse(path)
    except SyntaxError as error:
        return "%s:%s %s" % (path, error.lineno, error.msg)
    return ""


def test_every_file_is_python_37(package_folder: Path) -> None:
    sources = _sources(package_folder)
    assert len(sources) > 10
    assert [text for text in map(_complaint, sources) if text] == []


def _is_future_annotations(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__" and any(alias.name == "annotations" for alias in node.names)


def test_annotations_are_never_evaluated(package_folder: Path) -> None:
    missing: List[str] = []
    for path in _sources(package_folder):
        code = [node for node in _parse(path).body if not isinstance(node, ast.Expr)]
        if code and not any(map(_is_future_annotations, code)):
            missing.append(str(path))
    assert missing == []


def _too_new(node: ast.AST) -> List[str]:
    """Names that ``node`` takes from a standard module and that Python 3.7 lacks."""
    if isinstance(node, ast.ImportFrom):
        return ["%s.%s" % (node.module, alias.name) for alias in node.names if alias.name in TOO_NEW.get(node.module or "", ())]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in TOO_NEW.get(node.value.id, ()):
        return ["%s.%s" % (node.value.id, node.attr)]
    return []


def test_no_name_is_used_that_python_37_lacks(package_folder: Path) -> None:
    """Inside ``if`` and ``try`` they are allowed: there the older way stands beside them."""
    wrong: List[str] = []
    for path in sorted(package_folder.rglob("*.py")):
        tree = _parse(path)
        guarded = {id(child) for node in ast.walk(tree) if isinstance(node, (ast.If, ast.Try)) for child in ast.walk(node)}
        for node in ast.walk(tree):
            if id(node) not in guarded:
                wrong.extend("%s:%d %s" % (path, getattr(node, "lineno", 0), name) for name in _too_new(node))
    assert wrong == []
