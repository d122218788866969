"""Where non-finite values begin and what they become, as one run of a record meets them.

An *origin* is a place where non-finite values enter: an operator that turns finite inputs into a
non-finite output, or a tensor from outside the step (a variable, the batch, a literal). Each
non-finite tensor carries the set of origins that it descends from, as bits of an integer. Bits
belong to one run: another run has others.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

__all__ = [
    "NO_CONSUMERS", "SCALED", "Held", "HeldTensor", "Label", "Mark", "OpRef", "Origin", "Path",
    "handed_on",
]  # fmt: skip

# hand values on as they are: what they make of a batch or a literal is still that
_CARRIERS = frozenset(
    "Identity IdentityN Reshape ExpandDims Squeeze StridedSlice Slice Transpose GatherV2 GatherNd "
    "ConcatV2 Pack Unpack Split SplitV Tile BroadcastTo Pad PadV2 ReverseV2 Fill StopGradient Cast "
    "Copy EnsureShape PlaceholderWithDefault".split()
)
# take a tensor and not its values
NO_CONSUMERS = frozenset(
    "Identity IdentityN ReadVariableOp Shape ShapeN Rank Size ZerosLike OnesLike VariableShape "
    "StopGradient".split()
)


class Label(NamedTuple):
    """What a tensor from outside is: "data", "variable" or "constant", its name, the tensor, and
    the number of a variable's handle."""

    kind: str
    name: str
    tensor: Any
    handle: int = 0


class Mark:
    """What is known of one value: the bits of its origins, what it was handed on from, whether the
    loss scale went into it."""

    __slots__ = ("bits", "label", "scaled")

    def __init__(self, bits: int = 0, label: Optional[Label] = None, scaled: bool = False) -> None:
        self.bits, self.label, self.scaled = bits, label, scaled


#: finite, and the loss scale went into it
SCALED = Mark(scaled=True)


class Path:
    """The calls that lead into a graph: nodes with functions, from the record's entry on."""

    __slots__ = ("entry", "key", "node", "parent", "program")

    def __init__(
        self, entry: int, parent: Optional[Path] = None, node: Any = None, program: Any = None
    ) -> None:
        self.entry, self.parent, self.node, self.program = entry, parent, node, program
        own = (entry,) if parent is None else (*parent.key, node.number, id(program))
        self.key: Tuple[Any, ...] = own


@dataclass(frozen=True)
class OpRef:
    """One run of one operator.

    Args:
        node: the operator.
        path: the calls that lead to it.
        turn: of the loops around it.
        order: its place among all operators of the run.
        draw: how many batches had been drawn by then.
    """

    node: Any
    path: Path
    turn: Tuple[int, ...]
    order: int
    draw: int = 0

    @property
    def key(self) -> Tuple[Any, ...]:
        """The same in every run of the record."""
        return (self.path.key, self.node.number, self.turn)

    @property
    def type(self) -> str:
        """Operator type."""
        return str(self.node.type)


@dataclass
class Origin:
    """One place where non-finite values begin.

    Args:
        bit: its bit in the sets that tensors carry.
        kind: "operator", "variable", "data" or "constant".
        key: the same in every run of the record.
        op: the operator, or the first consumer of the variable, batch or literal.
        source: of a variable, batch or literal.
        scaled: the loss scale went into what the operator was given.
    """

    bit: int
    kind: str
    key: Tuple[Any, ...]
    op: Optional[OpRef] = None
    source: Optional[Label] = None
    scaled: bool = False


@dataclass
class HeldTensor:
    """A tensor of an operator that is kept for the dump: the tensor, or the numbers of one that is
    too large to keep; the variable that it was read from."""

    tensor: Any
    dtype: str
    shape: Tuple[int, ...]
    cut: Optional[Dict[str, Any]] = None
    variable: Optional[Label] = None


@dataclass
class Held:
    """An operator with a non-finite output, or the first consumer of a non-finite tensor from
    outside, with its tensors."""

    op: OpRef
    bits: int
    origin: Optional[Origin]
    inputs: List[HeldTensor] = field(default_factory=list)
    outputs: List[HeldTensor] = field(default_factory=list)


def handed_on(op_type: str, marks: Sequence[Optional[Mark]]) -> Optional[Label]:
    """The label that an operator's outputs have from its inputs; the batch goes before literals."""
    if op_type not in _CARRIERS or not marks:
        return None
    labels = [mark.label if mark is not None else None for mark in marks]
    if op_type == "Fill":  # takes the shape first
        return labels[-1]
    return next((label for label in labels if label and label.kind == "data"), labels[0])
