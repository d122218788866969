"""A training from watching to reported and back, with a collector of the user's own."""
from __future__ import annotations

from pathlib import Path
from typing import Any, List, Optional

import pytest
from optimizers import LossScaleOptimizer

from npu_overflow.collect.base import Collector, NoCollector, adapted
from npu_overflow.training.manifest import read_manifests
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.session import Session, active


class Own:
    """Has what the option asks for, and a word on how much it has."""

    def __init__(self, reason: Optional[str] = None) -> None:
        self.calls: List[str] = []
        self.collected = 0
        self.reason = reason

    def prepare(self, training: Any) -> None:
        self.calls.append("prepare")

    def start(self, step: int) -> None:
        self.calls.append("start %d" % step)

    def stop(self) -> None:
        self.calls.append("stop")


def session(own: Any, optimizer: Any, folder: Path, **more: Any) -> Session:
    options = dict(warmup=0, patience=2, window=5, keep=1, dump_path=str(folder), **more)
    made = Session(WatchOptions.of(collector=own, optimizer=optimizer, **options))
    made.begin()
    return made


def steps(made: Session, optimizer: LossScaleOptimizer, overflows: List[bool]) -> List[str]:
    states = []
    for overflow in overflows:
        made.run.step_begins()
        optimizer.apply_gradients(overflow)
        made.after_steps(1)
        states.append(made.run.machine.state)
    return states


def test_it_goes_from_watching_to_reported_and_back(tmp_path: Path, capsys: Any) -> None:
    own, optimizer = Own(reason="not_reproduced"), LossScaleOptimizer()
    made = session(own, optimizer, tmp_path, verbose=0)
    assert active() == [made]
    assert steps(made, optimizer, [False, True, True]) == ["watching", "watching", "collecting"]
    own.collected = 1
    assert steps(made, optimizer, [True]) == ["reported"]
    assert own.calls == ["prepare", "start 3", "stop"]
    assert steps(made, optimizer, [False] * 5)[-2:] == ["reported", "watching"]
    made.end()
    assert own.calls[-1] == "stop" and active() == []
    (report,) = made.run.delivery.reports
    assert report.reason == "not_reproduced" and made.run.machine.drops[0] == (1, 1024.0, 512.0)
    (manifest,) = read_manifests(str(tmp_path))
    assert [state for _, state in manifest.state_history] == ["collecting", "reported", "watching"]
    assert manifest.ended
    assert capsys.readouterr().err == ""


def test_where_nothing_was_collected_it_watches_on(tmp_path: Path, capsys: Any) -> None:
    own, optimizer = Own(), LossScaleOptimizer()
    made = session(own, optimizer, tmp_path, max_collect_steps=1)
    assert steps(made, optimizer, [False, True, True, False])[-2:] == ["collecting", "watching"]
    assert made.run.delivery.reports == [] and "collect" in capsys.readouterr().err
    made.end()


def test_a_failure_turns_it_off_and_reaches_nobody(tmp_path: Path, caplog: Any) -> None:
    own, optimizer = Own(), LossScaleOptimizer()
    own.start = lambda step: 1 / 0  # type: ignore
    made = session(own, optimizer, tmp_path)
    assert steps(made, optimizer, [True, True, True]) == ["watching", "off", "off"]
    assert len(caplog.records) == 1 and made.is_off
    made.begin()
    assert made.is_off and own.calls.count("prepare") == 1
    made.end()


def test_forced_steps_leave_the_watch_as_it_was(tmp_path: Path) -> None:
    own, optimizer = Own(), LossScaleOptimizer()
    made = session(own, optimizer, tmp_path, at_steps=2)
    assert steps(made, optimizer, [False] * 4) == ["watching"] * 4
    assert own.calls == ["prepare", "start 2", "stop"]
    made.end()


class Asked(Own):
    """Has something of every collection."""

    def start(self, step: int) -> None:
        super().start(step)
        self.collected = 1


@pytest.mark.parametrize("at_steps", [(), (1,), (2,), (2, 3), (4,), (1, 3, 5)])
def test_the_policy_does_the_same_whatever_is_asked_for(at_steps: Any, tmp_path: Path) -> None:
    """Three overflows in a row trigger after step 4; what was asked for is collected beside."""
    own, optimizer = Asked(reason="not_reproduced"), LossScaleOptimizer()
    options = dict(patience=3, window=50, max_reports=1, at_steps=at_steps, keep=1)
    options.update(warmup=0, verbose=0, dump_path=str(tmp_path), collector=own)
    made = Session(WatchOptions.of(optimizer=optimizer, **options))
    made.begin()
    steps(made, optimizer, [False, False, True, True, True, True, True, False])
    made.end()
    assert made.run.record.manifest.trigger == {"step": 5, "pending": [2, 3, 4], "scale": 128.0}
    assert own.calls.count("start 5") == 1
    assert {"start %d" % step for step in at_steps[:1]} <= set(own.calls)


def test_after_a_collection_of_nothing_patience_begins_anew(tmp_path: Path) -> None:
    own, optimizer = Own(), LossScaleOptimizer()
    made = session(own, optimizer, tmp_path, max_collect_steps=1, verbose=0)
    assert steps(made, optimizer, [True, True, False, True, True])[1:] == [
        *("collecting", "watching", "watching", "collecting")
    ]
    made.end()


def test_what_a_collector_lacks_is_done_for_it() -> None:
    own = Own()
    as_collector = adapted(own)
    assert isinstance(as_collector, Collector) and adapted(as_collector) is as_collector
    assert as_collector.tree is None and as_collector.kept_folders is None
    assert not as_collector.salvage() and not as_collector.in_background
    own.collected = 7
    assert as_collector.collected == 7
    as_collector.close()
    assert own.calls == ["stop"]


def test_of_a_closed_collector_only_facts_are_kept() -> None:
    class Has(NoCollector):
        name, kept_steps = "host", (3, 4)

        @property
        def tree(self) -> str:
            return "/dump/1"

    kept = NoCollector(Has())
    assert (kept.name, kept.tree, list(kept.kept_steps)) == ("host", "/dump/1", [3, 4])
