"""One operator as the advice rules see it."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from npu_overflow.analysis.kinds import is_low_precision
from npu_overflow.analysis.statistics import Facts

__all__ = ["CAST_BIT", "CUBE_BIT", "Case", "Evidence", "is_backward", "seen"]

#: what a rule saw, or None where it does not fit
Evidence = Optional[Dict[str, Any]]

#: status bits of AI Core records of the old layout
CAST_BIT, CUBE_BIT = 0x100, 0x400

_BACKWARD_TYPE = re.compile(r"Grad(V?\d*|D)?$|Grad[A-Z]|Backprop|Backward")
_BACKWARD_NAME = re.compile(r"(^|[/_])(gradient_tape|gradients?|grad)([/_]|$)", re.IGNORECASE)


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
        dumped_producer: the overflowing input of an inherited one comes from an operator of this
            dump; None: can't be told.
        loss_scale: the last one seen, or None.
        host: from a tree of the host collector.
        origin: what held the value first, as in ``Operator``.
        origin_detail: its name, element and value, or None.
        variables: inputs ("input.0") that were read from a variable, by its name.
        cured_by_scale: whether a replay with a low loss scale stayed finite; None: not tried.
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
    variables: Mapping[str, str] = field(default_factory=dict)
    cured_by_scale: Optional[bool] = None

    @property
    def plain_type(self) -> str:
        """The type without a version or "D": CANN has "AvgPoolV2" and "ReduceSumD" beside "AvgPool"
        and "ReduceSum"."""
        return re.sub(r"(?<=[a-z])(V\d+|D)$", "", self.op_type or "")

    @property
    def own(self) -> bool:
        """Whether the operator made the overflow itself."""
        return self.verdict in ("computed_here", "internal")

    @property
    def low_output(self) -> Optional[Facts]:
        """The first output of float16 or narrower; where some outputs overflowed, one of those."""
        bad = [facts for facts in self.outputs if facts.state == "overflow"]
        return next(
            (facts for facts in bad or self.outputs if is_low_precision(facts.summary.dtype)), None
        )

    @property
    def limit(self) -> Optional[float]:
        """MAX of the operator's result type."""
        sizes = [
            facts.largest for facts in self.outputs or self.inputs if facts.largest is not None
        ]
        return min(sizes) if sizes else None

    @property
    def backward(self) -> bool:
        """Whether it belongs to the backward pass."""
        return is_backward(self.op_type, self.op_name, self.phase)

    @property
    def spared(self) -> bool:
        """Whether the overflow does no harm."""
        return self.verdict in ("padding_only", "absorbed")

    @property
    def widest(self) -> Optional[Facts]:
        """The input with the largest finite magnitude."""
        known = [facts for facts in self.inputs if facts.numbers.largest is not None]
        return max(known, key=lambda facts: facts.numbers.largest or 0.0, default=None)


def is_backward(op_type: Optional[str], op_name: Optional[str], phase: Optional[str]) -> bool:
    """Whether an operator belongs to the backward pass: as the collector says, else by its type and
    name."""
    if phase is not None:
        return phase == "backward"
    return bool(_BACKWARD_TYPE.search(op_type or "") or _BACKWARD_NAME.search(op_name or ""))


def seen(side: str, facts: Facts, **more: Any) -> Dict[str, Any]:
    """Evidence that points at one tensor: its first overflow element, or its largest value where
    there is none."""
    summary = facts.summary
    found: Dict[str, Any] = {"tensor": "%s.%d" % (side, summary.index), "dtype": summary.dtype}
    if summary.first_overflow:
        found["element"], found["value"] = (
            summary.first_overflow["index"],
            summary.first_overflow["value"],
        )
    elif facts.numbers.largest is not None:
        found["largest"] = facts.numbers.largest
    if summary.headroom_log2 is not None:
        found["headroom_log2"] = summary.headroom_log2
    found.update(more)
    return found
