"""Advice that was tried on the record is true of the training; ``python -m tests.faults.cures``
tries every fault, here are those of each kind."""
from __future__ import annotations

from pathlib import Path

import pytest

from faults import cures, kit

pytestmark = pytest.mark.tensorflow

kit.load()

#: fault -> changes that must be among those that help
CURES = {
    "square_in_a_layer": {"float32"},
    "residual_growth": {"float32"},  # three blocks
    "convolution_layer": {"float32"},  # and the pooling behind it
    "two_faults_first_wins": {"float32"},
    "gru_state_growth": {"float32"},  # in a loop, through a list of tensors
    "l2_normalize_gradient_of_zeros": {"float32"},  # another layer than the culprit's alone
    "log_of_zero": {"epsilon"},
    "sqrt_gradient_at_zero": {"epsilon"},
    "row_masked_by_infinity": {"constant"},
    "weight_gradient_sum": {"loss_scale"},
    "epsilon_that_is_zero": {"epsilon"},  # rounded away: nothing is said of float32
    "float32_overflow": set(),
    "bad_data_is_absorbed": {"float32"},
}


@pytest.mark.parametrize("name", CURES)
def test_what_was_tried_is_so(name: str, tmp_path: Path) -> None:
    wrong, count, found = cures.wrong_trials(kit.CASES[name], str(tmp_path))
    assert wrong == []
    helped = {trial.change for trial in found.trials if trial.finite}
    assert CURES[name] <= helped and bool(helped) == bool(CURES[name])
    assert count["applied"] or not any(trial.change == "float32" for trial in found.trials)
