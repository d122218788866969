"""From a dump tree to a report: which operator overflowed first, why, and what to do."""
from __future__ import annotations

import os
from functools import partial
from typing import Callable, Optional, Union

from npu_overflow.analysis import (
    chain,
    headroom,
    opening,
    operators,
    remarks,
    runfacts,
    selection,
)
from npu_overflow.analysis.progress import Progress
from npu_overflow.analysis.state import State
from npu_overflow.analysis.workers import Workers
from npu_overflow.dump.layout import Tree
from npu_overflow.dump.scan import find
from npu_overflow.errors import PathError, UsageError
from npu_overflow.report.model import Report
from npu_overflow.training.manifest import read_manifests
from npu_overflow.version import __version__

__all__ = ["MODES", "analyze"]

MODES = ("saturation", "inf_nan")

#: each finds something out and adds it to the state
PASSES = (
    selection.select_run,
    selection.read_records,
    selection.match_dumps,
    opening.open_operators,
    chain.judge,
    chain.find_producers,
    operators.describe,
    operators.recompute_first,
    headroom.measure,
    remarks.gather_problems,
    remarks.make_remarks,
)


def analyze(
    path: str = "precision_data/overflow/dump",
    *,
    run: Optional[str] = None,
    limit: Optional[int] = None,
    mode: Optional[str] = None,
    progress: Union[bool, Progress] = False,
    every_record: bool = False,
    processes: int = 1,
    fetch: Optional[Callable[[str], None]] = None,
) -> Report:
    """Find the operators that overflowed, the first of them, and why.

    Args:
        path: a dump tree's root, any folder in it, or one file of it.
        run: name of a time folder, or "all"; None takes the newest run.
        limit: operators that are opened, the first finding and those after it before others; None
            opens all. Of thousands of records only those are read that this takes; ``records``
            counts all, and a remark says so.
        mode: "saturation" or "inf_nan", where neither a manifest says it nor the records are right.
        progress: say on standard error how far it is; an interrupt (Ctrl-C) then ends it with what
            was found so far. A ``Progress`` says it elsewhere or in another language.
        every_record: read all records even where ``limit`` takes few, to know in how many steps an
            operator overflowed.
        processes: that may count large tensors at once. More than 1 forks this process, where that
            is safe: on Linux, without threads or TensorFlow.
        fetch: called with the path of a dump before it is opened, to bring it there; raises
            DumpFormatError where it can't.

    Returns:
        the report. Damaged files are its ``problems``, never an exception.

    Raises:
        UsageError: a mode or limit that is not accepted.
        PathError: nothing to analyze there, or no such run.
    """
    if mode is not None and mode not in MODES:
        accepted = ", ".join(map(repr, MODES))
        raise UsageError("option.choice", name="mode", value=repr(mode), accepted=accepted)
    whole = isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0
    if limit is not None and not whole:
        raise UsageError("option.whole", name="limit", value=repr(limit), least=0)
    path = os.fspath(path)
    interruptible = progress is not False
    progress = progress if isinstance(progress, Progress) else Progress(progress)
    tree = _find(path, progress if interruptible else None)
    state = State(
        path=path,
        run=run,
        limit=limit,
        mode=mode,
        every_record=every_record,
        fetch=fetch,
        interruptible=interruptible,
        progress=progress,
        workers=Workers(processes),
        tree=tree,
        facts=runfacts.read_run_facts(tree),
    )
    for step in PASSES:
        step(state)
    return _report(state)


def _find(path: str, progress: Optional[Progress]) -> Tree:
    """The tree; a folder that holds nothing but manifests is an empty one (a collection that found
    nothing)."""
    step = partial(progress.step, "progress.listing") if progress is not None else None
    try:
        return find(path, step)
    except PathError:
        if os.path.isdir(path) and read_manifests(path):
            return Tree(os.path.abspath(path))
        raise


def _report(state: State) -> Report:
    manifests = state.manifests
    host_core = next((found.host.core for found in state.operators if found.host is not None), None)
    reason = next((manifest.reason for manifest in manifests if manifest.reason), None)
    return Report(
        path=state.path,
        version=__version__,
        run=state.tree.run,
        mode=state.report_mode,
        records=state.tree.record_count,
        rank=manifests[0].rank if len(manifests) == 1 else None,
        world_size=manifests[0].world_size if manifests else None,
        host=runfacts.host_of(manifests, host_core),
        first_index=state.first,
        operators=tuple(state.described),
        problems=remarks.listed_problems(state),
        remarks=remarks.listed_remarks(state),
        loss_scale=runfacts.loss_scale_of(manifests),
        headroom=state.headroom,
        reason=reason if state.first is None else None,
    )
