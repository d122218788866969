"""``npu-overflow run``: a training script under the watch, without a change to it."""
from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Tuple

from npu_overflow.cli import _shell
from npu_overflow.errors import UsageError
from npu_overflow.training.options import MOST_STEPS, WatchOptions

if TYPE_CHECKING:
    from npu_overflow.report.model import Report

__all__ = ["ALIASES", "add_arguments", "run", "split"]

ALIASES: Tuple[str, ...] = ()

_SURVEY = "--survey"

#: what only Python can give
_NOT_HERE = ("dump", "on_report", "optimizer")


def _names() -> List[str]:
    return [item.name for item in dataclasses.fields(WatchOptions) if item.name not in _NOT_HERE]


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def add_arguments(parser: argparse.ArgumentParser, say: Callable[..., str]) -> None:
    parser.usage = "npu-overflow run [OPTIONS] script.py ARGS… | -m MODULE ARGS…"
    defaults = {item.name: item.default for item in dataclasses.fields(WatchOptions)}
    for name in _names():
        text = say("cli.run.option." + name)
        if defaults[name] is False:
            parser.add_argument(
                _flag(name), action="store_true", default=argparse.SUPPRESS, help=text
            )
        else:
            parser.add_argument(
                _flag(name), dest=name, default=argparse.SUPPRESS, metavar="X", help=text
            )
    parser.add_argument(_SURVEY, type=int, metavar="STEP", help=say("cli.run.survey"))
    parser.add_argument("--exit-code", action="store_true", help=say("cli.run.exit_code"))
    parser.add_argument("--restart", action="store_true", help=say("cli.run.restart"))
    parser.add_argument("-m", dest="module", metavar="MODULE", help=say("cli.run.module"))
    parser.add_argument("script", nargs="?", help=say("cli.run.script"))


def split(words: List[str]) -> Tuple[List[str], List[str]]:
    """The command's own words, and those of the script: from the first that is no option on, from
    ``-m`` on, or behind ``--``."""
    switches = {
        _flag(item.name) for item in dataclasses.fields(WatchOptions) if item.default is False
    }
    takes_value = {_flag(name) for name in _names()} - switches | {_SURVEY}
    i = 0
    while i < len(words):
        word = words[i]
        if word == "--":
            return words[:i], words[i + 1 :]
        if word.startswith("-m") and not word.startswith("--"):
            return words[:i], ["-m", *([word[2:]] if word[2:] else []), *words[i + 1 :]]
        if not word.startswith("-") or word == "-":
            return words[:i], words[i:]
        i += 2 if word in takes_value else 1
    return words, []


def run(arguments: argparse.Namespace) -> int:
    from npu_overflow.launcher import launch
    from npu_overflow.report import github
    from npu_overflow.training import delivery

    found: List[Report] = []
    delivery.listeners.append(found.append)
    given = vars(arguments)
    options = {name: _value(name, given[name]) for name in _names() if name in given}
    if arguments.survey is not None:
        options["at_steps"] = (*options.get("at_steps", ()), arguments.survey)
    if arguments.restart:
        options["on_overflow"] = "restart"
    try:
        status = launch(arguments.passed, options, arguments.own)
    except SystemExit as stop:
        if stop.code in (None, 0) and arguments.exit_code and _overflowed(found):
            raise SystemExit(_shell.FOUND) from stop
        raise
    finally:
        github.show(found, options.get("language"))
    return _shell.FOUND if status == 0 and arguments.exit_code and _overflowed(found) else status


def _overflowed(reports: List[Report]) -> bool:
    """Whether any report of this run has something to act on."""
    return any(map(_shell.found_overflow, reports))


_WHOLE = (
    "patience",
    "window",
    "warmup",
    "keep",
    "max_collect_steps",
    "max_reports",
    "limit",
    "verbose",
)
_NUMBERS = ("min_scale", "max_collect_seconds")


def _value(name: str, text: Any) -> Any:
    """An option's value from its text; what it can't be is left to the check of the options, which
    says what is accepted."""
    kinds: Dict[str, Callable[[str], Any]] = {"at_steps": _steps, "check_every": _whole}
    kinds.update({item: _whole for item in _WHOLE})
    kinds.update({item: float for item in _NUMBERS})
    kind = kinds.get(name)
    if kind is None or not isinstance(text, str):
        return text
    try:
        return kind(text)
    except UsageError:  # a ValueError, too
        raise
    except ValueError:
        return text


def _whole(text: str) -> Any:
    return text if text == "auto" else int(text)


def _steps(text: str) -> Any:
    """"40,41" or "40:50" (the end is not in it), also mixed. Bounded before it is spread out."""
    found: List[int] = []
    for part in text.split(","):
        first, colon, last = part.partition(":")
        begin = int(first)
        end = int(last) if colon else begin + 1
        if end <= begin:
            raise UsageError("option.empty_range", name="--at-steps", value=repr(text), part=part)
        if end - begin > MOST_STEPS - len(found):
            raise UsageError("option.many_steps", name="--at-steps", most=MOST_STEPS)
        found += range(begin, end)
    return tuple(found)
