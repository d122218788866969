"""How long the first finding takes among many small files, as ratios to ``os.walk`` over them.

    python benchmarks/files.py [--files 40000] [--folder FOLDER]

Whole commands are timed, warm, best of five.
"""
from __future__ import annotations

import argparse
import os
import shutil
import tempfile

import timing
import trees

WALK = "import os, sys\nfor folder, folders, names in os.walk(sys.argv[1]):\n    pass\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=40000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", help="where the trees are made (default: the folder for temporary files)")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(dir=arguments.folder)
    try:
        rows = []
        for files, devices in ((arguments.files // 10, 1), (arguments.files, 1), (arguments.files, 8)):
            tree = trees.many(os.path.join(folder, "%d_%d" % (files, devices)), files, devices)
            rows += measure(tree, files, devices, arguments.runs)
    finally:
        shutil.rmtree(folder)
    print(timing.table(rows, ("files", "devices", "what", "seconds", "of os.walk", "peak MB")))


def measure(tree: str, files: int, devices: int, runs: int) -> list:
    """Rows of the table for one tree."""
    ours = [*timing.PYTHON, "-m", "npu_overflow", "analyze"]
    names = ("os.walk", "analyze --limit 1", "analyze (3 operators)", "analyze --json (all operators)")
    commands = [timing.code(WALK, tree), [*ours, "--limit", "1", tree], [*ours, tree], [*ours, "--json", tree]]
    costs = timing.best_of(commands, runs)
    walk = costs[0].seconds
    return [(files, devices, name, "%.3f" % cost.seconds, "%.1f" % (cost.seconds / walk), "%.0f" % cost.megabytes) for name, cost in zip(names, costs)]


if __name__ == "__main__":
    main()
