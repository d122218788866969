"""Adds up the tests of all stages: ``python count.py FAILED_STAGES FOLDER``.

FOLDER has pytest's XML results. Prints the counts of each stage and the slowest tests of all; the
last line is the sum.
"""
from __future__ import annotations

import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Dict, List, Tuple

SLOWEST = 10


def counts(root: xml.etree.ElementTree.Element) -> Dict[str, int]:
    """Tests of one stage, by outcome."""
    suites = list(root.iter("testsuite"))
    kinds = ("tests", "failures", "errors", "skipped")
    numbers = {kind: sum(int(suite.get(kind, 0)) for suite in suites) for kind in kinds}
    failed = numbers["failures"] + numbers["errors"]
    passed = numbers["tests"] - failed - numbers["skipped"]
    return {"passed": passed, "failed": failed, "skipped": numbers["skipped"]}


def durations(root: xml.etree.ElementTree.Element) -> List[Tuple[float, str]]:
    """Seconds and name of each test of one stage."""
    return [
        (float(case.get("time", 0)), "%s::%s" % (case.get("classname"), case.get("name")))
        for case in root.iter("testcase")
    ]


def main(failed_stages: int, folder: Path) -> None:
    total = {"passed": 0, "failed": 0, "skipped": 0}
    slow: List[Tuple[float, str, str]] = []
    for path in sorted(folder.glob("*.xml")):
        root = xml.etree.ElementTree.parse(str(path)).getroot()
        found = counts(root)
        line = "%-16s %5d passed, %d failed, %d skipped"
        print(line % (path.stem, found["passed"], found["failed"], found["skipped"]))
        total = {name: total[name] + found[name] for name in total}
        slow += [(seconds, path.stem, name) for seconds, name in durations(root)]
    if slow:
        print("slowest tests:")
    for seconds, stage, name in sorted(slow, reverse=True)[:SLOWEST]:
        print("%6.1f s  %-16s %s" % (seconds, stage, name))
    if failed_stages and not total["failed"]:
        # a stage without tests, or one that ended before its tests
        total["failed"] = failed_stages
    print("%d passed, %d failed, %d skipped" % (total["passed"], total["failed"], total["skipped"]))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
