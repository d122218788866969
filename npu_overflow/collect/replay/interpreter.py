"""Runs a record again, operator by operator, down into called functions, branches and loops.

What would write a variable writes a private copy of it. Prints, summaries and assertions are left
out; an iterator gives the batches that were kept; of an exchange between workers this worker's own
values come back.
"""
from __future__ import annotations

import time
import zlib
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.batches import Feed
from npu_overflow.collect.replay.finite import all_finite, is_float, numbers_of, repaired
from npu_overflow.collect.replay.program import KINDS, Node, Program, Programs
from npu_overflow.collect.replay.recorder import Entry, Record
from npu_overflow.collect.replay.taint import (
    NO_CONSUMERS,
    SCALED,
    Held,
    HeldTensor,
    Label,
    Mark,
    OpRef,
    Origin,
    Path,
    handed_on,
)
from npu_overflow.errors import CannotCollect

__all__ = ["Interpreter", "Step", "TooLong"]

MAX_HELD = 32  # operators whose tensors are kept in one step
MAX_PASSED_ON = 16  # of them, operators that only passed non-finite values on

# ask whether values are finite
_ASKS = frozenset(("IsFinite", "IsNan", "IsInf"))
# say nothing of values
_VALUELESS = frozenset(
    "Shape ShapeN Rank Size VariableShape TensorListLength ZerosLike OnesLike".split()
)
# what a collective makes of one worker's values when it stands alone: the values themselves
_REDUCES = tuple(
    "CollectiveReduce NcclAllReduce HorovodAllreduce HorovodBroadcast HcomAllReduce HcomBroadcast "
    "XlaAllReduce CrossReplicaSum".split()
)
# random operators -> those that draw the same without a state, so that nothing need be kept
_STATELESS = {
    "RandomUniform": "StatelessRandomUniform",
    "RandomStandardNormal": "StatelessRandomNormal",
    "TruncatedNormal": "StatelessTruncatedNormal",
}
_OTHER_SEED = 0x5EED
_OPAQUE = ("resource", "variant", "string")

Values = List[Any]
Marks = List[Optional[Mark]]
Results = Tuple[Values, Marks]


class TooLong(Exception):
    """A run was broken off: a loop that only the overflow would have ended, or time is up."""


@dataclass
class Step:
    """A record and all that its runs share.

    Args:
        record: what was executed.
        programs: of the functions in it.
        labels: names of the tensors that the step was given, by number.
        feeds: number of an iterator's handle -> the batches that were drawn from it.
        names: of those batches' tensors, in order.
        scales: numbers of the handles of loss scales.
        several: whether the call takes several training steps: each is applied before the next.
        workers: processes that train together.
        skipped: whether the loss scale tells that the step was skipped.
        most_seconds: for all runs together.
        most_nodes: operators of one run; None: any number.
        reaches: whether what the step shows is that something reaches a weight (not only that
            somebody asked): then nothing else counts in any run.
        draws: random numbers, the same in every run.
    """

    record: Record
    programs: Programs
    labels: Mapping[int, str] = field(default_factory=dict)
    feeds: Mapping[int, Feed] = field(default_factory=dict)
    names: Sequence[str] = ()
    scales: FrozenSet[int] = frozenset()
    several: bool = False
    workers: int = 1
    skipped: bool = True
    most_seconds: float = 3600.0
    most_nodes: Optional[int] = None
    reaches: bool = False
    draws: Dict[Tuple[Any, ...], Values] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trainable = self.record.trainable
        self.exchanged = self.record.exchanged() if self.workers > 1 else {}
        self.until = time.monotonic() + self.most_seconds


class Interpreter:
    """One run of a step.

    Args:
        step: what is run.
        repair: keys of origins whose non-finite values are replaced by finite ones.
        scale: the loss scale of this run; None: as it was.
        budget: bytes of tensors that may be held.
        finite: says of a tensor, with a key that is the same in every run, whether it is finite.

    Attributes:
        origins: in the order in which they were met.
        held: operators with non-finite values, with their tensors.
        not_held: such operators beyond those.
        count: operators that ran.
    """

    def __init__(
        self,
        step: Step,
        repair: FrozenSet[Any] = frozenset(),
        scale: Optional[float] = None,
        budget: int = 0,
        finite: Callable[[Any, Any], bool] = lambda tensor, key: all_finite(tensor),
    ) -> None:
        self.step, self.repair, self.budget, self._finite = step, repair, budget, finite
        context = private.found("context")()
        self._run_op, self._context = private.found("run_op"), context._handle
        self._device = context.device_name
        self.origins: List[Origin] = []
        self.held: List[Held] = []
        self.not_held = self.count = self._drawn = 0
        self._reached = self._answers = self._handed_out = 0
        self._sites = 0  # places at which weights are written
        self._needed = 0  # held by the time the last of them was met
        self._turn: Tuple[int, ...] = ()
        self._apply = step.several
        self._shadows: Dict[int, Any] = {}  # number of a handle -> handle of the private copy
        self._variables: Dict[int, Optional[Mark]] = {}  # what a variable's present value carries
        self._values = {number: value for number, (_, value) in step.record.begin.items()}
        self._kept: Set[int] = set()
        self._feeds: Dict[int, Any] = {}
        self._waiting: List[Origin] = []  # from outside, that nothing has consumed yet
        for number in step.scales.intersection(self._values) if scale is not None else ():
            self._values[number] = _constant_of(scale, self._values[number].dtype)
        self._ways: Dict[str, Callable[[Node, Path, Values, Marks], Results]] = {
            kind: getattr(self, "_" + kind) for kind in KINDS
        }

    # --- results ----------------------------------------------------------------------------------

    @property
    def consequence(self) -> int:
        """Bits of the origins that had consequences: those on their way into a weight, or that
        decide a branch which writes weights. Where Python decided, those that it asked about, if
        the step was skipped. Where neither was seen, those in what the step's functions returned.
        """
        if self._reached or self.step.reaches:
            return self._reached
        if self._answers and (self.step.skipped or not self._sites):
            return self._answers
        return 0 if self._sites else self._handed_out

    @property
    def reaches(self) -> bool:
        """Whether anything non-finite was on its way into a weight or decided about one."""
        return bool(self._reached)

    @property
    def kept(self) -> List[Held]:
        """Held operators that could have had consequences: those before the last weight was written
        (metrics come after)."""
        return self.held[: self._needed] if self._sites else self.held

    def of_bits(self, bits: int) -> List[Origin]:
        """The origins of a set of bits, in the order in which they were met."""
        return [origin for origin in self.origins if origin.bit & bits]

    # --- the record -------------------------------------------------------------------------------

    def run(self) -> Interpreter:
        """Run the whole record.

        Raises:
            CannotCollect: something in it can't be run again.
            TooLong: it takes longer than allowed.
        """
        values: Dict[int, Any] = {}
        marks: Dict[int, Optional[Mark]] = {}
        entries, same = self.step.record.entries, self.step.exchanged
        numbers = [[same.get(number, number) for number in entry.numbers] for entry in entries]
        last = {number: i for i, given in enumerate(numbers) for number in given}
        for i, entry in enumerate(entries):
            for number, kept in zip(numbers[i], entry.inputs):
                if number not in marks:
                    values[number], marks[number] = self._argument(number, kept)
            ins, inm = [values[n] for n in numbers[i]], [marks[n] for n in numbers[i]]
            out, outm = self._entry(i, entry, ins, inm)
            values.update(zip(entry.outputs, out))
            marks.update(zip(entry.outputs, outm))
            for number in {n for n in numbers[i] if last[n] == i}:
                del values[number]
            for number, mark in zip(entry.outputs, outm):
                if number not in last and mark is not None and (entry.is_call or entry.backward):
                    self._handed_out |= mark.bits
        return self

    def _argument(self, number: int, kept: Any) -> Tuple[Any, Optional[Mark]]:
        if isinstance(kept, int):  # what made it was not recorded
            raise CannotCollect("replay.incomplete")
        if number in self.step.labels:
            label = Label("data", self.step.labels[number], kept)
            return self._from_outside(kept, label, ("data", label.name))
        return self._from_outside(kept, Label("constant", "", kept), ("constant", number))

    def _entry(self, number: int, entry: Entry, ins: Values, inm: Marks) -> Results:
        if not entry.is_call:
            path = Path(number)
            if entry.given is None:
                return self._node(entry.node, path, ins, inm)
            return self._given(entry, path, ins)
        program = self.step.programs.called(entry.type, None, entry.graph)
        if program is None:
            raise CannotCollect("replay.gone", op=entry.type)
        return self._run_graph(Path(number, None, None, program), ins, inm)

    def _given(self, entry: Entry, path: Path, ins: Values) -> Results:
        """Results taken as they were: a variable's value, a batch, random numbers."""
        assert entry.given is not None
        self.count += 1
        if entry.node.kind == "read":
            self._values.setdefault(private.tensor_id(ins[0]), entry.given[0])
            return self._read(entry.node, path, ins, [])
        names: Sequence[str] = self.step.names if entry.node.kind == "draw" else ()
        kind = "data" if entry.node.kind == "draw" else "constant"
        out: Results = ([], [])
        for i, tensor in enumerate(entry.given):
            label = Label(kind, names[i] if i < len(names) else "", tensor)
            key = (kind, label.name or private.tensor_id(tensor))
            for found, item in zip(out, self._from_outside(tensor, label, key)):
                found.append(item)
        return out

    def _from_outside(self, tensor: Any, label: Label, key: Any) -> Tuple[Any, Optional[Mark]]:
        """A tensor that no operator of the step made, and its mark; an origin where it is not
        finite."""
        if not is_float(tensor):
            return tensor, Mark(0, label) if label.kind == "data" else None
        if key in self.repair:
            return repaired(tensor), Mark(0, label)
        if self._finite(tensor, key):
            return tensor, Mark(0, label)
        return tensor, Mark(self._origin(label.kind, key, None, label, False).bit, label)

    def _origin(
        self, kind: str, key: Any, op: Optional[OpRef], source: Optional[Label], scaled: bool
    ) -> Origin:
        origin = Origin(1 << len(self.origins), kind, key, op, source, scaled)
        self.origins.append(origin)
        if op is None:
            self._waiting.append(origin)
        return origin

    # --- a graph ----------------------------------------------------------------------------------

    def _run_graph(self, path: Path, args: Values, given: Marks) -> Results:
        program: Program = path.program
        values: Values = [None] * program.size
        marks: Marks = [None] * program.size
        for place, value, mark in zip(program.inputs, args, given):
            values[place], marks[place] = value, mark
        for node in program.nodes:
            ins, inm = [values[i] for i in node.inputs], [marks[i] for i in node.inputs]
            out, outm = self._node(node, path, ins, inm)
            for place, value, mark in zip(node.outputs, out, outm):
                values[place], marks[place] = value, mark
            for place in node.last:
                values[place] = None
        return [values[i] for i in program.outputs], [marks[i] for i in program.outputs]

    def _node(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        self.count += 1
        if not self.count & 63:
            most = self.step.most_nodes
            if (most is not None and self.count > most) or time.monotonic() > self.step.until:
                raise TooLong
        return self._ways[node.kind](node, path, ins, inm)

    def _inner(self, name: str, path: Path) -> Program:
        found = self.step.programs.called(name, path.program)
        if found is None:
            raise CannotCollect("replay.gone", op=name)
        return found

    def _left_out(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        return [], []

    def _alias(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        return ins, inm

    def _call(self, node: Node, path: Path, ins: Values, inm: Marks, name: str = "") -> Results:
        inner = self._inner(name or node.functions["f"][0], path)
        return self._run_graph(Path(path.entry, path, node, inner), ins, inm)

    def _branch(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        functions, (index, *ins), (mark, *inm) = node.functions, ins, inm
        names = functions.get("branches") or functions["else_branch"] + functions["then_branch"]
        chosen = int(index.numpy())
        if not 0 <= chosen < len(names):
            chosen = len(names) - 1
        decided = mark.bits if mark is not None else 0
        applying = [i for i, name in enumerate(names) if self._writes_weights(name, path, ins)]
        if applying:
            self._reach(decided)
            others = [i for i in range(len(names)) if i not in applying]
            if not decided and self._carries(ins, inm):
                chosen = applying[0]  # whether or not it was taken: what reaches the weights tells
            elif not self._apply and len(others) == 1:
                chosen = others[0]  # what follows the last write of the weights is nobody's fault
        out, outm = self._call(node, path, ins, inm, names[chosen])
        if decided:
            none = Mark()
            for i, value in enumerate(out):
                if not is_float(value):
                    then = outm[i] or none
                    outm[i] = Mark(then.bits | decided, then.label, then.scaled)
        return out, outm

    def _writes_weights(self, name: str, path: Path, ins: Values) -> bool:
        weights = {
            i
            for i, value in enumerate(ins)
            if value.dtype.name == "resource" and private.tensor_id(value) in self.step.trainable
        }
        return bool(weights) and not weights.isdisjoint(
            self.step.programs.written(self._inner(name, path))
        )

    def _carries(self, ins: Values, inm: Marks) -> bool:
        """Whether anything that a branch is given, or a variable that it may read, is tainted."""
        known = self._variables
        marks = [
            known.get(private.tensor_id(value)) if value.dtype.name == "resource" else mark
            for value, mark in zip(ins, inm)
        ]
        return any(mark is not None and mark.bits for mark in marks)

    def _loop(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        condition, body = (
            Path(path.entry, path, node, self._inner(node.functions[part][0], path))
            for part in ("cond", "body")
        )
        around, apply = self._turn, self._apply
        if self._writes_weights(node.functions["body"][0], path, ins):
            self._apply = True  # its turns are training steps
        turn = 0
        while True:
            self._turn = (*around, turn)
            go_on, _ = self._run_graph(condition, ins, inm)
            if not bool(go_on[0].numpy()):
                break
            ins, inm = self._run_graph(body, ins, inm)
            turn += 1
        self._turn, self._apply = around, apply
        return ins, inm

    # --- single operators -------------------------------------------------------------------------

    def _execute(self, node: Node, ins: Values) -> Values:
        device = node.device or self._device
        outputs = len(node.outputs)
        return self._run_op(self._context, device, node.type, ins, node.attrs, outputs) or []

    def _plain(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        came, scaled, marked = _gathered(inm)
        taken = ins
        for i, value in enumerate(ins):
            if value.dtype.name == "resource":
                taken = [*taken[:i], self._shadow_of(value), *taken[i + 1 :]]
        out = self._execute(node, taken)
        key = (path.key, node.number, self._turn)
        bad = [i for i in node.floats if not self._finite(out[i], (*key, i))]
        repairs = self.repair and key in self.repair
        if not bad and not marked and not repairs:
            return out, [None] * len(out)
        if bad or came or repairs:
            return self._tainted(node, path, ins, inm, out, bad)
        label = handed_on(node.type, inm)
        made = Mark(0, label, scaled) if label is not None else SCALED if scaled else None
        return out, [made] * len(out)

    def _tainted(
        self, node: Node, path: Path, ins: Values, inm: Marks, out: Values, bad: List[int]
    ) -> Results:
        """An operator that takes or makes non-finite values."""
        came, scaled, _ = _gathered(inm)
        ref = self._ref(node, path)
        if ref.key in self.repair and not came:
            out, bad = [repaired(tensor) for tensor in out], []
        if bad and not came and node.type.startswith("ResourceGather"):
            mark = self._variable_mark(ins[0])  # rows of a variable that is never read as a whole
            came = mark.bits if mark is not None else 0
            if not came:
                return [repaired(tensor) for tensor in out], [None] * len(out)
            ins, inm = [self._value(ins[0]), *ins[1:]], [mark, *inm[1:]]
        label = handed_on(node.type, inm)
        origin = None
        if came and node.type not in NO_CONSUMERS:
            origin = self._consumed(came, ref)
        elif bad and not came:
            origin = self._made_here(node, ref, inm, scaled)
        bits = came or (origin.bit if origin is not None else 0)
        if node.type in _ASKS:
            self._answers |= came
        if bad or origin is not None:
            self._hold(ref, bits, origin, ins, inm, out)
        marks: Marks = []
        for i in range(len(out)):
            # besides values: what asks whether they are finite, what is made of the answers, lists
            silent = i in node.floats or node.type in _VALUELESS
            carried = bits if i in bad else 0 if silent else came
            marks.append(Mark(carried, label, scaled) if carried or label or scaled else None)
        return out, marks

    def _ref(self, node: Node, path: Path) -> OpRef:
        return OpRef(node, path, self._turn, self.count, self._drawn)

    def _made_here(self, node: Node, ref: OpRef, inm: Marks, scaled: bool) -> Origin:
        """The origin that an operator is; a Cast of the batch or of a literal that does not fit is
        laid at their door."""
        label = inm[0].label if node.type == "Cast" and inm and inm[0] is not None else None
        if label is not None and label.kind in ("data", "constant"):
            return self._origin(label.kind, ref.key, ref, label, False)
        return self._origin("operator", ref.key, ref, None, scaled)

    def _consumed(self, bits: int, ref: OpRef) -> Optional[Origin]:
        """The first of the origins from outside whose first consumer the operator is."""
        found = [item for item in self._waiting if item.bit & bits]
        for origin in found:
            origin.op = ref
            self._waiting.remove(origin)
        return found[0] if found else None

    def _constant(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        if not node.floats:
            return [node.constant], [None]
        label = Label("constant", "", node.constant)
        value, mark = self._from_outside(node.constant, label, ("constant", path.key, node.number))
        return [value], [mark]

    def _draw(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        number = private.tensor_id(ins[0])
        if number in self.step.feeds and number not in self._feeds:
            self._feeds[number] = self.step.feeds[number].run()
        feed = self._feeds.get(number)
        out = None if feed is None else feed.draw(node.type, node.attrs, len(node.outputs))
        if out is None:
            raise CannotCollect("replay.draws", op=node.type)
        self._drawn += 1
        marks: Marks = []
        for i, tensor in enumerate(out):
            name = self.step.names[i] if i < len(self.step.names) else "batch"
            label = Label("data", name, tensor)
            out[i], mark = self._from_outside(tensor, label, ("data", name, self._drawn))
            marks.append(mark)
        return out, marks

    def _random(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        """Random numbers that are the same in every run, and that the training's own generators
        know nothing of."""
        key = (*path.key[::2], node.number, self._turn)
        attrs = dict(zip(node.attrs[::2], node.attrs[1::2]))
        if node.type in _STATELESS:
            seed = _constant_of([zlib.crc32(repr(key).encode()), _OTHER_SEED], "int64")
            kinds = ("dtype", attrs["dtype"], "T", attrs["T"], "Tseed", seed.dtype.as_datatype_enum)
            out = private.run_op(_STATELESS[node.type], [*ins, seed], kinds, 1, node.device)
            return out, [None]
        if key not in self.step.draws:
            if "seed2" in attrs:
                attrs["seed2"] ^= _OTHER_SEED
            flat = tuple(part for pair in attrs.items() for part in pair)
            out = private.run_op(node.type, ins, flat, len(node.outputs), node.device)
            self.step.draws[key] = out
        out = list(self.step.draws[key])
        return out, [None] * len(out)

    def _collective(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        """It would wait for workers that do not replay: this worker's own values come back."""
        floats = [(value, mark) for value, mark in zip(ins, inm) if is_float(value)]
        if not node.type.startswith(_REDUCES) or not floats:
            raise CannotCollect("replay.collective", op=node.type)
        value, mark = floats[0]
        if mark is not None:
            self._answers |= mark.bits  # the others are told, and may skip the step for it
        return [value], [mark]

    def _python(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        """A Python function counts as a collective where there are several workers: many exchange
        gradients in one."""
        same = len(ins) == len(node.outputs) and all(is_float(value) for value in ins)
        if self.step.workers < 2 or not same:
            raise CannotCollect("replay.python", op=node.type)
        return ins, inm

    def _refused(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        raise CannotCollect("replay.outside", op=node.type)

    # --- variables --------------------------------------------------------------------------------

    def _read(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        mark = self._variable_mark(ins[0])
        return [self._value(ins[0])], [mark]

    def _value(self, handle: Any) -> Any:
        number = private.tensor_id(handle)
        if number not in self._shadows and number in self._values:
            return self._values[number]
        value = private.read_variable(handle, self._shadows.get(number))
        if value is None:
            raise CannotCollect("replay.outside", op="ReadVariableOp")
        return value

    def _variable_mark(self, handle: Any) -> Optional[Mark]:
        """What the present value of a variable carries: looked at when it is first read, then when
        it is written."""
        number = private.tensor_id(handle)
        if number not in self._variables:
            value, mark = self._value(handle), None
            label = Label("variable", "", value, number)
            if number in self.step.scales:
                mark = Mark(0, label, True)
            elif is_float(value):
                tensor, mark = self._from_outside(value, label, ("variable", number))
                if tensor is not value:
                    self._values[number], mark = tensor, Mark(0, label._replace(tensor=tensor))
            self._variables[number] = mark
        return self._variables[number]

    def _shadow_of(self, handle: Any) -> Any:
        """The handle to read from in place of a variable's own: that of a private copy where the
        value differs from the variable's."""
        number = private.tensor_id(handle)
        copied = number in self._shadows or number in self._values
        return self._shadow(handle) if copied else handle

    def _shadow(self, handle: Any) -> Any:
        number = private.tensor_id(handle)
        if number not in self._shadows:
            if private.handle_type(handle) is None:
                raise CannotCollect("replay.outside", op="resource")
            self._variable_mark(handle)
            self._shadows[number] = private.private_copy(handle, self._value(handle))
        return self._shadows[number]

    def _write(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        handles = [value for value in ins if value.dtype.name == "resource"]
        if not handles:
            return self._execute(node, ins), [None] * len(node.outputs)
        came, scaled, _ = _gathered(inm)
        first, *slots = (private.tensor_id(handle) for handle in handles)
        weight = first in self.step.trainable
        if weight:
            self._reach(came)
        taken = [self._shadow(value) if value.dtype.name == "resource" else value for value in ins]
        before, then = self._value(handles[0]), self._variables[first]
        if node.type != "AssignVariableOp" and then is not None:
            came |= then.bits
        out = self._execute(node, taken)
        now = private.read_variable(handles[0], self._shadows[first])
        ref = self._ref(node, path)
        if now is not None and ref.key in self.repair:
            kind = ("dtype", now.dtype.as_datatype_enum)
            private.run_op("AssignVariableOp", [self._shadows[first], repaired(now)], kind, 0)
            self._variables[first] = None
        elif now is None or not is_float(now) or self._finite(now, (*ref.key, "written")):
            self._variables[first] = SCALED if scaled and now is not None else None
        else:
            if not came:  # it became non-finite in the variable itself
                origin = self._origin("operator", ref.key, ref, None, scaled)
                came = origin.bit
                self._hold(ref, came, origin, [before, *ins[1:]], inm, [now])
                if weight:
                    self._reach(came)
            self._variables[first] = Mark(came)
        for number in slots:  # an optimizer writes them with the weight
            self._variables.pop(number, None)
        if weight and not self._apply:  # nothing of the step depends on the new weights
            for number in (first, *slots):
                self._shadows.pop(number, None)
        return out, [None] * len(out)

    def _reach(self, bits: int) -> None:
        """A place at which weights are written, and the bits that reach it."""
        self._sites += 1
        self._reached |= bits
        self._needed = len(self.held)

    # --- what is kept for the dump ----------------------------------------------------------------

    def _hold(
        self, ref: OpRef, bits: int, origin: Optional[Origin], ins: Values, inm: Marks, out: Values
    ) -> None:
        if not self.budget and not self._kept:
            return
        passed_on = sum(item.origin is None for item in self.held)
        if len(self.held) >= MAX_HELD or (origin is None and passed_on >= MAX_PASSED_ON):
            self.not_held += 1
            return
        inputs = [self._keep(value, mark) for value, mark in zip(ins, [*inm, *[None] * len(ins)])]
        outputs = [self._keep(value, None) for value in out]
        self.held.append(Held(ref, bits, origin, inputs, outputs))

    def _keep(self, tensor: Any, mark: Optional[Mark]) -> HeldTensor:
        dtype = tensor.dtype.name
        if dtype in _OPAQUE:
            return HeldTensor(None, dtype, () if dtype != "string" else tuple(tensor.shape))
        kept = HeldTensor(tensor, dtype, tuple(int(n) for n in tensor.shape))
        if mark is not None and mark.label is not None and mark.label.kind == "variable":
            kept.variable = mark.label
        number = private.tensor_id(tensor)
        size = int(tensor.dtype.size) * int(tensor.shape.num_elements())
        if number in self._kept:
            return kept
        if size > self.budget:
            kept.cut, kept.tensor = numbers_of(tensor), None
        else:
            self.budget -= size
            self._kept.add(number)
        return kept


def _gathered(marks: Marks) -> Tuple[int, bool, bool]:
    """Bits that come with an operator's inputs; whether the loss scale does; whether any is
    marked."""
    bits, scaled, marked = 0, False, False
    for mark in marks:
        if mark is not None:
            bits |= mark.bits
            scaled = scaled or mark.scaled
            marked = True
    return bits, scaled, marked


def _constant_of(value: Any, dtype: Any) -> Any:
    import tensorflow as tf

    return tf.constant(value, dtype)
