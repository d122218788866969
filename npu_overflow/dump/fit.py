"""How private formats place the axes of the user's shape; the layout of that shape is found by what
fits."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

__all__ = ["FORMATS", "Placed"]

Shape = Tuple[int, ...]
Coordinates = Sequence[np.ndarray]


@dataclass(frozen=True)
class Placed:
    """A private format with the user's shape fitted into it.

    Args:
        shape: padded shape of the whole tensor.
        layout: of the user's shape.
        valid_in_row: coordinates of rows (all axes but the last) -> how many elements at the row's
            front are valid.
        original: coordinates of elements (all axes) -> coordinates in the user's shape.
    """

    shape: Shape
    layout: str
    valid_in_row: Callable[[Coordinates], np.ndarray]
    original: Callable[[Coordinates], List[np.ndarray]]


Fit = Callable[[Shape, Shape, Optional[str]], Optional[Placed]]


def _blocks(size: int, block: int) -> int:
    return -(-size // block) if block else 0


def _channels(row_axis: np.ndarray, channels: int, block: int) -> np.ndarray:
    """Valid elements of the channel block that ``row_axis`` numbers."""
    result: np.ndarray = np.clip(channels - row_axis * block, 0, block)
    return result


def _candidates(layouts: Sequence[str], named: Optional[str]) -> List[str]:
    """Layouts to try, the one that the file names first."""
    return sorted(layouts, key=lambda layout: layout != named)


def _channel_blocked(axes: str, layouts: Sequence[str]) -> Fit:
    """NC1HWC0 (``axes`` "NCHW") and NDC1HWC0 ("NDCHW"): the channel axis is cut into blocks, which
    stand last."""
    channel = axes.index("C")

    def fitted(shape: Shape, original: Shape, named: Optional[str]) -> Optional[Placed]:
        if len(shape) != len(axes) + 1:
            return None
        block = shape[-1]
        sizes = dict(zip(axes, shape))
        for layout in _candidates([*layouts, "C"], named):
            if len(layout) != len(original):
                continue
            user = dict(zip(layout, original))
            if _blocks(user["C"], block) == sizes["C"] and all(
                user.get(axis, 1) == sizes[axis] for axis in axes if axis != "C"
            ):
                return _place(shape, layout, user["C"])
        return None

    def _place(shape: Shape, layout: str, channels: int) -> Placed:
        block = shape[-1]

        def original(stored: Coordinates) -> List[np.ndarray]:
            where = dict(zip(axes, stored))
            where["C"] = where["C"] * block + stored[-1]
            return [where[axis] for axis in layout]

        return Placed(
            shape, layout, lambda rows: _channels(rows[channel], channels, block), original
        )

    return fitted


def _fractal_z(shape: Shape, original: Shape, named: Optional[str]) -> Optional[Placed]:
    """FRACTAL_Z (C1*H*W, N1, N0, C0)."""
    if len(shape) != 4 or len(original) != 4:
        return None
    first, n_blocks, n_block, c_block = shape
    for layout in _candidates(("HWCN", "NCHW", "NHWC"), named):
        user = dict(zip(layout, original))
        area = user["H"] * user["W"]
        if _blocks(user["C"], c_block) * area == first and _blocks(user["N"], n_block) == n_blocks:
            return _place_z(shape, layout, user)
    return None


def _place_z(shape: Shape, layout: str, user: Dict[str, int]) -> Placed:
    n_block, c_block = shape[2:]
    area, width = user["H"] * user["W"], user["W"]

    def valid_in_row(rows: Coordinates) -> np.ndarray:
        counts = _channels(rows[0] // area, user["C"], c_block)
        return np.where(rows[1] * n_block + rows[2] < user["N"], counts, 0)

    def original(stored: Coordinates) -> List[np.ndarray]:
        block, rest = np.divmod(stored[0], area)
        where = {
            "C": block * c_block + stored[3],
            "N": stored[1] * n_block + stored[2],
            "H": rest // width,
            "W": rest % width,
        }
        return [where[axis] for axis in layout]

    return Placed(shape, layout, valid_in_row, original)


def _fractal_nz(shape: Shape, original: Shape, named: Optional[str]) -> Optional[Placed]:
    """FRACTAL_NZ (…, N1, M1, M0, N0) of (…, M, N); a single axis counts as (1, N)."""
    matrix = original if len(original) != 1 else (1, *original)
    if len(shape) < 4 or len(matrix) != len(shape) - 2 or tuple(matrix[:-2]) != tuple(shape[:-4]):
        return None
    columns_blocks, rows_blocks, row_block, column_block = shape[-4:]
    rows_count, columns = matrix[-2:]
    if (
        _blocks(rows_count, row_block) != rows_blocks
        or _blocks(columns, column_block) != columns_blocks
    ):
        return None

    def valid_in_row(rows: Coordinates) -> np.ndarray:
        counts = _channels(rows[-3], columns, column_block)
        return np.where(rows[-2] * row_block + rows[-1] < rows_count, counts, 0)

    def place(stored: Coordinates) -> List[np.ndarray]:
        row, column = stored[-3] * row_block + stored[-2], stored[-4] * column_block + stored[-1]
        return [column] if len(original) == 1 else [*stored[:-4], row, column]

    return Placed(shape, named or "ND", valid_in_row, place)


FORMATS: Dict[str, Fit] = {
    "NC1HWC0": _channel_blocked("NCHW", ("NHWC", "NCHW")),
    "NDC1HWC0": _channel_blocked("NDCHW", ("NDHWC", "NCDHW")),
    "FRACTAL_Z": _fractal_z,
    "FRACTAL_NZ": _fractal_nz,
}
