"""``npu-overflow mixlist``: the mixed-precision file that keeps the culprits in float32 on Ascend.
"""
from __future__ import annotations

import argparse
import os
from typing import Callable, List, Optional, Tuple

from npu_overflow import messages
from npu_overflow.atomic import atomic_write
from npu_overflow.cli import _shell
from npu_overflow.errors import PathError, reason_of
from npu_overflow.report.escape import clean
from npu_overflow.report.model import Operator, Report
from npu_overflow.training.options import DEFAULT_DUMP_PATH

__all__ = ["ALIASES", "add_arguments", "run"]

ALIASES: Tuple[str, ...] = ()

OUTPUT, OUTPUT_BY_NAME = "ops_info.json", "customize_dtypes.txt"

#: a list of types has a few hundred bytes
_MOST_BYTES = 1 << 24
#: names that are listed
_MOST_SHOWN = 20


def add_arguments(parser: argparse.ArgumentParser, say: Callable[..., str]) -> None:
    parser.add_argument(
        "path",
        nargs="?",
        metavar="PATH",
        default=DEFAULT_DUMP_PATH,
        help=say("cli.mixlist.path", default=DEFAULT_DUMP_PATH),
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help=say("cli.mixlist.output", default=OUTPUT, by_name=OUTPUT_BY_NAME),
    )
    parser.add_argument("--by-name", action="store_true", help=say("cli.mixlist.by_name"))
    parser.add_argument("--limit", type=_shell.count, metavar="N", help=say("cli.mixlist.limit"))
    parser.add_argument("--run", dest="run_name", metavar="TIME|all", help=say("cli.analyze.run"))
    parser.add_argument("--mode", choices=("saturation", "inf_nan"), help=say("cli.analyze.mode"))
    parser.add_argument("--language", choices=messages.LANGUAGES, help=say("cli.language"))


def run(arguments: argparse.Namespace) -> int:
    language = arguments.language or messages.language_of_user()
    report = _report(arguments)
    if report.host is not None or any(
        operator.core in ("CPU", "GPU") for operator in report.operators
    ):
        return _host(report, language)
    from npu_overflow.analysis.artefacts import (
        dtype_line,
        kept_operators,
        merge_dtypes,
        merge_mixlist,
    )

    kept = kept_operators(report)
    strange = list(kept.strange)
    output = arguments.output or (OUTPUT_BY_NAME if arguments.by_name else OUTPUT)
    if arguments.by_name:
        lines = []
        for operator in kept.operators:
            line = dtype_line(operator)
            if line is None:
                strange.append(operator.op_name or operator.op_type or "?")
            else:
                lines.append(line)
        named: List[str] = lines
    else:
        named = list(kept.types)
    if strange:
        _shell.complain(messages.say("cli.mixlist.strange", language, names=_listed(strange)))
    if not named:
        raise PathError("mixlist.nothing", path=report.path)
    existing = _existing(output)
    text, conflicts = (merge_dtypes if arguments.by_name else merge_mixlist)(existing, named)
    atomic_write(output, text, follow=True, keep_mode=True)
    if conflicts:
        _shell.complain(
            messages.say("cli.mixlist.conflict", language, names=_listed(conflicts), file=output)
        )
    _say(arguments.by_name, output, named, kept.operators, existing is not None, language)
    return 0


def _report(arguments: argparse.Namespace) -> Report:
    """Of a dump tree, or one that was saved."""
    from npu_overflow.analysis.analyzer import analyze

    return _shell.saved_report(arguments.path) or analyze(
        arguments.path, run=arguments.run_name, limit=arguments.limit, mode=arguments.mode
    )


def _host(report: Report, language: str) -> int:
    """CANN's types can't be told from TensorFlow's own operators: say what helps there."""
    from npu_overflow.report.story import advice_text

    first = report.first
    operator = Operator(core="CPU") if first is None else first
    _shell.write_out(clean_lines(advice_text(operator, "keep_float32", language)) + "\n")
    error = PathError("mixlist.host", path=report.path)
    _shell.complain(error.message(language), error.hint(language))
    return 1


def clean_lines(text: str) -> str:
    return "\n".join(clean(line) for line in text.split("\n"))


def _listed(names: List[str]) -> str:
    shown = ", ".join(clean(name, 200) for name in names[:_MOST_SHOWN])
    return shown if len(names) <= _MOST_SHOWN else "%s … (%d)" % (shown, len(names))


def _existing(path: str) -> Optional[str]:
    """Text of the file that is there already, or None."""
    if not os.path.lexists(path):
        return None
    if not os.path.isfile(path) or os.path.getsize(path) > _MOST_BYTES:
        raise PathError("mixlist.not_json", reason=path)
    with open(path, "rb") as file:
        try:
            return file.read().decode("utf-8")
        except UnicodeDecodeError as error:
            raise PathError("mixlist.not_json", reason=reason_of(error)) from None


def _say(
    by_name: bool,
    output: str,
    named: List[str],
    operators: Tuple[Operator, ...],
    merged: bool,
    language: str,
) -> None:
    """The file, what is in it, and how it is switched on."""
    lines = [
        messages.say(
            "cli.mixlist.merged" if merged else "cli.mixlist.written",
            language,
            file=clean(output),
            count=len(named),
        )
    ]
    if by_name:
        lines += ["  " + clean(line) for line in named[:_MOST_SHOWN]]
    else:
        for name in named[:_MOST_SHOWN]:
            behind = [operator.op_name or "?" for operator in operators if operator.op_type == name]
            more = (
                messages.say("cli.mixlist.more", language, count=len(behind) - 1)
                if len(behind) > 1
                else ""
            )
            lines.append("  %s  (%s%s)" % (clean(name), clean(behind[0]), more))
    if len(named) > _MOST_SHOWN:
        lines.append("  … %d" % (len(named) - _MOST_SHOWN))
    lines.append(messages.say("cli.mixlist.use", language))
    option = "customize_dtypes" if by_name else "modify_mixlist"
    lines.append('    npu.global_options().precision_mode_v2 = "mixed_float16"')
    lines.append(
        "    npu.global_options().%s = %s" % (option, clean(repr(os.path.abspath(output))))
    )
    if by_name:
        lines.append(messages.say("cli.mixlist.fusion", language))
    elif {"Cast", "TransData"} & set(named):
        lines.append(messages.say("cli.mixlist.cast", language))
    _shell.write_out("".join(line + "\n" for line in lines))
