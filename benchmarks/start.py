"""What the package costs before it does anything, over Python's own start.

    python benchmarks/start.py

Whole commands are timed, warm, best of fifteen; the ratio is to ``import numpy``.
"""
from __future__ import annotations

import timing


def main() -> None:
    names = ("python", "import numpy", "import npu_overflow", "npu-overflow --help", "npu-overflow analyze --help")
    ours = [*timing.PYTHON, "-m", "npu_overflow"]
    commands = [timing.code("pass"), timing.code("import numpy"), timing.code("import npu_overflow"), [*ours, "--help"], [*ours, "analyze", "--help"]]
    costs = timing.best_of(commands, 15)
    start, numpy = costs[0].seconds, costs[1].seconds
    rows = []
    for name, cost in zip(names, costs):
        over = 1e3 * (cost.seconds - start)
        rows.append((name, "%.0f" % (1e3 * cost.seconds), "%.0f" % over, "%.2f" % (over / (1e3 * (numpy - start))), "%.0f" % cost.megabytes))
    print(timing.table(rows, ("what", "ms", "ms over python", "of import numpy", "peak MB")))


if __name__ == "__main__":
    main()
