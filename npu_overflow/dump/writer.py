"""Operator dumps and records, written so that the vendor's parser reads them too.

Files are written aside as ``.{name}.part`` and renamed: whoever finds a name without the dot finds
a whole file.
"""
from __future__ import annotations

import hashlib
import json
import os
import time
from dataclasses import dataclass
from typing import Any, BinaryIO, Iterable, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from npu_overflow.atomic import atomic_write, rename_part, write_part
from npu_overflow.dump import codes
from npu_overflow.dump.names import parse_name
from npu_overflow.dump.record import Part, make_record
from npu_overflow.dump.schema import DumpData
from npu_overflow.errors import CannotWrite

__all__ = ["TensorSpec", "finish", "part_path", "write_dump", "write_record"]

#: bytes of a file name that leave room for the dot and ``.part``; the vendor hashes names from 256
#: on
_LONGEST_NAME = 249
_FIRST_ADDRESS = 0x108000000000
_NUMPY_NAMES = {
    "float8_e8m0fnu": "float8_e8m0",
    "str": "string",
    "bytes": "string",
    "object": "string",
}

Data = Union[np.ndarray, bytes, bytearray, memoryview]


@dataclass(frozen=True)
class TensorSpec:
    """One tensor to write.

    Args:
        data: its elements as an array, or their bytes; None for a tensor whose address was null: it
            is named and has no bytes.
        dtype: name of the data type (``codes.DATA_TYPES``) or its number; None takes it from the
            array.
        shape: on the device; None takes the array's.
        format: name of the memory format or its number.
        original_shape: the user's shape; None takes ``shape``.
        original_format: layout of ``original_shape``, named in the file for outputs only.
        size: bytes in the file, at least those of ``data``: the rest is filled with zeros; None
            takes the bytes of ``data`` (of ``shape`` where ``data`` is None). A tensor that was cut
            has fewer bytes than ``shape`` needs.
        address: on the device; 0 is null.
        sub_format: groups of FRACTAL_Z.
    """

    data: Optional[Data]
    dtype: Union[str, int, None] = None
    shape: Optional[Tuple[int, ...]] = None
    format: Union[str, int] = "ND"
    original_shape: Optional[Tuple[int, ...]] = None
    original_format: Optional[str] = None
    size: Optional[int] = None
    address: int = 0
    sub_format: int = 0


def write_dump(
    path: str,
    op_name: str,
    inputs: Iterable[TensorSpec],
    outputs: Iterable[TensorSpec],
    host: Optional[Mapping[str, Any]] = None,
    dump_time: Optional[int] = None,
    attrs: Sequence[Tuple[str, str]] = (),
    rename: bool = True,
) -> str:
    """Write an operator's dump.

    Args:
        path: the file to make, named by ``names.dump_name``. A name too long for a file becomes a
            number and a row in mapping.csv.
        op_name: full operator name.
        inputs, outputs: their tensors, in order.
        host: facts of the host collector, a JSON object in a field that other parsers skip.
        dump_time: microseconds; None takes the time in the file's name.
        attrs: (name, value) of an FFTS+ operator; the vendor's parser takes the first value for its
            own JSON.
        rename: False leaves the file aside until ``finish`` is called with the path returned.

    Returns:
        path of the finished file.

    Raises:
        CannotWrite (an OSError): the disk refuses; nothing is left behind then. ValueError: an
        unknown type, format or layout, or a size too small.
    """
    sides: List[List[Tuple[TensorSpec, Any]]] = [
        [(spec, _bytes_of(spec)) for spec in side] for side in (inputs, outputs)
    ]
    null = any(spec.data is None for side in sides for spec, _ in side)
    message = DumpData(
        version=b"2.0",
        dump_time=_time_of(path) if dump_time is None else dump_time,
        op_name=op_name.encode("utf-8", "replace"),
    )
    address = _FIRST_ADDRESS
    for items, side in zip((message.input, message.output), sides):
        for spec, data in side:
            item = items.add()
            _describe(item, spec, data, side is sides[1])
            # readers tell a null address only where other tensors have one
            if null and spec.data is not None and not spec.address:
                item.address = address
            address += -(-item.size // 512) * 512
    for name, value in attrs:
        message.attr.add(name=name.encode(), value=value.encode())
    if host is not None:
        message.host = json.dumps(host).encode()
    pieces = [
        (data, item.size)
        for items, side in zip((message.input, message.output), sides)
        for item, (_, data) in zip(items, side)
        if data is not None
    ]
    return _write(path, message.SerializeToString(), pieces, rename)


def write_record(
    path: str,
    parts: Sequence[Part],
    layout: Optional[str] = None,
    version: Optional[int] = None,
    valid: int = 1,
    dump_time: Optional[int] = None,
    rename: bool = True,
) -> str:
    """Write an overflow record, named by ``names.record_name``; see ``record.make_record`` for its
    content and ``write_dump`` for the rest."""
    content = make_record(parts, layout, version, valid)
    message = DumpData(
        version=b"2.0",
        dump_time=_time_of(path) if dump_time is None else dump_time,
        op_name=b"Node_OpDebug",
    )
    _describe(message.output.add(), TensorSpec(content, "uint8", (len(content),)), content, True)
    return _write(path, message.SerializeToString(), [(content, len(content))], rename)


def part_path(path: str) -> str:
    """Where a file is written aside."""
    folder, name = os.path.split(path)
    return os.path.join(folder, ".%s.part" % name)


def finish(path: str) -> None:
    """Rename into place a file that was written with ``rename=False``; ``path`` is what the writer
    returned."""
    rename_part(part_path(path), path)


def _time_of(path: str) -> int:
    name = parse_name(os.path.basename(path))
    return name.timestamp if name is not None else int(time.time() * 1e6)


def _bytes_of(spec: TensorSpec) -> Any:
    """The elements as bytes or as a contiguous little-endian array; None without data."""
    if spec.data is None or isinstance(spec.data, (bytes, bytearray, memoryview)):
        return spec.data
    array = np.ascontiguousarray(spec.data)
    if array.dtype.kind in "OSU":
        return b"\0".join(
            item if isinstance(item, bytes) else str(item).encode("utf-8", "replace")
            for item in array.reshape(-1).tolist()
        )
    return (
        array.astype(array.dtype.newbyteorder("<"), copy=False)
        if array.dtype.byteorder == ">"
        else array
    )


def _describe(item: Any, spec: TensorSpec, data: Any, is_output: bool) -> None:
    """Fill an OpInput or OpOutput."""
    dtype = spec.dtype if spec.dtype is not None else _dtype_of(spec.data)
    item.data_type = _number(dtype, codes.DATA_TYPE_NUMBERS, "data type")
    item.format = _number(spec.format, codes.FORMAT_NUMBERS, "format")
    shape = (
        spec.shape
        if spec.shape is not None
        else np.shape(spec.data)
        if isinstance(spec.data, np.ndarray)
        else None
    )
    if shape is None:
        raise ValueError("a tensor of bytes needs a shape")
    # an empty shape is a scalar's: the field itself must be there
    item.shape.SetInParent()
    item.shape.dim.extend(shape)
    item.original_shape.SetInParent()
    item.original_shape.dim.extend(shape if spec.original_shape is None else spec.original_shape)
    length = (
        memoryview(data).nbytes
        if isinstance(data, (bytes, bytearray, memoryview))
        else 0
        if data is None
        else data.nbytes
    )
    if data is None:
        length = (
            codes.bytes_needed(codes.data_type_name(item.data_type), codes.elements(shape)) or 0
        )
    if spec.size is not None and data is not None and spec.size < length:
        raise ValueError("size %d is less than the %d bytes of data" % (spec.size, length))
    item.size = length if spec.size is None else spec.size
    if spec.address:
        item.address = spec.address
    if spec.sub_format:
        item.sub_format = spec.sub_format
    if spec.original_format is not None and is_output:
        item.original_op.SetInParent()
        item.original_op.data_type = item.data_type
        item.original_op.format = _number(spec.original_format, codes.FORMAT_NUMBERS, "format")


def _number(value: Union[str, int], numbers: Mapping[str, int], what: str) -> int:
    if isinstance(value, str):
        if value not in numbers:
            raise ValueError("%s is no %s of the dump format" % (value, what))
        return numbers[value]
    return value


def _dtype_of(data: Any) -> str:
    if not isinstance(data, np.ndarray):
        raise ValueError("a tensor of bytes needs a dtype")
    kind = "string" if data.dtype.kind in "OSU" else data.dtype.name
    return _NUMPY_NAMES.get(kind, kind)


def _write(path: str, header: bytes, pieces: List[Tuple[Any, int]], rename: bool) -> str:
    def fill(file: BinaryIO) -> None:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for data, size in pieces:
            _write_padded(file, data, size)

    path = _short(path)
    if rename:
        atomic_write(path, fill, part=part_path(path))
    else:
        write_part(part_path(path), fill, path)
    return path


def _write_padded(file: BinaryIO, data: Any, size: int) -> None:
    left = size
    # an empty array has no memory to view
    if not isinstance(data, np.ndarray) or data.size:
        view = memoryview(
            data.reshape(-1).view(np.uint8) if isinstance(data, np.ndarray) else data
        ).cast("B")
        left -= file.write(view)
    while left > 0:
        left -= file.write(bytes(min(left, 1 << 20)))


def _short(path: str) -> str:
    """``path``, or where its name is too long the path of a number, after a row for it in
    mapping.csv."""
    folder, name = os.path.split(path)
    if len(os.fsencode(name)) <= _LONGEST_NAME:
        return path
    number = str(
        int.from_bytes(
            hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:8], "little"
        )
    )
    table = os.path.join(folder, "mapping.csv")
    try:
        with open(table, "ab") as mapping:
            mapping.write(("%s,%s\n" % (number, name)).encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise CannotWrite.of(table, error) from error
    return os.path.join(folder, number)
