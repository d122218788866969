"""Statistics files (.csv): numbers that the device computed in place of a dump. Columns are read by
name; writers differ in order."""
from __future__ import annotations

import csv
import io
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union

from npu_overflow.dump import codes
from npu_overflow.dump.files import open_regular, read_exactly
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError, reason_of

__all__ = ["read_statistics"]

_MOST_BYTES = 16 << 20
_MOST_ROWS = 8192
_MOST_AXES = 32
_MISSING = frozenset({"", "na", "n/a", "-", "unknow", "unknown"})
#: column -> key of ``Tensor.statistics``
_NUMBERS = {
    "max value": "max",
    "min value": "min",
    "avg value": "mean",
    "count": "count",
    "nan count": "nan",
    "negative inf count": "neg_inf",
    "positive inf count": "pos_inf",
    "l2norm": "l2norm",
}
# names of the device's own spelling that are not just "DT_" and ours
_TYPES = {"float": "float32", "double": "float64", "bf16": "bfloat16"}

Number = Union[int, float]


def read_statistics(
    path: str,
) -> Tuple[Dict[str, List[Tensor]], Optional[Tuple[str, Mapping[str, Any]]]]:
    """The tensors of a statistics file by side ("input", "output"), and (code, values) of rows that
    could not be read, or None.

    Raises:
        DumpFormatError: it has no header of such a file.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            raise DumpFormatError("file.empty")
        if size > _MOST_BYTES:
            raise DumpFormatError("statistics.large", bytes=size, most=_MOST_BYTES)
        text = read_exactly(file, size).decode("utf-8-sig", "replace")
    rows = csv.reader(io.StringIO(text.replace("\0", ""), newline=""))
    try:
        columns = [name.strip().lower() for name in next(rows, [])]
        if "input/output" not in columns or "index" not in columns:
            raise DumpFormatError("statistics.header")
        return _tensors(columns, rows, text.endswith("\n"))
    except csv.Error as error:
        raise DumpFormatError("statistics.rows", reason=reason_of(error)) from error


def _tensors(
    columns: List[str], rows: Any, ended: bool
) -> Tuple[Dict[str, List[Tensor]], Optional[Tuple[str, Mapping[str, Any]]]]:
    sides: Dict[str, List[Tensor]] = {"input": [], "output": []}
    bad = 0
    for number, row in enumerate(rows):
        if number >= _MOST_ROWS:
            bad += 1
            break
        if not any(cell.strip() for cell in row):
            continue
        tensor = _tensor({name: cell.strip() for name, cell in zip(columns, row)})
        if tensor is None:
            bad += 1
        else:
            sides[tensor.side].append(tensor)
    return sides, ("statistics.rows_skipped", {"count": bad}) if bad else None


def _tensor(cells: Dict[str, str]) -> Optional[Tensor]:
    """One row, or None where it names no tensor."""
    side = cells.get("input/output", "").lower()
    index = _size(cells.get("index", ""))
    if side not in ("input", "output") or index is None:
        return None
    spelled = cells.get("data type", "").lower()
    spelled = spelled[3:] if spelled.startswith("dt_") else spelled
    dtype = _TYPES.get(spelled, spelled)
    number = codes.DATA_TYPE_NUMBERS.get(dtype, 0)
    size = _size(cells.get("data size", "")) or 0
    return Tensor(
        side,
        index,
        number,
        codes.data_type_name(number),
        "" if cells.get("format", "").lower() in _MISSING else cells["format"],
        _shape(cells.get("shape", "")),
        bytes=size,
        size=size,
        statistics={key: _number(cells.get(column, "")) for column, key in _NUMBERS.items()},
    )


def _shape(text: str) -> Tuple[int, ...]:
    if text.lower() in _MISSING:
        return ()
    sizes = [_size(part) for part in text.split("x", _MOST_AXES)]
    known = tuple(size for size in sizes if size is not None)
    return known if len(known) == len(sizes) else ()


def _size(text: str) -> Optional[int]:
    """A number of bytes, of elements or of a place: whole, not negative, of 64 bits; None for
    anything else."""
    number = _number(text)
    return number if isinstance(number, int) and 0 <= number < 2**64 else None


def _number(text: str) -> Optional[Number]:
    """An int where it is written as one, else a float; bools as 0 and 1; None where missing or no
    number."""
    folded = text.lower()
    if folded in _MISSING or len(text) > 64:
        return None
    if folded in ("true", "false"):
        return int(folded == "true")
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None
