"""Where non-finite values begin and how they flow through one step: plain Python over tensor numbers.

An *origin* is a place where non-finite values enter: an operator that turns finite inputs into a non-finite output, or a tensor that
comes from outside the step (a variable, the batch, a literal). Each non-finite tensor carries the set of origins it descends from, as bits
of an integer, so a step of ten thousand operators costs one integer a tensor.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

__all__ = ["Flow", "Op", "Origin", "key_of", "variable_key"]


@dataclass
class Op:
    """One operator of a step, in the order of execution."""

    number: int
    type: str
    name: str
    scope: str = ""
    phase: str = "forward"
    forward: Optional[str] = None  # full name of the forward operator, for an operator of the backward pass
    location: Optional[Tuple[str, int, str]] = None
    call: int = 0  # which call of a tf.function of the step: names repeat between them, as they do between graphs
    replica: int = 0  # of a distribution strategy
    iteration: int = 0  # of a loop: its body's names are the same in each


@dataclass
class Origin:
    """One place where non-finite values begin.

    Args:
        bit: its bit in the sets that tensors carry.
        kind: "operator", "variable", "data" or "constant".
        op: the operator, or the first consumer of the variable, batch or literal.
        source: what is known of a variable, batch or literal: its name and the tensor.
        handle: number of a variable's handle: names of variables repeat.
        met: where a tensor from outside was met first: literals have no names.
    """

    bit: int
    kind: str
    op: Optional[Op]
    source: Optional[Tuple[str, Any]] = None
    handle: int = 0
    met: str = ""

    @property
    def key(self) -> str:
        """The same in every run of the same step: names are given in the order of execution."""
        if self.handle:
            return variable_key(self.source[0] if self.source else "", self.handle)
        if not self.met and self.op is not None:
            return key_of(self.op)
        return "%s:%s" % (self.kind, (self.source[0] if self.source else "") or self.met)


def variable_key(name: str, handle: int) -> str:
    """Key of the origin that a variable is or would be."""
    return "variable:%s:%d" % (name, handle)


def key_of(op: Op) -> str:
    """Key of the origin that an operator is or would be."""
    parts = [(word, value) for word, value in (("call", op.call), ("replica", op.replica), ("iteration", op.iteration)) if value]
    return "operator:%s" % op.name + "".join(" (%s %d)" % part for part in parts)


# operators that hand values on as they are: what they make of a batch or a literal is still the batch or the literal
CARRIERS = frozenset(
    "Identity IdentityN Reshape ExpandDims Squeeze StridedSlice Slice Transpose GatherV2 GatherNd ConcatV2 Pack Unpack Split SplitV Tile BroadcastTo "
    "Pad PadV2 ReverseV2 Fill StopGradient Cast Copy EnsureShape PlaceholderWithDefault".split()
)

# operators that take a tensor and not its values
NO_CONSUMERS = frozenset("Identity ReadVariableOp Shape ShapeN Rank Size ZerosLike OnesLike VariableShape StopGradient".split())


class Flow:
    """Follows non-finite values from tensor to tensor through one run of a step."""

    def __init__(self) -> None:
        self.origins: List[Origin] = []
        self._carried: Dict[int, int] = {}  # tensor -> bits of the origins that it descends from; finite tensors have no entry
        self._labels: Dict[int, Tuple[str, str, Any]] = {}  # tensor -> kind, name, source tensor: values handed on unchanged from outside
        self._written: Dict[int, int] = {}  # handle of a variable that this step wrote -> bits that its value carries, 0 where it is finite
        self._of_gradients: Set[int] = set()  # tensors that the backward pass made, and what was made of them
        self._made: Dict[int, bool] = {}  # tensors seen so far: whether they come from outside the step

    def label(self, number: int, kind: str, name: str, tensor: Any) -> None:
        """Name a tensor from outside the step: ``kind`` is "data", "variable" or "constant"."""
        self._labels[number] = (kind, name, tensor)

    def label_of(self, number: int) -> Optional[Tuple[str, str, Any]]:
        """Kind, name and tensor of what ``number`` was handed on from, or None."""
        return self._labels.get(number)

    def is_known(self, number: int) -> bool:
        """Whether the tensor was made in this step or already looked at."""
        return number in self._made

    def carried(self, number: int) -> int:
        """Bits of the origins that a tensor's non-finite values descend from; 0 for a finite tensor."""
        return self._carried.get(number, 0)

    def is_outside(self, number: int) -> bool:
        """Whether the tensor comes from outside the step."""
        return self._made.get(number, False)

    def outside(self, number: int, finite: bool, tensor: Any, met: str = "?") -> None:
        """A tensor that no operator of this step made is consumed for the first time, by ``met``."""
        self._made[number] = True
        if number not in self._labels:
            self._labels[number] = ("constant", "", tensor)
        if not finite:
            kind, name, source = self._labels[number]
            self._carried[number] = self._new(kind, None, (name, source))
            self.origins[-1].met = met

    def variable_read(self, number: int, handle: int, name: str, tensor: Any, finite: bool) -> None:
        """The variable behind ``handle`` was read into a tensor."""
        self._made[number] = False
        if finite:
            return
        if self._written.get(handle):
            self._carried[number] = self._written[handle]
        else:
            known = next((item for item in self.origins if item.kind == "variable" and item.handle == handle), None)
            if known is None:
                self._new("variable", None, (name, tensor))
                known = self.origins[-1]
                known.handle = handle
            self._carried[number] = known.bit

    def variable_bits(self, handle: int) -> int:
        """Bits that the value carries which this step wrote into a variable."""
        return self._written.get(handle, 0)

    def variable_written(self, handle: int, bits: int) -> None:
        """A variable was written; its value carries ``bits`` now (0: it is finite). A gradient accumulator hands values on within the step."""
        self._written[handle] = bits

    def variable_overflowed(self, handle: int, op: Op) -> Origin:
        """``op`` made a variable non-finite although it was finite, and so was what it added."""
        self._new("operator", op, None)
        self._written[handle] = self.origins[-1].bit
        return self.origins[-1]

    def is_of_gradients(self, numbers: Sequence[int]) -> bool:
        """Whether any of the tensors comes from the backward pass."""
        return not self._of_gradients.isdisjoint(numbers)

    def ran(self, op: Op, inputs: Sequence[int], outputs: Sequence[int], bad_outputs: Sequence[int]) -> Tuple[int, Optional[Origin]]:
        """An operator ran. Returns the bits that its inputs carry, and the origin if it is one."""
        bits = 0
        for number in inputs:
            carried = self._carried.get(number)
            if carried:
                bits |= carried
        if bits and op.type not in NO_CONSUMERS:
            self._first_consumer(bits, op)
        self._hand_on_label(op, inputs, outputs)
        for number in outputs:
            self._made[number] = False
        if op.phase == "backward":
            self._of_gradients.update(outputs)
        if not bad_outputs:
            return bits, None
        origin = None
        if not bits:
            origin = self._origin_of(op, inputs)
            bits = origin.bit
        for number in bad_outputs:
            self._carried[number] = bits
        return bits, origin

    def reached(self, numbers: Sequence[int]) -> int:
        """Bits of the origins that reach any of these tensors."""
        bits = 0
        for number in numbers:
            bits |= self._carried.get(number, 0)
        return bits

    def of_bits(self, bits: int) -> List[Origin]:
        """The origins of a set of bits, in the order in which they were met."""
        return [origin for origin in self.origins if origin.bit & bits]

    def _new(self, kind: str, op: Optional[Op], source: Optional[Tuple[str, Any]]) -> int:
        origin = Origin(1 << len(self.origins), kind, op, source)
        self.origins.append(origin)
        return origin.bit

    def _origin_of(self, op: Op, inputs: Sequence[int]) -> Origin:
        """The origin that ``op`` is; a Cast of the batch or of a literal that does not fit is laid at the batch's or literal's door."""
        kind, source = "operator", None
        if op.type == "Cast" and inputs:
            label = self._labels.get(inputs[0])
            if label is not None and label[0] in ("data", "constant"):
                kind, source = label[0], (label[1], label[2])
        self._new(kind, op, source)
        return self.origins[-1]

    def _first_consumer(self, bits: int, op: Op) -> None:
        for origin in self.origins:
            if origin.bit & bits and origin.op is None:
                origin.op = op

    def _hand_on_label(self, op: Op, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        if op.type not in CARRIERS or not inputs:
            return
        labels = [self._labels[number] for number in inputs if number in self._labels]
        chosen = next((label for label in labels if label[0] == "data"), None)
        if chosen is None and inputs[0] in self._labels:
            chosen = self._labels[inputs[0]]
        if op.type == "Fill" and len(inputs) > 1:
            chosen = self._labels.get(inputs[1], chosen)
        if chosen is not None:
            for number in outputs:
                self._labels[number] = chosen
