"""How long merging the reports of many ranks takes, and the memory, as ratios to a plain ``json.load`` of the same files.

    python benchmarks/merge.py [--ranks 10000] [--operators 8] [--folder FOLDER]

Whole commands are timed, warm, best of three. The plain reader holds one file at a time, and once more all of them.
"""
from __future__ import annotations

import argparse
import dataclasses
import os
import shutil
import sys
import tempfile

import timing

sys.path.insert(0, timing.ROOT)

from npu_overflow.report.model import Operator, Report, TensorSummary

LOAD = """
import glob, json, sys
for path in sorted(glob.glob(sys.argv[1] + "/*/report-*.json")):
    with open(path, encoding="utf-8") as file:
        json.load(file)
"""
HOLD = """
import glob, json, sys
held = [json.load(open(path, encoding="utf-8")) for path in sorted(glob.glob(sys.argv[1] + "/*/report-*.json"))]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=10000)
    parser.add_argument("--operators", type=int, default=8)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", help="where the reports are made (default: the folder for temporary files)")
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(dir=arguments.folder)
    try:
        rows = []
        for ranks in (arguments.ranks // 10, arguments.ranks):
            root = os.path.join(folder, str(ranks))
            size = make(root, ranks, arguments.operators)
            rows += measure(root, ranks, size, arguments.runs)
    finally:
        shutil.rmtree(folder)
    print(timing.table(rows, ("ranks", "MB", "what", "seconds", "of json.load", "peak MB", "of json.load")))


def make(root: str, ranks: int, operators: int) -> int:
    """One report a rank, in a folder of its own; returns their bytes."""
    histogram = {"low": -8, "counts": [5] * 24}
    tensor = TensorSummary(0, "float16", "NC1HWC0", (8, 4, 56, 56, 16), (8, 64, 56, 56), -3.5, 65504.0, 0.25, saturated=3, histogram=histogram)
    tensors = tuple(dataclasses.replace(tensor, index=index) for index in range(3))
    size = 0
    for rank in range(ranks):
        begin = 1777889472000000 + rank * 7919 % ranks * 100
        found = tuple(operator(place, begin + place, rank, tensors) for place in range(operators))
        report = Report(path="/job/rank_%d" % rank, version="0", rank=rank, world_size=ranks, records=operators, first_index=0, operators=found)
        folder = os.path.join(root, "rank_%d" % rank)
        os.makedirs(folder)
        with open(os.path.join(folder, "report-%d.json" % rank), "w", encoding="utf-8") as file:
            size += file.write(report.to_json())
    return size


def operator(place: int, time: int, rank: int, tensors: tuple) -> Operator:
    """One that overflowed: the first of its rank, or one that inherited it."""
    return Operator(
        op_type="MatMul",
        op_name="model/layer_%d/MatMul" % place,
        core="AI Core",
        status=32,
        status_bits=("0x20",),
        device=rank % 8,
        timestamp=time,
        task_id=place,
        stream_id=3,
        verdict="inherited" if place else "computed_here",
        advice=("keep_float32",),
        inputs=tensors[:2],
        outputs=tensors[2:],
        record_file="0/record.%d" % place,
        dump_file="0/dump.%d" % place,
    )


def measure(root: str, ranks: int, size: int, runs: int) -> list:
    """Rows of the table for one job."""
    ours = [*timing.PYTHON, "-m", "npu_overflow", "merge"]
    names = ("json.load, one after the other", "json.load, all held", "merge (terminal)", "merge --json")
    costs = timing.best_of([timing.code(LOAD, root), timing.code(HOLD, root), [*ours, root], [*ours, "--json", root]], runs)
    rows = []
    for name, cost in zip(names, costs):
        times, memory = cost.seconds / costs[0].seconds, cost.megabytes / costs[0].megabytes
        rows.append((ranks, "%.0f" % (size / 1e6), name, "%.2f" % cost.seconds, "%.1f" % times, "%.0f" % cost.megabytes, "%.1f" % memory))
    return rows


if __name__ == "__main__":
    main()
