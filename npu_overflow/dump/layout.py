"""Where dump files lie: ``{dump_path}/{time}/{device_id}/{model_name}/{model_id}/{data_index}/``, with levels that can be missing."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import List, Mapping, Optional

from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.names import Name, clean, dump_name, parse_name, record_name

__all__ = ["Entry", "FileProblem", "Name", "Place", "Tree", "clean", "dump_name", "find", "name_of", "parse_name", "place_of", "record_name"]


@dataclass(frozen=True)
class Place:
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


def place_of(folder: str) -> Place:
    """The levels of an absolute folder path."""
    raise NotImplementedError


@dataclass(frozen=True)
class Entry:
    """One file of a tree: absolute path, what its name says (a hashed name: what mapping.csv says), where it lies."""

    path: str
    name: Name
    place: Place


@dataclass(frozen=True)
class Tree:
    """The files under a path, or those of one run.

    Args:
        root: absolute folder that was searched (of a single file: its folder).
        records: overflow records, in no promised order.
        dumps: operators' dumps and statistics files.
        problems: files whose name can't be read, special files, links that leave the tree, folders that can't be listed.
        runs: names of the time folders that hold records or dumps, sorted as text.
        unfinished: absolute paths of files that were never renamed into place (``.{name}.part``).
        run: newest time folder of a selected run; None before ``select`` or where there is none.
        single: the file that was asked for, where the path was one file. A record: ``records`` holds it alone. A dump: ``records``
            holds all records of its folder.
    """

    root: str
    records: List[Entry] = field(default_factory=list)
    dumps: List[Entry] = field(default_factory=list)
    problems: List[FileProblem] = field(default_factory=list)
    runs: List[str] = field(default_factory=list)
    unfinished: List[str] = field(default_factory=list)
    run: Optional[str] = None
    single: Optional[Entry] = None

    def select(self, run: Optional[str] = None, run_ids: Optional[Mapping[str, str]] = None) -> Tree:
        """The files of one run.

        Args:
            run: None for the newest run, "all", or the name of a time folder.
            run_ids: time folder -> run id, from manifests. Folders that share the id of the chosen one belong to its run; without
                an id those do that started up to 60 s before it and whose devices are others.

        Raises:
            PathError: no time folder of that name.
        """
        raise NotImplementedError

    def dumps_of(
        self, entry: Entry, task_id: int, stream_id: int, context_id: Optional[int] = None, thread_id: Optional[int] = None
    ) -> List[Entry]:
        """Dumps that can be the operator's of a record, best first (at most 16); ids are those INSIDE the record.

        Same folder and ids; context and thread where both sides have them (0 in a record can mean none); where nothing matches, the
        low 16 bits of the task id; among several the nearest in time; a dump before statistics of the same time.
        """
        raise NotImplementedError


def find(path: str) -> Tree:
    """Find dump files at any depth under ``path``: a tree's root, any folder in it, or one file.

    Links are never followed below ``path``; FIFOs and devices are never opened. An empty folder gives an empty tree.

    Raises:
        PathError: missing, unreadable, or it holds files none of which is a dump's.
    """
    raise NotImplementedError


def name_of(path: str) -> Optional[Name]:
    """What the name of one file says; a hashed name is looked up in the mapping.csv beside it. None where nothing does."""
    raise NotImplementedError
