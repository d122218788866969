"""``python -m tests.faults``: every case, this package and ``tf.debugging.enable_check_numerics`` side by side.

Exit status 1 if the package is not right in every case. ``check_numerics`` ends a training, so it runs in a process of its own, with one thread, so that the
first check that fails is the first operator; it is right where it names the operator to blame, or ends no healthy run.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from . import kit

FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def chosen(words: List[str], cases: List[kit.Case]) -> List[kit.Case]:
    """Cases of this TensorFlow whose name or module holds one of the words."""
    return [case for case in cases if case.runs_here() and (not words or any(word in case.name or word == case.module for word in words))]


def numerics_right(case: kit.Case, truth: Optional[kit.Truth], found: Tuple[Optional[str], Optional[str]]) -> bool:
    """Whether what check_numerics blames is the truth; of a literal, naming the literal itself will do."""
    if truth is None:
        return found[0] is None
    if truth.origin == "constant" and found[0] == "Const":
        return True
    return found[0] == truth.op_type and kit.same_name(truth.op_name, found[1])


def child(names: List[str]) -> None:
    """In a process of its own: one line of JSON for each case that check_numerics was tried on."""
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(1)
    kit.load()
    for name in names:
        case = kit.CASES[name]
        try:
            truth, found = kit.numerics(case)
            right = numerics_right(case, truth, found)
            answer: Dict[str, Any] = {"name": name, "found": list(found), "right": right, "origin": truth.origin if truth else None}
        except Exception as error:
            answer = {"name": name, "found": ["error", "%s: %s" % (type(error).__name__, str(error)[:120])], "right": False}
        sys.stdout.write("\n@" + json.dumps(answer) + "\n")
        sys.stdout.flush()


def check_numerics(names: List[str]) -> Dict[str, Dict[str, Any]]:
    """What check_numerics says, by case; a process that dies loses only the case it died in."""
    answers: Dict[str, Dict[str, Any]] = {}
    waiting = list(names)
    while waiting:
        command = [sys.executable, "-m", "tests.faults", "--child", *waiting]
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=FOLDER, check=False)
        for line in ran.stdout.decode(errors="replace").splitlines():
            if line.startswith("@"):
                answer = json.loads(line[1:])
                answers[answer["name"]] = answer
        left = [name for name in waiting if name not in answers]
        if left:
            answers[left[0]] = {"name": left[0], "found": ["died", "exit status %d" % ran.returncode], "right": False}
        waiting = left[1:]
    return answers


def main() -> int:
    """Run what was asked for and print the table."""
    about = "Planted faults and healthy runs: this package and check_numerics side by side."
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=about)
    parser.add_argument("words", nargs="*", help="only cases whose name holds one of these, or of this module (forward, healthy, …)")
    parser.add_argument("--ours", action="store_true", help="this package only")
    parser.add_argument("--plain", action="store_true", help="neither renamed nor cured nor forced runs")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.words)
        return 0
    import tensorflow as tf

    cases = chosen(given.words, kit.load())
    theirs = {} if given.ours else check_numerics([case.name for case in cases])
    sys.stdout.write("TensorFlow %s, %d faults, %d healthy runs\n\n" % (tf.__version__, *(sum(c.kind == kind for c in cases) for kind in ("fault", "healthy"))))
    sys.stdout.write("%-9s %-40s %-22s %s\n" % ("", "case", "npu_overflow", "check_numerics"))
    right = {"fault": [0, 0], "healthy": [0, 0]}
    complaints: List[str] = []
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            variants = case.variants()[:1] if given.plain else case.variants()
            wrong = {}
            for variant in variants:
                try:
                    found = kit.run(case, variant, os.path.join(folder, case.name, variant))
                except Exception as error:
                    found = ["%s: %s" % (type(error).__name__, str(error)[:300])]
                if found:
                    wrong[variant] = found
                    complaints += ["%s, %s: %s" % (case.name, variant, text) for text in found]
            their = theirs.get(case.name)
            right[case.kind][0] += not wrong
            right[case.kind][1] += bool(their and their["right"])
            said = "" if their is None else "right" if their["right"] else "WRONG: %s" % " ".join(str(part) for part in their["found"] if part is not None)
            sys.stdout.write("%-9s %-40s %-22s %s\n" % (case.kind, case.name, "WRONG: " + ", ".join(wrong) if wrong else "right", said))
            sys.stdout.flush()
    for text in complaints:
        sys.stdout.write("\n%s\n" % text)
    sys.stdout.write("\n%-9s %8s %14s %16s\n" % ("", "cases", "npu_overflow", "check_numerics"))
    for kind in ("fault", "healthy"):
        count = sum(case.kind == kind for case in cases)
        sys.stdout.write("%-9s %8d %14d %16s\n" % (kind, count, right[kind][0], "-" if given.ours else right[kind][1]))
    manner = "each as it is" if given.plain else "each in every variant"
    total = right["fault"][0] + right["healthy"][0]
    sys.stdout.write("\nright: %d of %d (%s), in %d s\n" % (total, len(cases), manner, time.time() - began))
    return 0 if total == len(cases) and cases else 1


if __name__ == "__main__":
    sys.exit(main())
