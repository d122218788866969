"""Console, delivery, restart and step detector, each alone."""
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, List, Optional, Tuple

import pytest

from npu_overflow.collect.base import NoCollector, Training
from npu_overflow.errors import CannotCollect
from npu_overflow.report.model import Operator, Report
from npu_overflow.report.tensorboard import Board
from npu_overflow.training import console, restart
from npu_overflow.training.console import Console, Script
from npu_overflow.training.delivery import Delivery, Gathered
from npu_overflow.training.job import Ranks, prefix
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.record import RunRecord
from npu_overflow.training.restart import Restart
from npu_overflow.training.steps import StepDetector, StepListener, never_raises
from npu_overflow.training.tracked import TrackedOptimizers


class Empty(NoCollector):
    """Collected nothing, for a reason."""

    reason = "not_reproduced"


def delivery(folder: Path, ranks: Any = None, **options: Any) -> Tuple[Delivery, Manifest]:
    ranks = ranks or Ranks()
    given = WatchOptions(dump_path=str(folder), **options)
    said, manifest = Console(given, prefix(ranks)), Manifest()
    training = Training(given, str(folder))
    record = RunRecord(manifest, training, TrackedOptimizers(given, said, True), said)
    made = Delivery(training, ranks, record, said, Board(), Script())
    return made, manifest


def test_what_is_said_once_is_said_once(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(console, "_said", set())
    quiet, loud = Console(WatchOptions(verbose=0)), Console(WatchOptions(), prefix="[rank 3] ")
    quiet.say("watch.step_outside")
    for _ in range(2):
        loud.say("watch.step_outside", always=True)
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and said.startswith("[rank 3] npu_overflow: ")


def test_a_collection_is_analyzed_saved_and_shown(tmp_path: Path, capsys: Any) -> None:
    told: List[Report] = []
    made, manifest = delivery(tmp_path, on_report=told.append, on_overflow="stop")
    gathered = made.gather(Empty())
    assert gathered is not None and gathered.path == str(tmp_path / "report.txt")
    assert manifest.reports[-1] == "report.txt"
    assert made.reports == [] and not made.stop_requested
    made.show(gathered, step=9)
    assert made.reports == told == [gathered.report] and made.stop_requested
    assert "npu-overflow analyze" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ({"operators": (Operator("MatMul", "net/hot"),), "first_index": 0}, "MatMul net/hot over"),
        ({"reason": "other_rank"}, "the loss scale fell because of another rank's overflow"),
        ({"reason": "not_reproduced"}, None),
    ],
)
def test_of_several_ranks_each_says_one_line_at_most(
    tmp_path: Path, capsys: Any, report: Any, said: Any
) -> None:
    made, _ = delivery(tmp_path / "rank_1", Ranks(rank=1, world_size=2), language="en")
    made.show(Gathered(Report(path="dump", version="1", **report), None, "dump"), step=9)
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.count("\n") == (said is not None)
    assert said is None or printed.err.startswith("[rank 1] npu_overflow: step 9: " + said)


def test_nothing_collected_is_no_report(tmp_path: Path) -> None:
    made, _ = delivery(tmp_path)
    assert made.gather(NoCollector()) is None and not any(tmp_path.iterdir())


def test_a_report_made_beside_the_training_is_taken_once(tmp_path: Path) -> None:
    made, _ = delivery(tmp_path)
    made.gather_beside(Empty())
    assert made.is_busy
    (gathered,) = made.take(Empty(), wait=True)
    assert isinstance(gathered, Gathered) and not made.is_busy and made.take(Empty()) == []


def test_a_failing_listener_of_the_users_is_logged(tmp_path: Path, caplog: Any) -> None:
    made, _ = delivery(tmp_path, verbose=0, on_report=lambda report: 1 / 0)
    gathered = made.gather(Empty())
    assert gathered is not None
    made.show(gathered, step=1)
    assert len(caplog.records) == 1 and made.reports


def test_without_a_supervisor_the_user_is_told_once(tmp_path: Path, capsys: Any) -> None:
    options = WatchOptions()
    made = Restart(Training(options, str(tmp_path)), Console(options))
    error = CannotCollect("ascend.opened_without_dump")
    for step in (7, 9):
        request = made.request(error, step)
        made.ask(error, request)
    assert request["why"] == error.code and request["step"] == 9 and request["weights"] is None
    assert capsys.readouterr().err.count("npu_overflow:") == 1


def test_with_a_supervisor_it_is_asked(tmp_path: Path, monkeypatch: Any) -> None:
    path = str(tmp_path / "request.json")
    monkeypatch.setattr(restart, "_supervisor", {"path": path})
    options = WatchOptions()
    made = Restart(Training(options, str(tmp_path)), Console(options))
    error = CannotCollect("ascend.opened_without_dump")
    with pytest.raises(restart.RestartRequested):
        made.ask(error, made.request(error, 7))
    assert restart.read_request(path) == {"step": 7, "weights": False, "ended": False}


def test_a_loop_has_nothing_to_restore(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr(restart, "_restored", [])
    options = WatchOptions(restore=True)
    made = Restart(Training(options, str(tmp_path)), Console(options))
    assert not made.restore(step=0) and capsys.readouterr().err == ""
    assert not made.restore(step=1) and capsys.readouterr().err.count("\n") == 1
    assert not made.restore(step=2) and capsys.readouterr().err == ""


class Listener(StepListener):
    """Writes down what it hears."""

    is_off = False

    def __init__(self, moved: int = 0) -> None:
        self.heard: List[str] = []
        self.moved = moved
        self.begun = True

    @property
    def run(self) -> Any:
        return SimpleNamespace(
            step=sum(item.startswith("after") for item in self.heard),
            look_for_optimizers=lambda: self.heard.append("look"),
            step_begins=lambda steps=1: self.heard.append("begins %d" % steps),
            steps_moved=lambda: self.moved,
            function_called=lambda call: self.heard.append("called"),
            step_finished=lambda: self.heard.append("finished"),
            step_told=lambda scale, finite: self.heard.append("told %s %s" % (scale, finite)),
        )

    def fail(self) -> None:
        self.heard.append("fail")

    def has_begun(self) -> bool:
        return self.begun

    def optimizer_made(self, optimizer: Any) -> None:
        self.heard.append("made")

    def after_steps(self, steps: int, finite: Optional[bool] = None) -> None:
        self.heard.append("after %d" % steps)


@pytest.mark.parametrize("moved", [0, 2])
def test_a_call_is_a_step_where_an_optimizer_moved(moved: int) -> None:
    listener = Listener(moved)
    call = SimpleNamespace(arguments=lambda: ((1,), {}))
    assert StepDetector(listener).function_call(call, lambda value: value + 1) == 2
    moves = ["finished", "after 2"] if moved else []
    assert listener.heard == ["look", "begins 1", "called", *moves]


def test_a_marked_step_ends_once_whatever_moved_inside() -> None:
    listener = Listener(moved=1)
    detector = StepDetector(listener)
    with detector.marked_step():
        detector.optimizer_applied()
    assert listener.heard == ["look", "begins 1", "after 1"]
    call = SimpleNamespace(arguments=lambda: ((), {}))
    with detector.marked_step():
        detector.function_call(call, lambda: None)
    assert listener.heard[3:] == ["look", "begins 1", "look", "begins 1", "called", "finished", "after 1"]


def test_a_step_outside_a_training_is_the_users_alone() -> None:
    listener = Listener()
    listener.begun = False
    detector = StepDetector(listener)
    with detector.marked_step():
        pass
    detector.told_step(8.0, True)
    assert listener.heard == []


def test_failures_are_kept_away_and_interrupts_pass() -> None:
    class Guarded(Listener):
        @never_raises
        def act(self, error: BaseException) -> None:
            raise error

    guarded = Guarded()
    guarded.act(ZeroDivisionError())
    assert guarded.heard == ["fail"]
    with pytest.raises(KeyboardInterrupt):
        guarded.act(KeyboardInterrupt())
    guarded.is_off = True
    guarded.act(ZeroDivisionError())
    assert guarded.heard == ["fail"]
