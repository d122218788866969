"""How long a large dump takes, as ratios to what else reads the same bytes.

    python benchmarks/analyze.py [--mebibytes 64] [--operators 5] [--folder FOLDER]

Whole commands are timed, warm, best of five. Compared: a plain read; ``np.fromfile`` with ``max``, ``min`` and ``mean`` (float32) on the same
files, which says nothing of Inf, NaN, ±MAX or where the first of them stands.
"""
from __future__ import annotations

import argparse
import os
import shutil
import tempfile

import timing
import trees

PLAIN = """
import os, sys
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(folder, name), "rb", buffering=0) as file:
            buffer = bytearray(1 << 20)
            while file.readinto(buffer):
                pass
"""

NUMPY = """
import os, sys
import numpy as np
np.seterr(all="ignore")
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        if not name.startswith("Opdebug"):
            path = os.path.join(folder, name)
            values = np.fromfile(path, np.float16, offset=os.path.getsize(path) % (1 << 20) // 2 * 2)
            values.max(), values.min(), values.mean(dtype=np.float32)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mebibytes", type=int, default=64, help="of each of the three tensors of an operator")
    parser.add_argument("--operators", type=int, default=5)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", help="where the trees are made (default: the folder for temporary files)")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(dir=arguments.folder)
    try:
        rows = []
        for share in (4, 1):
            operators = max(1, arguments.operators // share)
            tree = trees.large(os.path.join(folder, str(share)), operators, arguments.mebibytes)
            rows += measure(tree, operators, 3 * operators * arguments.mebibytes, arguments.runs)
            shutil.rmtree(tree)
    finally:
        shutil.rmtree(folder)
    print(timing.table(rows, ("MiB", "operators", "what", "seconds", "of numpy", "GB/s", "peak MB")))


def measure(tree: str, operators: int, mebibytes: int, runs: int) -> list:
    """Rows of the table for one tree."""
    names = ("plain read", "numpy max, min, mean", "npu-overflow analyze --json")
    commands = [timing.code(PLAIN, tree), timing.code(NUMPY, tree), [*timing.PYTHON, "-m", "npu_overflow", "analyze", "--json", tree]]
    costs = timing.best_of(commands, runs)
    rows = []
    for name, cost in zip(names, costs):
        speed = mebibytes / 953.67 / cost.seconds
        rows.append((mebibytes, operators, name, "%.2f" % cost.seconds, "%.2f" % (cost.seconds / costs[1].seconds), "%.1f" % speed, "%.0f" % cost.megabytes))
    return rows


if __name__ == "__main__":
    main()
