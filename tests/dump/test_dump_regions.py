"""Valid regions against a packer that walks every element of the user's tensor, one at a time."""
from __future__ import annotations

import itertools
from typing import Callable, Dict, List, Optional, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow.dump.regions import Region, region_of

Shape = Tuple[int, ...]
SMALL = st.integers(1, 5)
BLOCK = st.sampled_from([1, 2, 3, 4, 16])


def up(size: int, block: int) -> int:
    return (size + block - 1) // block


def pack(original: Shape, stored: Shape, where: Callable[[Shape], Shape]) -> np.ndarray:
    """A tensor of numbers 1, 2, 3 … in the user's order, each put where the format wants it; 0 is padding."""
    packed = np.zeros(stored, dtype=np.int64)
    for number, index in enumerate(itertools.product(*(range(size) for size in original)), 1):
        packed[where(index)] = number
    return packed


def check(format_name: str, packed: np.ndarray, original: Shape, layout: str, named: Optional[str] = None) -> None:
    """The region finds exactly the numbers, in the user's order, from any piece of the data."""
    region = region_of(format_name, packed.shape, original, named)
    assert region.remark is None and region.layout == layout and region.shape == original and not region.whole
    flat = packed.reshape(-1)
    mask = region.mask(0, flat.size)
    valid = np.ones(flat.size, dtype=bool) if mask is None else mask
    np.testing.assert_array_equal(valid, flat > 0)
    positions = np.flatnonzero(valid)
    np.testing.assert_array_equal(region.original_flat(positions), flat[positions] - 1)
    np.testing.assert_array_equal(region.unpack(flat), np.arange(1, int(np.prod(original)) + 1).reshape(original))
    assert region.original_index(int(positions[-1])) == np.unravel_index(int(flat[positions[-1]] - 1), original)
    for start, count in ((0, 1), (1, 3), (flat.size // 2, 7), (flat.size - 1, 1), (3, flat.size)):
        start = min(start, flat.size - 1)
        count = min(count, flat.size - start)
        piece = region.mask(start, count)
        np.testing.assert_array_equal(np.ones(count, dtype=bool) if piece is None else piece, valid[start : start + count])


def by_letters(letters: str, place: Callable[[Dict[str, int]], Shape]) -> Callable[[Shape], Shape]:
    return lambda index: place(dict(zip(letters, index)))


@given(SMALL, st.integers(1, 40), SMALL, SMALL, BLOCK)
def test_nc1hwc0(n: int, c: int, h: int, w: int, c0: int) -> None:
    sizes = {"N": n, "C": c, "H": h, "W": w}
    stored = (n, up(c, c0), h, w, c0)
    for layout in ("NHWC", "NCHW"):
        original = tuple(sizes[axis] for axis in layout)
        packed = pack(original, stored, by_letters(layout, lambda at: (at["N"], at["C"] // c0, at["H"], at["W"], at["C"] % c0)))
        check("NC1HWC0", packed, original, layout, named=layout)
        found = region_of("NC1HWC0", stored, original)
        # where both layouts fit, the channels are the same and so is the valid region
        first, second = found.mask(0, packed.size), region_of("NC1HWC0", stored, original, layout).mask(0, packed.size)
        assert (first is None and second is None) or bool((first == second).all())


@given(st.integers(1, 70), BLOCK)
def test_nc1hwc0_of_one_axis(c: int, c0: int) -> None:
    packed = pack((c,), (1, up(c, c0), 1, 1, c0), lambda index: (0, index[0] // c0, 0, 0, index[0] % c0))
    check("NC1HWC0", packed, (c,), "C")


@given(SMALL, st.integers(1, 3), st.integers(1, 40), SMALL, SMALL, BLOCK)
def test_ndc1hwc0(n: int, d: int, c: int, h: int, w: int, c0: int) -> None:
    sizes = {"N": n, "D": d, "C": c, "H": h, "W": w}
    for layout in ("NDHWC", "NCDHW"):
        original = tuple(sizes[axis] for axis in layout)
        place = by_letters(layout, lambda at: (at["N"], at["D"], at["C"] // c0, at["H"], at["W"], at["C"] % c0))
        check("NDC1HWC0", pack(original, (n, d, up(c, c0), h, w, c0), place), original, layout, named=layout)


@given(SMALL, SMALL, st.integers(1, 20), st.integers(1, 20), BLOCK, BLOCK)
def test_fractal_z(h: int, w: int, c: int, n: int, n0: int, c0: int) -> None:
    sizes = {"N": n, "C": c, "H": h, "W": w}
    stored = (up(c, c0) * h * w, up(n, n0), n0, c0)
    for layout in ("HWCN", "NCHW", "NHWC"):
        original = tuple(sizes[axis] for axis in layout)
        place = by_letters(layout, lambda at: ((at["C"] // c0 * h + at["H"]) * w + at["W"], at["N"] // n0, at["N"] % n0, at["C"] % c0))
        check("FRACTAL_Z", pack(original, stored, place), original, layout, named=layout)


def test_fractal_z_takes_hwcn_first() -> None:
    assert region_of("FRACTAL_Z", (9, 1, 16, 16), (3, 3, 5, 10)).layout == "HWCN"
    assert region_of("FRACTAL_Z", (18, 1, 16, 16), (10, 20, 3, 3)).layout == "NCHW"
    assert region_of("FRACTAL_Z", (18, 1, 16, 16), (10, 3, 3, 20)).layout == "NHWC"
    # a name that doesn't fit is not believed
    assert region_of("FRACTAL_Z", (9, 1, 16, 16), (3, 3, 5, 10), "NCHW").layout == "HWCN"


@given(st.lists(st.integers(1, 3), max_size=3), st.integers(1, 20), st.integers(1, 20), BLOCK, BLOCK)
def test_fractal_nz(batch: List[int], m: int, n: int, m0: int, n0: int) -> None:
    original = (*batch, m, n)
    stored = (*batch, up(n, n0), up(m, m0), m0, n0)
    packed = pack(original, stored, lambda index: (*index[:-2], index[-1] // n0, index[-2] // m0, index[-2] % m0, index[-1] % n0))
    check("FRACTAL_NZ", packed, original, "ND")


@given(st.integers(1, 40), BLOCK, BLOCK)
def test_fractal_nz_of_one_axis(n: int, m0: int, n0: int) -> None:
    packed = pack((n,), (up(n, n0), 1, m0, n0), lambda index: (index[0] // n0, 0, 0, index[0] % n0))
    check("FRACTAL_NZ", packed, (n,), "ND")


@given(st.data())
def test_a_slice_of_a_private_format(data: st.DataObject) -> None:
    original = (4, 3, 3, 20)
    packed = pack(original, (4, 2, 3, 3, 16), lambda at: (at[0], at[3] // 16, at[1], at[2], at[3] % 16))
    start = tuple(data.draw(st.integers(0, size - 1)) for size in packed.shape)
    end = tuple(data.draw(st.integers(low + 1, size)) for low, size in zip(start, packed.shape))
    piece = packed[tuple(slice(low, high) for low, high in zip(start, end))]
    region = region_of("NC1HWC0", piece.shape, original, whole_shape=packed.shape, slice_start=start)
    flat = piece.reshape(-1)
    mask = region.mask(0, flat.size)
    valid = np.ones(flat.size, dtype=bool) if mask is None else mask
    np.testing.assert_array_equal(valid, flat > 0)
    positions = np.flatnonzero(valid)
    np.testing.assert_array_equal(region.original_flat(positions), flat[positions] - 1)


def test_a_slice_of_a_plain_format_counts_from_the_whole() -> None:
    region = region_of("ND", (8, 16), (16, 16), whole_shape=(16, 16), slice_start=(8, 0))
    assert region.whole and region.mask(0, 128) is None
    assert region.original_index(17) == (9, 1)


@pytest.mark.parametrize(
    ("format_name", "shape", "original", "groups", "remark"),
    [
        ("NC1HWC0_C04", (1, 1, 2, 2, 4), (1, 2, 2, 3), 0, "region.unknown_format"),
        ("999", (4, 4), (2, 8), 0, "region.unknown_format"),
        ("999", (4, 4), (4, 4), 0, None),
        ("FRACTAL_Z", (9, 1, 16, 16), (3, 3, 5, 10), 2, "region.groups"),
        ("FRACTAL_NZ", (1, 2, 16, 16), None, 0, "region.no_original_shape"),
        ("FRACTAL_NZ", (1, 2, 16, 16), (40, 10), 0, "region.no_fit"),
        ("FRACTAL_NZ", (1, 2, 16, 16), (), 0, "region.no_fit"),
        ("FRACTAL_NZ", (16, 16), (16, 16), 0, "region.no_fit"),
        ("NC1HWC0", (1, 2, 3, 3, 0), (1, 3, 3, 20), 0, "region.no_fit"),
        ("NC1HWC0", (1, 2, 3, 3, 16), (2**63, 2**63, 3, 3), 0, "region.no_fit"),
        ("FRACTAL_Z", (0, 0, 0, 0), (0, 0, 0, 0), 0, None),
        ("NHWC", (2, 3), (2, 3), 0, None),
    ],
)
def test_what_does_not_fit_counts_as_valid_with_a_remark(
    format_name: str, shape: Shape, original: Optional[Shape], groups: int, remark: Optional[str]
) -> None:
    region = region_of(format_name, shape, original, groups=groups)
    assert region.remark == remark
    if remark is not None:
        assert region.whole and region.mask(0, 10) is None and region.shape == shape


def test_plain_formats_count_in_the_original_shape() -> None:
    assert region_of("ND", (6, 4), (2, 3, 4)).original_index(23) == (1, 2, 3)
    assert region_of("ND", (6, 4), (5, 5)).original_index(23) == (5, 3)
    assert region_of("ND", (), ()).original_index(0) == ()
    assert isinstance(region_of("ND", (), None), Region)


@pytest.mark.parametrize("shape", [(0, 2**63), (2**62, 0, 2**62), (2**64 - 1, 0)])
def test_a_tensor_of_nothing_with_axes_that_numpy_has_not(shape: Shape) -> None:
    """An axis of 0 goes with axes of any size: there are no elements, whatever numpy says of the shape."""
    nothing = np.zeros(0, np.float16)
    for original in (None, shape):
        values = region_of("ND", shape, original).unpack(nothing)
        assert values.size == 0 and values.dtype == np.float16
