"""Advice by rule: an ordered list of small functions, the most specific first. A new diagnosis is one function and one line here.

Each rule looks at a ``Case`` and returns None, or its evidence: a dict of what it saw, such as the tensor, the element, the value and the
headroom. The sentences are ``advice.CODE`` in ``report.texts``.
"""
from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Tuple

from npu_overflow.analysis.kinds import is_low_precision
from npu_overflow.analysis.known_types import is_known
from npu_overflow.analysis.statistics import Facts

__all__ = ["RULES", "Case", "Rule", "advise"]

Evidence = Optional[Dict[str, Any]]

INTEGER_BITS, FLOAT_BITS = 0x8 | 0x10 | 0x80, 0x20 | 0x100 | 0x400
CAST_BIT, CUBE_BIT = 0x100, 0x400

#: magnitudes from here on are no activations: they are what people write into masks
MASK = 1e9

_REDUCTIONS = re.compile(r"(?<!Max)Pool|Mean|Sum|Norm|Variance|Moments|^Var|L2Loss|BNTraining|BNInfer|ReduceStd")
_BACKWARD_TYPE = re.compile(r"Grad(V?\d*|D)?$|Grad[A-Z]|Backprop|Backward")
_BACKWARD_NAME = re.compile(r"(^|[/_])(gradient_tape|gradients?|grad)([/_]|$)", re.IGNORECASE)

#: type -> (index of the input that must not be small, whether a negative there is no number)
_SMALL_INPUT: Mapping[str, Tuple[int, bool]] = {
    "Log": (0, True), "Log1p": (0, False), "Rsqrt": (0, True), "Sqrt": (0, True), "Pow": (0, True), "Reciprocal": (0, False), "Inv": (0, False),
    "Div": (1, False), "RealDiv": (1, False), "TruncateDiv": (1, False), "FloorDiv": (1, False), "DivNoNan": (1, False), "Xdivy": (1, False),
    "Xlogy": (1, True), "SqrtGrad": (0, False), "LogGrad": (0, False),
}  # fmt: skip
#: gradients that multiply by a power of what the forward operator gave
_LARGE_INPUT: Mapping[str, int] = {"RsqrtGrad": 3, "ReciprocalGrad": 2, "InvGrad": 2}
#: exponentials: whether negative inputs count too
_EXPONENTIALS: Mapping[str, bool] = {"Exp": False, "Expm1": False, "Sinh": True, "Cosh": True, "SoftplusGrad": True}

#: squares and other powers: type -> exponent of the intermediate that overflows first (tanh GELU cubes its input)
_POWERS: Mapping[str, int] = {
    "Square": 2, "SquaredDifference": 2, "L2Loss": 2, "SquareSum": 2, "SquareSumAll": 2, "Gelu": 3, "FastGelu": 3, "GeluGrad": 3, "FastGeluGrad": 3,
}  # fmt: skip
_SOFTMAX = re.compile(r"Softmax")
_SUMS = frozenset("Sum ReduceSum AddN AccumulateNV2 Cumsum SegmentSum UnsortedSegmentSum SparseSegmentSum Add AddV2 BiasAdd".split())
_PRODUCTS = re.compile(r"^(_Fused)?(Batch|Sparse)?MatMul|^(_Fused)?(Depthwise)?Conv[123]D$|^DepthwiseConv2dNative$|^(Xla)?Einsum$|^FullyConnection$|^Gemm")
_OPTIMIZERS = re.compile(r"^(Resource)?(Sparse)?Apply[A-Z]|^(Fused)?(Adam|Lamb|Momentum|Sgd)(Apply|Optimizer)")


@dataclass(frozen=True)
class Case:
    """One operator as the rules see it.

    Args:
        op_type, op_name, core, verdict: as in ``Operator``.
        bits: status of an AI Core record of the old layout, else 0: only there the bits are public.
        mode: "saturation", "inf_nan" or None.
        inputs, outputs: facts of its tensors, empty where it was not opened.
        phase: "forward", "backward" or None.
        forward_clean: no forward operator of the same step overflowed before it.
        dumped_producer: the overflowing input of an inherited one comes from an operator of this dump; None: can't be told.
        loss_scale: the last one seen, or None.
        host: from a tree of the host collector.
        origin: what held the value first, as in ``Operator``.
        origin_detail: its name, element and value, or None.
    """

    op_type: Optional[str]
    op_name: Optional[str]
    core: str
    verdict: str
    bits: int = 0
    mode: Optional[str] = None
    inputs: Tuple[Facts, ...] = ()
    outputs: Tuple[Facts, ...] = ()
    phase: Optional[str] = None
    forward_clean: bool = False
    dumped_producer: Optional[bool] = None
    loss_scale: Optional[float] = None
    host: bool = False
    origin: str = "operator"
    origin_detail: Optional[Mapping[str, Any]] = None

    @property
    def plain_type(self) -> str:
        """The type without a version or "D": CANN has "AvgPoolV2" and "ReduceSumD" beside "AvgPool" and "ReduceSum"."""
        return re.sub(r"(?<=[a-z])(V\d+|D)$", "", self.op_type or "")

    @property
    def own(self) -> bool:
        """Whether the operator made the overflow itself."""
        return self.verdict in ("computed_here", "internal")

    @property
    def low_output(self) -> Optional[Facts]:
        """The first output of float16 or narrower; where some outputs overflowed, one of those."""
        bad = [facts for facts in self.outputs if facts.state == "overflow"]
        return next((facts for facts in bad or self.outputs if is_low_precision(facts.summary.dtype)), None)

    @property
    def limit(self) -> Optional[float]:
        """MAX of the operator's result type."""
        sizes = [facts.largest for facts in self.outputs or self.inputs if facts.largest is not None]
        return min(sizes) if sizes else None


def is_backward(op_type: Optional[str], op_name: Optional[str], phase: Optional[str]) -> bool:
    """Whether an operator belongs to the backward pass: as the collector says, else by its type and name."""
    if phase is not None:
        return phase == "backward"
    return bool(_BACKWARD_TYPE.search(op_type or "") or _BACKWARD_NAME.search(op_name or ""))


def _seen(side: str, facts: Facts, **more: Any) -> Dict[str, Any]:
    """Evidence that points at one tensor: its first overflow element, or its largest value where there is none."""
    summary = facts.summary
    found: Dict[str, Any] = {"tensor": "%s.%d" % (side, summary.index), "dtype": summary.dtype}
    if summary.first_overflow:
        found["element"], found["value"] = summary.first_overflow["index"], summary.first_overflow["value"]
    elif facts.numbers.largest is not None:
        found["largest"] = facts.numbers.largest
    if summary.headroom_log2 is not None:
        found["headroom_log2"] = summary.headroom_log2
    found.update(more)
    return found


def padding(case: Case) -> Evidence:
    """Overflow values stand in the padding of a private format only."""
    if case.verdict != "padding_only":
        return None
    for side, tensors in (("output", case.outputs), ("input", case.inputs)):
        for facts in tensors:
            if facts.state == "padding":
                return {"tensor": "%s.%d" % (side, facts.summary.index), "format": facts.summary.format, "elements": facts.summary.overflow_in_padding}
    return None


def integer_status(case: Case) -> Evidence:
    """Only integer bits are set."""
    return {"status": case.bits & INTEGER_BITS} if case.bits & INTEGER_BITS and not case.bits & FLOAT_BITS else None


def integer_too(case: Case) -> Evidence:
    """Integer bits beside floating-point ones."""
    return {"status": case.bits & INTEGER_BITS} if case.bits & INTEGER_BITS and case.bits & FLOAT_BITS else None


def negative_mask(case: Case) -> Evidence:
    """An input holds what attention masks are made of: -1e9, -MAX, or nothing overflowing but -Inf."""
    return _mask(case, negative=True)


def large_constant(case: Case) -> Evidence:
    """An input holds a magnitude that no activation has."""
    return _mask(case, negative=False)


def _mask(case: Case, negative: bool) -> Evidence:
    if case.dumped_producer or case.verdict in ("padding_only", "absorbed") or case.origin == "variable":
        return None
    if is_backward(case.op_type, case.op_name, case.phase) or _PRODUCTS.search(case.op_type or ""):  # gradients and weights are no masks
        return None
    for facts in case.inputs:
        low, largest = facts.summary.min, facts.numbers.largest
        if facts.largest is None or low is None:
            continue
        at_max = -facts.largest == low and facts.summary.nan == 0
        masked = low <= -MASK and facts.summary.nan == facts.summary.pos_inf == 0
        if negative and (at_max or masked):
            return _seen("input", facts, value=float(low))
        if not negative and largest is not None and largest >= MASK and not (at_max or masked):
            return _seen("input", facts, value=largest)
    return None


def weights_lost(case: Case) -> Evidence:
    """A variable was not finite before the step began."""
    if case.origin != "variable" or case.verdict in ("padding_only", "absorbed"):
        return None
    found = {key: value for key, value in (case.origin_detail or {}).items() if value is not None}
    found.setdefault("name", case.op_name or "?")
    return found


def masked_row(case: Case) -> Evidence:
    """A softmax gives NaN although nothing but -Inf stands in its input beside finite values: a whole row is -Inf."""
    if case.verdict in ("padding_only", "absorbed") or not _SOFTMAX.search(case.op_type or "") or is_backward(case.op_type, None, None):
        return None
    for facts in case.inputs[:1]:
        if facts.summary.neg_inf and not facts.summary.nan and not facts.summary.pos_inf:
            return next((_seen("output", output) for output in case.outputs if output.summary.nan), None)
    return None


def power(case: Case) -> Evidence:
    """A square or cube of something too large: float16 holds squares up to 255.9 and cubes up to 40.3."""
    if not case.own or case.low_output is None or case.limit is None:
        return None
    exponent_of = float(_POWERS.get(case.plain_type, 0))
    if case.plain_type == "Pow" and len(case.inputs) > 1 and case.inputs[1].numbers.maximum is not None:
        exponent_of = float(case.inputs[1].numbers.maximum)
    if not 1.0 < exponent_of < 1e6:
        return None
    bound = case.limit ** (1.0 / exponent_of)
    if case.plain_type == "SquaredDifference":
        bound /= 2  # each side may bring half of it
    for facts in case.inputs[:2] if case.plain_type != "Pow" else case.inputs[:1]:
        if facts.numbers.largest is not None and facts.numbers.largest > bound:
            return _seen("input", facts, value=facts.numbers.largest, bound=bound, exponent=exponent_of)
    return None


def optimizer_float16(case: Case) -> Evidence:
    """An optimizer's update in float16: its epsilon becomes 0 there and its squares overflow."""
    if not _OPTIMIZERS.match(case.op_type or "") or case.verdict in ("padding_only", "absorbed"):
        return None
    low = next((facts for facts in case.inputs if is_low_precision(facts.summary.dtype)), case.low_output)
    return None if low is None else _seen("input", low)


def dot_product(case: Case) -> Evidence:
    """A matrix product or convolution of the forward pass whose sums leave the range of its result."""
    if case.verdict != "computed_here" or case.low_output is None or not _PRODUCTS.match(case.op_type or "") or cube_accumulation(case) is not None:
        return None
    if is_backward(case.op_type, case.op_name, case.phase):
        return None
    found = _seen("output", case.low_output)
    magnitudes = [facts.numbers.largest for facts in case.inputs if facts.numbers.largest is not None]
    found["input_largest"] = max(magnitudes, default=0.0)
    return found


def sum_range(case: Case) -> Evidence:
    """A sum leaves the range of its result, in the forward pass."""
    if case.verdict != "computed_here" or case.low_output is None or case.plain_type not in _SUMS or is_backward(case.op_type, case.op_name, case.phase):
        return None
    return _seen("output", case.low_output)


def log_or_reciprocal(case: Case) -> Evidence:
    """A logarithm, root or quotient of something too near to 0, or of a negative."""
    if not case.own or case.limit is None:
        return None
    kind = case.plain_type
    if kind in _LARGE_INPUT and case.inputs:
        largest = case.inputs[0].numbers.largest
        if largest is not None and largest > case.limit ** (1.0 / _LARGE_INPUT[kind]):
            return _seen("input", case.inputs[0], value=largest)
    place, negative_too = _SMALL_INPUT.get(kind, (0, False))
    if kind not in _SMALL_INPUT or place >= len(case.inputs):
        return None
    facts = case.inputs[place]
    numbers = facts.numbers
    if facts.largest is None:
        return None
    if numbers.zeros or (numbers.minimum == 0 or numbers.maximum == 0):
        return _seen("input", facts, value=0.0, zeros=numbers.zeros)
    if negative_too and numbers.minimum is not None and numbers.minimum < 0:
        return _seen("input", facts, value=float(numbers.minimum), negatives=numbers.negatives)
    if numbers.smallest is not None and numbers.smallest < 1.0 / case.limit:
        return _seen("input", facts, value=numbers.smallest)
    return None


def exponent(case: Case) -> Evidence:
    """An exponential of something above ln(MAX)."""
    if case.plain_type not in _EXPONENTIALS or not case.own or case.limit is None:
        return None
    bound = math.log(case.limit)
    for facts in case.inputs:
        value = facts.numbers.largest if _EXPONENTIALS[case.plain_type] else facts.numbers.maximum
        if facts.largest is not None and value is not None and value > bound:
            return _seen("input", facts, value=float(value), bound=bound)
    return None


def cube_accumulation(case: Case) -> Evidence:
    """The matrix unit's accumulator overflowed."""
    return {"status": CUBE_BIT} if case.bits & CUBE_BIT else None


def cast_range(case: Case) -> Evidence:
    """A value does not fit the narrower type it is converted to."""
    casts = case.op_type in ("Cast", "TransData", "CastLike") and case.own and case.low_output is not None
    if not casts and not case.bits & CAST_BIT:
        return None
    found: Dict[str, Any] = _seen("output", case.low_output) if case.low_output is not None else {}
    widest = max((facts for facts in case.inputs if facts.numbers.largest is not None), key=lambda facts: facts.numbers.largest or 0.0, default=None)
    if widest is not None:
        found["input_largest"] = widest.numbers.largest
    return found


def reduction_inside(case: Case) -> Evidence:
    """A sum overflows before it is divided or rooted, so that neither inputs nor outputs show it."""
    if case.verdict != "internal" or not _REDUCTIONS.search(case.op_type or ""):
        return None
    widest = max((facts for facts in case.inputs if facts.numbers.largest is not None), key=lambda facts: facts.numbers.largest or 0.0, default=None)
    return {} if widest is None else _seen("input", widest)


def atomic_add(case: Case) -> Evidence:
    """Reported by an atomic addition, not by an AI Core."""
    return {"core": case.core} if case.core in ("DHA Atomic Add", "L2 Atomic Add") else None


def constant_input(case: Case) -> Evidence:
    """The overflowing input comes from no operator of this dump."""
    if case.verdict != "inherited" or case.dumped_producer is not False:
        return None
    return next((_seen("input", facts) for facts in case.inputs if facts.state == "overflow"), None)


def scale_at_floor(case: Case) -> Evidence:
    """The loss scale has fallen to 1 or below: scaling is not the reason."""
    if case.loss_scale is None or not case.loss_scale <= 1.0 or case.verdict in ("padding_only", "absorbed"):
        return None
    return {"loss_scale": case.loss_scale}


def gradient_scale(case: Case) -> Evidence:
    """A gradient overflows while the forward pass is clean."""
    if case.verdict in ("padding_only", "absorbed") or not case.forward_clean or scale_at_floor(case) is not None:
        return None
    if not is_backward(case.op_type, case.op_name, case.phase):
        return None
    return {} if case.loss_scale is None else {"loss_scale": case.loss_scale}


def keep_float32(case: Case) -> Evidence:
    """The operator made the overflow, in float16 or narrower."""
    if not case.own or case.low_output is None:
        return None
    return _seen("output", case.low_output)


def custom_operator(case: Case) -> Evidence:
    """The type is none of CANN's or TensorFlow's."""
    if case.op_type is None or case.verdict in ("padding_only", "absorbed") or is_known(case.op_type):
        return None
    return {"op_type": case.op_type}


class Rule(NamedTuple):
    """A code and the condition that gives its evidence."""

    code: str
    evidence: Callable[[Case], Evidence]


#: in this order; the same code can stand twice, as a strong and as a weak sign
RULES: Tuple[Rule, ...] = (
    Rule("padding", padding),
    Rule("integer_status", integer_status),
    Rule("weights_lost", weights_lost),
    Rule("masked_row", masked_row),
    Rule("mask_constant", negative_mask),
    Rule("log_or_reciprocal", log_or_reciprocal),
    Rule("exponent", exponent),
    Rule("power", power),
    Rule("optimizer_float16", optimizer_float16),
    Rule("cube_accumulation", cube_accumulation),
    Rule("reduction_inside", reduction_inside),
    Rule("cast_range", cast_range),
    Rule("atomic_add", atomic_add),
    Rule("mask_constant", large_constant),
    Rule("dot_product", dot_product),
    Rule("sum_range", sum_range),
    Rule("constant_input", constant_input),
    Rule("scale_at_floor", scale_at_floor),
    Rule("gradient_scale", gradient_scale),
    Rule("keep_float32", keep_float32),
    Rule("custom_operator", custom_operator),
    Rule("integer_status", integer_too),
)

LAST_RESORT = "ask_support"


def advise(case: Case) -> Tuple[Tuple[str, ...], Dict[str, Any]]:
    """The advice for one operator.

    Returns:
        codes, the most specific first, and the evidence by code. What was absorbed needs none, and of what was inherited the verdict
        says all; where else no rule fits: "ask_support".
    """
    if case.verdict == "absorbed":
        return (), {}
    codes: List[str] = []
    evidence: Dict[str, Any] = {}
    for rule in RULES:
        found = rule.evidence(case)
        if found is not None and rule.code not in evidence:
            codes.append(rule.code)
            evidence[rule.code] = found
    if codes or case.verdict == "inherited":
        return tuple(codes), evidence
    return (LAST_RESORT,), {LAST_RESORT: {}}
