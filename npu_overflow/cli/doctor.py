"""``npu-overflow doctor``: what is installed, which collector would be used, and what is wrong."""
from __future__ import annotations

import argparse
import contextlib
import os
import platform
import sys
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from npu_overflow import messages
from npu_overflow.cli import _packages
from npu_overflow.errors import reason_of
from npu_overflow.report.escape import clean
from npu_overflow.report.formatting import bytes_text
from npu_overflow.training.options import DEFAULT_DUMP_PATH
from npu_overflow.version import __version__

__all__ = ["ALIASES", "add_arguments", "run"]

ALIASES: Tuple[str, ...] = ()

#: free space below which a dump can hardly be kept: warn, and refuse to call it healthy
LITTLE_SPACE, NO_SPACE = 2 * 10**9, 50 * 10**6

#: what the package, TensorFlow or the adapter reads; TF_CONFIG and others are only said to be set
_VARIABLES = (
    *(
        "RANK_ID",
        "RANK_SIZE",
        "CM_WORKER_SIZE",
        "ASCEND_DEVICE_ID",
        "RANK_TABLE_FILE",
        "CUDA_VISIBLE_DEVICES",
    ),
    *("CM_CHIEF_IP", "CM_CHIEF_PORT", "CM_CHIEF_DEVICE", "CM_WORKER_IP"),
    *(
        "KERAS_BACKEND",
        "TF_USE_LEGACY_KERAS",
        "TF_ENABLE_ONEDNN_OPTS",
        "PRECISION_TOOL_OVERFLOW",
        "PRECISION_TOOL_DUMP",
        "ENABLE_EXCEPTION_DUMP",
    ),
)

OK, NOTE, WRONG = "good", "warn", "bad"


@dataclass(frozen=True)
class Finding:
    """One line of a section: a label, what was found, how good it is; NOTE and WRONG are repeated
    at the end."""

    label: str
    text: str
    state: str = OK


def add_arguments(parser: argparse.ArgumentParser, say: Callable[..., str]) -> None:
    parser.add_argument(
        "--dump-path",
        default=DEFAULT_DUMP_PATH,
        metavar="FOLDER",
        help=say("cli.doctor.dump_path", default=DEFAULT_DUMP_PATH),
    )
    parser.add_argument("--language", choices=messages.LANGUAGES, help=say("cli.language"))


def run(arguments: argparse.Namespace) -> int:
    from npu_overflow.report.screen import Screen

    language = arguments.language or messages.language_of_user()

    def say(code: str, **values: Any) -> str:
        return messages.say("cli.doctor." + code, language, **values)

    screen = Screen()
    sections = (
        ("installed", _installed(say)),
        ("collector", _collector(say)),
        ("internals", _internals(say, language)),
        ("dump", _dump_path(arguments.dump_path, say)),
        ("environment", _environment(say)),
    )
    for name, findings in sections:
        screen.heading(say(name))
        screen.facts(
            [
                (item.label, item.text, "" if item.state == OK else item.state, False)
                for item in findings
            ]
        )
    wrong = [item for _, findings in sections for item in findings if item.state == WRONG]
    screen.heading(say("verdict"))
    for item in wrong:
        screen.add((item.label + ": ", "bad"), (item.text, ""), margin="  - ")
    if not wrong:
        screen.add((say("healthy"), "calm"), margin="  ")
    screen.show()
    return 1 if wrong else 0


# -- packages


def _installed(say: Callable[..., str]) -> List[Finding]:
    findings = [
        Finding("npu_overflow", __version__),
        Finding("Python", "%s  %s" % (platform.python_version(), clean(sys.executable or ""))),
        Finding(say("system"), clean(platform.platform())),
    ]
    for name, least, below in _packages.needed():
        found = _packages.version(name)
        if found is None:
            findings.append(Finding(name, say("missing", name=name), WRONG))
        elif not _packages.within(found, least, below):
            findings.append(
                Finding(
                    name,
                    say(
                        "version",
                        found=clean(found),
                        wanted=">=%s" % least + (",<%s" % below if below else ""),
                    ),
                    WRONG,
                )
            )
        else:
            findings.append(Finding(name, clean(found)))
    for name in ("tensorflow", "keras", "tf_keras", "npu_device"):
        found = _packages.version(name)
        present = found is not None or _packages.importable(name)
        findings.append(
            Finding(name, clean(found or say("no_version" if present else "absent")), OK)
        )
    return findings


# -- the collector


def _collector(say: Callable[..., str]) -> List[Finding]:
    if _packages.importable("npu_device"):
        findings = [Finding(say("collector_would"), say("ascend"))]
        tensorflow = _packages.version("tensorflow")
        if tensorflow is not None and not tensorflow.startswith("2.6."):
            findings.append(
                Finding("TensorFlow", say("ascend_tensorflow", found=clean(tensorflow)), NOTE)
            )
        return findings
    if _packages.importable("tensorflow"):
        backend = os.environ.get("KERAS_BACKEND", "tensorflow")
        if backend != "tensorflow":
            return [Finding(say("collector_would"), say("backend", backend=clean(backend)), NOTE)]
        return [Finding(say("collector_would"), say("host"))]
    return [Finding(say("collector_would"), say("none"), NOTE)]


def _internals(say: Callable[..., str], language: str) -> List[Finding]:
    """The private names of TensorFlow that the host collector uses. Imports TensorFlow, the only
    slow step."""
    if not _packages.importable("tensorflow"):
        return [Finding("TensorFlow", say("absent"))]
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with _quiet():
            from npu_overflow.collect.replay import tensorflow as private

            found = private.probe()
    except Exception as error:  # whatever a broken TensorFlow raises when it is imported
        return [
            Finding(
                "TensorFlow",
                say("broken", what=clean("%s: %s" % (type(error).__name__, error))),
                WRONG,
            )
        ]
    findings = [
        Finding(
            say("found"), say("found_of", found=sum(item.found for item in found), all=len(found))
        )
    ]
    for item in found:
        if not item.found:
            findings.append(
                Finding(
                    clean(item.name),
                    messages.say(item.lost, language),
                    WRONG if item.needed else NOTE,
                )
            )
    return findings


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what TensorFlow prints on standard error while it is imported, its C++ part included.
    """
    try:
        kept = os.dup(2)
        nothing = os.open(os.devnull, os.O_WRONLY)
    except OSError:
        yield
        return
    try:
        sys.stderr.flush()
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


# -- the dump path


def _dump_path(path: str, say: Callable[..., str]) -> List[Finding]:
    """Whether files can be written there; nothing is left behind."""
    shown = clean(os.path.abspath(path))
    existing = _nearest_folder(os.path.abspath(path))
    findings = [
        Finding(say("path"), shown if os.path.isdir(path) else say("to_be_made", path=shown))
    ]
    problem = _write_problem(existing)
    if problem is not None:
        findings.append(
            Finding(
                say("write"), say("not_writable", path=clean(existing), what=clean(problem)), WRONG
            )
        )
        return findings
    findings.append(Finding(say("write"), say("writable")))
    free = _free_bytes(existing)
    if free is not None:
        state = WRONG if free < NO_SPACE else NOTE if free < LITTLE_SPACE else OK
        text = (
            bytes_text(free)
            if state == OK
            else say("little_space", free=bytes_text(free), wanted=bytes_text(LITTLE_SPACE))
        )
        findings.append(Finding(say("space"), text, state))
    return findings


def _nearest_folder(path: str) -> str:
    """``path`` or what exists of the folders above it."""
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def _write_problem(folder: str) -> Optional[str]:
    """Why no file can be made in ``folder``, or None; found by making one."""
    import tempfile

    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"npu_overflow doctor")
    except OSError as error:
        return reason_of(error)
    return None


def _free_bytes(folder: str) -> Optional[int]:
    import shutil

    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


# -- the environment


def _environment(say: Callable[..., str]) -> List[Finding]:
    findings = [Finding(name, clean(os.environ[name])) for name in _VARIABLES if name in os.environ]
    if "TF_CONFIG" in os.environ:
        findings.append(Finding("TF_CONFIG", say("is_set")))
    numbers: Dict[str, Optional[int]] = {}
    for name in ("RANK_ID", "RANK_SIZE", "CM_WORKER_SIZE"):
        if name in os.environ:
            text = os.environ[name].strip()
            numbers[name] = int(text) if text.isdigit() else None
            if numbers[name] is None:
                findings.append(
                    Finding(name, say("no_number", value=clean(os.environ[name])), WRONG)
                )
    if "RANK_SIZE" in numbers and "CM_WORKER_SIZE" in numbers:
        findings.append(Finding("RANK_SIZE", say("both_sizes"), WRONG))
    rank = numbers.get("RANK_ID")
    size = numbers.get("RANK_SIZE", numbers.get("CM_WORKER_SIZE"))
    if rank is not None and size is not None and rank >= size:
        findings.append(Finding("RANK_ID", say("rank_too_high", rank=rank, size=size), WRONG))
    if size is not None and size > 1 and _packages.importable("npu_device"):
        findings += _how_ranks_meet(say)
    return findings or [Finding("-", say("nothing_set"))]


def _how_ranks_meet(say: Callable[..., str]) -> List[Finding]:
    """The ranks of an Ascend job find each other by a table or by a chief, not by both; ``open``
    refuses everything else."""
    table, chief = "RANK_TABLE_FILE" in os.environ, "CM_CHIEF_IP" in os.environ
    if table == chief:
        return [
            Finding(
                "RANK_TABLE_FILE", say("table_and_chief" if table else "no_table_no_chief"), WRONG
            )
        ]
    missing = [
        name
        for name in (
            ("RANK_ID",) if table else ("CM_CHIEF_PORT", "CM_CHIEF_DEVICE", "CM_WORKER_IP")
        )
        if not os.environ.get(name)
    ]
    return [
        Finding(
            name, say("missing_beside", other="RANK_TABLE_FILE" if table else "CM_CHIEF_IP"), WRONG
        )
        for name in missing
    ]
