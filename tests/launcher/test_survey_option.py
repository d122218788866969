"""``npu-overflow run --survey STEP`` asks for one step, beside those of ``--at-steps``."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest

from npu_overflow import launcher
from npu_overflow.cli import main


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        (["--survey", "7"], (7,)),
        (["--at-steps", "3:5", "--survey", "7"], (3, 4, 7)),
    ],
)
def test_the_step_is_one_of_at_steps(
    words: List[str], steps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: Dict[str, Any] = {}

    def launch(passed: List[str], options: Dict[str, Any], own: List[str]) -> int:
        seen.update(options, passed=passed)
        return 0

    monkeypatch.setattr(launcher, "launch", launch)
    assert main(["run", *words, "train.py", "--survey", "9"]) == 0
    assert seen == {"at_steps": steps, "passed": ["train.py", "--survey", "9"]}
