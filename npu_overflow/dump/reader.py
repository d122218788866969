"""Operator dumps: opened without reading their tensors."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Sequence

from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.layout import Entry
from npu_overflow.dump.names import Name
from npu_overflow.dump.tensor import Tensor

__all__ = ["OperatorDump", "Tensor", "merge", "open_dump", "open_operator"]


@dataclass(frozen=True)
class OperatorDump:
    """An operator's dump file.

    Args:
        path: absolute path as given.
        op_name: full operator name; "" where the file lacks it (statistics files do).
        dump_time: microseconds since the epoch, 0 where unknown.
        inputs, outputs: their tensors, in order.
        host: what the host collector knew of the operator, checked to be a dict and nothing more: untrusted. None in dumps of an NPU.
        problem: damage that leaves the whole tensors usable (a cut file …), or None.
        name: what the file name says, or None.
        others: buffers and workspaces.
        merged_from: path of the second file of a collective that was dumped twice, or None.
    """

    path: str
    op_name: str
    dump_time: int = 0
    inputs: List[Tensor] = field(default_factory=list)
    outputs: List[Tensor] = field(default_factory=list)
    host: Optional[Mapping[str, Any]] = None
    problem: Optional[FileProblem] = None
    name: Optional[Name] = None
    others: List[Tensor] = field(default_factory=list)
    merged_from: Optional[str] = None


def open_dump(path: str, name: Optional[Name] = None) -> OperatorDump:
    """Open one dump or statistics (.csv) file; a file still growing gives the tensors that are whole.

    Args:
        path: the file.
        name: what its name says (``Entry.name``); None works it out, hashed names included.

    Raises:
        DumpFormatError: nothing of it can be used.
    """
    raise NotImplementedError


def open_operator(candidates: Sequence[Entry]) -> OperatorDump:
    """Open the first of ``Tree.dumps_of``; a collective's inputs and outputs lie in two files: they are merged.

    Raises:
        DumpFormatError: the first file can't be used; IndexError: no candidate.
    """
    raise NotImplementedError


def merge(with_inputs: OperatorDump, with_outputs: OperatorDump) -> OperatorDump:
    """One operator of two files: inputs of the first, outputs of the second; the first problem of both."""
    raise NotImplementedError
