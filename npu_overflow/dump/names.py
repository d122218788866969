"""Names of dump files: parsed and made (``{op_type}.{op_name}.{task_id}.{stream_id}.{timestamp}``
and its older and newer forms)."""
from __future__ import annotations

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

__all__ = [
    *(
        "SURVEY_FILE",
        "TIME_DIGITS",
        "Entry",
        "Name",
        "Place",
        "clean",
        "dump_name",
        "is_time_folder",
        "parse_name",
    ),
    *("record_name", "sort_names", "time_of_record"),
]

#: in a time folder: the magnitudes of a step that was asked for, as JSON
SURVEY_FILE = "headroom.json"

#: of a time folder's name, at least: year to second
TIME_DIGITS = 14

_RECORD = "opdebug.node_opdebug."
# two numbers in old files, three, or the seven of FFTS+
_NUMBER = r"\.[0-9]{1,20}"
_FORM = r"[^.\0]+\.[^.\0]+(?:%s){2}(?:%s(?:%s){4}|%s)?(?:\.[cC][sS][vV])?" % (
    _NUMBER,
    _NUMBER,
    _NUMBER,
    _NUMBER,
)
_ONE = re.compile(_FORM)


class Name(NamedTuple):
    """What a file name says; None where it doesn't.

    Args:
        kind: "record" (an overflow record), "dump" (an operator's tensors) or "statistics" (an
            operator's .csv).
        op_type: operator type; for a record what stands there instead ("Opdebug").
        op_name: operator name with ``.``, ``/``, ``\\`` and blanks replaced by ``_``; the full one
            stands inside the file.
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


class Place(NamedTuple):
    """The levels above a file; None where one is missing.

    Args:
        run: name of the time folder, 14 digits or more; compares as text.
        device: device id.
        model_name, model_id: the graph.
        data_index: iteration; compares only within one model_name and model_id of one device.
    """

    run: Optional[str] = None
    device: Optional[int] = None
    model_name: Optional[str] = None
    model_id: Optional[int] = None
    data_index: Optional[int] = None


class Entry(NamedTuple):
    """One file of a tree: absolute path, what its name says (a hashed name: what mapping.csv says),
    where it lies."""

    path: str
    name: Name
    place: Place


def is_time_folder(name: str) -> bool:
    """Whether a folder of this name is one that a run made: {time}, 14 digits or more."""
    return len(name) >= TIME_DIGITS and name.isdigit() and name.isascii()


def parse_name(file_name: str) -> Optional[Name]:
    """The parts of a file name without its folder, or None where it is no name of a dump file (a
    hashed one neither)."""
    if not _ONE.fullmatch(file_name):
        return None
    statistics = _is_statistics(file_name)
    parts = (file_name[:-4] if statistics else file_name).split(".")
    kind = "statistics" if statistics else ("record" if _is_record(file_name) else "dump")
    if len(parts) == 4:
        return Name(kind, parts[0], parts[1], int(parts[2]), None, int(parts[3]))
    return Name(kind, parts[0], parts[1], *map(int, parts[2:]))


def sort_names(file_names: Sequence[str]) -> Tuple[List[str], List[str], List[str]]:
    """The names of one folder: of records, of dumps and statistics, others.

    Nothing is made of them: of tens of thousands of names few are ever asked for.
    """
    records: List[str] = []
    dumps: List[str] = []
    others: List[str] = []
    for file_name in file_names:
        if not (_is_usual(file_name.split(".")) or _ONE.fullmatch(file_name)):
            others.append(file_name)
        elif file_name[0] in "oO" and _is_record(file_name):
            records.append(file_name)
        else:
            dumps.append(file_name)
    return records, dumps, others


def _is_usual(parts: List[str]) -> bool:
    """Whether these are the parts of a name of today's form: a third of the price of the pattern,
    which decides about the others."""
    if len(parts) != 5:
        return False
    op_type, op_name, task_id, stream_id, time = parts
    digits = task_id + stream_id + time
    return bool(
        op_type
        and op_name
        and task_id
        and stream_id
        and time
        and len(digits) <= 22
        and digits.isdigit()
        and digits.isascii()
    )


def time_of_record(file_name: str) -> int:
    """``parse_name(file_name).timestamp`` of a record's name, at a tenth of the price."""
    parts = file_name.split(".", 5)
    return int(parts[4] if len(parts) > 4 else parts[3])


def _is_record(file_name: str) -> bool:
    return file_name[: len(_RECORD)].lower() == _RECORD and not _is_statistics(file_name)


def _is_statistics(file_name: str) -> bool:
    return file_name[-4:].lower() == ".csv"


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
    """The file name of an overflow record. The ids are not the operator's; those stand inside the
    record."""
    return dump_name(
        "Opdebug",
        "Node_OpDebug",
        task_id,
        stream_id,
        timestamp,
        task_type,
        context_id,
        thread_id,
        device_id,
    )


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
    """The file name of an operator's dump; ``stream_id`` None gives the old form, ``task_type`` 4
    the one of FFTS+.

    A name over 255 bytes is not shortened here: such files carry a number and a row in mapping.csv.
    """
    parts = [clean(op_type), clean(op_name), str(task_id)]
    if stream_id is not None:
        parts.append(str(stream_id))
    parts.append("%016d" % timestamp)
    if task_type is not None:
        parts += [str(value or 0) for value in (task_type, context_id, thread_id, device_id)]
    return ".".join(parts)
