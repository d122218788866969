"""One input or output of a dump: what it is, and its elements in pieces of bounded size."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional, Tuple

import numpy as np

from npu_overflow.dump.regions import Region

__all__ = ["CHUNK", "Tensor"]

#: elements of a piece of ``Tensor.chunks``, unless told
CHUNK = 1 << 20


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
        note: None (whole), "no_data" (the writer had none), "cut" (some elements are missing), "missing" (all are), or
            "not_decoded" (whole, but of a type that is only named and counted).
        original_format: layout of ``original_shape`` where the file names it.
        sub_format: groups of FRACTAL_Z where above 1.
        address: on the device, 0 where null.
        whole_shape: shape of the whole tensor where ``shape`` is a slice, else None; ``slice_start`` its first index.
        statistics: of a statistics file: {"min", "max", "mean", "count", "nan", "pos_inf", "neg_inf", "l2norm"}, None where missing;
            such a tensor has no data to read and note None. None for tensors with data.
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

    @property
    def count(self) -> int:
        """Elements that can be read: all of ``shape``, or fewer where the tensor was cut; 0 without data."""
        raise NotImplementedError

    @property
    def parts(self) -> int:
        """Storage items an element: 2 for complex types (real, imaginary), else 1; for undecoded types an item is one byte."""
        raise NotImplementedError

    def chunks(self, elements: int = CHUNK) -> Iterator[np.ndarray]:
        """All elements once, in storage order, as flat arrays of the storage type of at most ``elements`` elements.

        The storage type is float16, float32, float64 or an integer type as named; uint16 for bfloat16, uint8 for 8-bit floats and
        bool, the float type of the parts for complex types (two items an element), uint8 (bytes) for undecoded types. Pieces end at
        a multiple of the last axis. Each array is only good until the next one is asked for.

        Raises:
            DumpFormatError: the file went away, shrank or was replaced since it was opened.
        """
        raise NotImplementedError

    def read(self, start: int, count: int) -> np.ndarray:
        """``count`` elements from position ``start`` in storage order, as ``chunks`` gives them (a copy)."""
        raise NotImplementedError

    def raw(self) -> np.ndarray:
        """All elements as one flat array of the storage type; for large tensors rather use ``chunks``."""
        raise NotImplementedError

    def values(self) -> np.ndarray:
        """All elements as numbers (float32 for bfloat16 and 8-bit floats, bool, complex), flat, in storage order."""
        raise NotImplementedError

    def original(self) -> np.ndarray:
        """``values`` in the user's layout: padding removed, in ``original_shape`` where it is known, else in ``shape``."""
        raise NotImplementedError

    def valid(self) -> Region:
        """Which elements are the user's and where they stand in the user's shape."""
        raise NotImplementedError

    def same_bytes(self, other: Tensor) -> bool:
        """Whether both hold the same elements: dtype, shape and every byte; False where either isn't whole."""
        raise NotImplementedError
