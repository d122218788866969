"""Inputs and outputs of an operator as lines: one table where it fits the width, blocks below each
other where it does not."""
from __future__ import annotations

from dataclasses import replace
from typing import Callable, List, Sequence, Tuple

from npu_overflow import messages
from npu_overflow.report.escape import clean
from npu_overflow.report.flow import Line, cells, indent, join, pad, plain, wrap
from npu_overflow.report.formatting import not_decoded, number, shape, value_at
from npu_overflow.report.model import Operator, TensorSummary

__all__ = [
    "MOST_ROWS",
    "has_overflow",
    "kept_tensors",
    "named_lines",
    "shown_inputs",
    "tensor_lines",
]

#: tensors of one side that are shown; those with overflow values come first
MOST_ROWS = 8

Named = Tuple[str, TensorSummary]


def has_overflow(tensor: TensorSummary) -> bool:
    """Whether the valid region of a tensor holds an overflow value, as far as its numbers tell."""
    return tensor.first_overflow is not None or bool(
        tensor.nan or tensor.pos_inf or tensor.neg_inf or tensor.saturated
    )


def shown_inputs(operator: Operator) -> Sequence[TensorSummary]:
    """The inputs as they are shown: the headroom of an overflowing Cast's input in its own, wider
    type misleads, as the narrower one is too small for it."""
    inputs, outputs = operator.inputs or (), operator.outputs or ()
    if operator.op_type != "Cast" or not any(map(has_overflow, outputs)):
        return inputs
    results = {tensor.dtype for tensor in outputs}
    return [
        tensor if tensor.dtype in results else replace(tensor, headroom_log2=None)
        for tensor in inputs
    ]


def has_numbers(tensor: TensorSummary) -> bool:
    """Whether anything is known of a tensor's values. A tensor that was cut while it was collected
    has numbers and a note."""
    return tensor.note is None or tensor.min is not None or tensor.first_overflow is not None


def tensor_lines(
    inputs: Sequence[TensorSummary], outputs: Sequence[TensorSummary], width: int, language: str
) -> List[Line]:
    """Lines of at most ``width`` cells for all inputs and outputs, long lists cut with a count."""
    rows: List[Named] = []
    cut: List[Line] = []
    for side, tensors in (("input", inputs), ("output", outputs)):
        kept = kept_tensors(tensors)
        rows.extend(("%s.%d" % (side, tensor.index), tensor) for tensor in kept)
        left = [tensor for tensor in tensors if not any(tensor is item for item in kept)]
        if left:
            bad = sum(has_overflow(tensor) for tensor in left)
            cut.extend(
                wrap(
                    [
                        (
                            "%ss: " % side
                            + messages.say(
                                "report.more_tensors", language, count=len(left), bad=bad
                            ),
                            "dim",
                        )
                    ],
                    width,
                )
            )
    if not rows:
        return [[(messages.say("report.tensors_none", language), "dim")]]
    return named_lines(rows, width, language) + cut


def named_lines(rows: Sequence[Named], width: int, language: str) -> List[Line]:
    """Lines of at most ``width`` cells for tensors with their names: a table where it fits, else
    blocks."""
    for columns in (_COLUMNS, [column for column in _COLUMNS if column[0] != "headroom"]):
        table = _table(rows, columns, language)
        if all(cells(plain(line)) <= width for line in table):
            return table
    return _blocks(rows, width, language)


def kept_tensors(tensors: Sequence[TensorSummary], most: int = MOST_ROWS) -> List[TensorSummary]:
    """At most ``most`` of them in their order; those with overflow values before the others."""
    if len(tensors) <= most:
        return list(tensors)
    order = sorted(range(len(tensors)), key=lambda i: (not has_overflow(tensors[i]), i))
    return [tensors[i] for i in sorted(order[:most])]


def _shape_text(tensor: TensorSummary, language: str) -> str:
    if tensor.original_shape is None or tuple(tensor.original_shape) == tuple(tensor.shape):
        return shape(tensor.shape)
    return messages.say(
        "report.original",
        language,
        shape=shape(tensor.shape),
        original=shape(tensor.original_shape),
    )


def _is_limit(tensor: TensorSummary, value: object) -> bool:
    """Whether an extreme is itself an overflow value."""
    first = tensor.first_overflow
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if value in (float("inf"), float("-inf")):
        return True
    limit = first.get("value") if first and tensor.saturated else None
    return isinstance(limit, (int, float)) and abs(limit) == abs(value)


# -- the table

_Cell = Tuple[str, str]
_Column = Tuple[str, bool, Callable[[TensorSummary, str], _Cell]]


def _count(name: str) -> Callable[[TensorSummary, str], _Cell]:
    def cell(tensor: TensorSummary, language: str) -> _Cell:
        count = getattr(tensor, name)
        return str(count), "bad" if count else "dim"

    return cell


def _extreme(name: str) -> Callable[[TensorSummary, str], _Cell]:
    def cell(tensor: TensorSummary, language: str) -> _Cell:
        value = getattr(tensor, name)
        return number(value), "bad" if _is_limit(tensor, value) else ""

    return cell


def _headroom(tensor: TensorSummary, language: str) -> _Cell:
    if tensor.headroom_log2 is None:
        return "-", "dim"
    return messages.say(
        "report.headroom", language, bits="%.1f" % abs(tensor.headroom_log2)
    ), "warn" if tensor.headroom_log2 < 1 else "dim"


#: columns that say what a tensor is; the later ones say what stands in it
_DESCRIBING = 3

#: name, right-aligned, cell
_COLUMNS: Sequence[_Column] = (
    ("dtype", False, lambda tensor, language: (clean(tensor.dtype), "")),
    ("shape", False, lambda tensor, language: (_shape_text(tensor, language), "")),
    ("format", False, lambda tensor, language: (clean(tensor.format), "")),
    ("min", True, _extreme("min")),
    ("max", True, _extreme("max")),
    ("mean", True, lambda tensor, language: (number(tensor.mean), "")),
    ("headroom", True, _headroom),
    ("nan", True, _count("nan")),
    ("pos_inf", True, _count("pos_inf")),
    ("neg_inf", True, _count("neg_inf")),
    ("saturated", True, _count("saturated")),
    ("overflow_in_padding", True, _count("overflow_in_padding")),
    (
        "first",
        False,
        lambda tensor, language: (
            value_at(tensor.first_overflow),
            "bad" if tensor.first_overflow else "dim",
        ),
    ),
)


def _table(rows: Sequence[Named], columns: Sequence[_Column], language: str) -> List[Line]:
    """One line a tensor under a line of column names. A tensor without numbers has a note in their
    place."""
    columns = [
        column
        for column in columns
        if column[0] != "overflow_in_padding"
        or any(tensor.overflow_in_padding for _, tensor in rows)
    ]
    names = ["tensor"] + [name for name, _, _ in columns]
    grid: List[List[_Cell]] = [
        [(messages.say("report.column." + name, language), "dim") for name in names]
    ]
    for name, tensor in rows:
        head = (name, "bad" if has_overflow(tensor) else "head")
        note = not_decoded(tensor, language)
        if has_numbers(tensor):
            row = [head] + [cell(tensor, language) for _, _, cell in columns]
            if note:
                row[-1] = (row[-1][0] + "  " + note, row[-1][1])
        else:
            row = (
                [head]
                + [cell(tensor, language) for _, _, cell in columns[:_DESCRIBING]]
                + [(note, "warn")]
            )
        grid.append(row)
    whole = [row for row in grid if len(row) == len(names)]
    widths = [
        max(cells(row[i][0]) for row in (grid if i <= _DESCRIBING else whole))
        for i in range(len(names))
    ]
    right = [False] + [column[1] for column in columns]
    lines: List[Line] = []
    for row in grid:
        last = len(row) - 1
        line: Line = []
        for i, (text, style) in enumerate(row):
            line.append((text if i == last else pad(text, widths[i], right[i]) + "  ", style))
        lines.append(line)
    return lines


# -- the blocks


def _blocks(rows: Sequence[Named], width: int, language: str) -> List[Line]:
    """Two to four lines a tensor; items flow, a value and its name stay together."""
    margin = " " * (max(cells(name) for name, _ in rows) + 2)
    inner = max(20, width - len(margin))
    lines: List[Line] = []
    for name, tensor in rows:
        note, counted = not_decoded(tensor, language), has_numbers(tensor) and 0 not in tensor.shape
        about: List[Line] = [
            [(clean(tensor.dtype), "")],
            [(clean(tensor.format), "")],
            [(_shape_text(tensor, language), "")],
        ]
        if 0 in tensor.shape:
            about.append([(messages.say("report.empty", language), "dim")])
        elif counted and not _any_count(tensor):
            about.append([(messages.say("report.clean", language), "good")])
        block = join(about, inner, "  ")
        if note:
            block.extend(wrap([(note, "warn")], inner))
        if counted:
            block.extend(join(_extremes(tensor, language), inner))
            block.extend(join(_findings(tensor, language), inner) if _any_count(tensor) else [])
        block = indent(block, margin)
        block[0][0] = (pad(name, len(margin)), "bad" if has_overflow(tensor) else "head")
        lines.extend(block)
    return lines


def _labelled(name: str, cell: _Cell, language: str) -> Line:
    return [(messages.say("report.column." + name, language) + " ", "dim"), cell]


def _extremes(tensor: TensorSummary, language: str) -> List[Line]:
    items = [_labelled(name, _extreme(name)(tensor, language), language) for name in ("min", "max")]
    items.append(_labelled("mean", (number(tensor.mean), ""), language))
    if tensor.headroom_log2 is not None:
        items.append(_labelled("headroom", _headroom(tensor, language), language))
    return items


_COUNTS = ("nan", "pos_inf", "neg_inf", "saturated", "overflow_in_padding")


def _any_count(tensor: TensorSummary) -> bool:
    return any(getattr(tensor, name) for name in _COUNTS) or tensor.first_overflow is not None


def _findings(tensor: TensorSummary, language: str) -> List[Line]:
    items = [
        _labelled(name, _count(name)(tensor, language), language)
        for name in _COUNTS
        if name != "overflow_in_padding" or tensor.overflow_in_padding
    ]
    if tensor.first_overflow is not None:
        items.append(_labelled("first", (value_at(tensor.first_overflow), "bad"), language))
    return items
