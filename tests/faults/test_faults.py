"""Every planted fault and healthy run, as tests: the right answer in each variant, proven by something other than the package."""
from __future__ import annotations

from typing import Any, List, Tuple

import pytest

from faults import kit

pytestmark = pytest.mark.tensorflow

CASES = kit.load()


def _runs() -> List[Tuple[str, str]]:
    return [(case.name, variant) for case in CASES for variant in case.variants()]


@pytest.mark.parametrize(("name", "variant"), _runs(), ids=lambda part: part)
def test_case(name: str, variant: str, tmp_path: Any) -> None:
    case = kit.CASES[name]
    if not case.runs_here():
        pytest.skip("for TensorFlow %s" % case.versions)
    wrong = kit.run(case, variant, str(tmp_path / "dump"))
    assert wrong == [], "%s: %s" % (case.about, "; ".join(wrong))


def test_each_fault_says_how_its_truth_is_known() -> None:
    assert all(case.about for case in CASES)
