"""What merging keeps of thousands of reports: the first few of many things, and counts."""
from __future__ import annotations

import bisect
from array import array
from typing import Any, Dict, Generic, Hashable, List, Optional, Set, Tuple, TypeVar

__all__ = ["First", "Ranks", "Seen", "Some"]

Item = TypeVar("Item")

#: ranks up to here take a bit each
_MOST_BITS = 1 << 20


class First(Generic[Item]):
    """The items with the smallest keys, each once.

    Args:
        most: how many are kept; None keeps all.
    """

    def __init__(self, most: Optional[int]) -> None:
        self._most = most
        self._count = 0
        self._kept: List[Tuple[Any, int, Hashable, Item]] = []
        self._names: Set[Hashable] = set()

    def wants(self, key: Any) -> bool:
        """Whether an item with this key could be kept."""
        return (
            self._most is None
            or len(self._kept) < self._most
            or (bool(self._kept) and bool(key < self._kept[-1][0]))
        )

    def add(self, key: Any, name: Hashable, item: Item) -> None:
        """Keep ``item`` if its key is small enough; ``name`` tells whether it is there already."""
        if name in self._names:
            return
        self._count += 1
        entry = (key, self._count, name, item)
        if self._most is None:
            self._kept.append(entry)
        elif self.wants(key):
            bisect.insort(self._kept, entry)
        else:
            return
        self._names.add(name)
        if self._most is not None and len(self._kept) > self._most:
            self._names.discard(self._kept.pop()[2])

    def items(self) -> List[Tuple[Any, Hashable, Item]]:
        """(key, name, item) in order."""
        self._kept.sort(key=lambda entry: entry[:2])
        return [(key, name, item) for key, _, name, item in self._kept]


class Some(Generic[Item]):
    """Different items in the order in which they came, up to a number (None: all); the others are
    counted."""

    def __init__(self, most: Optional[int]) -> None:
        self._most = most
        self._kept: Dict[Hashable, Item] = {}
        self.left_out = 0

    def add(self, name: Hashable, item: Item) -> None:
        if name in self._kept:
            return
        if self._most is not None and len(self._kept) >= self._most:
            self.left_out += 1
        else:
            self._kept[name] = item

    def items(self) -> List[Item]:
        return list(self._kept.values())


class Ranks:
    """A set of ranks that takes a bit each."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._large: Set[int] = set()

    def add(self, rank: int) -> None:
        if not 0 <= rank < _MOST_BITS:
            self._large.add(rank)
            return
        if rank >> 3 >= len(self._bits):
            self._bits.extend(bytes((rank >> 3) + 1 - len(self._bits)))
        self._bits[rank >> 3] |= 1 << (rank & 7)

    def sorted(self) -> List[int]:
        """All of them."""
        small = [
            place * 8 + bit
            for place, byte in enumerate(self._bits)
            if byte
            for bit in range(8)
            if byte >> bit & 1
        ]
        return sorted(small + list(self._large))


class Seen:
    """What came already, by 64 bits of a digest: 8 bytes each."""

    def __init__(self) -> None:
        self._digests = array("Q")

    def first_time(self, digest: bytes) -> bool:
        """Whether this one is new; it is remembered."""
        number = int.from_bytes(digest[:8], "big")
        place = bisect.bisect_left(self._digests, number)
        if place < len(self._digests) and self._digests[place] == number:
            return False
        self._digests.insert(place, number)
        return True
