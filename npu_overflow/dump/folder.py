"""Files of dumps, where they lie, and the folders that hold them. Tens of thousands of names are only parsed when somebody asks."""
from __future__ import annotations

import os
from typing import List, NamedTuple, Optional, Sequence

from npu_overflow.dump.matching import Index
from npu_overflow.dump.names import Name, parse_name

__all__ = ["Entry", "Folder", "Place"]


class Place(NamedTuple):
    """The levels above a file; None where one is missing.

    Args:
        run: name of the time folder, 14 digits or more; compares as text.
        device: device id.
        model_name, model_id: the graph.
        data_index: iteration; compares only within one model_name and model_id of one device.
    """

    run: Optional[str] = None
    device: Optional[int] = None
    model_name: Optional[str] = None
    model_id: Optional[int] = None
    data_index: Optional[int] = None


class Entry(NamedTuple):
    """One file of a tree: absolute path, what its name says (a hashed name: what mapping.csv says), where it lies."""

    path: str
    name: Name
    place: Place


class Folder:
    """The dumps and statistics files of one folder.

    Args:
        path: absolute.
        place: what it is to the tree.
        names: files whose names say what they are.
        entries: files that something else told of (hashed names).
    """

    def __init__(self, path: str, place: Place, names: Sequence[str] = (), entries: Sequence[Entry] = ()) -> None:
        self.path = path
        self.place = place
        self._names = names
        self._entries = list(entries)
        self._index: Optional[Index] = None

    @property
    def entries(self) -> List[Entry]:
        """The files, in no promised order."""
        if self._names:
            parsed = ((file_name, parse_name(file_name)) for file_name in self._names)
            self._entries += [Entry(os.path.join(self.path, file_name), name, self.place) for file_name, name in parsed if name is not None]
            self._names = ()
        return self._entries

    @property
    def index(self) -> Index:
        """The files by the ids of their operators."""
        if self._index is None:
            self._index = Index(self.entries)
        return self._index
