"""Names of dump files: parsed and made (``{op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}`` and its older and newer forms)."""
from __future__ import annotations

from dataclasses import dataclass
from typing import List, Optional

__all__ = ["Name", "clean", "dump_name", "parse_name", "record_name"]

_RECORD = ("opdebug", "node_opdebug")
_LONGEST_NUMBER = 20


@dataclass(frozen=True)
class Name:
    """What a file name says; None where it doesn't.

    Args:
        kind: "record" (an overflow record), "dump" (an operator's tensors) or "statistics" (an operator's .csv).
        op_type: operator type; for a record what stands there instead ("Opdebug").
        op_name: operator name with ``.``, ``/``, ``\\`` and blanks replaced by ``_``; the full one stands inside the file.
        task_id, stream_id: of the operator; in the name of a record they are not the operator's.
        timestamp: microseconds since the epoch.
        task_type, context_id, thread_id, device_id: FFTS+ tasks only.
    """

    kind: str
    op_type: str
    op_name: str
    task_id: int
    stream_id: Optional[int]
    timestamp: int
    task_type: Optional[int] = None
    context_id: Optional[int] = None
    thread_id: Optional[int] = None
    device_id: Optional[int] = None


def parse_name(file_name: str) -> Optional[Name]:
    """The parts of a file name without its folder, or None where it is no name of a dump file (a hashed one neither)."""
    statistics = file_name[-4:].lower() == ".csv"
    parts = (file_name[:-4] if statistics else file_name).split(".")
    numbers = _tail(parts)
    if numbers == 0:
        return None
    op_type, op_name = parts[0], parts[1]
    values: List[int] = [int(part) for part in parts[-numbers:]]
    kind = "statistics" if statistics else "dump"
    if not statistics and op_type.lower() == _RECORD[0] and op_name.lower() == _RECORD[1]:
        kind = "record"
    if numbers == 2:
        return Name(kind, op_type, op_name, values[0], None, values[1])
    return Name(kind, op_type, op_name, values[0], values[1], values[2], *values[3:])


def _tail(parts: List[str]) -> int:
    """How many numbers end a name: 2 (old files), 3, 7 (FFTS+), or 0 where it is no dump's name."""
    numbers = len(parts) - 2
    if numbers not in (2, 3, 7) or not parts[0] or not parts[1]:
        return 0
    for part in parts[2:]:
        if not (part.isdigit() and part.isascii() and len(part) <= _LONGEST_NUMBER):
            return 0
    return numbers


def clean(name: str) -> str:
    """``name`` as it stands in a file name: ``.``, ``/``, ``\\`` and blanks become ``_``."""
    for character in "./\\ ":
        name = name.replace(character, "_")
    return name


def record_name(
    task_id: int,
    stream_id: Optional[int],
    timestamp: int,
    task_type: Optional[int] = None,
    context_id: Optional[int] = None,
    thread_id: Optional[int] = None,
    device_id: Optional[int] = None,
) -> str:
    """The file name of an overflow record. The ids are not the operator's; those stand inside the record."""
    return dump_name("Opdebug", "Node_OpDebug", task_id, stream_id, timestamp, task_type, context_id, thread_id, device_id)


def dump_name(
    op_type: str,
    op_name: str,
    task_id: int,
    stream_id: Optional[int],
    timestamp: int,
    task_type: Optional[int] = None,
    context_id: Optional[int] = None,
    thread_id: Optional[int] = None,
    device_id: Optional[int] = None,
) -> str:
    """The file name of an operator's dump; ``stream_id`` None gives the old form, ``task_type`` 4 the one of FFTS+.

    A name over 255 bytes is not shortened here: such files carry a number and a row in mapping.csv.
    """
    parts = [clean(op_type), clean(op_name), str(task_id)]
    if stream_id is not None:
        parts.append(str(stream_id))
    parts.append("%016d" % timestamp)
    if task_type is not None:
        parts += [str(value or 0) for value in (task_type, context_id, thread_id, device_id)]
    return ".".join(parts)
