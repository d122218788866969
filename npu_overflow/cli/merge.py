"""``npu-overflow merge``: the reports of many ranks as one."""
from __future__ import annotations

import argparse
import os
import re
from typing import Callable, List, Tuple

from npu_overflow.cli import _shell
from npu_overflow.errors import DumpFormatError, PathError
from npu_overflow.report import texts
from npu_overflow.report.model import Report

__all__ = ["ALIASES", "add_arguments", "run"]

ALIASES: Tuple[str, ...] = ()

LIMIT = 3
#: reports of one folder tree: more ranks than any job has
MOST_REPORTS = 20_000

_REPORT = re.compile(r"^report(-\d{1,7})?\.json$")


def add_arguments(parser: argparse.ArgumentParser, say: Callable[..., str]) -> None:
    parser.add_argument("reports", nargs="+", metavar="REPORT.json", help=say("cli.merge.reports"))
    parser.add_argument("--json", action="store_true", help=say("cli.merge.json"))
    parser.add_argument("--output", metavar="FILE", help=say("cli.merge.output"))
    parser.add_argument("--limit", type=_shell.count, default=LIMIT, metavar="N", help=say("cli.merge.limit", default=LIMIT))
    parser.add_argument("--language", choices=texts.LANGUAGES, help=say("cli.language"))


def run(arguments: argparse.Namespace) -> int:
    from npu_overflow.report.merge import merge
    from npu_overflow.report.terminal import print_report

    merged = merge([_read(path) for given in arguments.reports for path in _files(given)])
    text = merged.to_json() + "\n"
    if arguments.output is not None:
        aside = arguments.output + ".part"
        with open(aside, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(aside, arguments.output)
    if arguments.json:
        _shell.write_out(text)
    else:
        print_report(merged, language=arguments.language or texts.language_of_user(), limit=arguments.limit, saved=arguments.output)
    return 0


def _files(path: str) -> List[str]:
    """The reports that a path names: itself, or those that lie in a folder and below it."""
    if not os.path.isdir(path):
        return [path]
    found: List[str] = []
    for folder, folders, names in os.walk(path):
        folders.sort()
        paths = [os.path.join(folder, name) for name in sorted(names) if _REPORT.match(name)]
        found += [path for path in paths if not os.path.islink(path)]
        if len(found) > MOST_REPORTS:
            break
    if not found:
        raise PathError("merge.none_in_folder", path=path)
    return found[:MOST_REPORTS]


def _read(path: str) -> Report:
    if not os.path.exists(path):
        raise PathError("merge.missing", path=path)
    if not os.path.isfile(path):
        raise PathError("merge.no_report", path=path, reason="not a regular file")
    try:
        # a link that the user names is followed, one that lies in a folder is not found in the first place
        return _shell.read_report(os.path.realpath(path))
    except DumpFormatError as error:
        raise PathError("merge.no_report", path=path, reason=str(error)) from None
