"""One entry of the report on its way: the part of a record that reports an overflow, and what is
known of its operator."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Optional, Sequence, Tuple

from npu_overflow.analysis.statistics import Facts
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.names import Entry
from npu_overflow.dump.reader import OperatorDump
from npu_overflow.dump.record import Part
from npu_overflow.dump.replay_info import ReplayInfo

__all__ = ["AI_CORES", "Found", "Opened", "first_of"]

AI_CORES = ("AI Core", "AIC", "AIV")


@dataclass(frozen=True)
class Found:
    """One part of a record that reports an overflow.

    Args:
        entry: the record file; of a dump without a record, the dump file.
        part: what the record says; None for a dump without a record.
        layout: "old", "magic", or "" without a record.
    """

    entry: Entry
    part: Optional[Part]
    layout: str = ""

    @property
    def device(self) -> Tuple[Any, ...]:
        """Run and device: what has one clock."""
        return self.entry.place[:2]


@dataclass(eq=False)
class Opened:
    """One entry and what is known of its operator so far.

    Args:
        found: the entry.
        candidates: files that can be its dump, best first.
        looked: its dump was opened, or that was tried.
        dump: the open dump, until its tensors are counted.
        full_name: the operator's name inside the dump.
        statistics: its dump is a statistics file, which holds no elements.
        host: what the host collector wrote, or None.
        inputs, outputs: facts of the tensors; None before they are counted.
        problems: what is wrong with its files.
    """

    found: Found
    candidates: Sequence[Entry] = ()
    looked: bool = False
    dump: Optional[OperatorDump] = None
    full_name: Optional[str] = None
    statistics: bool = False
    host: Optional[ReplayInfo] = None
    inputs: Optional[Tuple[Facts, ...]] = None
    outputs: Optional[Tuple[Facts, ...]] = None
    problems: List[FileProblem] = field(default_factory=list)

    @property
    def op_type(self) -> Optional[str]:
        """From the file name (only there the type stands), or from the host collector."""
        if self.host is not None and self.host.op_type:
            return self.host.op_type
        return self.candidates[0].name.op_type or None if self.candidates else None

    @property
    def op_name(self) -> Optional[str]:
        """The full name where the dump was opened, else as the file name has it."""
        if self.host is not None and self.host.op_name:
            return self.host.op_name
        if self.full_name:
            return self.full_name
        return self.candidates[0].name.op_name or None if self.candidates else None

    @property
    def key(self) -> Optional[Tuple[str, str]]:
        """The operator across steps, from names alone, so that it doesn't matter which were opened;
        None where nothing is known."""
        name = self.candidates[0].name if self.candidates else None
        return (name.op_type, name.op_name) if name is not None else None

    @property
    def dump_file(self) -> Optional[str]:
        """Absolute path of the dump, damaged ones included."""
        return self.candidates[0].path if self.candidates else None

    @property
    def core(self) -> str:
        """Who reports it: a core of the NPU, or "CPU" or "GPU"."""
        if self.host is not None:
            return self.host.core
        return self.found.part.core if self.found.part is not None else ""


def first_of(operators: Sequence[Opened]) -> Optional[int]:
    """Index of the primary finding among entries in order, or None where there is nothing to blame.

    The first entry of an AI Core, else the first of any kind. On a tree of the host collector the
    entry marked as the culprit, else the first that was not absorbed.
    """
    blamed = [
        index
        for index, opened in enumerate(operators)
        if opened.host is None or opened.host.role != "absorbed"
    ]
    return next((i for i in blamed if _is_primary(operators[i])), blamed[0] if blamed else None)


def _is_primary(opened: Opened) -> bool:
    if opened.host is not None:
        return opened.host.role == "culprit"
    return opened.core in AI_CORES
