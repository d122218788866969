"""``python -m tests.faults.cures``: is the advice that was tried on the record true of the training?

Each planted fault that is a graph test is trained again with the layers really in float32 that the
report says to help, and must not overflow any more; with those that it says not to help, and must
overflow still. Exit status 1 if any trial was wrong.
"""
from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections import Counter
from typing import Any, Iterator, List, Sequence, Tuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from . import graph, kit

__all__ = ["wrong_trials"]

@contextlib.contextmanager
def in_float32(names: Sequence[str]) -> Iterator[List[str]]:
    """Layers of these names are made with ``dtype="float32"``; yields those that were."""
    import tensorflow as tf

    base, made = tf.keras.layers.Layer, []
    init = base.__init__

    def changed(layer: Any, *args: Any, **details: Any) -> None:
        name = str(details.get("name"))
        cell = "hot" in names and type(layer).__name__.endswith("Cell")  # an RNN makes it itself
        if name in names or cell:
            details["dtype"] = "float32"
            made.append(name)
        init(layer, *args, **details)

    base.__init__ = changed
    try:
        yield made
    finally:
        base.__init__ = init


def overflows(case: kit.Case, dump_path: str, names: Sequence[str] = ()) -> Any:
    """The finding in the faulty step of a case, or None; with layers in float32.

    Raises:
        LookupError: the case makes no such layer by name.
    """
    with kit.under_policy(case.policy), in_float32(names) as made:
        built = kit.build(case, "plain")
        first, last = graph.steps_of(case, built.truth)
        call = built.training.stepwise()
        if not set(names) <= set(made):
            raise LookupError(names)
        with kit.listening():
            report, _ = graph.look(call, range(first, last + 1), True, case, dump_path)
    return report.first if report is not None else None


def wrong_trials(case: kit.Case, dump_path: str) -> Tuple[List[str], Counter, Any]:
    """What trials of a case said that is not so, how many said what, and the finding."""
    wrong: List[str] = []
    count: Counter = Counter()
    found = overflows(case, os.path.join(dump_path, "plain"))
    trials = [trial for trial in found.trials if trial.change == "float32"] if found else []
    count["faults"] = 1
    count["cured"] = any(trial.finite for trial in found.trials) if found else 0
    count["cured by float32"] = any(trial.finite for trial in trials)
    for i, trial in enumerate(trials):
        names = [layer.rpartition("/")[2] for layer in trial.layers]
        try:
            left = overflows(case, os.path.join(dump_path, str(i)), names)
        except Exception:  # the case's layers take no other type, or lie outside of layers
            count["not applied"] += 1
            continue
        count["applied"] += 1
        if trial.finite != (left is None):
            said = "finite" if trial.finite else "overflows in %s" % trial.next
            really = "finite" if left is None else "%s %s" % (left.op_type, left.op_name)
            wrong.append("float32 in %s: said %s, is %s" % (", ".join(names), said, really))
    return wrong, count, found


def main() -> int:
    """Print the table for all cases, or those whose name holds one of the words."""
    import tensorflow as tf

    words, total, complaints = sys.argv[1:], Counter(), []
    began = time.time()
    for case in kit.load():
        asked = not words or any(word in case.name for word in words)
        if case.kind != "fault" or not case.is_graph_test or not case.runs_here() or not asked:
            continue
        with tempfile.TemporaryDirectory() as folder:
            wrong, count, _ = wrong_trials(case, folder)
        total.update(count)
        complaints += ["%s: %s" % (case.name, text) for text in wrong]
    sys.stdout.write("TensorFlow %s, %d s\n" % (tf.__version__, time.time() - began))
    for key in ("faults", "cured", "cured by float32", "applied", "not applied"):
        sys.stdout.write("%-18s %4d\n" % (key, total[key]))
    sys.stdout.write("%-18s %4d\n" % ("wrong", len(complaints)))
    for text in complaints:
        sys.stdout.write("  %s\n" % text)
    return 1 if complaints or not total["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
