"""``npu-overflow merge``: the reports of many ranks as one."""
from __future__ import annotations

import argparse
import glob
import hashlib
import os
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Callable, Iterator, List, Optional, Tuple

from npu_overflow import messages
from npu_overflow.atomic import atomic_write
from npu_overflow.cli import _remote as remote
from npu_overflow.cli import _shell
from npu_overflow.errors import DumpFormatError, NpuOverflowError, PathError, reason_of
from npu_overflow.report.model import Problem, Remark, Report

if TYPE_CHECKING:
    from npu_overflow.report.merge import Merging

__all__ = ["ALIASES", "add_arguments", "run"]

ALIASES: Tuple[str, ...] = ()

LIMIT = 3
#: reports of one argument: more ranks than any job has
MOST_REPORTS = 1_000_000
#: operators that are kept for --json and --output; the terminal shows fewer
MOST_OPERATORS = 1000
#: reports that can't be read and are named
MOST_NAMED = 20

#: of a healthy run there is none
_NO_REPORTS = ("merge.missing", "merge.none_in_folder")

_REPORT = re.compile(r"^report(-\d{1,7})?\.json$")


def add_arguments(parser: argparse.ArgumentParser, say: Callable[..., str]) -> None:
    parser.add_argument("reports", nargs="+", metavar="REPORT.json", help=say("cli.merge.reports"))
    parser.add_argument("--json", action="store_true", help=say("cli.merge.json"))
    parser.add_argument("--output", metavar="FILE", help=say("cli.merge.output"))
    parser.add_argument(
        "--limit",
        type=_shell.count,
        default=LIMIT,
        metavar="N",
        help=say("cli.merge.limit", default=LIMIT),
    )
    parser.add_argument("--exit-code", action="store_true", help=say("cli.merge.exit_code"))
    parser.add_argument("--language", choices=messages.LANGUAGES, help=say("cli.language"))


def run(arguments: argparse.Namespace) -> int:
    from npu_overflow.report import github
    from npu_overflow.report.terminal import print_report

    language = arguments.language or messages.language_of_user()
    reading = _Reading(language, max(MOST_OPERATORS, arguments.limit))
    interrupted = reading.all(arguments.reports)
    try:
        merged = reading.report(interrupted)
    except PathError as error:
        if not arguments.exit_code or error.code not in _NO_REPORTS:
            raise
        _shell.complain(error.message(language), messages.say("merge.no_overflow", language))
        return _shell.DONE
    text = merged.to_json() + "\n"
    saved = arguments.output
    if saved is not None and interrupted:
        _shell.complain(messages.say("merge.not_written", language, file=saved))
        saved = None
    if saved is not None:
        atomic_write(saved, text, follow=True)
    if arguments.json:
        _shell.write_out(text)
    else:
        print_report(merged, language=language, limit=arguments.limit, saved=saved)
        github.show([merged], language)
    if interrupted or reading.failed:
        return _shell.INTERRUPTED if interrupted else _shell.FAILED
    found = arguments.exit_code and _shell.found_overflow(merged)
    return _shell.FOUND if found else _shell.DONE


class _Reading:
    """Reports read one after the other; one that can't be read is said, and the others are merged
    all the same."""

    def __init__(self, language: str, most: int) -> None:
        from npu_overflow.analysis.progress import Progress
        from npu_overflow.report.merge import Merging

        self.failed = 0
        self._language = language
        self._merging = Merging(most)
        self._progress = Progress(language=language)
        self._problems: List[Problem] = []
        self._error: Optional[NpuOverflowError] = None

    def all(self, arguments: List[str]) -> bool:
        """Read all that the arguments name; True where the user ended that."""
        try:
            for given in arguments:
                try:
                    for path, read in _files(given):
                        self._take(path, read)
                except NpuOverflowError as error:
                    self._fail(given, error)
        except KeyboardInterrupt:
            if not self._merging.count:
                raise
            return True
        return False

    def _take(self, path: str, read: Callable[[int], bytes]) -> None:
        self._progress.step("progress.reports", self._merging.count)
        try:
            content = read(_shell.MOST_REPORT_BYTES)
            _add(self._merging, path, content)
        except NpuOverflowError as error:
            self._fail(path, error)

    def _fail(self, path: str, error: NpuOverflowError) -> None:
        self.failed += 1
        if self._error is None and not self._merging.count:
            self._error = error  # perhaps the only one: then it is what is said
            return
        self._name(path, error)

    def _name(self, path: str, error: NpuOverflowError) -> None:
        if len(self._problems) < MOST_NAMED:
            self._problems.append(
                Problem(
                    path,
                    error.message("en"),
                    error.code,
                    {key: str(value) for key, value in error.values.items()},
                )
            )
            _shell.complain_of(error, self._language)

    def report(self, interrupted: bool) -> Report:
        """The merged report.

        Raises:
            NpuOverflowError: the first error, where no report could be read.
        """
        if self._error is not None:
            if not self._merging.count:
                raise self._error
            self._name(str(self._error.values.get("path", "")), self._error)
        unnamed = self.failed - len(self._problems)
        if unnamed:
            _shell.complain(messages.say("merge.unread", self._language, count=unnamed))
        merged = self._merging.report()
        remarks = merged.remarks
        if interrupted:
            values = {"done": self._merging.count}
            remarks = (
                Remark(
                    messages.say("merge.interrupted", "en", **values), "merge.interrupted", values
                ),
                *remarks,
            )
        return replace(merged, problems=(*self._problems, *merged.problems), remarks=remarks)


def _files(path: str) -> Iterator[Tuple[str, Callable[[int], bytes]]]:
    """The reports that an argument names: itself, those that its ``*`` stands for, or those in a
    folder and below it; and what reads each."""
    if remote.is_url(path):
        yield from remote.reports_at(path, MOST_REPORTS)
    else:
        for name in _local_files(path):
            yield name, partial(_content, name)


def _local_files(path: str) -> Iterator[str]:
    if not os.path.lexists(path) and glob.has_magic(path):
        found = sorted(glob.glob(path))
        if not found:
            raise PathError("merge.missing", path=path)
        yield from found
        return
    if not os.path.isdir(path):
        yield path
        return
    count = 0
    for folder, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            if (
                _REPORT.match(name)
                and count < MOST_REPORTS
                and not os.path.islink(os.path.join(folder, name))
            ):
                count += 1
                yield os.path.join(folder, name)
    if not count:
        raise PathError("merge.none_in_folder", path=path)


def _content(path: str, most: int) -> bytes:
    if not os.path.exists(path):
        raise PathError("merge.missing", path=path)
    if not os.path.isfile(path):
        raise PathError("merge.no_report", path=path, reason="not a regular file")
    try:
        # a link that the user names is followed, one that lies in a folder is not found in the
        # first place
        return _shell.report_bytes(os.path.realpath(path), most)
    except DumpFormatError as error:
        raise PathError("merge.no_report", path=path, reason=reason_of(error)) from None


def _add(merging: Merging, path: str, content: bytes) -> None:
    try:
        merging.add_json(content.decode("utf-8"), hashlib.sha256(content).digest())
    except (UnicodeDecodeError, DumpFormatError) as error:
        raise PathError("merge.no_report", path=path, reason=reason_of(error)) from None
