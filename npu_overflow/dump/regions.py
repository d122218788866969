"""Private formats pad: which elements of a tensor are the user's, and where they stand in the
user's shape.

Every private format here keeps the valid elements of a row (the last axis) in front: so a mask
needs one count a row, and the work is that of a sixteenth of the elements.
"""
from __future__ import annotations

from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from npu_overflow.dump import fit
from npu_overflow.dump.codes import elements

__all__ = ["Region", "region_of"]

Shape = Tuple[int, ...]

#: formats that don't pad: the order of elements is that of the user's shape
_PLAIN = frozenset(
    "NCHW NHWC ND CHWN HWCN MD NDHWC NCDHW DHWCN CN NC DHWNC NCL FILTER_HWCK NULL".split()
)
_MOST_ELEMENTS = 1 << 62


class Region:
    """The valid elements of a tensor.

    Args:
        stored: shape of the data.
        shape: the user's shape, which ``original_index`` counts in.
        placed: how a private format places the user's axes; None where all elements are valid.
        start: first index of the data in the whole tensor (FFTS+ slices), else zeros.
        layout: layout of the user's shape where it was found.
        remark: None, or why a private format's tensor had to count as valid as a whole:
            "region.unknown_format", "region.groups", "region.no_original_shape", "region.no_fit".
    """

    def __init__(
        self,
        stored: Shape,
        shape: Shape,
        placed: Optional[fit.Placed] = None,
        start: Optional[Shape] = None,
        layout: Optional[str] = None,
        remark: Optional[str] = None,
    ) -> None:
        self.stored = stored
        self.shape = shape
        self.layout = layout
        self.remark = remark
        self._placed = placed
        self._start = start if start is not None else (0,) * len(stored)

    @property
    def whole(self) -> bool:
        """Whether every element counts as valid."""
        return self._placed is None

    def mask(self, start: int, count: int) -> Optional[np.ndarray]:
        """Which of ``count`` elements from ``start`` in storage order are valid (bool, flat); None
        where all are."""
        if self._placed is None or count <= 0:
            return None
        width = self.stored[-1]
        first, last = start // width, -(-(start + count) // width)
        rows = np.arange(first, last, dtype=np.int64)
        counts = (
            self._placed.valid_in_row(_add(_unravel(rows, self.stored[:-1]), self._start))
            - self._start[-1]
        )
        if bool((counts >= width).all()):
            return None
        valid = np.arange(width, dtype=np.int64) < counts[:, None]
        offset = start - first * width
        return np.ascontiguousarray(valid.reshape(-1)[offset : offset + count])

    def original_flat(self, positions: np.ndarray) -> np.ndarray:
        """Positions (int64) in the flattened user's shape of valid positions in storage order:
        their minimum is the first element as the user counts."""
        positions = np.asarray(positions, dtype=np.int64)
        coordinates = self._coordinates(positions)
        if coordinates is None:
            return positions
        flat = np.zeros(positions.shape, dtype=np.int64)
        for axis, size in zip(coordinates, self.shape):
            flat = flat * size + axis
        return flat

    def original_index(self, position: int) -> Shape:
        """Index in the user's shape of the valid element at ``position`` in storage order."""
        flat = int(self.original_flat(np.array([position]))[0])
        index: List[int] = []
        for size in reversed(self.shape):
            index.append(flat % size)
            flat //= size
        return tuple(reversed(index))

    def unpack(self, values: np.ndarray) -> np.ndarray:
        """All elements in storage order as an array in the user's shape, padding removed; a slice
        keeps its own shape."""
        if self._placed is None or any(self._start) or self.stored != self._placed.shape:
            whole = self.shape if elements(self.shape) == values.size else self.stored
            return _shaped(values, whole)
        valid = self.mask(0, values.size)
        positions = np.arange(values.size) if valid is None else np.flatnonzero(valid)
        result = np.zeros(elements(self.shape), dtype=values.dtype)
        result[self.original_flat(positions)] = values[positions]
        return _shaped(result, self.shape)

    def _coordinates(self, positions: np.ndarray) -> Optional[Sequence[np.ndarray]]:
        """Coordinates in the user's shape, or None where the order of elements is the user's."""
        if self._placed is None and not any(self._start):
            return None
        stored = _add(_unravel(positions, self.stored), self._start)
        return stored if self._placed is None else self._placed.original(stored)


def region_of(
    format_name: str,
    shape: Shape,
    original: Optional[Shape],
    named: Optional[str] = None,
    groups: int = 0,
    whole_shape: Optional[Shape] = None,
    slice_start: Optional[Shape] = None,
) -> Region:
    """The valid region of a tensor.

    Args:
        format_name: memory format.
        shape: of the data.
        original: the user's shape, or None.
        named: layout of ``original`` where the file names it; it is believed where it fits.
        groups: ``sub_format``.
        whole_shape, slice_start: where the data are a slice.
    """
    full = shape if whole_shape is None else whole_shape
    if format_name in _PLAIN:
        if whole_shape is not None:
            return Region(shape, full, start=slice_start, layout=format_name)
        same = original is not None and elements(original) == elements(shape)
        return Region(
            shape, original if same and original is not None else shape, layout=format_name
        )
    found, remark = None, None
    if format_name not in fit.FORMATS:
        # of the same shape there is nothing to pad
        remark = None if original == full else "region.unknown_format"
    elif groups > 1 and format_name == "FRACTAL_Z":
        remark = "region.groups"
    elif original is None:
        remark = "region.no_original_shape"
    elif max(elements(full), elements(original)) > _MOST_ELEMENTS:
        remark = "region.no_fit"
    else:
        found = fit.FORMATS[format_name](full, original, named)
        remark = None if found is not None else "region.no_fit"
    if found is None or original is None:
        return Region(shape, full, start=slice_start, remark=remark)
    return Region(shape, original, found, slice_start, found.layout)


def _shaped(values: np.ndarray, shape: Shape) -> np.ndarray:
    """``values`` in ``shape``; flat where that is none that numpy has: an axis of 0 goes with axes
    of any size."""
    try:
        return values.reshape(shape)
    except (ValueError, OverflowError):
        return values


def _unravel(positions: np.ndarray, shape: Shape) -> List[np.ndarray]:
    """Coordinates of flat positions, one array an axis."""
    axes: Dict[int, np.ndarray] = {}
    for axis in range(len(shape) - 1, 0, -1):
        positions, axes[axis] = np.divmod(positions, shape[axis])
    axes[0] = positions
    return [axes[axis] for axis in range(len(shape))]


def _add(coordinates: List[np.ndarray], start: Shape) -> List[np.ndarray]:
    return [axis + first if first else axis for axis, first in zip(coordinates, start)]
