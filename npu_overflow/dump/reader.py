"""Operator dumps: opened without reading their tensors."""
from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, List, Mapping, Optional, Sequence

from npu_overflow.dump import headers, stats_csv
from npu_overflow.dump.envelope import open_envelope, untrusted_json
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.names import Entry, Name
from npu_overflow.dump.scan import name_of
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError

__all__ = ["OperatorDump", "Tensor", "merge", "open_dump", "open_operator"]


#: the name of an operator in a graph has some hundred
_MOST_NAME_BYTES = 16 << 10


@dataclass(frozen=True)
class OperatorDump:
    """An operator's dump file.

    Args:
        path: absolute path as given.
        op_name: full operator name; "" where the file lacks it (statistics files do).
        dump_time: microseconds since the epoch, 0 where unknown.
        inputs, outputs: their tensors, in order.
        host: what the host collector knew of the operator, checked to be a dict and nothing more:
            untrusted. None in dumps of an NPU.
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
    """Open one dump or statistics (.csv) file; a file still growing gives the tensors that are
    whole.

    Args:
        path: the file.
        name: what its name says (``Entry.name``); None works it out, hashed names included.

    Raises:
        DumpFormatError: nothing of it can be used.
    """
    path = os.path.abspath(path)
    name = name_of(path) if name is None else name
    if (name is not None and name.kind == "statistics") or path.lower().endswith(".csv"):
        sides, trouble = stats_csv.read_statistics(path)
        return OperatorDump(
            path,
            "",
            name.timestamp if name else 0,
            sides["input"],
            sides["output"],
            problem=FileProblem(path, *trouble) if trouble else None,
            name=name,
        )
    envelope = open_envelope(path)
    message = envelope.message
    host = untrusted_json(message.host) if message.host else None
    sides, trouble = headers.tensors_of(envelope, None if name is None else name.thread_id, host)
    if trouble is None:
        trouble = _odd(message, host)
    return OperatorDump(
        path,
        message.op_name[:_MOST_NAME_BYTES].decode("utf-8", "replace"),
        message.dump_time,
        sides["input"],
        sides["output"],
        host,
        None if trouble is None else FileProblem(path, *trouble),
        name,
        sides["buffer"] + sides["space"],
    )


def _odd(message: Any, host: Optional[Mapping[str, Any]]) -> headers.Trouble:
    """What is wrong with a header whose tensors are all right."""
    if message.host and host is None:
        return "dump.host", {"bytes": len(message.host)}
    if len(message.op_name) > _MOST_NAME_BYTES:
        return "dump.name_long", {"bytes": len(message.op_name), "most": _MOST_NAME_BYTES}
    return None


def open_operator(candidates: Sequence[Entry]) -> OperatorDump:
    """Open the first of ``Tree.dumps_of``; a collective's inputs and outputs lie in two files: they
    are merged.

    Raises:
        DumpFormatError: the first file can't be used.
        IndexError: no candidate.
    """
    first = open_dump(candidates[0].path, candidates[0].name)
    if (first.inputs and first.outputs) or first.problem is not None:
        return first
    for entry in candidates[1:]:
        if (entry.name.kind, entry.name.op_type, entry.name.op_name) != (
            candidates[0].name.kind,
            candidates[0].name.op_type,
            candidates[0].name.op_name,
        ):
            continue
        try:
            second = open_dump(entry.path, entry.name)
        except DumpFormatError:
            continue
        if (
            second.op_name == first.op_name
            and second.outputs
            and not (first.outputs or second.inputs)
        ):
            return merge(first, second)
        if (
            second.op_name == first.op_name
            and second.inputs
            and not (first.inputs or second.outputs)
        ):
            return merge(second, first)
    return first


def merge(with_inputs: OperatorDump, with_outputs: OperatorDump) -> OperatorDump:
    """One operator of two files: inputs of the first, outputs of the second; the first problem of
    both."""
    return replace(
        with_inputs,
        outputs=with_outputs.outputs,
        others=with_inputs.others + with_outputs.others,
        host=with_inputs.host or with_outputs.host,
        problem=with_inputs.problem or with_outputs.problem,
        merged_from=with_outputs.path,
    )
