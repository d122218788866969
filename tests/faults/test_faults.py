"""Every planted fault and healthy run, as tests: the right answer in each variant, proven by something other than the package."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest

from faults import __main__ as table
from faults import kit

pytestmark = pytest.mark.tensorflow

CASES = kit.load()


#: The newest TensorFlow runs all variants of a case, each of the others one, and the cure.
SPARED = {"plain": "!=2.6.*", "renamed": "!=2.15.*", "forced": "!=2.15.*"}


def _runs() -> List[Any]:
    runs = []
    for case in CASES:
        for variant in case.variants():
            fits = [case.versions, None if case.whole else SPARED.get(variant)]
            marks = [pytest.mark.tensorflow(fit) for fit in fits if fit]
            runs.append(pytest.param(case, variant, id="%s-%s" % (case.name, variant), marks=marks))
    return runs


@pytest.mark.parametrize(("case", "variant"), _runs())
def test_case(case: kit.Case, variant: str, tmp_path: Any) -> None:
    wrong = kit.run(case, variant, str(tmp_path / "dump"))
    assert wrong == [], "%s: %s" % (case.about, "; ".join(wrong))


@pytest.mark.tensorflow(">=2.16")
@pytest.mark.parametrize("half", [0, 1])
def test_the_usual_means_agree_where_they_can(half: int) -> None:
    """Type and full name of each operator to blame are what enable_check_numerics blames, or the
    case says why that is wrong.

    Of variables and batches it names the operator that hands them to the graph, never their
    consumer. It needs a trace of its own: only the newest TensorFlow compares.
    """
    cases = [c for c in CASES if c.kind == "fault" and c.runs_here() and c.numerics is None]
    answers = table.check_numerics([case.name for case in cases[half::2]])
    differ = {
        name: answer["found"]
        for name, answer in answers.items()
        if not answer["right"] and answer.get("origin", "operator") == "operator"
    }
    assert differ == {}


def _rules() -> Dict[str, str]:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    try:
        import rule_table
    finally:
        sys.path.pop(0)
    return rule_table.FAULTS


@pytest.mark.parametrize(("code", "name"), sorted(_rules().items()))
def test_the_table_of_rules_names_faults_that_fire_them(code: str, name: str) -> None:
    """``test_case`` runs them and compares the advice with what the case says; here: that it says so."""
    case = kit.CASES[name]
    with kit.under_policy(case.policy):
        built = kit.build(case, "plain")
    assert code in built.truth.advices or (code == "masked_row" and built.check is not None)


def test_there_are_enough_cases() -> None:
    faults = [case for case in CASES if case.kind == "fault"]
    assert sum(case.is_graph_test for case in faults) >= 120
    assert sum(not case.is_graph_test for case in faults) >= 40
    assert sum(case.kind == "healthy" for case in CASES) >= 30
    assert all(case.about for case in CASES)
