"""Fixtures of the command line's tests."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A dump tree with one overflowing operator."""
    from cli_helpers import make_tree

    return make_tree(tmp_path / "tree")
