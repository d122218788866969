"""What is asked of an analysis, and what its passes have found so far."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from npu_overflow.analysis.entries import Found, Opened
from npu_overflow.analysis.growing import Growing
from npu_overflow.analysis.progress import Progress
from npu_overflow.analysis.runfacts import RunFacts
from npu_overflow.analysis.workers import Workers
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.layout import Tree
from npu_overflow.report.model import Headroom, Operator
from npu_overflow.training.manifest import Manifest

__all__ = ["State"]


@dataclass
class State:
    """One analysis on its way from the tree to the report.

    Args:
        path, run, limit, mode, every_record, fetch: as ``analyze`` takes them; an interrupt lowers
            ``limit``.
        interruptible: an interrupt (Ctrl-C) ends it with what was found so far.
        tree: the files; of the run that was asked for, once that is selected.
        facts: of the manifests of all runs; ``manifests`` are those of the selected one.
        found: what the records report, in order.
        record_remarks: (path, code, values) of remarks about single records.
        operators: behind the entries of the report, in order.
        first: index of the first finding.
        verdicts: one an operator.
        made_by: index of an inherited operator -> index of the one that made its input.
        described: the operators as the report has them.
        headroom: how near layers come to float16's limits.
        remarks: (code, values).
    """

    path: str
    run: Optional[str]
    limit: Optional[int]
    mode: Optional[str]
    every_record: bool
    fetch: Optional[Callable[[str], None]]
    interruptible: bool
    progress: Progress
    workers: Workers
    tree: Tree
    facts: RunFacts
    manifests: List[Manifest] = field(default_factory=list)
    growing: Growing = field(default_factory=Growing)
    found: List[Found] = field(default_factory=list)
    record_remarks: List[Tuple[str, str, Mapping[str, Any]]] = field(default_factory=list)
    operators: List[Opened] = field(default_factory=list)
    first: Optional[int] = None
    verdicts: List[str] = field(default_factory=list)
    made_by: Dict[int, int] = field(default_factory=dict)
    described: List[Operator] = field(default_factory=list)
    headroom: Optional[Headroom] = None
    remarks: List[Tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    problems: List[FileProblem] = field(default_factory=list)

    @property
    def is_of_host(self) -> bool:
        """Whether a CPU or GPU was collected."""
        told = any(manifest.collector == "host" for manifest in self.manifests)
        return told or any(opened.host is not None for opened in self.operators)

    @property
    def report_mode(self) -> Optional[str]:
        """Overflow mode of the first finding, else of the run."""
        if self.operators:
            return self.mode_of(self.operators[self.first or 0])
        return next((manifest.mode for manifest in self.manifests if manifest.mode), self.mode)

    def mode_of(self, opened: Opened) -> Optional[str]:
        """Overflow mode of one entry: the manifest's, the user's, else as the record tells."""
        return self.facts.mode_of(opened, self.mode)

    def relative(self, path: str) -> str:
        """As the report names files: relative to the tree, with "/"."""
        root = self.tree.root.rstrip(os.sep) + os.sep
        inside = path.startswith(root)
        return (path[len(root) :] if inside else os.path.relpath(path, root)).replace(os.sep, "/")

    def interrupted(self, code: str, **values: Any) -> None:
        """The user waits no longer (called where KeyboardInterrupt is caught): of what is known
        only the first finding is opened. A program that did not ask for it gets its interrupt."""
        if not self.interruptible:
            raise  # the interrupt that is being handled
        self.remarks.append((code, values))
        self.limit = 1 if self.limit is None else min(1, self.limit)
