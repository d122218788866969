"""Trees and processes for the tests of the command line."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Optional

import numpy as np

CORPUS = Path(__file__).resolve().parent.parent / "data" / "corpus"

FOLDER = "20240517093010/0/ge_default_1/11/0"
DUMP = FOLDER + "/Mul.net_fc_mul.21.3.1715938212000105"
RECORD = FOLDER + "/Opdebug.Node_OpDebug.1.5.1715938212000100"


def make_tree(root: Path, value: float = 65504.0) -> Path:
    """A tree with one operator whose output holds ``value`` at [3, 5]."""
    from npu_overflow.dump.record import Part
    from npu_overflow.dump.writer import TensorSpec, write_dump, write_record

    folder = root / FOLDER
    folder.mkdir(parents=True)
    clean = np.arange(256, dtype=np.float16).reshape(16, 16)
    output = clean.copy()
    output[3, 5] = value
    write_dump(str(root / DUMP), "net/fc/mul", [TensorSpec(clean)], [TensorSpec(output)])
    write_record(str(root / RECORD), [Part("AI Core", 32, 11, 3, 21)], layout="old")
    return root


def run(*arguments: str, cwd: Optional[Path] = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, as text."""
    return subprocess.run(command(*arguments), cwd=str(cwd) if cwd else None, env=dict(os.environ, **environment), **_TEXT)


def command(*arguments: str) -> Any:
    return [sys.executable, "-m", "npu_overflow", *arguments]


_TEXT: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
