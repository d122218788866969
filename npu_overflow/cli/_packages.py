"""What is installed, found without importing it: importing ``npu_device`` loads libraries,
TensorFlow takes seconds."""
from __future__ import annotations

import importlib.util
import re
from typing import List, Optional, Tuple

__all__ = ["importable", "needed", "version", "within"]

#: names under which a package can be installed
_DISTRIBUTIONS = {
    "tensorflow": (
        "tensorflow",
        "tensorflow-cpu",
        "tensorflow-gpu",
        "tensorflow-intel",
        "tensorflow-macos",
        "tensorflow-aarch64",
        "tf-nightly",
    ),
    "tf_keras": ("tf_keras", "tf-keras"),
    "npu_device": ("npu_device", "npu-device"),
}


def importable(name: str) -> bool:
    """Whether ``import name`` would find something."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def version(name: str) -> Optional[str]:
    """Version of an installed package, or None."""
    for distribution in _DISTRIBUTIONS.get(name, (name,)):
        found = _version_of(distribution)
        if found is not None:
            return found
    return None


def _version_of(distribution: str) -> Optional[str]:
    try:
        from importlib import metadata
    except ImportError:  # Python 3.7
        return _version_before_38(distribution)
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _version_before_38(distribution: str) -> Optional[str]:
    try:
        import pkg_resources
    except ImportError:
        return None
    try:
        return str(pkg_resources.get_distribution(distribution).version)
    except Exception:  # one of several, among them that of a damaged installation
        return None


def needed() -> List[Tuple[str, str, str]]:
    """(name, least version, version it must be below or "") of the packages that ``npu_overflow``
    needs, as in its metadata."""
    return [
        ("numpy", "1.19.2", ""),
        ("protobuf", "3.9.2", ""),
        ("rich", "10.16.2", ""),
        ("jinja2", "3.0", ""),
    ]


def within(found: str, least: str, below: str) -> bool:
    """Whether ``least`` <= ``found`` < ``below``, by their leading numbers."""
    return _numbers(found) >= _numbers(least) and (not below or _numbers(found) < _numbers(below))


def _numbers(text: str) -> Tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in match.group().split(".")) if match else ()
