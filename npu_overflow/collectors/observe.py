"""One observed run of a step: which operators made or passed on non-finite values, and which origins reached a gradient."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from npu_overflow.collectors import compat
from npu_overflow.collectors.blame import Flow, Op, Origin, key_of, variable_key
from npu_overflow.collectors.finite import all_finite, first_bad, is_float
from npu_overflow.collectors.hooks import Watcher
from npu_overflow.collectors.repair import repaired, repaired_outputs
from npu_overflow.collectors.undo import UndoLog

__all__ = ["Draws", "Held", "HeldTensor", "StepWatcher", "TooLong"]

MAX_HELD = 32  # operators whose tensors are kept in one step
MAX_PASSED_ON = 16  # of them, operators that only passed non-finite values on

# stateful random operators: their draws are kept, so that every run of one step draws the same
_RANDOM = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial", "StatefulUniform", "StatefulStandardNormal", "StatefulTruncatedNormal",
           "StatefulRandomBinomial", "RngReadAndSkip")

_OTHER_SEED = 0x5EED


def _writes(op_type: str) -> bool:
    return op_type.startswith(("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign", "ResourceAccumulator"))


Draws = Dict[Tuple[str, int], List[Any]]


class TooLong(BaseException):
    """A run of a step was broken off. It comes out of the user's step, where no ``except Exception`` shall stop it."""


@dataclass
class HeldTensor:
    """A tensor of an operator that is kept for the dump: the tensor, or the numbers of one that is too large to keep."""

    tensor: Any
    dtype: str
    shape: Tuple[int, ...]
    cut: Optional[Dict[str, Any]] = None
    variable: Optional[str] = None  # the variable that it was read from


@dataclass
class Held:
    """An operator with a non-finite output (or the first consumer of a non-finite tensor from outside), with its tensors."""

    op: Op
    bits: int
    origin: Optional[Origin]
    inputs: List[HeldTensor] = field(default_factory=list)
    outputs: List[HeldTensor] = field(default_factory=list)


class StepWatcher(Watcher):
    """Watches one run of a step.

    Args:
        undo: the undo log of this run.
        labels: names of tensors from outside, by tensor number: (kind, name, tensor).
        variable_name: the name of the variable behind a resource handle.
        budget: bytes of tensors that may be held.
        repaired: keys of origins whose non-finite values are replaced by finite ones in this run.
        draws: results of random operators of an earlier run of the same step; filled when empty.
        may_run: whether the run may go on after so many operators.
    """

    def __init__(
        self,
        undo: UndoLog,
        labels: Mapping[int, Tuple[str, str, Any]],
        variable_name: Callable[[Any], str],
        budget: int = 0,
        repaired: FrozenSet[str] = frozenset(),
        draws: Optional[Draws] = None,
        may_run: Callable[[int], bool] = lambda operators: True,
    ) -> None:
        self.flow = Flow()
        for number, (kind, name, tensor) in labels.items():
            self.flow.label(number, kind, name, tensor)
        self.held: List[Held] = []
        self.operators = 0
        self.seen: Set[str] = set()  # keys of the operators that ran
        self.not_held = 0
        self.sinks = 0  # bits that reach a gradient given to an optimizer
        self.written = 0  # bits that reach a variable, for loops without an optimizer
        self.of_tapes: Optional[int] = None  # bits that reach a gradient of a variable, for steps that hand their gradients out; None: no tape was asked
        self.handed_out = 0  # bits that reach the result of a tf.function, for steps whose tape lies outside
        self.applied = 0  # how often an optimizer was given gradients
        self.bad_gradients = 0
        self._undo, self._variable_name = undo, variable_name
        self._budget, self._repaired, self._may_run = budget, repaired, may_run
        self._draws: Draws = {} if draws is None else draws
        self._drawn: Dict[str, int] = {}
        self._held_numbers: Set[int] = set()
        self._last_needed = 0
        self._before_write: Optional[Any] = None

    # --- hooks ------------------------------------------------------------------------------------------------------------------

    def before(self, op: Op, inputs: Sequence[Any], attrs: Sequence[Any], ctx: Any) -> Optional[List[Any]]:
        """Save what the operator will write, repair what this run repairs, repeat the draws of an earlier run."""
        self.operators += 1
        self.seen.add(key_of(op))
        if not self._may_run(self.operators):
            raise TooLong
        for i, tensor in enumerate(inputs):
            self._meet(tensor, op, i)
        if self._repaired and isinstance(inputs, list):
            self._repair_inputs(inputs)
        if op.phase == "forward" and self._works_on_gradients(inputs):
            op.phase = "backward"
        outputs = self._undo.before(op.type, inputs)
        if _writes(op.type) and inputs and inputs[0].dtype.name == "resource":
            self._before_write = compat.read_variable(inputs[0])
        if outputs is None and op.type.startswith(_RANDOM):
            ordinal = self._drawn.get(op.type, 0)
            self._drawn[op.type] = ordinal + 1
            outputs = self._draws.get((op.type, ordinal))
            if outputs is None:
                outputs = _drawn_elsewhere(op.type, inputs, attrs)
        return outputs

    def after(self, op: Op, inputs: Sequence[Any], attrs: Sequence[Any], outputs: List[Any]) -> List[Any]:
        """Follow the flow of non-finite values through the operator and keep its tensors where it shows any."""
        if op.type.startswith(_RANDOM):
            self._draws.setdefault((op.type, self._drawn[op.type] - 1), outputs)
        self._undo.after(outputs)
        if op.type == "ReadVariableOp" and outputs:
            return self._read_variable(inputs[0], outputs)
        if _writes(op.type) and inputs and inputs[0].dtype.name == "resource":
            self._wrote_variable(op, inputs)
            return outputs
        bad = [i for i, tensor in enumerate(outputs) if not all_finite(tensor)]
        if bad and key_of(op) in self._repaired:
            inherits = bool(self.flow.reached([compat.tensor_id(tensor) for tensor in inputs]))
            outputs = repaired_outputs(op.type, inputs, attrs, outputs, inherits)
            bad = [i for i in bad if not all_finite(outputs[i])]
        numbers = [compat.tensor_id(tensor) for tensor in inputs]
        made = [compat.tensor_id(tensor) for tensor in outputs]
        waiting = [origin for origin in self.flow.origins if origin.op is None]
        given = list(inputs)
        if bad and op.type in ("ResourceGather", "ResourceGatherNd"):  # the rows of a variable are read without a tensor of it
            name = self._variable_name(inputs[0])
            if variable_key(name, numbers[0]) in self._repaired:
                return [repaired(tensor) for tensor in outputs]
            given[0] = compat.read_variable(inputs[0])
            self.flow.variable_read(numbers[0], numbers[0], name, given[0], finite=False)
            waiting = [origin for origin in self.flow.origins if origin.op is None]
        bits, origin = self.flow.ran(op, numbers, made, [made[i] for i in bad])
        consumed = next((item for item in waiting if item.op is op), None)
        if bad or consumed is not None:
            self._hold(op, bits, origin or consumed, given, outputs)
        return outputs

    def gradients(self, optimizer: Any, gradients: Sequence[Any]) -> None:
        """Gradients were given to an optimizer: what they carry has consequences."""
        self.applied += 1
        self._last_needed = len(self.held)
        for bits in self._bits_of(gradients):
            self.bad_gradients += bool(bits)
            self.sinks |= bits

    def taped(self, gradients: Sequence[Any]) -> None:
        """Gradients of variables were computed: where no optimizer is seen to get them, these are what a step is for."""
        self.of_tapes = self.of_tapes or 0
        for bits in self._bits_of(gradients):
            self.of_tapes |= bits

    def returned(self, tensors: Sequence[Any]) -> None:
        """A tf.function returned tensors."""
        for bits in self._bits_of(tensors):
            self.handed_out |= bits

    def python(self) -> None:
        """A Python function is about to run: refused where it can't be undone."""
        self._undo.before("PyFunc", [])

    # --- results ----------------------------------------------------------------------------------------------------------------

    @property
    def kept(self) -> List[Held]:
        """The held operators that could have had consequences: those before the last gradients were given to an optimizer (metrics come after)."""
        return self.held[: self._last_needed] if self.applied else self.held

    @property
    def consequences(self) -> int:
        """Bits of the origins that had consequences: those in gradients given to an optimizer; without one, those written to variables, or where
        none were, those in gradients of variables, or where none were asked for, those in what the step returned.
        """
        if self.applied:
            return self.sinks
        return self.written or (self.handed_out if self.of_tapes is None else self.of_tapes)

    # --- parts ------------------------------------------------------------------------------------------------------------------

    def _bits_of(self, gradients: Sequence[Any]) -> Iterator[int]:
        """Bits that each of the gradients carries."""
        for gradient in gradients:
            tensor = getattr(gradient, "values", gradient) if hasattr(gradient, "dense_shape") else gradient
            if tensor is not None and hasattr(tensor, "_id"):
                self._meet(tensor)
                yield self.flow.carried(compat.tensor_id(tensor))

    def _meet(self, tensor: Any, op: Optional[Op] = None, position: int = 0) -> None:
        """Look at a tensor that no operator of this step has made."""
        number = compat.tensor_id(tensor)
        if not self.flow.is_known(number) and tensor.dtype.name not in ("resource", "variant", "string"):
            finite = all_finite(tensor)
            self.flow.outside(number, finite, tensor, "" if finite or op is None else "%s, input %d" % (key_of(op), position))

    def _read_variable(self, handle: Any, outputs: List[Any]) -> List[Any]:
        name, number = self._variable_name(handle), compat.tensor_id(handle)
        finite = all_finite(outputs[0])
        if not finite and not self.flow.variable_bits(number) and variable_key(name, number) in self._repaired:
            outputs, finite = [repaired(outputs[0])], True
        self.flow.label(compat.tensor_id(outputs[0]), "variable", name, outputs[0])
        self.flow.variable_read(compat.tensor_id(outputs[0]), number, name, outputs[0], finite)
        return outputs

    def _wrote_variable(self, op: Op, inputs: Sequence[Any]) -> None:
        """Follow values through a variable: what was written, and an addition that overflows in the variable itself."""
        now, before, self._before_write = compat.read_variable(inputs[0]), self._before_write, None
        if now is None or not is_float(now):
            return
        handle = compat.tensor_id(inputs[0])
        bits = self.flow.reached([compat.tensor_id(tensor) for tensor in inputs])
        if all_finite(now):
            self.flow.variable_written(handle, 0)
            return
        if op.type != "AssignVariableOp":
            bits |= self.flow.variable_bits(handle)
        self.written |= bits
        if bits:
            self.flow.variable_written(handle, bits)
        elif before is not None and all_finite(before):
            if key_of(op) in self._repaired:
                compat.write_variable(inputs[0], repaired(now))
                return
            origin = self.flow.variable_overflowed(handle, op)
            self.written |= origin.bit
            self._hold(op, origin.bit, origin, [before, *inputs[1:]], [now])

    def _works_on_gradients(self, inputs: Sequence[Any]) -> bool:
        """Whether an operator outside ``tape.gradient`` handles gradients: it descends from some, and no tape records it (a gradient
        penalty is recorded: it belongs to the forward pass)."""
        if not self.flow.is_of_gradients([compat.tensor_id(tensor) for tensor in inputs]):
            return False
        internals = compat.internals()
        return internals.has("tape_records") and not internals.get("tape_records")()

    def _repair_inputs(self, inputs: List[Any]) -> None:
        """Repair tensors from outside where they are consumed; what operators made of them follows from that."""
        for i, tensor in enumerate(inputs):
            number = compat.tensor_id(tensor)
            bits = self.flow.carried(number)
            if bits and self.flow.is_outside(number) and any(origin.key in self._repaired for origin in self.flow.of_bits(bits)):
                inputs[i] = repaired(tensor)

    def _hold(self, op: Op, bits: int, origin: Optional[Origin], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        passed_on = sum(held.origin is None for held in self.held)
        if len(self.held) >= MAX_HELD or (origin is None and passed_on >= MAX_PASSED_ON):
            self.not_held += 1
            return
        held = Held(op, bits or (origin.bit if origin else 0), origin)
        held.inputs = [self._keep(tensor) for tensor in inputs]
        held.outputs = [self._keep(tensor) for tensor in outputs]
        self.held.append(held)

    def _keep(self, tensor: Any) -> HeldTensor:
        dtype = tensor.dtype.name
        shape = tuple(int(n) for n in tensor.shape) if dtype not in ("resource", "variant") else ()
        number, size = compat.tensor_id(tensor), _bytes(dtype, tensor, shape)
        kind, name, _ = self.flow.label_of(number) or ("", "", None)
        kept = HeldTensor(tensor, dtype, shape, variable=name if kind == "variable" else None)
        if number not in self._held_numbers:
            if size > self._budget:
                kept.cut, kept.tensor = _numbers(tensor), None
            else:
                self._budget -= size
                self._held_numbers.add(number)
        return kept


def _drawn_elsewhere(op_type: str, inputs: Sequence[Any], attrs: Sequence[Any]) -> Optional[List[Any]]:
    """The result of a random operator under another seed: its kernel keeps a state for each seed, which a training that runs eagerly draws from."""
    if "seed2" not in attrs or op_type.endswith("Dataset"):
        return None
    changed = list(attrs)
    place = changed.index("seed2") + 1
    changed[place] = int(changed[place]) ^ _OTHER_SEED
    return compat.run_again(op_type, list(inputs), tuple(changed), 1)


def _bytes(dtype: str, tensor: Any, shape: Tuple[int, ...]) -> int:
    if dtype in ("resource", "variant", "string"):
        return 0
    count = 1
    for n in shape:
        count *= n
    return count * int(tensor.dtype.size)


def _numbers(tensor: Any) -> Dict[str, Any]:
    """Statistics of a tensor that is too large to keep: counts and extremes, the first bad element."""
    import numpy as np

    if not is_float(tensor) or tensor.dtype.is_complex:
        return {}
    values = compat.host_view(tensor)
    values = tensor.numpy() if values is None else values
    flat = values.reshape(-1)
    found: Dict[str, Any] = {"min": None, "max": None, "mean": None, "nan": 0, "pos_inf": 0, "neg_inf": 0, "first_overflow": None}
    total, count = 0.0, 0
    for start in range(0, flat.size, 1 << 16):
        part = flat[start : start + (1 << 16)].astype(np.float64)
        nan, inf = np.isnan(part), np.isinf(part)
        found["nan"] += int(nan.sum())
        found["pos_inf"] += int((inf & (part > 0)).sum())
        found["neg_inf"] += int((inf & (part < 0)).sum())
        ordered = part[~nan]
        if ordered.size:
            low, high = float(ordered.min()), float(ordered.max())
            found["min"] = low if found["min"] is None else min(found["min"], low)
            found["max"] = high if found["max"] is None else max(found["max"], high)
        finite = part[~(nan | inf)]
        total, count = total + float(finite.sum()), count + finite.size
    found["mean"] = total / count if count else None
    bad = first_bad(values)
    if bad is not None:
        found["first_overflow"] = {"index": list(bad[0]), "value": bad[1]}
    return found
