"""The verdict of one operator: where its overflow came from."""
from __future__ import annotations

from typing import Optional, Sequence

from npu_overflow.analysis.statistics import Facts

__all__ = ["VERDICTS", "verdict"]

VERDICTS = ("computed_here", "inherited", "internal", "padding_only", "absorbed", "unknown")


def verdict(inputs: Optional[Sequence[Facts]], outputs: Optional[Sequence[Facts]]) -> str:
    """The verdict from the states of an operator's tensors; "absorbed" is the host collector's to say.

    Args:
        inputs, outputs: None where the operator's dump is missing, unreadable or was not opened.
    """
    if inputs is None or outputs is None:
        return "unknown"
    if any(facts.state == "overflow" for facts in inputs):
        return "inherited"
    both = [facts.state for facts in inputs] + [facts.state for facts in outputs]
    if "unknown" in both or not both:
        return "unknown"
    if "overflow" in both:
        return "computed_here"
    return "padding_only" if "padding" in both else "internal"
