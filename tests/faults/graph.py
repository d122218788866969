"""Planted faults as graph tests: a few compiled steps, the last of them recorded and run again.

Without ``fit``, watch or saved report. The steps are those in which a watched training would find the
fault: two before it, those that lower the loss scale, and the one that is looked at. Blame, names and
advice come from the record alone, and are judged like those of a whole training.
"""
from __future__ import annotations

import dataclasses
import sys
from typing import Any, List, Optional, Tuple

from . import kit

__all__ = ["look", "run", "steps_of"]


def run(case: kit.Case, variant: str, dump_path: str) -> List[str]:
    """Run a case in one variant and judge what its record says; returns what is wrong."""
    with kit.under_policy(case.policy), kit.Graphs() as graphs:
        built = kit.build(case, variant)
        training, faulty = built.training, variant != "cured"
        wrong = kit.prove(built) if faulty else []
        first, last = steps_of(case, built.truth)
        with kit.listening() as (said, printed):
            steps = range(first, last + 1)
            report, drops = look(training.stepwise(), steps, faulty, case, dump_path)
        reports = [report] if report is not None else []
        state = "reported" if reports else "watching"
        outcome = kit.Outcome(reports, drops, state, said.getvalue(), printed.getvalue())
        if not faulty:
            fell = ["the loss scale fell: %s" % drops] if drops else []
            return kit.judge_healthy(outcome, asked=True) + fell
        wrong += kit.judge(built.truth, outcome, graphs)
        return wrong + (built.check(outcome) if built.check is not None else [])


def steps_of(case: kit.Case, truth: kit.Truth) -> Tuple[int, int]:
    """The first and the last step to run: two are healthy, then the scale is lowered, the last is
    looked at."""
    wanted = case.options.get("at_steps")
    last = wanted[0] if wanted else truth.start + (kit.OPTIONS["patience"] if truth.falls else 0)
    return max(truth.start - 2, 0), last


def look(
    stepwise: kit.Stepwise, steps: range, faulty: bool, case: kit.Case, dump_path: str
) -> Tuple[Optional[Any], List[Tuple[int, float, float]]]:
    """Run the steps, the last one under the collector.

    Returns:
        its report, or None where nothing was written; the falls of the loss scale before it.
    """
    from npu_overflow import analyze
    from npu_overflow.collect.base import Training
    from npu_overflow.collect.replay.collector import ReplayCollector
    from npu_overflow.training.loss_scale import reader_for
    from npu_overflow.training.options import WatchOptions
    from npu_overflow.training.tracked import TrackedOptimizer

    call, model, optimizer = stepwise
    reader, drops = reader_for(optimizer), []
    for step in steps[:-1]:
        then = reader.read()
        call(step)
        now = reader.read()
        if then is not None and now is not None and now.scale < then.scale:
            drops.append((step, then.scale, now.scale))
    options = WatchOptions(**dict(kit.OPTIONS, dump_path=dump_path))
    tracked = [TrackedOptimizer.begun(reader, options, steps[-1])]
    forced = not faulty or "at_steps" in case.options
    training = Training(options, dump_path, model, tracked, forced=forced, fail=_raise)
    collector = ReplayCollector()
    collector._survey = lambda step, taken: None  # type: ignore[method-assign] # has its own tests
    collector.prepare(training)
    collector.start(steps[-1])
    try:
        if model is not None:
            collector.arm_fit(model, steps[-1])
        call(steps[-1])
        if model is None:
            collector.step_ended(steps[-1])
        for code, values in collector.remarks:
            sys.stderr.write("%s: %s\n" % (code, values))
        report = analyze(collector.tree) if collector.tree else None
        return report and dataclasses.replace(report, reason=collector.reason), drops
    finally:
        collector.close()


def _raise() -> None:
    raise
