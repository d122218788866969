"""Rules that know an operator's formula: which values of its inputs make which of its intermediates
overflow.

Each looks at a ``Case`` and returns None, or its evidence: a dict of what it saw, such as the
tensor, the element, the value and the headroom. Their order is in ``rules``.
"""
from __future__ import annotations

import math
import re
from typing import Mapping, Tuple

from npu_overflow.analysis.case import CUBE_BIT, Case, Evidence, is_backward, seen
from npu_overflow.analysis.statistics import Facts

#: magnitudes from here on are no activations: they are what people write into masks
MASK = 1e9

_REDUCTIONS = re.compile(
    r"(?<!Max)Pool|Mean|Sum|Norm|Variance|Moments|^Var|L2Loss|BNTraining|BNInfer|ReduceStd"
)

#: type -> (index of the input that must not be small, whether a negative there is no number)
_SMALL_INPUT: Mapping[str, Tuple[int, bool]] = {
    "Log": (0, True), "Rsqrt": (0, True), "Sqrt": (0, True), "Reciprocal": (0, False),
    "Inv": (0, False), "Div": (1, False), "RealDiv": (1, False), "TruncateDiv": (1, False),
    "FloorDiv": (1, False), "DivNoNan": (1, False), "Xdivy": (1, False),
    "Xlogy": (1, True), "SqrtGrad": (0, False), "LogGrad": (0, False),
}  # fmt: skip
#: functions that are finite only between two values
_DOMAIN: Mapping[str, Tuple[float, float]] = {
    "Log1p": (-1, math.inf),
    "Atanh": (-1, 1),
    "Erfinv": (-1, 1),
    "Ndtri": (0, 1),
}
#: gradients that multiply by a power of what the forward operator gave
_LARGE_INPUT: Mapping[str, int] = {"RsqrtGrad": 3, "ReciprocalGrad": 2, "InvGrad": 2}
#: exponentials: whether negative inputs count too
_EXPONENTIALS: Mapping[str, bool] = {
    "Exp": False,
    "Expm1": False,
    "Sinh": True,
    "Cosh": True,
    "SoftplusGrad": True,
}

#: squares and other powers: type -> exponent of the intermediate that overflows first (tanh GELU
#: cubes its input)
_POWERS: Mapping[str, int] = {
    "Square": 2, "SquaredDifference": 2, "L2Loss": 2, "SquareSum": 2, "SquareSumAll": 2,
    "Gelu": 3, "FastGelu": 3, "GeluGrad": 3, "FastGeluGrad": 3,
}  # fmt: skip
_SOFTMAX = re.compile(r"Softmax")
_SUMS = frozenset(
    "Sum ReduceSum AddN AccumulateNV2 Cumsum SegmentSum UnsortedSegmentSum SparseSegmentSum "
    "ScatterNd ScatterNdAdd ScatterAdd TensorScatterAdd "
    "Add AddV2 BiasAdd".split()
)
#: quotients of a sum: of finite values the mean is never out of range, so its sum must have been
_MEANS = frozenset(
    "Mean ReduceMean AvgPool AvgPool3D GlobalAveragePool SegmentMean SparseSegmentMean".split()
)
#: products of single elements
_FACTORS = frozenset("Mul Prod ReduceProd Cumprod".split())
_PRODUCTS = re.compile(
    r"^(_Fused)?(Batch|Sparse)?MatMul|^(_Fused)?(Depthwise)?Conv[123]D(BackpropInput(V2)?|Transpose)?$|^DepthwiseConv2dNative$"
    r"|^(Xla)?Einsum$|^FullyConnection$|^Gemm"
)


def negative_mask(case: Case) -> Evidence:
    """An input holds what attention masks are made of: -1e9, -MAX, or nothing overflowing but -Inf.
    """
    return _mask(case, negative=True)


def large_constant(case: Case) -> Evidence:
    """An input holds a magnitude that no activation has."""
    return _mask(case, negative=False)


def _mask(case: Case, negative: bool) -> Evidence:
    if case.dumped_producer or case.spared or case.origin == "variable":
        return None
    if case.backward or _PRODUCTS.search(case.op_type or ""):  # gradients and weights are no masks
        return None
    for facts in case.inputs:
        low, largest = facts.summary.min, facts.numbers.largest
        # a weight can have exploded
        if (
            facts.largest is None
            or low is None
            or "input.%d" % facts.summary.index in case.variables
        ):
            continue
        at_max = -facts.largest == low and facts.summary.nan == 0
        masked = low <= -MASK and facts.summary.nan == facts.summary.pos_inf == 0
        if negative and (at_max or masked):
            return seen("input", facts, value=float(low))
        # where nothing is narrow, a large value is nothing that has to fit
        if (
            not negative
            and largest is not None
            and largest >= MASK
            and not (at_max or masked)
            and case.low_output is not None
        ):
            return seen("input", facts, value=largest)
    return None


def masked_row(case: Case) -> Evidence:
    """A softmax gives NaN although nothing but -Inf stands in its input beside finite values: a
    whole row is -Inf."""
    if (
        case.spared
        or not _SOFTMAX.search(case.op_type or "")
        or is_backward(case.op_type, None, None)
    ):
        return None
    for facts in case.inputs[:1]:
        if facts.summary.neg_inf and not facts.summary.nan and not facts.summary.pos_inf:
            return next(
                (seen("output", output) for output in case.outputs if output.summary.nan), None
            )
    return None


def power(case: Case) -> Evidence:
    """A square or cube of something too large: float16 holds squares up to 255.9 and cubes up to
    40.3."""
    if not case.own or case.low_output is None or case.limit is None:
        return None
    exponent_of = float(_POWERS.get(case.plain_type, 0))
    if (
        case.plain_type == "Pow"
        and len(case.inputs) > 1
        and case.inputs[1].numbers.maximum is not None
    ):
        exponent_of = float(case.inputs[1].numbers.maximum)
    if not 1.0 < exponent_of < 1e6:
        return None
    bound = case.limit ** (1.0 / exponent_of)
    if case.plain_type == "SquaredDifference":
        bound /= 2  # each side may bring half of it
    for facts in case.inputs[:2] if case.plain_type != "Pow" else case.inputs[:1]:
        if facts.numbers.largest is not None and facts.numbers.largest > bound:
            return seen(
                "input", facts, value=facts.numbers.largest, bound=bound, exponent=exponent_of
            )
    return None


def log_or_reciprocal(case: Case) -> Evidence:
    """A logarithm, root or quotient of something too near to 0, or of a negative."""
    if not case.own or case.limit is None:
        return None
    kind = case.plain_type
    if kind == "Pow":
        return _small_base(case, case.limit)
    if kind in _LARGE_INPUT and case.inputs:
        largest = case.inputs[0].numbers.largest
        if largest is not None and largest > case.limit ** (1.0 / _LARGE_INPUT[kind]):
            return seen("input", case.inputs[0], value=largest)
    if kind in _DOMAIN and case.inputs:
        return _outside(case.inputs[0], *_DOMAIN[kind])
    place, negative_too = _SMALL_INPUT.get(kind, (0, False))
    if kind not in _SMALL_INPUT or place >= len(case.inputs):
        return None
    facts = case.inputs[place]
    numbers = facts.numbers
    if facts.largest is None:
        return None
    if numbers.zeros or (numbers.minimum == 0 or numbers.maximum == 0):
        return seen("input", facts, value=0.0, zeros=numbers.zeros)
    if negative_too and numbers.minimum is not None and numbers.minimum < 0:
        return seen("input", facts, value=float(numbers.minimum), negatives=numbers.negatives)
    if numbers.smallest is not None and numbers.smallest < 1.0 / case.limit:
        return seen("input", facts, value=numbers.smallest)
    return None


def _outside(facts: Facts, low: float, high: float) -> Evidence:
    """A value that is not between ``low`` and ``high``."""
    least, most = facts.numbers.minimum, facts.numbers.maximum
    if least is not None and least <= low:
        return seen("input", facts, value=float(least))
    if most is not None and most >= high:
        return seen("input", facts, value=float(most))
    return None


def _small_base(case: Case, limit: float) -> Evidence:
    """A power with a negative exponent of something near to 0, or with a fraction as exponent of a
    negative."""
    if len(case.inputs) < 2:
        return None
    base, exponents = case.inputs[0], case.inputs[1].numbers
    numbers = base.numbers
    if exponents.minimum is not None and -1e6 < exponents.minimum < 0:
        if numbers.zeros:
            return seen("input", base, value=0.0, zeros=numbers.zeros)
        if numbers.smallest is not None and numbers.smallest < limit ** (
            1.0 / float(exponents.minimum)
        ):
            return seen("input", base, value=numbers.smallest)
    if (
        numbers.negatives
        and numbers.minimum is not None
        and any(output.summary.nan for output in case.outputs)
    ):
        return seen("input", base, value=float(numbers.minimum), negatives=numbers.negatives)
    return None


def exponent(case: Case) -> Evidence:
    """An exponential of something above ln(MAX)."""
    if case.plain_type not in _EXPONENTIALS or not case.own or case.limit is None:
        return None
    bound = math.log(case.limit)
    for facts in case.inputs:
        value = facts.numbers.largest if _EXPONENTIALS[case.plain_type] else facts.numbers.maximum
        if facts.largest is not None and value is not None and value > bound:
            return seen("input", facts, value=float(value), bound=bound)
    return None


_ATTENTION = re.compile(r"attention|attn|score|einsum", re.IGNORECASE)


def dot_product(case: Case) -> Evidence:
    """A matrix product or convolution of the forward pass whose sums leave the range of its result.
    """
    if (
        case.verdict != "computed_here"
        or case.low_output is None
        or not _PRODUCTS.match(case.op_type or "")
    ):
        return None
    if case.backward or case.bits & CUBE_BIT:
        return None
    found = seen("output", case.low_output)
    magnitudes = [
        facts.numbers.largest for facts in case.inputs if facts.numbers.largest is not None
    ]
    found["input_largest"] = max(magnitudes, default=0.0)
    if (case.op_type or "").startswith("BatchMatMul") or _ATTENTION.search(case.op_name or ""):
        found["scores"] = "attention"
    return found


def sum_range(case: Case) -> Evidence:
    """A sum leaves the range of its result, in the forward pass."""
    if (
        case.verdict != "computed_here"
        or case.low_output is None
        or case.plain_type not in _SUMS
        or case.backward
    ):
        return None
    return seen("output", case.low_output)


def product_range(case: Case) -> Evidence:
    """A product of elements leaves the range of its result, in the forward pass."""
    if (
        case.verdict != "computed_here"
        or case.low_output is None
        or case.plain_type not in _FACTORS
        or case.backward
        or case.widest is None
    ):
        return None
    return seen("output", case.low_output, input_largest=case.widest.numbers.largest)


def mean_range(case: Case) -> Evidence:
    """A mean is out of range although its elements are not: the sum before the division was."""
    if (
        case.verdict != "computed_here"
        or case.low_output is None
        or case.plain_type not in _MEANS
        or case.backward
        or case.widest is None
    ):
        return None
    return seen("output", case.low_output, input_largest=case.widest.numbers.largest)


def reduction_inside(case: Case) -> Evidence:
    """A sum overflows before it is divided or rooted, so that neither inputs nor outputs show it.
    """
    if case.verdict != "internal" or not _REDUCTIONS.search(case.op_type or ""):
        return None
    widest = case.widest
    return {} if widest is None else seen("input", widest)
