"""The order of the verdicts."""
from __future__ import annotations

from typing import List, Optional

import pytest

from npu_overflow.analysis.chain import verdict
from npu_overflow.analysis.statistics import Facts
from npu_overflow.report.model import TensorSummary

STATES = {"o": "overflow", "p": "padding", "c": "clean", "u": "unknown"}


def facts(letters: Optional[str]) -> Optional[List[Facts]]:
    if letters is None:
        return None
    return [Facts(TensorSummary(index, "float16", "ND", ()), STATES[letter]) for index, letter in enumerate(letters)]


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ("c", "o", "computed_here"),
        ("", "o", "computed_here"),
        ("cc", "co", "computed_here"),
        ("p", "o", "computed_here"),
        ("o", "o", "inherited"),
        ("co", "c", "inherited"),
        ("ou", "u", "inherited"),
        ("uo", "", "inherited"),
        ("u", "o", "unknown"),
        ("c", "ou", "unknown"),
        ("p", "u", "unknown"),
        ("c", "p", "padding_only"),
        ("p", "c", "padding_only"),
        ("c", "c", "internal"),
        ("c", "", "internal"),
        ("", "", "unknown"),
        (None, None, "unknown"),
        (None, "o", "unknown"),
    ],
)
def test_verdict(inputs: Optional[str], outputs: Optional[str], expected: str) -> None:
    assert verdict(facts(inputs), facts(outputs)) == expected
