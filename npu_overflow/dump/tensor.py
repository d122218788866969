"""One input or output of a dump: what it is, and its elements in pieces of bounded size.

Data are read, not mapped: a file that shrinks under a memory map kills the process with SIGBUS,
while a short read is an error like any other; over a gigabyte in the page cache reading into one
buffer costs a fifth more than a map with nothing done to the data.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from io import FileIO
from typing import Any, Iterator, Mapping, Optional, Tuple, Union

import numpy as np

from npu_overflow.dump import codes, floats
from npu_overflow.dump.envelope import Source
from npu_overflow.dump.regions import Region, region_of
from npu_overflow.errors import DumpFormatError, reason_of

__all__ = ["CHUNK", "Tensor"]

Inline = bytes  # the class below has a field of that name

#: elements of a piece of ``Tensor.chunks``, unless told: large enough for numpy, small enough for
#: the processor's cache
CHUNK = 1 << 18


@dataclass(frozen=True)
class Tensor:
    """One tensor of a dump.

    Args:
        side: "input", "output", "buffer" or "space".
        index: position among them.
        data_type: the number in the file; 0 where a statistics file doesn't know it.
        dtype: its name, "type N" where unknown.
        format: the memory format's name, or its number as text.
        shape: of the data here; of an FFTS+ slice the slice's, not the whole tensor's.
        original_shape: the user's shape, or None.
        bytes: bytes of data in the file that belong to this tensor.
        size: bytes that the header promises.
        note: None (whole), "no_data" (the writer had none), "cut" (some elements are missing),
            "missing" (all are), or "not_decoded" (whole, but of a type that is only named and
            counted).
        original_format: layout of ``original_shape`` where the file names it.
        sub_format: groups of FRACTAL_Z where above 1.
        address: on the device, 0 where null.
        whole_shape: shape of the whole tensor where ``shape`` is a slice, else None;
            ``slice_start`` its first index.
        statistics: of a statistics file: {"min", "max", "mean", "count", "nan", "pos_inf",
            "neg_inf", "l2norm"}, None where missing; such a tensor has no data to read and note
            None. None for tensors with data.
    """

    side: str
    index: int
    data_type: int
    dtype: str
    format: str
    shape: Tuple[int, ...]
    original_shape: Optional[Tuple[int, ...]] = None
    bytes: int = 0
    size: int = 0
    note: Optional[str] = None
    original_format: Optional[str] = None
    sub_format: int = 0
    address: int = 0
    whole_shape: Optional[Tuple[int, ...]] = None
    slice_start: Optional[Tuple[int, ...]] = None
    statistics: Optional[Mapping[str, Any]] = None
    #: where the bytes lie: a file and an offset, or the bytes themselves (oldest dumps)
    source: Union[Source, Inline, None] = field(default=None, repr=False, compare=False)
    offset: int = field(default=0, repr=False, compare=False)

    @property
    def count(self) -> int:
        """Elements that can be read: all of ``shape``, or fewer where the tensor was cut; 0 without
        data; bytes of undecoded types."""
        if self.source is None or self.note in ("no_data", "missing"):
            return 0
        if self.dtype not in codes.STORAGE:
            return self.bytes
        return min(self.bytes // self._element_bytes, codes.elements(self.shape))

    @property
    def parts(self) -> int:
        """Storage items an element: 2 for complex types (real, imaginary), else 1; for undecoded
        types an item is one byte."""
        return 2 if self.dtype in codes.COMPLEX else 1

    @property
    def _storage(self) -> np.dtype:
        return np.dtype(codes.STORAGE.get(self.dtype, "|u1"))

    @property
    def _element_bytes(self) -> int:
        return self._storage.itemsize * self.parts

    def chunks(self, elements: int = CHUNK, start: int = 0) -> Iterator[np.ndarray]:
        """All elements from position ``start`` on once, in storage order, as flat arrays of the
        storage type of at most ``elements`` elements.

        The storage type is float16, float32, float64 or an integer type as named; uint16 for
        bfloat16, uint8 for 8-bit floats and bool, the float type of the parts for complex types
        (two items an element), uint8 (bytes) for undecoded types. Each array is only good until the
        next one is asked for.

        Raises:
            DumpFormatError: the file went away, shrank or was replaced since it was opened.
        """
        return self._pieces(start, self.count - start, max(1, elements))

    def _pieces(self, start: int, count: int, elements: int) -> Iterator[np.ndarray]:
        if count <= 0:
            return
        storage, each = self._storage, self._element_bytes
        first = self.offset + start * each
        if isinstance(self.source, Inline):
            for at in range(0, count, elements):
                taken = min(elements, count - at)
                yield np.frombuffer(self.source, storage, taken * self.parts, first + at * each)
            return
        if self.source is None:
            return
        buffer = np.empty(min(elements, count) * self.parts, dtype=storage)
        with self.source.open() as file:
            file.seek(first)
            for at in range(0, count, elements):
                items = buffer[: min(elements, count - at) * self.parts]
                _fill(file, memoryview(items).cast("B"))
                yield items

    def read(self, start: int, count: int) -> np.ndarray:
        """``count`` elements (fewer at the end) from position ``start`` in storage order, as
        ``chunks`` gives them, as a copy."""
        start = min(max(start, 0), self.count)
        count = min(max(count, 0), self.count - start)
        for items in self._pieces(start, count, max(count, 1)):
            return items.copy() if isinstance(self.source, Inline) else items
        return np.empty(0, dtype=self._storage)

    def raw(self) -> np.ndarray:
        """All elements as one flat array of the storage type, in memory; for large tensors rather
        use ``chunks``."""
        return self.read(0, self.count)

    def values(self) -> np.ndarray:
        """All elements as numbers (float32 for bfloat16 and 8-bit floats, bool, complex), flat, in
        storage order."""
        return floats.decode(self.raw(), self.dtype)

    def original(self) -> np.ndarray:
        """``values`` in the user's layout: padding removed, in ``original_shape`` where it is
        known, else in ``shape``; flat where the tensor is not whole."""
        values = self.values()
        return self.valid().unpack(values) if values.size == codes.elements(self.shape) else values

    def valid(self) -> Region:
        """Which elements are the user's and where they stand in the user's shape."""
        return region_of(
            self.format,
            self.shape,
            self.original_shape,
            self.original_format,
            self.sub_format,
            self.whole_shape,
            self.slice_start,
        )

    def same_bytes(self, other: Tensor) -> bool:
        """Whether both hold the same elements: dtype, shape and every byte; False where either
        isn't whole or has no data."""
        if (self.dtype, self.shape, self.count) != (
            other.dtype,
            other.shape,
            other.count,
        ) or self.count == 0:
            return False
        if self.note not in (None, "not_decoded") or other.note not in (None, "not_decoded"):
            return False
        return all(
            bool((mine.view(np.uint8) == its.view(np.uint8)).all())
            for mine, its in zip(self.chunks(), other.chunks())
        )


def _fill(file: FileIO, view: memoryview) -> None:
    """Read until ``view`` is full.

    Raises:
        DumpFormatError: the file ends before.
    """
    filled = 0
    try:
        while filled < len(view):
            got = file.readinto(view[filled:])
            if not got:
                raise DumpFormatError("file.shrank")
            filled += got
    except OSError as error:
        raise DumpFormatError("file.unreadable", reason=reason_of(error)) from error
