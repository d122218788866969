"""Advice by rule: an ordered list of small functions, the most specific first. A new diagnosis is
one function and one line here.

Each rule looks at a ``Case`` and returns None, or its evidence: a dict of what it saw, such as the
tensor, the element, the value and the headroom. Rules about formulas are in ``formulas``, the
others here. The sentences are ``advice.CODE`` in ``messages``.
"""
from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from npu_overflow.analysis import formulas
from npu_overflow.analysis.case import CAST_BIT, CUBE_BIT, Case, Evidence, is_backward, seen
from npu_overflow.analysis.kinds import is_low_precision
from npu_overflow.analysis.known_types import is_known

__all__ = ["RULES", "Case", "Rule", "advise", "is_backward"]

INTEGER_BITS, FLOAT_BITS = 0x8 | 0x10 | 0x80, 0x20 | CAST_BIT | CUBE_BIT

CASTS = ("Cast", "TransData", "CastLike")
_OPTIMIZERS = re.compile(
    r"^(Resource)?(Sparse)?Apply[A-Z]|^(Fused)?(Adam|Lamb|Momentum|Sgd)(Apply|Optimizer)"
)
# Keras names the scope of an update by its optimizer
_OPTIMIZER_SCOPES = re.compile(
    r"^(adam|adamw|adamax|nadam|rmsprop|adagrad|adadelta|ftrl|lamb|lion|sgd|adafactor)(_\d+)?/",
    re.IGNORECASE,
)


def padding(case: Case) -> Evidence:
    """Overflow values stand in the padding of a private format only."""
    if case.verdict != "padding_only":
        return None
    for side, tensors in (("output", case.outputs), ("input", case.inputs)):
        for facts in tensors:
            if facts.state == "padding":
                return {
                    "tensor": "%s.%d" % (side, facts.summary.index),
                    "format": facts.summary.format,
                    "elements": facts.summary.overflow_in_padding,
                }
    return None


def integer_status(case: Case) -> Evidence:
    """Only integer bits are set."""
    return (
        {"status": case.bits & INTEGER_BITS}
        if case.bits & INTEGER_BITS and not case.bits & FLOAT_BITS
        else None
    )


def integer_too(case: Case) -> Evidence:
    """Integer bits beside floating-point ones."""
    return (
        {"status": case.bits & INTEGER_BITS}
        if case.bits & INTEGER_BITS and case.bits & FLOAT_BITS
        else None
    )


def weights_lost(case: Case) -> Evidence:
    """A variable was not finite before the step began."""
    if case.origin != "variable" or case.spared:
        return None
    found = {key: value for key, value in (case.origin_detail or {}).items() if value is not None}
    found.setdefault("name", case.op_name or "?")
    return found


def optimizer_float16(case: Case) -> Evidence:
    """An optimizer's update in float16: its epsilon becomes 0 there and its squares overflow."""
    whole = _OPTIMIZERS.match(case.op_type or "")
    part = case.host and case.own and _OPTIMIZER_SCOPES.match(case.op_name or "")
    if not (whole or part) or case.spared:
        return None
    low = next(
        (facts for facts in case.inputs if is_low_precision(facts.summary.dtype)), case.low_output
    )
    return None if low is None else seen("input", low)


def cube_accumulation(case: Case) -> Evidence:
    """The matrix unit's accumulator overflowed."""
    return {"status": CUBE_BIT} if case.bits & CUBE_BIT else None


def weight_range(case: Case) -> Evidence:
    """A weight has grown beyond what its narrower copy holds."""
    name = case.variables.get("input.0")
    if case.op_type not in CASTS or not case.own or case.low_output is None or name is None:
        return None
    return seen("input", case.inputs[0], name=name, value=case.inputs[0].numbers.largest)


def cast_range(case: Case) -> Evidence:
    """A value does not fit the narrower type it is converted to."""
    # "weight_range" says more
    casts = (
        case.op_type in CASTS
        and case.own
        and case.low_output is not None
        and "input.0" not in case.variables
    )
    if not casts and not case.bits & CAST_BIT:
        return None
    found: Dict[str, Any] = seen("output", case.low_output) if case.low_output is not None else {}
    widest = case.widest
    if widest is not None:
        found["input_largest"] = widest.numbers.largest
    if casts and case.origin == "data":  # no operator makes it: the advice is another
        found["batch"] = (case.origin_detail or {}).get("name") or "batch"
    return found


def atomic_add(case: Case) -> Evidence:
    """Reported by an atomic addition, not by an AI Core."""
    return {"core": case.core} if case.core in ("DHA Atomic Add", "L2 Atomic Add") else None


def constant_input(case: Case) -> Evidence:
    """The overflowing input comes from no operator of this dump."""
    # "weights_lost" says more
    if (
        case.verdict != "inherited"
        or case.dumped_producer is not False
        or case.origin == "variable"
    ):
        return None
    return next((seen("input", facts) for facts in case.inputs if facts.state == "overflow"), None)


def scale_at_floor(case: Case) -> Evidence:
    """The loss scale has fallen to 1 or below: scaling is not the reason, unless a replay has shown
    that it is."""
    if case.loss_scale is None or not case.loss_scale <= 1.0 or case.spared or case.cured_by_scale:
        return None
    return {"loss_scale": case.loss_scale}


def gradient_scale(case: Case) -> Evidence:
    """A gradient overflows while the forward pass is clean."""
    if case.spared or not case.forward_clean or scale_at_floor(case) is not None:
        return None
    if not case.backward or case.cured_by_scale is False:
        return None
    return {} if case.loss_scale is None else {"loss_scale": case.loss_scale}


def scaled_cast(case: Case) -> Evidence:
    """A gradient that is too large for the type it is cast to: there the scale is nearer than the
    cast."""
    return gradient_scale(case) if case.op_type in CASTS else None


def keep_float32(case: Case) -> Evidence:
    """The operator made the overflow, in float16 or narrower."""
    if not case.own or case.low_output is None:
        return None
    return seen("output", case.low_output)


def custom_operator(case: Case) -> Evidence:
    """The type is none of CANN's or TensorFlow's."""
    if case.op_type is None or case.spared or is_known(case.op_type):
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
    Rule("masked_row", formulas.masked_row),
    Rule("mask_constant", formulas.negative_mask),
    Rule("log_or_reciprocal", formulas.log_or_reciprocal),
    Rule("exponent", formulas.exponent),
    Rule("power", formulas.power),
    Rule("optimizer_float16", optimizer_float16),
    Rule("cube_accumulation", cube_accumulation),
    Rule("reduction_inside", formulas.reduction_inside),
    Rule("gradient_scale", scaled_cast),
    Rule("weight_range", weight_range),
    Rule("cast_range", cast_range),
    Rule("atomic_add", atomic_add),
    Rule("mask_constant", formulas.large_constant),
    Rule("dot_product", formulas.dot_product),
    Rule("mean_range", formulas.mean_range),
    Rule("sum_range", formulas.sum_range),
    Rule("product_range", formulas.product_range),
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
        codes, the most specific first, and the evidence by code. What was absorbed needs none, and
        of what was inherited the verdict says all; where else no rule fits: "ask_support".
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
