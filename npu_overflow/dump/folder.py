"""The folders that hold files of dumps. Tens of thousands of names are only parsed when somebody
asks."""
from __future__ import annotations

import os
from typing import List, Optional, Sequence, Tuple

from npu_overflow.dump.matching import Index
from npu_overflow.dump.names import Entry, Place, parse_name, time_of_record

__all__ = ["Folder"]


class Folder:
    """The dump files of one folder.

    Args:
        path: absolute.
        place: what it is to the tree.
        records, dumps: names of overflow records, and of dumps and statistics files, that say what
            they are.
        entries: files that something else told of (hashed names).
    """

    def __init__(
        self,
        path: str,
        place: Place,
        records: Sequence[str] = (),
        dumps: Sequence[str] = (),
        entries: Sequence[Entry] = (),
    ) -> None:
        self.path = path
        self.place = place
        self._record_names = records
        self._dump_names = dumps
        self._records = [entry for entry in entries if entry.name.kind == "record"]
        self._dumps = [entry for entry in entries if entry.name.kind != "record"]
        self._index: Optional[Index] = None

    @property
    def record_count(self) -> int:
        """Overflow records."""
        return len(self._records) + len(self._record_names)

    @property
    def records(self) -> List[Entry]:
        """Overflow records, in no promised order."""
        self._records += self._parsed(self._record_names)
        self._record_names = ()
        return self._records

    @property
    def dumps(self) -> List[Entry]:
        """Operators' dumps and statistics files, in no promised order."""
        self._dumps += self._parsed(self._dump_names)
        self._dump_names = ()
        return self._dumps

    @property
    def index(self) -> Index:
        """The dumps by the ids of their operators."""
        if self._index is None:
            self._index = Index(self.dumps)
        return self._index

    def by_time(self) -> List[Tuple[int, str]]:
        """(microseconds, path) of the records, in order: what of a name is needed to find the first
        of thousands."""
        prefix = os.path.join(self.path, "")
        times = [
            (time_of_record(file_name), prefix + file_name) for file_name in self._record_names
        ]
        return sorted(times + [(entry.name.timestamp, entry.path) for entry in self._records])

    def record(self, path: str) -> Entry:
        """The record at ``path``, one of ``by_time``."""
        name = parse_name(os.path.basename(path))
        if name is not None:
            return Entry(path, name, self.place)
        return next(entry for entry in self._records if entry.path == path)

    def with_records(self, records: Sequence[Entry]) -> Folder:
        """The same dumps beside these records only."""
        return Folder(self.path, self.place, (), self._dump_names, [*self._dumps, *records])

    def _parsed(self, names: Sequence[str]) -> List[Entry]:
        prefix = os.path.join(self.path, "")
        parsed = ((file_name, parse_name(file_name)) for file_name in names)
        return [
            Entry(prefix + file_name, name, self.place)
            for file_name, name in parsed
            if name is not None
        ]
