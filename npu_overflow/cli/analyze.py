"""``npu-overflow analyze``: what an overflow dump says."""
from __future__ import annotations

import argparse
from typing import Any, Callable, List, Optional

from npu_overflow import messages
from npu_overflow.cli import _shell
from npu_overflow.errors import NpuOverflowError, UsageError
from npu_overflow.report.model import Report
from npu_overflow.training.options import DEFAULT_DUMP_PATH, bytes_of

__all__ = ["ALIASES", "add_arguments", "run", "was_interrupted"]

#: as in the vendor's tool
ALIASES = ("ac",)

#: operators that the terminal shows unless told
LIMIT = 3
#: brought here from a URL unless told
MAX_DOWNLOAD = "2GB"


def add_arguments(parser: argparse.ArgumentParser, say: Callable[..., str]) -> None:
    parser.add_argument(
        "path", nargs="*", metavar="PATH", help=say("cli.analyze.path", default=DEFAULT_DUMP_PATH)
    )
    parser.add_argument("--json", action="store_true", help=say("cli.analyze.json"))
    parser.add_argument("--html", metavar="FILE", help=say("cli.analyze.html"))
    parser.add_argument(
        "--limit", type=_shell.count, metavar="N", help=say("cli.analyze.limit", default=LIMIT)
    )
    parser.add_argument("--run", dest="run_name", metavar="TIME|all", help=say("cli.analyze.run"))
    parser.add_argument("--mode", choices=("saturation", "inf_nan"), help=say("cli.analyze.mode"))
    parser.add_argument(
        "--max-download",
        metavar="SIZE",
        default=MAX_DOWNLOAD,
        help=say("cli.analyze.max_download", default=MAX_DOWNLOAD),
    )
    parser.add_argument("--language", choices=messages.LANGUAGES, help=say("cli.language"))
    parser.add_argument("--exit-code", action="store_true", help=say("cli.analyze.exit_code"))
    parser.add_argument("--quiet", action="store_true", help=say("cli.analyze.quiet"))


def run(arguments: argparse.Namespace) -> int:
    from npu_overflow.analysis.progress import Progress
    from npu_overflow.analysis.workers import processors
    from npu_overflow.cli._trees import report_of

    paths = arguments.path or [DEFAULT_DUMP_PATH]
    language = arguments.language or messages.language_of_user()
    if arguments.html and len(paths) > 1:
        raise UsageError("analyze.html_one", count=len(paths))
    everything = arguments.json or arguments.html
    limit: Optional[int] = arguments.limit if everything or arguments.limit is not None else LIMIT
    most_bytes = bytes_of(arguments.max_download, "--max-download")
    reports: List[Report] = []
    status = 0
    for path in paths:
        try:
            progress = Progress(not arguments.quiet, language)
            options = {
                "run": arguments.run_name,
                "limit": limit,
                "mode": arguments.mode,
                "processes": processors(),
                "every_record": arguments.limit is None,
            }
            report = report_of(path, most_bytes, language, progress, **options)
        except NpuOverflowError as error:
            # the other paths are still worth reading
            status = max(status, _shell.complain_of(error, language))
            continue
        reports.append(report)
        if arguments.html:
            report.to_html(arguments.html, language)
        if not arguments.json and not arguments.quiet:
            _print(
                report,
                len(paths) > 1,
                arguments.limit if arguments.limit is not None else LIMIT,
                language,
                arguments.html,
            )
        if was_interrupted(report):
            status = _shell.INTERRUPTED
            break
    if not arguments.json:
        from npu_overflow.report import github

        github.show(reports, language)
    if arguments.json and reports:
        _print_json(reports, len(paths) > 1)
    if status == _shell.DONE and arguments.exit_code and any(map(_shell.found_overflow, reports)):
        return _shell.FOUND
    return status


def was_interrupted(report: Report) -> bool:
    """Whether the user ended the analysis before it was done."""
    return any((remark.code or "").startswith("remark.interrupted") for remark in report.remarks)


def _print(report: Report, several: bool, limit: int, language: str, saved: Optional[str]) -> None:
    from npu_overflow.report.escape import clean
    from npu_overflow.report.terminal import print_report

    if several:
        _shell.write_out("== %s\n" % clean(report.path))
    print_report(report, language=language, limit=limit, saved=saved)
    if several:
        _shell.write_out("\n")


def _print_json(reports: List[Report], several: bool) -> None:
    """One object for one path, a list of them for several."""
    bodies: List[Any] = [report.to_json() for report in reports]
    _shell.write_out(("[\n%s\n]\n" % ",\n".join(bodies)) if several else bodies[0] + "\n")
