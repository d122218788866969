"""Scripts, and processes that run them with and without ``npu-overflow run``."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = ROOT / "examples"
DOUBLE = ROOT / "tests" / "fake_npu_device"

RUN = [sys.executable, "-m", "npu_overflow", "run"]
PIPES: Dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}


def environment(**changes: str) -> Dict[str, str]:
    found = dict(os.environ, TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1", **changes)
    if "PYTHONPATH" in changes:
        found["PYTHONPATH"] = os.pathsep.join([changes["PYTHONPATH"], *[part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]])
    return found


def run(words: List[Any], stdin: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    """``npu-overflow run`` with these words, in the working folder."""
    return subprocess.run([*RUN, *map(str, words)], input=stdin, env=environment(**changes), timeout=300, **PIPES)


def unnumbered(text: str) -> str:
    """Without the numbers that Keras 3 gives to the layers of the examples when it traces their model again."""
    return re.sub(r"\b(net|hot)_\d+/", r"\1/", text)


def plain(words: List[Any], stdin: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    """``python`` with these words."""
    return subprocess.run([sys.executable, *map(str, words)], input=stdin, env=environment(**changes), timeout=300, **PIPES)
