"""The command line, ``npu-overflow``. Every module here whose name has no leading underscore is a
command.

A command's module has

    ALIASES = ("ac",)                       other names, may be empty
    add_arguments(parser, say)              its options; ``say(code, **values)`` gives a text in the
    user's language run(arguments) -> int                   does it and returns the exit status
    split(words) -> (own, passed)           only where what follows the options belongs to somebody
    else; ``arguments`` then has both lists

and its one-line help is the text ``cli.NAME.help``. So a new command is one new file and its texts.

Exit status: 0 done, 1 could not do it, 2 wrong usage, 3 an overflow was found and ``--exit-code``
was given; 130 after Ctrl-C. Results go to standard output, progress, warnings and errors to
standard error.
"""
from __future__ import annotations

import argparse
import functools
import importlib
import pkgutil
import sys
from typing import Any, Dict, Optional, Sequence

from npu_overflow import messages
from npu_overflow.cli import _shell
from npu_overflow.errors import NpuOverflowError
from npu_overflow.version import __version__

__all__ = ["commands", "main"]

#: commands in the order of the help; others follow by name
_ORDER = ("run", "analyze", "show", "mixlist", "merge", "demo", "doctor")


def commands() -> Dict[str, Any]:
    """The modules of all commands by name, in the order in which the help lists them."""
    names = [item.name for item in pkgutil.iter_modules(__path__) if not item.name.startswith("_")]
    names.sort(key=lambda name: (_ORDER.index(name) if name in _ORDER else len(_ORDER), name))
    return {name: importlib.import_module("%s.%s" % (__name__, name)) for name in names}


def _parser(found: Dict[str, Any], language: str) -> argparse.ArgumentParser:
    say = functools.partial(messages.say, language=language)
    parser = argparse.ArgumentParser(
        prog=_shell.PROGRAM,
        description=say("cli.description"),
        epilog=say("cli.epilog"),
        formatter_class=_shell.HelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version="%s %s" % (_shell.PROGRAM, __version__)
    )
    chosen = parser.add_subparsers(dest="command", metavar="COMMAND", title=say("cli.commands"))
    for name, module in found.items():
        text = say("cli.%s.help" % name)
        about = say("cli.%s.about" % name) if messages.known("cli.%s.about" % name) else text
        command = chosen.add_parser(
            name,
            aliases=list(module.ALIASES),
            help=text,
            description=about,
            formatter_class=_shell.HelpFormatter,
        )
        module.add_arguments(command, say)
        command.set_defaults(run=module.run)
    return parser


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line.

    Args:
        argv: arguments without the program's name; those of the process by default.

    Returns:
        The exit status.
    """
    language = messages.language_of_user()
    found = commands()
    parser = _parser(found, language)
    given = [str(item) for item in (sys.argv[1:] if argv is None else argv)]
    split = getattr(found.get(given[0]), "split", None) if given else None
    own, passed = split(given[1:]) if split is not None else (given[1:], [])
    try:
        arguments = parser.parse_args(given[:1] + own)
    except SystemExit as stop:  # argparse has printed its help or its complaint
        return stop.code if isinstance(stop.code, int) else 0
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    arguments.own, arguments.passed = own, passed
    language = getattr(arguments, "language", None) or language
    if split is None:
        return _shell.guarded(arguments.run, arguments, language)
    try:
        return int(arguments.run(arguments))
    except NpuOverflowError as error:  # how the program that was started ends is its own affair
        return _shell.complain_of(error, language)
