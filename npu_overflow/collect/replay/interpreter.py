"""Runs a record again, operator by operator, down into called functions, branches and loops.

What would write a variable writes a private copy of it. Prints, summaries and assertions are left out; an iterator
gives the batches that were kept; of an exchange between workers this worker's own values come back.
"""
from __future__ import annotations

import time
import zlib
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Set, Tuple

from npu_overflow.collect.replay import program as programs
from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.batches import Feed
from npu_overflow.collect.replay.finite import all_finite, is_float
from npu_overflow.collect.replay.program import Node, Program, Programs
from npu_overflow.collect.replay.recorder import Entry, Record
from npu_overflow.collect.replay.repair import repaired, repaired_outputs
from npu_overflow.collect.replay.statistics import numbers_of
from npu_overflow.collect.replay.taint import NO_CONSUMERS, SCALED, Held, HeldTensor, Label, Mark, OpRef, Origin, Path, handed_on
from npu_overflow.errors import CannotCollect

__all__ = ["Interpreter", "Step", "TooLong"]

MAX_HELD = 32  # operators whose tensors are kept in one step
MAX_PASSED_ON = 16  # of them, operators that only passed non-finite values on

# ask whether values are finite
_ASKS = frozenset(("IsFinite", "IsNan", "IsInf"))
# say nothing of values
_VALUELESS = frozenset("Shape ShapeN Rank Size VariableShape TensorListLength ZerosLike OnesLike".split())
# what a collective makes of one worker's values when it stands alone: the values themselves
_REDUCES = ("CollectiveReduce", "NcclAllReduce", "HorovodAllreduce", "HorovodBroadcast", "HcomAllReduce", "HcomBroadcast",
            "XlaAllReduce", "CrossReplicaSum")
_OTHER_SEED = 0x5EED
_STATELESS = {"RandomUniform": "StatelessRandomUniform", "RandomStandardNormal": "StatelessRandomNormal",
              "TruncatedNormal": "StatelessTruncatedNormal", "RandomUniformInt": "StatelessRandomUniformInt"}

Values = List[Any]
Marks = List[Optional[Mark]]


class TooLong(Exception):
    """A run was broken off: it takes too long, as a loop does that only the overflow would have ended."""


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
    """

    def __init__(
        self,
        record: Record,
        programs: Programs,
        labels: Optional[Mapping[int, str]] = None,
        feeds: Optional[Mapping[int, Feed]] = None,
        names: Sequence[str] = (),
        scales: FrozenSet[int] = frozenset(),
        several: bool = False,
        workers: int = 1,
        skipped: bool = True,
        most_seconds: float = 3600.0,
    ) -> None:
        self.record, self.programs = record, programs
        self.labels, self.feeds, self.names = dict(labels or {}), dict(feeds or {}), list(names)
        self.scales, self.several, self.workers, self.skipped = scales, several, workers, skipped
        self.trainable = record.trainable
        self.exchanged = record.exchanged() if workers > 1 else {}
        self.draws: Dict[Tuple[Any, ...], List[Any]] = {}
        self.most_nodes: Optional[int] = None
        self.until = time.monotonic() + most_seconds


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
        consequence: bits of the origins that reached a weight, or decided that the step is skipped.
        held: operators with non-finite values, with their tensors.
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
        self._execute, self._handle, self._device = private.found("run_op"), context._handle, context.device_name
        self.origins: List[Origin] = []
        self.held: List[Held] = []
        self.not_held = self.count = self.drawn = 0
        self._reached = self._answers = self._handed_out = 0
        self._sites = 0  # places at which weights are written
        self._needed = 0  # held by the time the last of them was met
        self._turn: Tuple[int, ...] = ()
        self._apply = step.several
        self._shadows: Dict[int, Any] = {}
        self._variables: Dict[int, Optional[Mark]] = {}  # by handle: what its present value carries
        self._values: Dict[int, Any] = {number: value for number, (_handle, value) in step.record.begin.items()}
        self._kept: Set[int] = set()
        self._handles: Dict[int, Any] = {}
        self._feeds: Dict[int, Any] = {}
        self._waiting: List[Origin] = []  # origins from outside that nothing has consumed yet
        if scale is not None:
            self._set_scale(scale)

    def _set_scale(self, scale: float) -> None:
        import tensorflow as tf

        for number in self.step.scales:
            if number in self._values:
                self._values[number] = tf.constant(scale, self._values[number].dtype)

    # --- results --------------------------------------------------------------------------------------------------------------

    @property
    def consequence(self) -> int:
        """Bits of the origins that had consequences.

        Those on their way into a weight, or that decide a branch which writes weights. Where Python decided, those
        that it asked about, if the step was skipped. Where neither was seen, those in what the step's functions returned.
        """
        if self._reached:
            return self._reached
        if self._answers and (self.step.skipped or not self._sites):
            return self._answers
        return 0 if self._sites else self._handed_out

    @property
    def kept(self) -> List[Held]:
        """Held operators that could have had consequences: those before the last weight was written (metrics come after)."""
        return self.held[: self._needed] if self._sites else self.held

    def of_bits(self, bits: int) -> List[Origin]:
        """The origins of a set of bits, in the order in which they were met."""
        return [origin for origin in self.origins if origin.bit & bits]

    # --- the record -----------------------------------------------------------------------------------------------------------

    def run(self) -> Interpreter:
        """Run the whole record.

        Raises:
            CannotCollect: something in it can't be run again.
            TooLong: it takes longer than allowed.
        """
        values: Dict[int, Any] = {}
        marks: Dict[int, Optional[Mark]] = {}
        used: Set[int] = set()
        exchanged = self.step.exchanged
        last = {exchanged.get(number, number): i for i, entry in enumerate(self.step.record.entries) for number in entry.numbers}
        for i, entry in enumerate(self.step.record.entries):
            ins, inm = self._inputs(entry, values, marks)
            used.update(exchanged.get(number, number) for number in entry.numbers)
            out, outm = self._entry(entry, i, ins, inm)
            for number, value, mark in zip(entry.outputs, out, outm):
                values[number], marks[number] = value, mark
            for number in entry.numbers:
                if last.get(number) == i:
                    values.pop(number, None)
        for entry in self.step.record.entries:
            if entry.is_call or entry.backward:
                for number in entry.outputs:
                    mark = marks.get(number)
                    if mark is not None and number not in used:
                        self._handed_out |= mark.bits
        return self

    def _inputs(self, entry: Entry, values: Dict[int, Any], marks: Dict[int, Optional[Mark]]) -> Tuple[Values, Marks]:
        ins: Values = []
        inm: Marks = []
        for number, kept in zip(entry.numbers, entry.inputs):
            number = self.step.exchanged.get(number, number)
            if number in values:
                ins.append(values[number])
                inm.append(marks[number])
                continue
            if isinstance(kept, int):
                raise CannotCollect("replay.incomplete")
            if number not in marks:
                label = Label("data", self.step.labels[number], kept) if number in self.step.labels else Label("constant", "", kept)
                values[number], marks[number] = self._from_outside(kept, label, (label.kind, label.name or number))
            ins.append(values.get(number, kept))
            inm.append(marks[number])
        return ins, inm

    def _entry(self, entry: Entry, number: int, ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        path = Path(number)
        if entry.is_call:
            program = self.step.programs.called(entry.type, None, entry.graph)
            if program is None:
                raise CannotCollect("replay.gone", op=entry.type)
            return self._call(program, ins, inm, Path(number, None, None, program))
        node = entry.node
        if entry.given is not None:
            return self._given(entry, node, ins, inm)
        return self._node(node, path, None, ins, inm)

    def _given(self, entry: Entry, node: Node, ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        """Results taken as they were: a variable's value, a batch, random numbers."""
        self.count += 1
        assert entry.given is not None
        if node.kind == programs.READ:
            number = private.tensor_id(ins[0])
            if number not in self._shadows:
                self._values.setdefault(number, entry.given[0])
            return self._read(ins[0])
        out: Values = []
        marks: Marks = []
        for i, tensor in enumerate(entry.given):
            name = self.step.names[i] if node.kind == programs.DRAW and i < len(self.step.names) else ""
            label = Label("data" if node.kind == programs.DRAW else "constant", name, tensor)
            value, mark = self._from_outside(tensor, label, (label.kind, name or private.tensor_id(tensor)))
            out.append(value)
            marks.append(mark)
        return out, marks

    def _from_outside(self, tensor: Any, label: Label, key: Tuple[Any, ...]) -> Tuple[Any, Optional[Mark]]:
        """A tensor that no operator of the step made, and its mark; an origin where it is not finite."""
        if not is_float(tensor):
            return tensor, Mark(0, label) if label.kind == "data" else None
        if key in self.repair:
            return repaired(tensor), Mark(0, label)
        if self._finite(tensor, key):
            return tensor, Mark(0, label)
        origin = self._origin(label.kind, key, None, label)
        return tensor, Mark(origin.bit, label)

    def _origin(self, kind: str, key: Tuple[Any, ...], op: Optional[OpRef], source: Optional[Label] = None, scaled: bool = False) -> Origin:
        origin = Origin(1 << len(self.origins), kind, key, op, source, scaled)
        self.origins.append(origin)
        if op is None:
            self._waiting.append(origin)
        return origin

    # --- a graph --------------------------------------------------------------------------------------------------------------

    def _call(self, program: Program, args: Values, given: Marks, path: Path) -> Tuple[Values, Marks]:
        values: Values = [None] * program.size
        marks: Marks = [None] * program.size
        for place, value, mark in zip(program.inputs, args, given):
            values[place], marks[place] = value, mark
        for node in program.nodes:
            out, outm = self._node(node, path, program, [values[i] for i in node.inputs], [marks[i] for i in node.inputs])
            for place, value, mark in zip(node.outputs, out, outm):
                values[place], marks[place] = value, mark
            for place in node.last:
                values[place] = None
        return [values[i] for i in program.outputs], [marks[i] for i in program.outputs]

    def _node(self, node: Node, path: Path, program: Optional[Program], ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        self.count += 1
        if not self.count & 63:
            self._may_go_on()
        kind = node.kind
        if kind == programs.PLAIN:
            return self._plain(node, path, ins, inm)
        if kind == programs.CONST:
            return self._constant(node, path)
        if kind == programs.ALIAS:
            return ins, inm
        if kind == programs.READ:
            return self._read(ins[0])
        if kind == programs.WRITE:
            return self._write(node, path, ins, inm)
        if kind == programs.LEFT_OUT:
            return [], []
        assert program is not None or kind not in (programs.CALL, programs.BRANCH, programs.LOOP)
        if kind == programs.CALL:
            return self._enter(node, node.functions["f"][0], path, program, ins, inm)
        if kind == programs.BRANCH:
            return self._branch(node, path, program, ins, inm)
        if kind == programs.LOOP:
            return self._loop(node, path, program, ins, inm)
        if kind == programs.DRAW:
            return self._draw(node, ins)
        if kind == programs.RANDOM:
            return self._random(node, path, ins)
        return self._alone(node, ins, inm)

    def _may_go_on(self) -> None:
        most = self.step.most_nodes
        if (most is not None and self.count > most) or time.monotonic() > self.step.until:
            raise TooLong

    def _inner(self, name: str, program: Optional[Program]) -> Program:
        found = self.step.programs.called(name, program)
        if found is None:
            raise CannotCollect("replay.gone", op=name)
        return found

    def _enter(self, node: Node, name: str, path: Path, program: Optional[Program], ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        inner = self._inner(name, program)
        return self._call(inner, ins, inm, Path(path.entry, path, node, inner))

    def _branch(self, node: Node, path: Path, program: Optional[Program], ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        names = node.functions.get("branches") or [*node.functions["else_branch"], *node.functions["then_branch"]]
        chosen = int(ins[0].numpy())
        if not 0 <= chosen < len(names):
            chosen = len(names) - 1
        decided = inm[0].bits if inm[0] is not None else 0
        writing = self._branches_that_write_weights(names, program, ins[1:])
        if writing:
            self._reach(decided | self._bits_on_the_way(writing, ins[1:], inm[1:]))
            others = [i for i in range(len(names)) if i not in {at for at, _, _ in writing}]
            if not self._apply and len(others) == 1:
                chosen = others[0]  # what follows the last write of the weights is nobody's fault
        out, outm = self._enter(node, names[chosen], path, program, ins[1:], inm[1:])
        if decided:
            outm = [self._with_bits(mark, decided) if not is_float(value) else mark for value, mark in zip(out, outm)]
        return out, outm

    @staticmethod
    def _with_bits(mark: Optional[Mark], bits: int) -> Mark:
        return Mark(bits) if mark is None else Mark(mark.bits | bits, mark.label, mark.scaled)

    def _branches_that_write_weights(self, names: List[str], program: Optional[Program], ins: Values) -> List[Tuple[int, Program, FrozenSet[int]]]:
        weights = {i for i, value in enumerate(ins) if value.dtype.name == "resource" and private.tensor_id(value) in self.step.trainable}
        found = []
        for at, name in enumerate(names) if weights else ():
            inner = self._inner(name, program)
            sinks = frozenset(weights.intersection(self.step.programs.written(inner)))
            if sinks:
                found.append((at, inner, sinks))
        return found

    def _bits_on_the_way(self, writing: List[Tuple[int, Program, FrozenSet[int]]], ins: Values, inm: Marks) -> int:
        """Bits of what a branch would write into weights, whether or not it is taken."""
        bits = 0
        for _at, inner, sinks in writing:
            for i in self.step.programs.flows_into(inner, sinks):
                mark = inm[i]
                if ins[i].dtype.name == "resource" and private.handle_type(ins[i]) is not None:
                    mark = self._variable_mark(ins[i])
                bits |= mark.bits if mark is not None else 0
        return bits

    def _loop(self, node: Node, path: Path, program: Optional[Program], ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        condition, body = self._inner(node.functions["cond"][0], program), self._inner(node.functions["body"][0], program)
        around, apply = self._turn, self._apply
        if self._branches_that_write_weights(node.functions["body"], program, ins):
            self._apply = True  # its turns are training steps
        into_condition, into_body = Path(path.entry, path, node, condition), Path(path.entry, path, node, body)
        turn = 0
        while True:
            self._turn = (*around, turn)
            go_on, _ = self._call(condition, ins, inm, into_condition)
            if not bool(go_on[0].numpy()):
                break
            ins, inm = self._call(body, ins, inm, into_body)
            turn += 1
        self._turn, self._apply = around, apply
        return ins, inm

    # --- single operators -------------------------------------------------------------------------------------------------------

    def _plain(self, node: Node, path: Path, ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        came, scaled, marked = 0, False, False
        for mark in inm:
            if mark is not None:
                came |= mark.bits
                scaled = scaled or mark.scaled
                marked = True
        taken = ins
        for i, value in enumerate(ins):
            if value.dtype.name == "resource":
                taken = [*taken[:i], self._shadow_of(value), *taken[i + 1 :]]
        out = self._execute(self._handle, node.device or self._device, node.type, taken, node.attrs, len(node.outputs)) or []
        bad = [i for i in node.floats if not self._finite(out[i], (path.key, node.number, self._turn, i))]
        repairs = self.repair and (path.key, node.number, self._turn) in self.repair
        if not bad and not marked and not repairs:
            return out, [None] * len(out)
        if bad or came or repairs:
            return self._tainted(node, path, ins, inm, out, bad, came, scaled)
        label = handed_on(node.type, inm)
        made = Mark(0, label, scaled) if label is not None else SCALED if scaled else None
        return out, [made] * len(out)

    def _tainted(
        self, node: Node, path: Path, ins: Values, inm: Marks, out: Values, bad: List[int], came: int, scaled: bool
    ) -> Tuple[Values, Marks]:
        """An operator that takes or makes non-finite values."""
        ref = OpRef(node, path, self._turn, self.count, self.drawn)
        if self.repair and ref.key in self.repair:
            out = repaired_outputs(node.type, ins, node.attrs, out, bool(came))
            bad = [i for i in bad if not all_finite(out[i])]
        if bad and not came and node.type.startswith("ResourceGather"):
            ins, inm, came = self._gathered(ins, inm)
            if not came:
                return [repaired(tensor) for tensor in out], [None] * len(out)
        label = handed_on(node.type, inm)
        consumed = self._consumed(came, ref) if came and node.type not in NO_CONSUMERS else None
        origin = None
        if bad and not came:
            origin = self._made_here(node, ref, inm, scaled)
        bits = came or (origin.bit if origin is not None else 0)
        if node.type in _ASKS:
            self._answers |= came
        if bad or consumed is not None:
            self._hold(ref, bits, origin or consumed, ins, inm, out)
        marks: Marks = []
        for i in range(len(out)):
            # besides values: what asks whether they are finite, what is made of the answers, and lists of tensors
            carried = bits if i in bad else 0 if i in node.floats or node.type in _VALUELESS else came
            marks.append(Mark(carried, label, scaled) if carried or label is not None else SCALED if scaled else None)
        return out, marks

    def _made_here(self, node: Node, ref: OpRef, inm: Marks, scaled: bool) -> Origin:
        """The origin that an operator is; a Cast of the batch or of a literal that does not fit is laid at their door."""
        label = inm[0].label if node.type == "Cast" and inm and inm[0] is not None else None
        if label is not None and label.kind in ("data", "constant"):
            return self._origin(label.kind, ref.key, ref, label)
        return self._origin("operator", ref.key, ref, None, scaled)

    def _consumed(self, bits: int, ref: OpRef) -> Optional[Origin]:
        """The origin from outside whose first consumer the operator is, or None."""
        found = None
        for origin in [item for item in self._waiting if item.bit & bits]:
            origin.op = ref
            self._waiting.remove(origin)
            found = found or origin
        return found

    def _constant(self, node: Node, path: Path) -> Tuple[Values, Marks]:
        if not node.floats:
            return [node.constant], [None]
        key = ("constant", path.key, node.number)
        value, mark = self._from_outside(node.constant, Label("constant", "", node.constant), key)
        return [value], [mark]

    def _draw(self, node: Node, ins: Values) -> Tuple[Values, Marks]:
        number = private.tensor_id(ins[0])
        if number not in self.step.feeds:
            raise CannotCollect("replay.draws", op=node.type)
        if number not in self._feeds:
            self._feeds[number] = self.step.feeds[number].run()
        out = self._feeds[number].draw(node.type, node.attrs, len(node.outputs))
        if out is None:
            raise CannotCollect("replay.draws", op=node.type)
        self.drawn += 1
        marks: Marks = []
        for i, tensor in enumerate(out):
            name = self.step.names[i] if i < len(self.step.names) else "batch"
            out[i], mark = self._from_outside(tensor, Label("data", name, tensor), ("data", name, self.drawn))
            marks.append(mark)
        return out, marks

    def _random(self, node: Node, path: Path, ins: Values) -> Tuple[Values, Marks]:
        """Random numbers that are the same in every run, and that the training's own generators know nothing of."""
        key = (path.key[0], *(part for part in path.key[1::2]), node.number, self._turn)
        if node.type in _STATELESS:
            import tensorflow as tf

            seed = tf.constant([zlib.crc32(repr(key).encode()), _OTHER_SEED], tf.int64)
            given = dict(zip(node.attrs[::2], node.attrs[1::2]))
            dtype = given.get("dtype", given.get("Tout"))
            attrs = ("dtype", dtype, "T", given["T"], "Tseed", tf.int64.as_datatype_enum)
            out = self._execute(self._handle, node.device or self._device, _STATELESS[node.type], [ins[0], seed, *ins[1:]], attrs, 1)
            return out, [None] * len(out)
        if key not in self.step.draws:
            changed = list(node.attrs)
            if "seed2" in changed:
                place = changed.index("seed2") + 1
                changed[place] = int(changed[place]) ^ _OTHER_SEED
            self.step.draws[key] = self._execute(self._handle, node.device or self._device, node.type, ins, tuple(changed), len(node.outputs))
        out = self.step.draws[key]
        return list(out), [None] * len(out)

    def _alone(self, node: Node, ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        """A collective would wait for workers that do not replay. Python functions count as collectives where there are several
        workers: many exchange gradients in one."""
        floats = [(value, mark) for value, mark in zip(ins, inm) if is_float(value)]
        if node.kind == programs.COLLECTIVE and node.type.startswith(_REDUCES) and floats:
            value, mark = floats[0]
            self._answers |= mark.bits if mark is not None else 0  # the others are told, and may skip the step for it
            return [value], [mark]
        if node.kind == programs.PYTHON and self.step.workers > 1 and len(floats) == len(ins) == len(node.outputs):
            return ins, inm
        codes = {programs.COLLECTIVE: "replay.collective", programs.PYTHON: "replay.python"}
        raise CannotCollect(codes.get(node.kind, "replay.outside"), op=node.type)

    # --- variables --------------------------------------------------------------------------------------------------------------

    def _read(self, handle: Any) -> Tuple[Values, Marks]:
        number = private.tensor_id(handle)
        mark = self._variable_mark(handle)
        value = self._value(number, handle)
        return [value], [mark]

    def _value(self, number: int, handle: Any) -> Any:
        if number not in self._shadows and number in self._values:
            return self._values[number]
        value = private.read_variable(handle, self._shadows.get(number))
        if value is None:
            raise CannotCollect("replay.outside", op="ReadVariableOp")
        return value

    def _variable_mark(self, handle: Any) -> Optional[Mark]:
        """What the present value of a variable carries: looked at when it is first read, then when it is written."""
        number = private.tensor_id(handle)
        if number not in self._variables:
            self._handles[number] = handle
            value = self._value(number, handle)
            label = Label("variable", "", value, number)
            mark: Optional[Mark] = None
            if number in self.step.scales:
                mark = Mark(0, label, True)
            elif is_float(value):
                tensor, mark = self._from_outside(value, label, ("variable", number))
                if tensor is not value:
                    self._values[number] = tensor
                    mark = Mark(0, Label("variable", "", tensor, number))
            self._variables[number] = mark
        return self._variables[number]

    def _gathered(self, ins: Values, inm: Marks) -> Tuple[Values, Marks, int]:
        """Rows of a variable are read without a tensor of it: here with one."""
        mark = self._variable_mark(ins[0])
        value = self._value(private.tensor_id(ins[0]), ins[0])
        return [value, *ins[1:]], [mark, *inm[1:]], mark.bits if mark is not None else 0

    def _shadow_of(self, handle: Any) -> Any:
        """The handle to use in place of a variable's own: a private copy where the value differs from the variable's."""
        number = private.tensor_id(handle)
        if number in self._shadows:
            return self._shadows[number]
        return self._shadow(handle) if number in self._values else handle

    def _shadow(self, handle: Any) -> Any:
        number = private.tensor_id(handle)
        if number not in self._shadows:
            if private.handle_type(handle) is None:
                raise CannotCollect("replay.outside", op="resource")
            self._variable_mark(handle)
            self._shadows[number] = private.private_copy(handle, self._value(number, handle))
            self._handles[number] = handle
        return self._shadows[number]

    def _write(self, node: Node, path: Path, ins: Values, inm: Marks) -> Tuple[Values, Marks]:
        handles = [value for value in ins if value.dtype.name == "resource"]
        came = scaled = 0
        for mark in inm:
            if mark is not None:
                came |= mark.bits
                scaled |= mark.scaled
        number = private.tensor_id(handles[0]) if handles else 0
        weight = number in self.step.trainable
        if weight:
            self._reach(came)
        before = None
        if handles:
            self._shadow(handles[0])
            mark = self._variables[number]
            before = self._value(number, handles[0])
            if node.type != "AssignVariableOp" and mark is not None:
                came |= mark.bits
        taken = [self._shadow(value) if value.dtype.name == "resource" else value for value in ins]
        out = self._execute(self._handle, node.device or self._device, node.type, taken, node.attrs, len(node.outputs)) or []
        for handle in handles[:1]:
            self._wrote(node, path, handle, before, ins, inm, came, bool(scaled), weight)
        for handle in handles[1:]:  # slots that an optimizer writes with the weight
            self._variables.pop(private.tensor_id(handle), None)
        if weight and not self._apply:  # nothing of the step depends on the new weights: they need no room
            for handle in handles:
                self._shadows.pop(private.tensor_id(handle), None)
        return out, [None] * len(out)

    def _wrote(
        self, node: Node, path: Path, handle: Any, before: Any, ins: Values, inm: Marks, came: int, scaled: bool, weight: bool
    ) -> None:
        """Follow values through a variable: what was written, and what became non-finite in the variable itself."""
        number = private.tensor_id(handle)
        now = private.read_variable(handle, self._shadows[number])
        ref = OpRef(node, path, self._turn, self.count, self.drawn)
        if now is not None and ref.key in self.repair:
            attrs = ("dtype", now.dtype.as_datatype_enum)
            self._execute(self._handle, self._device, "AssignVariableOp", [self._shadows[number], repaired(now)], attrs, 0)
            self._variables[number] = None
        elif now is None or not is_float(now) or self._finite(now, (*ref.key, "written")):
            self._variables[number] = SCALED if scaled and is_float(now) else None
        else:
            if not came:
                origin = self._origin("operator", ref.key, ref, None, scaled)
                came = origin.bit
                self._hold(ref, came, origin, [before, *ins[1:]], inm, [now])
                if weight:
                    self._reach(came)
            self._variables[number] = Mark(came)

    def _reach(self, bits: int) -> None:
        """A place at which weights are written, and the bits that reach it."""
        self._sites += 1
        self._reached |= bits
        self._needed = len(self.held)

    # --- what is kept for the dump ------------------------------------------------------------------------------------------------

    def _hold(self, ref: OpRef, bits: int, origin: Optional[Origin], ins: Values, inm: Marks, out: Values) -> None:
        if not self.budget and not self._kept:
            return
        passed_on = sum(item.origin is None for item in self.held)
        if len(self.held) >= MAX_HELD or (origin is None and passed_on >= MAX_PASSED_ON):
            self.not_held += 1
            return
        held = Held(ref, bits, origin)
        for value, mark in zip(ins, [*inm, *[None] * len(ins)]):
            held.inputs.append(self._keep(value, mark))
        held.outputs = [self._keep(value, None) for value in out]
        self.held.append(held)

    def _keep(self, tensor: Any, mark: Optional[Mark]) -> HeldTensor:
        dtype, shape = tensor.dtype.name, tuple(int(n) for n in tensor.shape) if tensor.dtype.name not in ("resource", "variant") else ()
        kept = HeldTensor(tensor, dtype, shape)
        if mark is not None and mark.label is not None and mark.label.kind == "variable":
            kept.variable = mark.label
        if dtype in ("resource", "variant", "string"):
            kept.tensor = None
            return kept
        number, size = private.tensor_id(tensor), int(tensor.dtype.size)
        for n in shape:
            size *= n
        if number not in self._kept:
            if size > self.budget:
                kept.cut, kept.tensor = numbers_of(tensor), None
            else:
                self.budget -= size
                self._kept.add(number)
        return kept
