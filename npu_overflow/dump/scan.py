"""Looks for dump files in a folder that anybody may have filled: one listing a folder, no link
followed, nothing special opened."""
from __future__ import annotations

import os
import stat
from dataclasses import replace
from typing import Callable, Dict, List, Optional

from npu_overflow.dump import layout
from npu_overflow.dump.files import FileProblem, open_regular
from npu_overflow.dump.folder import Folder
from npu_overflow.dump.names import SURVEY_FILE, Entry, Name, Place, parse_name, sort_names
from npu_overflow.errors import DumpFormatError, PathError, reason_of

__all__ = ["find", "name_of"]

MAPPING = "mapping.csv"
_MOST_DEPTH = 32
_MOST_FILES = 5000000
_MOST_MAPPING_BYTES = 256 << 20
_MOST_LINE_BYTES = 16 << 10
_MOST_HASH_DIGITS = 20


class _Scan:
    """What was found so far."""

    def __init__(self, root: str, step: Optional[Callable[[int], None]] = None) -> None:
        self.tree = layout.Tree(root)
        self.step = step
        self.interrupted = False
        self.root = root
        self.real_root = os.path.realpath(root)
        self.files = 0
        self.strange = 0

    def walk(self) -> None:
        """All folders; an interrupt ends it with those that were listed where somebody follows its
        steps."""
        try:
            self._walk()
        except KeyboardInterrupt:
            if self.step is None:
                raise
            self.interrupted = True

    def _walk(self) -> None:
        folders = [(self.root, 0)]
        while folders:
            if self.step is not None:
                self.step(self.files)
            folder, depth = folders.pop()
            below = self.folder(folder)
            if depth < _MOST_DEPTH:
                folders += [(path, depth + 1) for path in below]
            else:
                self.tree.problems.extend(
                    FileProblem(path, "tree.deep", {"most": _MOST_DEPTH}) for path in below
                )
            if self.files > _MOST_FILES:
                self.tree.problems.append(
                    FileProblem(self.root, "tree.many", {"most": _MOST_FILES})
                )
                break

    def folder(self, folder: str) -> List[str]:
        """Take the files of one folder; its folders."""
        folders: List[str] = []
        names: List[str] = []
        number = self.files
        try:
            with os.scandir(folder) as listing:
                for number, item in enumerate(listing, self.files + 1):
                    if item.is_file(follow_symlinks=False):
                        names.append(item.name)
                    elif item.is_dir(follow_symlinks=False):
                        if not item.name.startswith("."):
                            folders.append(item.path)
                    elif not item.name.startswith("."):
                        self.special(item.path, item.is_symlink())
                    if number > _MOST_FILES:
                        break
        except OSError as error:
            self.tree.problems.append(
                FileProblem(folder, "tree.unlisted", {"reason": reason_of(error)})
            )
        self.files = number
        self.take(folder, names)
        return folders

    def special(self, path: str, is_link: bool) -> None:
        # a link to something inside the tree is met there; one that leaves it could show a file
        # that is none of the tree's
        if not is_link:
            self.tree.problems.append(FileProblem(path, "file.special"))
        elif not _inside(os.path.realpath(path), self.real_root):
            self.tree.problems.append(FileProblem(path, "file.link"))
        elif not os.path.exists(path):
            self.tree.problems.append(FileProblem(path, "file.link_nowhere"))

    def take(self, folder: str, names: List[str]) -> None:
        """Sort the files of one folder into records, dumps, problems."""
        place = layout.place_of(folder)
        records, dumps, others = sort_names(names)
        hashed = [file_name for file_name in others if _is_hashed(file_name)]
        mapped = self.hashed(folder, hashed, place, MAPPING in others) if hashed else []
        if records or dumps or mapped:
            self.tree.folders[folder] = Folder(folder, place, records, dumps, mapped)
        for file_name in others:
            if file_name[0] == ".":
                if file_name.endswith(".part") and (
                    parse_name(file_name[1:-5]) or _is_hashed(file_name[1:-5])
                ):
                    self.tree.unfinished.append(os.path.join(folder, file_name))
            elif _is_hashed(file_name):
                self.strange += 1
            elif file_name != MAPPING and not _is_ours(file_name):
                self.strange += 1
                self.tree.problems.append(
                    FileProblem(os.path.join(folder, file_name), "name.unreadable")
                )

    def hashed(self, folder: str, hashed: List[str], place: Place, mapping: bool) -> List[Entry]:
        """The files that mapping.csv tells of; the others become problems."""
        real: Dict[str, Name] = {}
        if mapping:
            try:
                real = _mapped(os.path.join(folder, MAPPING), hashed)
            except DumpFormatError as error:
                self.tree.problems.append(FileProblem.of(os.path.join(folder, MAPPING), error))
        self.tree.problems.extend(
            FileProblem(os.path.join(folder, file_name), "name.hashed")
            for file_name in hashed
            if file_name not in real
        )
        return [
            Entry(os.path.join(folder, file_name), real[file_name], place)
            for file_name in hashed
            if file_name in real
        ]

    def finish(self) -> layout.Tree:
        self.tree = replace(self.tree, interrupted=self.interrupted)
        runs = {folder.place.run for folder in self.tree.folders.values()}
        self.tree.runs.extend(sorted(run for run in runs if run is not None))
        self.tree.problems.sort(key=lambda problem: problem.path)
        return self.tree


def find(path: str, step: Optional[Callable[[int], None]] = None) -> layout.Tree:
    """Find dump files at any depth under ``path``: a tree's root, any folder in it, or one file.

    Links are never followed below ``path``; FIFOs and devices are never opened. An empty folder
    gives an empty tree.

    Args:
        step: called now and then with the files listed so far; an interrupt (Ctrl-C) then ends the
            search with what was found.

    Raises:
        PathError: missing, unreadable, or it holds files none of which is a dump's.
    """
    given = os.fspath(path)
    path = os.path.abspath(given)
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise PathError("path.missing", path=given) from error
    except (OSError, ValueError) as error:
        raise PathError("path.unreadable", path=given, reason=reason_of(error)) from error
    if stat.S_ISDIR(mode):
        if not os.access(path, os.R_OK | os.X_OK):
            raise PathError("path.unreadable", path=given, reason=os.strerror(13))
        return _find_folder(path, given, step)
    if not stat.S_ISREG(mode):
        raise PathError("path.special", path=given)
    return _find_file(path, given)


def _find_folder(path: str, given: str, step: Optional[Callable[[int], None]]) -> layout.Tree:
    scan = _Scan(path, step)
    scan.walk()
    tree = scan.finish()
    if not (tree.folders or tree.unfinished or tree.interrupted) and scan.strange:
        first = next(problem for problem in tree.problems if problem.code.startswith("name."))
        if not _looks_like_record(first.path):
            raise PathError("path.no_dump", path=given, example=os.path.relpath(first.path, path))
    return tree


def _find_file(path: str, given: str) -> layout.Tree:
    # the user's own link is followed, to where mapping.csv and the other files lie
    path = os.path.realpath(path) if os.path.islink(path) else path
    name = name_of(path)
    if name is None and not _looks_like_record(path):
        raise PathError("path.not_a_dump", path=given)
    folder = os.path.dirname(path)
    scan = _Scan(folder)
    if name is None:
        scan.take(folder, [os.path.basename(path)])
        return scan.finish()
    scan.folder(folder)
    single = Entry(path, name, layout.place_of(folder))
    tree = scan.finish()
    if name.kind == "record":
        tree.folders[folder] = tree.folders[folder].with_records([single])
    return layout.Tree(folder, tree.folders, [], tree.runs, [], single=single)


def name_of(path: str) -> Optional[Name]:
    """What the name of one file says; a hashed name is looked up in the mapping.csv beside it.

    None where nothing does.
    """
    folder, file_name = os.path.split(os.path.abspath(path))
    name = parse_name(file_name)
    if name is None and _is_hashed(file_name):
        try:
            name = _mapped(os.path.join(folder, MAPPING), [file_name]).get(file_name)
        except DumpFormatError:
            return None
    return name


def _mapped(mapping: str, hashed: List[str]) -> Dict[str, Name]:
    """The real names of ``hashed`` files. Rows ``number,real name`` can repeat, and the last one
    can be half written: the first good one counts.

    Raises:
        DumpFormatError: mapping.csv can't be read.
    """
    wanted: Dict[str, List[str]] = {}
    for file_name in hashed:
        wanted.setdefault(_stem(file_name), []).append(file_name)
    found: Dict[str, Name] = {}
    with open_regular(mapping) as file:
        if os.fstat(file.fileno()).st_size > _MOST_MAPPING_BYTES:
            raise DumpFormatError("mapping.large", most=_MOST_MAPPING_BYTES)
        with open(file.fileno(), "rb", closefd=False) as lines:
            while True:
                line = lines.readline(_MOST_LINE_BYTES)
                if not line:
                    return found
                number, _, real = line.decode("utf-8", "replace").partition(",")
                for file_name in wanted.get(_stem(number.strip().strip('"')), ()):
                    name = _real_name(real.strip().strip('"'), file_name)
                    if name is not None:
                        found.setdefault(file_name, name)


def _real_name(real: str, file_name: str) -> Optional[Name]:
    """What a row says of a file; a statistics file's row may leave the ``.csv`` out, and a dump of
    the same operator has the same number."""
    statistics = file_name[-4:].lower() == ".csv"
    if statistics != (real[-4:].lower() == ".csv"):
        real = real + ".csv" if statistics else real[:-4]
    return parse_name(real)


def _stem(file_name: str) -> str:
    return file_name[:-4] if file_name[-4:].lower() == ".csv" else file_name


def _is_hashed(file_name: str) -> bool:
    stem = _stem(file_name)
    return stem.isdigit() and stem.isascii() and len(stem) <= _MOST_HASH_DIGITS


def _is_ours(file_name: str) -> bool:
    """Whether it is a file that this package keeps beside a dump."""
    stem, _, kind = file_name.rpartition(".")
    if file_name == SURVEY_FILE:
        return True
    return (stem == "report" and kind in ("json", "txt", "html")) or (
        kind == "json" and stem.startswith("session-")
    )


def _looks_like_record(path: str) -> bool:
    return os.path.basename(path).lower().startswith("opdebug.")


def _inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
