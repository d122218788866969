"""Adds up the tests of all stages: ``python count.py FAILED_STAGES FOLDER`` with pytest's XML results in FOLDER. The last line is the sum.

``NAME.again.xml`` holds what failed in ``NAME.xml`` and was run once more: what passes then counts as passed, and is named.
"""
from __future__ import annotations

import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Dict, List

AGAIN = ".again"


def named(path: Path, outcome: str) -> List[str]:
    """Names of the tests of one result file with an outcome: ``passed``, or the ``failure``, ``error`` or ``skipped`` of the XML."""
    found = []
    for case in xml.etree.ElementTree.parse(str(path)).getroot().iter("testcase"):
        happened = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
        if outcome == happened:
            found.append("%s::%s" % (case.get("classname"), case.get("name")))
    return found


def counts(path: Path) -> Dict[str, int]:
    """Tests of one stage, by outcome."""
    suites = list(xml.etree.ElementTree.parse(str(path)).getroot().iter("testsuite"))
    numbers = {name: sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")}
    failed = numbers["failures"] + numbers["errors"]
    return {"passed": numbers["tests"] - failed - numbers["skipped"], "failed": failed, "skipped": numbers["skipped"]}


def main(failed_stages: int, folder: Path) -> None:
    total = {"passed": 0, "failed": 0, "skipped": 0}
    for path in sorted(folder.glob("*.xml")):
        if path.stem.endswith(AGAIN):
            continue
        found = counts(path)
        again = path.with_name(path.stem + AGAIN + ".xml")
        unsteady = named(again, "passed") if again.exists() else []
        found["passed"] += len(unsteady)
        found["failed"] -= len(unsteady)
        print("%-16s %5d passed, %d failed, %d skipped" % (path.stem, found["passed"], found["failed"], found["skipped"]))
        for name in unsteady:
            print("  unsteady: failed, then passed when run once more: %s" % name)
        total = {name: total[name] + found[name] for name in total}
    if failed_stages and not total["failed"]:
        total["failed"] = failed_stages  # a stage without tests, or one that ended before its tests
    print("%d passed, %d failed, %d skipped" % (total["passed"], total["failed"], total["skipped"]))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
