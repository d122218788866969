"""Which operator's dump belongs to a record: the dumps of one folder, by ids and nearness in time.
"""
from __future__ import annotations

import bisect
from functools import partial
from typing import Callable, Dict, List, Optional, Tuple

from npu_overflow.dump.names import Entry

__all__ = ["Index"]

_MOST_FOUND = 16
#: dumps looked at around a record's time; a hostile folder of equal ids can't make the search
#: quadratic
_MOST_SEEN = 256

Ids = Tuple[int, Optional[int]]
Exact = Tuple[int, Optional[int], Optional[int], Optional[int]]


class Index:
    """The dumps of one folder, ready to be asked for a record's operator."""

    def __init__(self, dumps: List[Entry]) -> None:
        self._by_ids: Dict[Ids, List[Entry]] = {}
        for entry in sorted(dumps, key=lambda entry: (entry.name.timestamp, entry.path)):
            self._by_ids.setdefault((entry.name.task_id, entry.name.stream_id), []).append(entry)
        # FFTS+ tasks cut an operator into many threads of one task and stream
        self._exact: Dict[Exact, List[Entry]] = {}
        for ids, entries in self._by_ids.items():
            for entry in entries:
                self._exact.setdefault(
                    (*ids, entry.name.context_id, entry.name.thread_id), []
                ).append(entry)
        self._times = {
            id(entries): [entry.name.timestamp for entry in entries]
            for entries in [*self._by_ids.values(), *self._exact.values()]
        }

    def nearest(
        self,
        time: int,
        task_id: int,
        stream_id: int,
        context_id: Optional[int],
        thread_id: Optional[int],
    ) -> List[Entry]:
        """Dumps of these ids, nearest in time first. Old files name no stream: there the task
        decides."""
        if context_id is not None and thread_id is not None:
            exact = self._exact.get((task_id, stream_id, context_id, thread_id))
            if exact:
                return _around(exact, self._times[id(exact)], time, _all)

        def fits(zero_is_none: bool, entry: Entry) -> bool:
            pairs = ((context_id, entry.name.context_id), (thread_id, entry.name.thread_id))
            return all(
                asked is None or have is None or asked == have or (zero_is_none and asked == 0)
                for asked, have in pairs
            )

        for zero_is_none in (False, True):
            for stream in (stream_id, None):
                entries = self._by_ids.get((task_id, stream))
                found = (
                    _around(entries, self._times[id(entries)], time, partial(fits, zero_is_none))
                    if entries
                    else []
                )
                if found:
                    return found
        return []


def _all(entry: Entry) -> bool:
    return True


def _around(
    entries: List[Entry], times: List[int], time: int, accept: Callable[[Entry], bool]
) -> List[Entry]:
    """Accepted entries in order of their distance from ``time``; a dump before statistics at the
    same distance."""
    after = bisect.bisect_left(times, time)
    before = after - 1
    found: List[Entry] = []
    for _ in range(_MOST_SEEN):
        if before < 0 and after >= len(entries):
            break
        if after >= len(entries) or (
            before >= 0
            and time - entries[before].name.timestamp < entries[after].name.timestamp - time
        ):
            entry, before = entries[before], before - 1
        else:
            entry, after = entries[after], after + 1
        if accept(entry):
            found.append(entry)
            if len(found) >= _MOST_FOUND:
                break
    return sorted(
        found, key=lambda entry: (abs(entry.name.timestamp - time), entry.name.kind != "dump")
    )
