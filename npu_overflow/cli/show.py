"""``npu-overflow show``: one file seen closely: its tensors, their statistics, their first values.
"""
from __future__ import annotations

import argparse
import functools
import itertools
import os
from typing import TYPE_CHECKING, Any, Callable, List, Optional, Tuple

from npu_overflow import messages
from npu_overflow.cli import _shell
from npu_overflow.errors import DumpFormatError, NpuOverflowError, PathError, UsageError
from npu_overflow.report.escape import clean
from npu_overflow.report.flow import cells, pad
from npu_overflow.report.screen import Screen
from npu_overflow.report.story import Fact

if TYPE_CHECKING:
    from npu_overflow.dump.reader import OperatorDump
    from npu_overflow.dump.record import Record
    from npu_overflow.dump.tensor import Tensor
    from npu_overflow.report.model import TensorSummary

__all__ = ["ALIASES", "add_arguments", "run"]

#: as in the vendor's tool
ALIASES = ("pt",)

#: rows of values for one chosen tensor, and where all are shown
MOST_ROWS, FEW_ROWS = 16, 2

#: tensors whose first values are shown where all are
MOST_SHOWN = 16

#: above this, values of a padded tensor are shown in the order of the device: turning it around
#: takes its memory several times
MOST_TURNED = 1 << 28

Named = Tuple[str, "Tensor"]


def add_arguments(parser: argparse.ArgumentParser, say: Callable[..., str]) -> None:
    parser.add_argument("file", metavar="FILE", help=say("cli.show.file"))
    parser.add_argument("--tensor", metavar="NAME", help=say("cli.show.tensor"))
    parser.add_argument("--index", metavar="I,J,…", help=say("cli.show.index"))
    parser.add_argument("--save", choices=("npy", "txt"), help=say("cli.show.save"))
    parser.add_argument("--mode", choices=("saturation", "inf_nan"), help=say("cli.analyze.mode"))
    parser.add_argument("--language", choices=messages.LANGUAGES, help=say("cli.language"))


def run(arguments: argparse.Namespace) -> int:
    path: str = arguments.file
    language = arguments.language or messages.language_of_user()
    if os.path.isdir(path):
        raise PathError("show.folder", path=path)
    if not os.path.lexists(path):
        raise PathError("path.missing", path=path)
    try:
        return _show(path, arguments, language)
    except DumpFormatError as error:
        raise PathError("show.file", path=path, reason=error.message(language)) from error


def _show(path: str, arguments: argparse.Namespace, language: str) -> int:
    from npu_overflow.dump.scan import name_of

    path = os.path.realpath(path)
    screen = Screen()
    if path.endswith(".json"):
        return _report(path, language)
    if path.endswith(".npy"):
        from npu_overflow.cli._arrays import array_tensor

        tensor = array_tensor(path)
        screen.add((messages.say("cli.show.array", language), "title"))
        screen.facts([(messages.say("cli.show.path", language), clean(path), "", True)])
        return _tensors(screen, [("array", tensor)], path, arguments, language)
    name = name_of(path)
    if name is not None and name.kind == "record":
        from npu_overflow.dump.record import read_record

        if arguments.tensor or arguments.index or arguments.save:
            raise UsageError("show.no_tensors")
        _record(screen, path, read_record(path), language)
        screen.show()
        return 0
    from npu_overflow.dump.reader import open_dump

    dump = open_dump(path)
    _dump(screen, path, dump, language)
    tensors = [
        ("%s.%d" % (tensor.side, tensor.index), tensor)
        for tensor in [*dump.inputs, *dump.outputs, *dump.others]
    ]
    return _tensors(screen, tensors, path, arguments, language)


def _report(path: str, language: str) -> int:
    """A saved report, printed again."""
    from npu_overflow.cli._shell import read_report
    from npu_overflow.report.terminal import print_report

    print_report(read_report(path), language=language)
    return 0


# -- heads


def _dump(screen: Screen, path: str, dump: OperatorDump, language: str) -> None:
    def say(code: str) -> str:
        return messages.say("cli.show." + code, language)

    from npu_overflow.report.formatting import bytes_text, time_text

    screen.add((say("dump"), "title"))
    kind = (
        dump.name.op_type
        if dump.name is not None and dump.name.op_type
        else messages.say("report.no_type", language)
    )
    screen.add((clean(kind), "type"), margin="  ")
    name = dump.op_name or (dump.name.op_name if dump.name is not None else None)
    if name:
        screen.add((clean(name), "name"), margin="  ", name=True)
    screen.blank()
    facts: List[Fact] = [(say("path"), clean(path), "", True)]
    if dump.dump_time:
        facts.append((say("time"), time_text(dump.dump_time), "", False))
    if dump.host:
        shown = ("phase", "location", "forward_op", "origin", "role", "train_step")
        known = [
            "%s %s" % (key, clean(dump.host[key], 200))
            for key in shown
            if dump.host.get(key) is not None
        ]
        facts.append((say("host"), ", ".join(known), "", False))
    if dump.others:
        held = [
            "%s.%d %s" % (item.side, item.index, bytes_text(item.bytes)) for item in dump.others[:8]
        ]
        facts.append((say("others"), ", ".join(held), "", False))
    if dump.problem is not None:
        values = {key: value for key, value in dump.problem.values.items() if key != "_code"}
        facts.append(
            (
                say("problem"),
                clean(messages.say(dump.problem.code, language, **values)),
                "warn",
                False,
            )
        )
    screen.facts(facts)


def _record(screen: Screen, path: str, record: Record, language: str) -> None:
    def say(code: str, **values: Any) -> str:
        return messages.say("cli.show." + code, language, **values)

    screen.add((say("record"), "title"))
    facts: List[Fact] = [
        (say("path"), clean(path), "", True),
        (
            say("layout"),
            say(
                "layout." + record.layout,
                version=record.version,
                acc_type=record.acc_type,
                valid=record.valid,
            ),
            "",
            False,
        ),
    ]
    for label, notes in (("problem", record.problems), ("remark", record.remarks)):
        facts.extend(
            (say(label), clean(messages.say(code, language, **dict(values))), "warn", False)
            for code, values in notes
        )
    screen.facts(facts)
    for part in record.parts:
        screen.heading(say("part", core=clean(part.core)))
        screen.facts(_part_facts(part, language))
    if not record.parts:
        screen.blank()
        screen.add((say("silent"), "calm"), margin="  ")


def _part_facts(part: Any, language: str) -> List[Fact]:
    from npu_overflow.report.formatting import status
    from npu_overflow.report.model import Operator

    meanings = tuple(messages.say(code, **dict(values)) for code, values in part.status_meanings)
    figure, meaning = status(
        Operator(
            core=part.core, status=part.status, status_bits=part.status_bits, status_text=meanings
        ),
        language,
    )
    ids = [
        messages.say("report.task." + name, language, value=getattr(part, name))
        for name in ("model_id", "task_id", "stream_id", "context_id", "thread_id")
        if getattr(part, name) is not None
    ]
    details = [
        "%s %d" % pair if pair[1] < 1 << 16 else "%s %#x" % pair for pair in part.details.items()
    ]
    comma = "，" if language == "zh" else ", "
    return [
        (messages.say("report.fact.status", language), figure + "  " + meaning, "type", False),
        (messages.say("report.fact.task", language), comma.join(ids), "", False),
        (messages.say("cli.show.details", language), ", ".join(details) or "-", "", False),
    ]


# -- tensors


def _tensors(
    screen: Screen, tensors: List[Named], path: str, arguments: argparse.Namespace, language: str
) -> int:
    from npu_overflow.report.tensors import named_lines

    chosen = _chosen(tensors, arguments)
    mode = arguments.mode or _mode_beside(path)
    wanted = [
        (name, tensor) for name, tensor in chosen if tensor.side in ("input", "output", "array")
    ]
    counted = _counted(wanted, mode, language)
    screen.heading(
        messages.say(
            "report.tensors" if chosen and chosen[0][1].side != "array" else "cli.show.statistics",
            language,
        )
    )
    if counted:
        lines = named_lines(counted, screen.width - 2, language)
        screen.add_lines([[("  ", "")] + line for line in lines])
    else:
        screen.add((messages.say("report.tensors_none", language), "dim"), margin="  ")
    if len(counted) < len(wanted):
        screen.add(
            (
                messages.say(
                    "cli.show.interrupted", language, done=len(counted), total=len(wanted)
                ),
                "warn",
            ),
            margin="  ",
        )
        screen.show()
        return _shell.INTERRUPTED
    _histogram(screen, counted, language)
    if arguments.index:
        _selection(screen, chosen[0], arguments.index, language)
    elif any(_has_values(tensor) for _, tensor in chosen):
        screen.heading(messages.say("cli.show.values", language))
        shown = [item for item in chosen if _has_values(item[1])][:MOST_SHOWN]
        column = max(cells(name) for name, _ in shown)
        for named in shown:
            _first_values(
                screen,
                named,
                column,
                MOST_ROWS if arguments.tensor or len(tensors) == 1 else FEW_ROWS,
                language,
            )
    if arguments.save:
        _save(screen, chosen, path, arguments, language)
    screen.show()
    return 0


def _counted(
    wanted: List[Named], mode: Optional[str], language: str
) -> List[Tuple[str, TensorSummary]]:
    """Statistics of the tensors, of fewer where the user ended that."""
    from npu_overflow.analysis.progress import Progress
    from npu_overflow.analysis.statistics import summarize

    counted: List[Tuple[str, TensorSummary]] = []
    progress = Progress(language=language)
    sums = [0, *itertools.accumulate(tensor.bytes for _, tensor in wanted)]
    try:
        for number, (name, tensor) in enumerate(wanted):
            progress.step(
                "progress.tensors",
                number,
                len(wanted),
                functools.partial(sums.__getitem__, number),
                functools.partial(sums.__getitem__, -1),
            )
            counted.append((name, summarize(tensor, mode).summary))
    except KeyboardInterrupt:
        pass
    return counted


def _histogram(screen: Screen, counted: List[Tuple[str, TensorSummary]], language: str) -> None:
    """Magnitudes: bars of one tensor, a line each of several."""
    from npu_overflow.report.bars import histogram_lines, sparklines

    lines = (
        histogram_lines(counted[0][1], screen.width - 2)
        if len(counted) == 1
        else sparklines(counted[:MOST_SHOWN], screen.width - 2)
    )
    if lines:
        screen.heading(messages.say("cli.show.histogram", language))
        screen.add_lines([[("  ", "")] + line for line in lines])


def _chosen(tensors: List[Named], arguments: argparse.Namespace) -> List[Named]:
    """The tensors that the options name: all, or one.

    Raises:
        UsageError: no tensor of that name, or several where one is needed.
    """
    known = ", ".join(name for name, _ in tensors[:40])
    chosen = [item for item in tensors if arguments.tensor in (None, item[0])]
    if not chosen and arguments.tensor is not None:
        raise UsageError("show.tensor", name=repr(arguments.tensor), known=known or "-")
    if arguments.index and len(chosen) != 1:
        raise UsageError("show.index_which" if chosen else "show.no_tensors", known=known)
    if arguments.index and not _has_values(chosen[0][1]):
        raise UsageError(
            "show.no_values", name=chosen[0][0], reason=chosen[0][1].note or chosen[0][1].dtype
        )
    return chosen


def _has_values(tensor: Tensor) -> bool:
    return tensor.note in (None, "cut") and tensor.statistics is None and tensor.count > 0


def _mode_beside(path: str) -> Optional[str]:
    """The overflow mode that records in the same folder tell; None where there are none."""
    from npu_overflow.dump.record import read_record
    from npu_overflow.dump.scan import find

    try:
        for entry in find(path).records[:3]:
            return "saturation" if read_record(entry.path).layout == "old" else "inf_nan"
    except (NpuOverflowError, OSError):
        pass
    return None


def _user_values(tensor: Tensor, most: Optional[int] = None) -> Tuple[Any, bool]:
    """Values in the user's shape, and whether they are in the order of the device instead; at most
    ``most`` where that is enough."""
    from npu_overflow.dump.floats import decode

    whole = tensor.valid().whole
    if most is None or (not whole and tensor.bytes <= MOST_TURNED):
        return tensor.original(), False
    values = decode(tensor.read(0, most), tensor.dtype)
    shape = tensor.original_shape if whole and tensor.original_shape is not None else tensor.shape
    last = shape[-1] if shape else 1
    if len(values) == tensor.count and tensor.note is None:
        return values.reshape(shape if _product(shape) == len(values) else tensor.shape), not whole
    if last and len(values) >= last:
        # as many whole rows as were read, under the leading indices that they have
        return values[: len(values) // last * last].reshape(
            [1] * max(0, len(shape) - 2) + [-1, last] if len(shape) > 1 else [-1]
        ), not whole
    return values, not whole


def _product(shape: Tuple[int, ...]) -> int:
    result = 1
    for size in shape:
        result *= size
    return result


def _first_values(screen: Screen, named: Named, column: int, most: int, language: str) -> None:
    from npu_overflow.cli._arrays import rows_of

    name, tensor = named
    shape = tensor.original_shape or tensor.shape
    values, as_stored = _user_values(tensor, min(1 << 20, most * max(1, shape[-1] if shape else 1)))
    total = _product(shape) // max(1, shape[-1]) if shape else 1
    lines, _ = rows_of(values, screen.width - 2 - column - 2, most)
    _rows(screen, pad(name, column), lines)
    if as_stored:
        screen.add((messages.say("cli.show.stored", language), "dim"), margin=" " * (column + 4))
    if total > len(lines) and most == MOST_ROWS:
        screen.add(
            (messages.say("cli.show.more", language, count=total - len(lines)), "dim"),
            margin=" " * (column + 4),
        )


def _rows(screen: Screen, name: str, lines: List[Tuple[str, str]]) -> None:
    column = max((cells(label) for label, _ in lines), default=0)
    for number, (label, text) in enumerate(lines):
        head = pad(name if number == 0 else "", cells(name))
        gap = "  " if name else ""
        screen.add_unbroken(
            (head + gap, "head"),
            (pad(label, column) + "  " if column else "", "dim"),
            (text, ""),
            margin="  ",
        )


def _selection(screen: Screen, named: Named, index: str, language: str) -> None:
    from npu_overflow.cli._arrays import rows_of, take

    name, tensor = named
    values, axes = take(tensor.original(), index)
    title = messages.say(
        "cli.show.selection",
        language,
        name=name,
        index=clean(index.strip().strip("[]")),
        shape=list(values.shape),
    )
    screen.heading(title)
    lines, left = rows_of(values, screen.width - 4, MOST_ROWS, axes)
    _rows(screen, "", lines or [("", messages.say("cli.show.empty", language))])
    if left:
        screen.add((messages.say("cli.show.more", language, count=left), "dim"), margin="    ")


def _save(
    screen: Screen, chosen: List[Named], path: str, arguments: argparse.Namespace, language: str
) -> None:
    from npu_overflow.cli._arrays import save, take

    screen.blank()
    stem = os.path.basename(path)
    stem = stem[:-4] if stem.endswith(".npy") else stem
    for name, tensor in [item for item in chosen if _has_values(item[1])]:
        values = tensor.original()
        if arguments.index:
            values, _ = take(values, arguments.index)
        about = "tensor: %s%s  file: %s" % (
            name,
            "[%s]" % clean(arguments.index) if arguments.index else "",
            clean(os.path.basename(path)),
        )
        made, existing = save(
            values,
            arguments.save,
            "%s.%s%s" % (stem, name, ".slice" if arguments.index else ""),
            about,
        )
        if existing is not None:
            screen.add(
                (messages.say("cli.show.exists", language, name=existing), "warn"), margin="  "
            )
        screen.facts([(messages.say("cli.show.saved", language), made, "type", True)])
