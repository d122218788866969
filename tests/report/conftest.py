"""Fixtures of the reporters' tests."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def sample_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue with the sentences that the sample reports use."""
    import report_samples

    from npu_overflow import messages

    assert messages.known("verdict.computed_here")  # the catalogue is loaded
    for code, pair in report_samples.ADVICE.items():
        monkeypatch.setitem(messages._texts, code, pair)
