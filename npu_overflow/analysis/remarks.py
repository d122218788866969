"""What is worth knowing about a report as a whole, and the files that could not be used in full."""
from __future__ import annotations

import os
from collections import Counter
from typing import Any, Dict, List, Mapping, Tuple

from npu_overflow import messages
from npu_overflow.analysis.selection import close_clocks
from npu_overflow.analysis.state import State
from npu_overflow.dump.layout import place_of
from npu_overflow.report.model import Problem, Remark

__all__ = ["gather_problems", "listed_problems", "listed_remarks", "make_remarks"]

Coded = Tuple[str, Mapping[str, Any]]

#: names that the functions which fill sentences use themselves
_TAKEN = ("code", "_code", "language", "self")


def gather_problems(state: State) -> None:
    """Add those of the operators; what was still being written is said once, instead of what was
    wrong with it."""
    state.problems += [problem for opened in state.operators for problem in opened.problems]
    state.growing.records()
    grown = state.growing.paths
    if grown:
        state.problems = [problem for problem in state.problems if problem.path not in grown]
        values = {"count": len(grown), "file": state.relative(min(grown))}
        state.remarks.append(("remark.growing", values))


def make_remarks(state: State) -> None:
    """Add those that take all entries."""
    for kind in (
        _of_records,
        _clocks,
        _maybe_saturation,
        _formats,
        _statistics,
        _unfinished,
        _mode,
    ):
        state.remarks += kind(state)


def listed_problems(state: State) -> Tuple[Problem, ...]:
    """By file, each once, even where several entries share a file."""
    result: Dict[Tuple[str, str, str], Problem] = {}
    for item in sorted(state.problems, key=lambda item: item.path):
        file, reason = state.relative(item.path), messages.say(item.code, "en", **item.values)
        problem = Problem(file, reason, item.code, dict(item.values))
        result.setdefault((file, reason, item.code), problem)
    return tuple(result.values())


def listed_remarks(state: State) -> Tuple[Remark, ...]:
    """Those of the analysis, then those of the manifests, each once."""
    result: Dict[Tuple[str, str, str], Remark] = {}
    remarks = [*state.remarks, *(item for manifest in state.manifests for item in manifest.remarks)]
    for code, given in remarks:
        values = {name: value for name, value in given.items() if name not in _TAKEN}
        remark = Remark(messages.say(code, "en", **values), code, values)
        result.setdefault((remark.text, code, repr(values)), remark)
    return tuple(result.values())


def _of_records(state: State) -> List[Coded]:
    """About single records, one remark for each code: thousands can say the same."""
    files: Dict[str, List[str]] = {}
    for path, code, _ in state.record_remarks:
        files.setdefault(code, []).append(path)
    return [
        ("remark." + code, {"count": len(paths), "file": state.relative(paths[0])})
        for code, paths in files.items()
    ]


def _clocks(state: State) -> List[Coded]:
    # the host collector numbers its files by the order of execution: no clocks are compared there
    devices = close_clocks([opened.found for opened in state.operators if opened.host is None])
    names = ", ".join("?" if device is None else str(device) for device in devices)
    return [("remark.clocks_close", {"devices": names})] if devices else []


def _maybe_saturation(state: State) -> List[Coded]:
    """±MAX and neither Inf nor NaN anywhere in an operator, while INF/NaN mode was only guessed
    from the record."""
    for opened in state.operators:
        manifest = state.facts.of_place(opened.found.entry.place)
        known = state.mode or (manifest is not None and manifest.mode) or opened.host is not None
        if opened.inputs is None or known or state.mode_of(opened) != "inf_nan":
            continue
        both = opened.inputs + (opened.outputs or ())
        numbers = [facts.numbers for facts in both if facts.largest is not None]
        infinite = any(each.nan or each.pos_inf or each.neg_inf for each in numbers)
        if any(each.at_max for each in numbers) and not infinite:
            return [("remark.maybe_saturation", {"name": opened.op_name or "?"})]
    return []


def _formats(state: State) -> List[Coded]:
    """Private formats whose padding could not be told apart, one remark a reason and format."""
    counts = Counter(
        (facts.remark, facts.summary.format)
        for opened in state.operators
        for facts in (*(opened.inputs or ()), *(opened.outputs or ()))
        if facts.remark is not None
    )
    return [
        ("remark.%s" % code, {"format": name, "tensors": count})
        for (code, name), count in counts.items()
    ]


def _statistics(state: State) -> List[Coded]:
    """Statistics files hold extremes, not elements."""
    some = any(opened.statistics for opened in state.operators)
    return [("remark.statistics", {})] if some else []


def _unfinished(state: State) -> List[Coded]:
    """Files that were never renamed into place: their step was not finished, and what is in them is
    not shown."""
    steps = {place_of(os.path.dirname(path)).data_index for path in state.tree.unfinished}
    names = sorted("?" if step is None else str(step) for step in steps)
    return [("remark.unfinished", {"step": name}) for name in names]


def _mode(state: State) -> List[Coded]:
    """The mode that was given is not the one that the manifest says."""
    if state.mode is None or state.report_mode == state.mode:
        return []
    return [("remark.mode_known", {"mode": state.report_mode, "given": state.mode})]
