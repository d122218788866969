"""Private formats pad: which elements of a tensor are the user's, and where they stand in the user's shape."""
from __future__ import annotations

from typing import Optional, Tuple

import numpy as np

__all__ = ["Region"]


class Region:
    """The valid elements of a tensor.

    Attributes:
        whole: every element is valid (no padding, or none that is known).
        layout: layout of the original shape that was found ("NHWC", "HWCN", "ND" …), or None.
        remark: None, or why the whole tensor had to count as valid: "region.unknown_format", "region.groups",
            "region.no_original_shape", "region.no_fit", "region.slice".
        shape: shape that ``original_index`` counts in.
    """

    whole: bool
    layout: Optional[str]
    remark: Optional[str]
    shape: Tuple[int, ...]

    def mask(self, start: int, count: int) -> Optional[np.ndarray]:
        """Which of ``count`` elements from ``start`` in storage order are valid (bool, flat); None where all are."""
        raise NotImplementedError

    def original_flat(self, positions: np.ndarray) -> np.ndarray:
        """Positions (int64) in the flattened original shape of valid positions in storage order: their minimum is the first element
        as the user counts."""
        raise NotImplementedError

    def original_index(self, position: int) -> Tuple[int, ...]:
        """Index in the original shape of the valid element at ``position`` in storage order; in ``shape`` where whole."""
        raise NotImplementedError
