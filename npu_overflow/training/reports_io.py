"""Reports of a running training: analyzed in the process and saved beside the manifest, aside first
and then renamed."""
from __future__ import annotations

import logging
import os
from typing import Optional

from npu_overflow import messages
from npu_overflow.atomic import atomic_write
from npu_overflow.report.model import Remark, Report
from npu_overflow.training.manifest import Manifest
from npu_overflow.version import __version__

__all__ = ["analyzed", "empty", "files_shown", "save", "shown"]


def analyzed(folder: str, manifest: Manifest) -> Report:
    """The report of a tree, which carries its manifest. Ranks that start in the same second share a
    time folder: of several, what this one's device kept."""
    from npu_overflow.analysis.analyzer import analyze

    devices = {kept.split("/")[0] for kept in manifest.kept_folders or ()}
    if manifest.world_size > 1 and len(devices) == 1:
        folder = os.path.join(folder, *devices)
    return analyze(folder, mode=manifest.mode)


def empty(folder: str, manifest: Manifest) -> Report:
    """The report of a collection that wrote nothing: why, and what the watch saw of the loss
    scale."""
    from npu_overflow.analysis import runfacts

    return Report(
        path=folder,
        version=__version__,
        mode=manifest.mode,
        rank=manifest.rank,
        world_size=manifest.world_size,
        remarks=tuple(
            Remark(messages.say(code, "en", **values), code, dict(values))
            for code, values in manifest.remarks
        ),
        loss_scale=runfacts.loss_scale_of([manifest]),
        reason=manifest.reason,
    )


def save(report: Report, folder: str, manifest: Manifest, language: str) -> str:
    """Write ``report.json``, ``report.html`` and ``report.txt`` into ``folder``; returns the path
    of the text.

    Raises:
        CannotWrite: the disk refuses. Those that were written before are whole, and the manifest
            names only them.
    """
    import io

    text = io.StringIO()
    report.print(file=text, language=language)
    several = "-%d" % manifest.rank if manifest.world_size > 1 else ""
    contents = [("report%s.json" % several, report.to_json())]
    page = _page(report, language)
    if page is not None:
        contents.append(("report%s.html" % several, page))
    contents.append(("report%s.txt" % several, text.getvalue()))
    for name, content in contents:
        atomic_write(os.path.join(folder, name), content)
        manifest.reports.append(name)
    return os.path.join(folder, contents[-1][0])


def _page(report: Report, language: str) -> Optional[str]:
    """The HTML report, or None where it can't be made: the others matter more."""
    from npu_overflow.report import html

    try:
        return html.render(report, language)
    except Exception as error:
        log = logging.getLogger("npu_overflow")
        log.warning("report.html was not written: %s: %s", type(error).__name__, error)
        return None


def shown(path: str) -> str:
    """A path as a user would type it: relative where it lies below the working folder."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative


def files_shown(path: str) -> str:
    """What ``save`` wrote, for people: the folder, and the report's name in each form that is
    there."""
    stem = os.path.splitext(path)[0]
    forms = [form for form in (".html", ".json", ".txt") if os.path.exists(stem + form)]
    if not forms:
        return path
    names = os.path.basename(stem) + ", ".join(forms)
    return "%s (%s)" % (os.path.join(os.path.dirname(path), ""), names)
