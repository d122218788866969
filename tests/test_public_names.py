"""The public names, and that importing the package costs nothing."""
from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import npu_overflow

PUBLIC = [
    "CannotCollect",
    "CannotWrite",
    "DumpFormatError",
    "MissingExtra",
    "NpuOverflowError",
    "Operator",
    "OverflowWatch",
    "PathError",
    "Report",
    "TensorSummary",
    "UsageError",
    "WatchOptions",
    "__version__",
    "analyze",
    "npu_device_dump_config",
    "overflow_dump",
]


def test_public_names() -> None:
    assert sorted(npu_overflow.__all__) == PUBLIC
    assert [name for name in dir(npu_overflow) if not name.startswith("__")] == [
        name for name in PUBLIC if not name.startswith("__")
    ]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_loads(name: str) -> None:
    value = getattr(npu_overflow, name)
    assert value is getattr(npu_overflow, name)
    if name != "__version__":
        assert value.__doc__
        assert value.__module__.startswith("npu_overflow.")


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        npu_overflow.nonsense  # noqa: B018


def test_the_version_stands_in_one_place(package_folder: Path) -> None:
    assert re.match(r"^\d+\.\d+\.\d+", npu_overflow.__version__)
    assert npu_overflow.__version__ == importlib.import_module("npu_overflow.version").__version__
    pattern = re.compile(r"\b%s\b" % re.escape(npu_overflow.__version__))
    holders = [path.name for path in package_folder.rglob("*.py") if pattern.search(path.read_text(encoding="utf-8"))]
    assert holders == ["version.py"]


@pytest.mark.parametrize(
    "statement",
    [
        "import npu_overflow",
        "import npu_overflow; npu_overflow.__version__; dir(npu_overflow)",
        "from npu_overflow import Report, NpuOverflowError",
        "from npu_overflow.cli import main; main(['--help'])",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    heavy = "('numpy', 'tensorflow', 'keras', 'rich', 'google.protobuf', 'jinja2')"
    code = statement + "; import sys; sys.stderr.write(','.join(name for name in %s if name in sys.modules))" % heavy
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
