"""Trees that ``analyze`` is given: a path of this machine, or a URL whose tree is brought into a
temporary folder that is removed again."""
from __future__ import annotations

import tempfile
from dataclasses import replace
from typing import Any

from npu_overflow import messages
from npu_overflow.analysis.progress import Progress
from npu_overflow.cli import _remote as remote
from npu_overflow.cli import _shell
from npu_overflow.errors import PathError
from npu_overflow.report.model import Report

__all__ = ["report_of"]

#: names that are listed
_MOST_SHOWN = 20


def report_of(
    path: str, most_bytes: int, language: str, progress: Progress, **options: Any
) -> Report:
    """The report of a tree or the one that is saved in a file, here or at a URL.

    Args:
        most_bytes: brought here at most.
        options: of ``analyze``.
    """
    from npu_overflow.analysis.analyzer import analyze

    if not remote.is_url(path):
        return _shell.saved_report(path) or analyze(path, progress=progress, **options)
    if path.endswith(".json"):
        return Report.from_json(
            remote.read(path, _shell.MOST_REPORT_BYTES).decode("utf-8", "replace")
        )
    with tempfile.TemporaryDirectory(prefix="npu_overflow-") as folder:
        tree = remote.fetch_tree(
            path,
            folder,
            most_bytes,
            _needed,
            lambda done, total: progress.step("progress.fetched", done, total),
        )
        for name in tree.refused[:_MOST_SHOWN]:
            _shell.complain(messages.say("remote.refused", language, name=name))
        if len(tree.refused) > _MOST_SHOWN:
            _shell.complain(
                messages.say("remote.refused_more", language, count=len(tree.refused) - _MOST_SHOWN)
            )
        try:
            return replace(
                analyze(tree.path, progress=progress, fetch=tree.fetch, **options), path=path
            )
        except PathError as error:
            # the temporary folder says nothing to the user
            if "path" in error.values:
                error.values["path"] = path
            raise


def _needed(name: str) -> bool:
    """Files that are read in any case: records, and what tells the names of hashed ones."""
    from npu_overflow.dump.names import parse_name

    parsed = parse_name(name)
    return name == "mapping.csv" or (parsed is not None and parsed.kind == "record")
