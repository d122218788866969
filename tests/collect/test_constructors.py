"""The line that makes a layer, found in source: only where there is exactly one."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Optional

import pytest

from npu_overflow.collect.replay.constructors import constructor_in_float32

EXACT = sys.version_info >= (3, 8)  # from there on arguments are repeated


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('x = layers.Dense(8, name="d")(x)', 'layers.Dense(8, name="d", dtype="float32")'),
        (
            '# é\nDense(\n  8,  # wide\n  dtype="float16", name="d",\n)',
            'Dense(8, name="d", dtype="float32")',
        ),
        ('Dense({\n}, name="d")', 'Dense(..., name="d", dtype="float32")'),
        (
            'layers.Dense("%s", name="d")' % ("a" * 80),
            'layers.Dense(..., name="d", dtype="float32")',
        ),
        ('Dense(8, name="d")\nDense(8, name="d")', None),  # which of them
        ('Dense(8, name="d", **more)', None),  # may hold a type
        ('Dense(8, name=d)', None),
        ('Conv2D(8, name="d")', None),
        ('Dense(8, name="d"', None),  # no Python
    ],
)
def test_constructor(tmp_path: Path, source: str, expected: Optional[str]) -> None:
    (tmp_path / "train.py").write_text("import keras\n" + source, encoding="utf-8")
    files = [str(tmp_path / "train.py"), str(tmp_path / "absent.py")]
    found = constructor_in_float32(files, "Dense", "d")
    if expected is None:
        assert found is None
        return
    if not EXACT:
        expected = expected.partition("(")[0] + '(..., name="d", dtype="float32")'
    line = 3 if source.startswith("#") else 2
    assert found == "train.py:%d: %s" % (line, expected)
