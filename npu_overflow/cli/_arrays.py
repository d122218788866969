"""Tensors for ``show``: .npy files seen as tensors, elements chosen by an index, values as rows of
text, files written safely."""
from __future__ import annotations

import os
import re
from typing import Any, BinaryIO, List, Optional, Sequence, Tuple, Union

import numpy as np

from npu_overflow.atomic import atomic_write
from npu_overflow.dump.envelope import Source
from npu_overflow.dump.files import open_regular
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError, UsageError, reason_of
from npu_overflow.report.flow import cells
from npu_overflow.report.formatting import number

__all__ = ["array_tensor", "axes_of", "parse_index", "rows_of", "save", "take", "value_text"]

#: numpy types that are also types of a dump, by name; others are shown as "type N"
_KNOWN = (
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)

Index = Tuple[Any, ...]
Axes = Sequence[Union[int, range]]


# -- .npy


def array_tensor(path: str) -> Tensor:
    """The array of a .npy file as a tensor; its bytes stay in the file.

    Raises:
        DumpFormatError: no array, damaged, or one that would have to be unpickled.
    """
    with open_regular(path) as file:
        state = os.fstat(file.fileno())
        try:
            version = np.lib.format.read_magic(file)
            if version[0] > 1:
                raise ValueError("version %d.%d" % version)
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        except (
            ValueError,
            TypeError,
            SyntaxError,
            EOFError,
            RecursionError,
            MemoryError,
            OSError,
        ) as error:
            raise DumpFormatError("show.npy", reason=reason_of(error).splitlines()[0]) from None
        start = file.tell()
        if dtype.hasobject:
            raise DumpFormatError("show.npy", reason="dtype object")
        if any(size < 0 for size in shape):
            raise DumpFormatError("show.npy", reason="shape %s" % (shape,))
        count = 1
        for size in shape:
            count *= size
        have, need = state.st_size - start, count * dtype.itemsize
        if have < need:
            raise DumpFormatError("show.npy", reason="%d of %d bytes" % (have, need))
        native = dtype.newbyteorder("=").name if dtype.names is None else "type 0"
        known = native in _KNOWN
        more: Any = {"note": None if known else "not_decoded", "bytes": need, "size": need}
        if known and (fortran or dtype.byteorder == ">"):
            # the order of a dump is C, little endian: such an array is turned around in memory
            data = np.frombuffer(file.read(need), dtype=dtype).reshape(
                shape, order="F" if fortran else "C"
            )
            more.update(
                source=np.ascontiguousarray(data).astype(data.dtype.newbyteorder("<")).tobytes(),
                offset=0,
            )
        else:
            more.update(source=Source(path, state.st_dev, state.st_ino), offset=start)
    return Tensor(
        "array",
        0,
        0,
        native if known else str(dtype),
        "ND",
        tuple(int(size) for size in shape),
        **more,
    )


# -- choosing elements


def parse_index(text: str) -> Index:
    """"3,:,0:8" as an index for numpy.

    Raises:
        ValueError: something else.
    """
    parts: List[Any] = []
    for part in text.strip().strip("[]").split(","):
        part = part.strip()
        if part == "...":
            parts.append(Ellipsis)
        elif re.match(r"^[+-]?\d{1,18}$", part):
            parts.append(int(part))
        elif re.match(r"^([+-]?\d{1,18})?(:([+-]?\d{1,18})?){1,2}$", part):
            parts.append(slice(*(int(item) if item else None for item in part.split(":"))))
        else:
            raise ValueError(part)
    return tuple(parts)


def take(values: Any, text: str) -> Tuple[Any, Axes]:
    """The elements of an array that an index such as "3,:,0:8" chooses, and where they stand in it.

    Raises:
        UsageError: no index, or one that does not fit the shape.
    """
    try:
        index = parse_index(text)
        return np.asarray(values[index]), axes_of(index, values.shape)
    except (ValueError, IndexError):
        raise UsageError("show.index", index=repr(text), shape=list(values.shape)) from None


def axes_of(index: Index, shape: Tuple[int, ...]) -> Axes:
    """For each axis of ``shape`` the place (an int) or the places (a range) that ``index`` chooses
    there."""
    full = list(index)
    missing = [slice(None)] * (len(shape) - sum(item is not Ellipsis for item in full))
    at = full.index(Ellipsis) if Ellipsis in full else len(full)
    full[at : at + 1] = missing
    return [range(size)[item] for item, size in zip(full, shape)]


# -- values as text


def value_text(value: Any) -> str:
    """One element; floats by way of Python, so that a float16 65504 is not rounded."""
    item = value.item() if hasattr(value, "item") else value
    if isinstance(item, complex):
        return "%s%s%sj" % (
            number(item.real),
            "" if number(item.imag).startswith("-") else "+",
            number(item.imag),
        )
    return number(item) if isinstance(item, (bool, int, float)) else repr(item)


def rows_of(
    values: Any, width: int, most: int, axes: Optional[Axes] = None
) -> Tuple[List[Tuple[str, str]], int]:
    """An array as rows of its last axis.

    Args:
        values: any shape.
        width: cells a row may take, its label included.
        most: rows.
        axes: where the array's elements stand in the array it was taken from, see ``axes_of``.

    Returns:
        (label, text) a row, the text ending in "…" where the row is longer, and how many rows were
        left out.
    """
    if values.ndim == 0:
        return [("", value_text(values))], 0
    if values.size == 0:
        return [], 0
    rows = values.reshape(-1, values.shape[-1])
    shown = rows[:most]
    labels = [
        _label(position, axes or [range(size) for size in values.shape])
        for position in range(len(shown))
    ]
    room = width - max(cells(label) for label in labels) - 4
    fitting = max(1, min(rows.shape[1], room // 2))
    columns = [[value_text(item) for item in column] for column in shown[:, :fitting].T]
    widths: List[int] = []
    for column in columns:
        size = max(cells(text) for text in column)
        if widths and sum(widths) + 2 * len(widths) + size > room:
            break
        widths.append(size)
    more = "  …" if len(widths) < rows.shape[1] else ""
    lines = []
    for row, label in enumerate(labels):
        lines.append(
            (label, "  ".join(columns[i][row].rjust(size) for i, size in enumerate(widths)) + more)
        )
    return lines, len(rows) - len(shown)


def _label(row: int, axes: Axes) -> str:
    """"[3, 0, :]" of a row."""
    varying = [place for place, axis in enumerate(axes) if not isinstance(axis, int)]
    if len(axes) == 1:
        return ""
    index = {varying[-1]: ":"}
    for place in reversed(varying[:-1]):
        axis = axes[place]
        assert isinstance(axis, range)
        index[place] = str(axis[row % len(axis)])
        row //= len(axis)
    return "[%s]" % ", ".join(
        index[place] if place in index else str(axis) for place, axis in enumerate(axes)
    )


# -- writing


def safe_name(text: str) -> str:
    """A file name of plain characters that can't lead elsewhere; of a long one the end is kept,
    where the ids stand."""
    plain = re.sub(r"[^A-Za-z0-9._+-]", "_", text)[-180:].lstrip(".-")
    return plain or "tensor"


def save(values: Any, kind: str, stem: str, about: str) -> Tuple[str, Optional[str]]:
    """Write an array to the current folder, aside first and then renamed; nothing that exists is
    replaced.

    Args:
        kind: "npy" or "txt" (one line of facts, then a line a row of the last axis).
        stem: name without the ending; made safe here.
        about: facts for the first line of a text file.

    Returns:
        The name of the file, and the name it would have had if that had not existed.
    """
    wanted = safe_name(stem)
    name, number = "%s.%s" % (wanted, kind), 0
    while os.path.lexists(name):
        number += 1
        name = "%s-%d.%s" % (wanted, number, kind)

    def fill(file: BinaryIO) -> None:
        if kind == "npy":
            np.save(file, values, allow_pickle=False)
        else:
            _write_text(file, values, about)

    atomic_write(name, fill)
    return name, "%s.%s" % (wanted, kind) if number else None


def _write_text(file: Any, values: Any, about: str) -> None:
    """Enough digits that the same numbers come back."""
    digits = {"float16": "%.5g", "float32": "%.9g", "float64": "%.17g"}.get(
        values.dtype.name, "%d" if values.dtype.kind in "biu" else "%.9g"
    )
    rows = values.reshape(-1, values.shape[-1] if values.ndim and values.shape[-1] else 1)
    header = "shape: %s  dtype: %s  %s" % (list(values.shape), values.dtype.name, about)
    np.savetxt(
        file,
        rows,
        fmt="%s" if values.dtype.kind == "c" else digits,
        header=header,
        encoding="utf-8",
    )
