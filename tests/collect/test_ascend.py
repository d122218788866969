"""The Ascend collector on the double of the vendor's package: which files stay, which go, and what is never touched."""
from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Set, Tuple

import numpy as np
import pytest
from fake_npu_device import adapter

from npu_overflow import messages
from npu_overflow.analysis.analyzer import analyze
from npu_overflow.collect.ascend import collector as ascend
from npu_overflow.collect.ascend import device as ascend_device
from npu_overflow.collect.ascend.collector import AscendCollector
from npu_overflow.collect.ascend.files import OwnFiles, Unit
from npu_overflow.collect.base import Training
from npu_overflow.dump.reader import open_dump
from npu_overflow.dump.scan import find
from npu_overflow.errors import CannotCollect
from npu_overflow.training.loss_scale import Reading
from npu_overflow.training.manifest import Manifest, read_manifests
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.policy import Policy

BIG = np.full((2, 2), 65504, np.float16)


@pytest.fixture
def npu_device() -> Iterator[Any]:
    with adapter.loaded() as module:
        module._device.keep_context = True
        yield module


class Run:
    """A training on the double, step by step, with a dynamic loss scale and a collector."""

    def __init__(self, npu_device: Any, dump_path: Path, every: int = 1, **options: Any) -> None:
        options.setdefault("warmup", 0)
        self.device = npu_device._device
        self.every = every
        self.options = WatchOptions.of(**options)
        self.said: List[str] = []
        self.training = Training(self.options, str(dump_path), say=lambda code, **values: self.said.append(messages.say(code, "en", **values)))
        self.collector = AscendCollector()
        self.policy = Policy(self.options.patience, self.options.window, self.options.warmup, self.options.min_scale)
        self.scale, self.counter, self.step, self.looked = 2.0**40, 0, 0, 0
        self.graph = object()

    def prepare(self) -> Run:
        self.collector.prepare(self.training)
        self.policy.check_scale(-1, 0, Reading(self.scale, 0, 0, 2000))
        return self

    def go(self, steps: int, overflow: Callable[[int], Optional[str]] = lambda step: None, flush: bool = True) -> Optional[int]:
        """Train; returns the training step after which the policy triggered (collecting then has begun)."""
        triggered = None
        for _ in range(steps):
            name = overflow(self.step)
            with self.device.graph_run(self.graph):
                if name is not None:
                    self.device.overflow("MatMul", name, [np.ones((2, 2), np.float16)], [BIG])
            if flush:
                self.device.flush()
            self.scale, self.counter = (self.scale / 2, 0) if name is not None else (self.scale, self.counter + 1)
            self.step += 1
            if self.step - self.looked >= self.every and self._look() and triggered is None:
                triggered = self.step
        return triggered

    def _look(self) -> bool:
        steps, self.looked = self.step - self.looked, self.step
        look = self.policy.check_scale(self.step - 1, steps, Reading(self.scale, self.counter, self.step, 2000))
        self.collector.step_done(self.step - steps, steps, look.overflows, look.counted, look.pending)
        if look.trigger and not self.collector._collecting:
            self.collector.start(self.step)
            self.policy.reported(self.step)
            return True
        return False

    def indices(self) -> Set[int]:
        """data_index of the steps whose dumps lie on disk."""
        tree = self.collector.tree
        return set() if tree is None else {entry.place.data_index for entry in find(tree).records if entry.place.data_index is not None}


@pytest.fixture
def run(npu_device: Any, tmp_path: Path) -> Callable[..., Run]:
    def make(configured: bool = True, opened: bool = True, **options: Any) -> Run:
        if configured:
            ascend_device.configure_overflow(npu_device, str(tmp_path / "dump"))
        if opened:
            npu_device.open()
        return Run(npu_device, tmp_path / "dump", **options).prepare()

    return make


def only(*steps: int) -> Callable[[int], Optional[str]]:
    return lambda step: "layer_%d/MatMul" % step if step in steps else None


# --- getting ready


NO_ADAPTER = (
    "The Ascend collector needs npu_device, which this process has not loaded. "
    "Import npu_device and open the device before the training, or use collector='host' on a CPU or GPU."
)
OPENED_WITHOUT = (
    "The device was opened without the overflow dump, and reads its options only when it opens: the operators that overflow can't be collected in this "
    "process. Call npu_overflow.npu_device_dump_config(npu_device) before npu_device.open() and start the training anew."
)
NOTE = (
    "the device was opened without the overflow dump: overflow is watched, but its operators can't be collected. To collect them, call "
    "npu_overflow.npu_device_dump_config(npu_device) before npu_device.open()."
)


def test_without_the_adapter_it_cannot_collect(tmp_path: Path) -> None:
    for refused in (lambda: AscendCollector().prepare(Training(WatchOptions(), str(tmp_path))), lambda: AscendCollector().start(0)):
        with pytest.raises(CannotCollect) as raised:
            refused()
        assert str(raised.value) == NO_ADAPTER


def test_the_dump_is_configured_where_the_device_is_not_open_yet(npu_device: Any, tmp_path: Path) -> None:
    run = Run(npu_device, tmp_path / "dump").prepare()
    npu_device.open(5)
    run.go(1, only(0))
    assert run.indices() == {0}
    assert run.go(4, only(1, 2, 3, 4)) == 5
    assert run.collector.collected == 3
    assert run.collector.tree is not None and Path(run.collector.tree).parent == tmp_path / "dump"


def test_the_path_that_was_configured_is_used(npu_device: Any, tmp_path: Path) -> None:
    ascend_device.npu_device_dump_config(npu_device, dump_path=str(tmp_path / "theirs"))
    npu_device.open()
    run = Run(npu_device, tmp_path / "ours").prepare()
    run.go(1, only(0))
    assert run.training.dump_path == str(tmp_path / "theirs")
    assert run.indices() == {0}


def test_a_device_that_was_opened_without_the_dump(run: Callable[..., Run]) -> None:
    training = run(configured=False)
    assert training.said == [NOTE]
    training.go(2, only(0))
    assert training.collector.tree is None
    with pytest.raises(CannotCollect) as raised:
        training.collector.start(2)
    assert str(raised.value) == OPENED_WITHOUT
    training.collector.stop()
    training.collector.close()


def test_the_other_dump_is_in_the_way(npu_device: Any, tmp_path: Path) -> None:
    npu_device.global_options().dump_config.enable_dump = True
    with pytest.raises(CannotCollect, match="enable_dump is on"):
        Run(npu_device, tmp_path / "dump").prepare()


def test_a_path_that_cannot_be_written_is_one_clear_error(npu_device: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotCollect, match="can't be written"):
        Run(npu_device, tmp_path / "file").prepare()


# --- what stays and what goes


def test_files_of_a_sporadic_overflow_go_when_they_leave_the_window(run: Callable[..., Run]) -> None:
    training = run(window=10)
    training.go(12, only(3))
    assert training.indices() == {3}
    training.go(3)
    assert training.indices() == set()
    assert training.collector.tree is not None and os.path.isdir(training.collector.tree)


def test_nothing_that_may_still_count_goes(run: Callable[..., Run]) -> None:
    training = run(window=10, patience=3)
    training.go(8, only(2, 5))
    assert training.indices() == {2, 5}
    training.go(6)
    assert training.indices() == {5}


def test_graphs_count_by_themselves_and_a_data_index_of_two_is_told_apart(run: Callable[..., Run]) -> None:
    # {time}/{device_id}/{model_name}/{model_id}/{data_index}: a validation graph begins at 0 as well
    training = run(window=50, patience=5, keep=3)
    training.go(6, only(2, 3, 4))
    training.graph, other = object(), training.graph
    training.go(4, only(8, 9))
    training.graph = other
    training.collector.stop()
    tree = training.collector.tree
    assert tree is not None
    assert (training.collector.train_steps, sorted(training.collector.folder_steps.values())) == ({2: 2, 3: 3, 4: 4}, [8, 9])
    Manifest(train_steps=training.collector.train_steps, folder_steps=training.collector.folder_steps).write(tree)
    (manifest,) = read_manifests(tree)
    assert manifest.folder_steps == training.collector.folder_steps
    found = {operator.op_name: operator.train_step for operator in analyze(tree, limit=None).operators}
    assert found == {"layer_%d/MatMul" % step: step for step in (2, 3, 4, 8, 9)}


def test_at_the_trigger_the_last_steps_are_there_already(run: Callable[..., Run]) -> None:
    training = run(window=50, patience=5, keep=3)
    assert training.go(60, only(10, 40, 41, 42, 43)) == 44
    assert training.collector.collected == 3
    training.collector.stop()
    folders = training.collector.kept_folders
    assert folders is not None and [folder.rsplit("/", 1)[1] for folder in folders] == ["41", "42", "43"]
    assert training.collector.kept_steps == [41, 42, 43]
    assert {index: training.collector.train_steps[index] for index in (41, 42, 43)} == {41: 41, 42: 42, 43: 43}
    assert training.collector.remarks == [] and training.collector.reason is None


def test_later_steps_are_added(run: Callable[..., Run]) -> None:
    training = run(patience=2, keep=2)
    assert training.go(5, only(3, 4)) == 5
    assert training.collector.collected == 2
    training.go(3, only(6))
    assert training.collector.collected == 3


def test_kept_files_stay_for_ever_and_later_sporadic_ones_go(run: Callable[..., Run]) -> None:
    training = run(patience=2, window=10, keep=2)
    training.go(5, only(3, 4))
    training.collector.stop()
    training.go(40, only(20))
    assert training.indices() == {3, 4}


def test_a_second_trigger_collects_anew(run: Callable[..., Run]) -> None:
    training = run(patience=2, window=10, keep=2)
    training.go(5, only(3, 4))
    training.collector.stop()
    assert training.go(30, only(20, 21)) == 22
    assert training.collector.collected == 2
    training.collector.stop()
    assert training.collector.kept_steps == [20, 21]
    assert training.indices() == {3, 4, 20, 21}


def test_forced_steps_are_collected_whatever_the_scale(run: Callable[..., Run]) -> None:
    training = run()
    training.go(5, only(2))
    training.training.forced = True
    training.collector.start(5)
    assert training.collector.collected == 0
    training.go(2, only(5))
    assert training.collector.collected == 1
    training.collector.stop()
    assert training.collector.kept_steps == [5]


def test_a_forced_healthy_step_has_no_reason(run: Callable[..., Run]) -> None:
    """The loss scale did not fall, so nothing is missing."""
    training = run()
    training.go(3)
    training.training.forced = True
    training.collector.start(3)
    training.go(1)
    training.collector.stop()
    assert training.collector.reason is None


def test_looks_at_several_steps_prune_whole_looks(run: Callable[..., Run]) -> None:
    training = run(every=10, window=20)
    training.go(30, only(3, 4))
    assert training.indices() == {3, 4}
    training.go(20)
    assert training.indices() == set()


def test_looks_at_several_steps_keep_whole_looks(run: Callable[..., Run]) -> None:
    training = run(every=10, window=50, patience=3, keep=2)
    assert training.go(30, only(12, 25, 27)) == 30
    training.collector.stop()
    folders = training.collector.kept_folders
    assert folders is not None and [folder.rsplit("/", 1)[1] for folder in folders] == ["25", "27"]
    assert training.collector.train_steps == {}


def test_a_loop_of_several_steps_in_the_device(npu_device: Any, run: Callable[..., Run]) -> None:
    npu_device.set_npu_loop_size(4)
    training = run(every=4, window=16)
    training.go(2, only(1))  # each go is a call of the graph here; data_index = call * (4 + 1) + step within
    assert training.indices() == {5}


def test_several_optimizers_tell_of_the_same_steps(run: Callable[..., Run]) -> None:
    training = run(window=10)
    training.go(1, only(0))
    for step in range(1, 30):
        with training.device.graph_run(training.graph):
            pass
        training.collector.step_done(step, 1, 0, 0, [])
        training.collector.step_done(step, 1, 0, 0, [0] if step < 20 else [])
        assert training.indices() == ({0} if step <= 20 else set())


def test_the_budget_takes_the_oldest_but_never_the_kept(run: Callable[..., Run]) -> None:
    training = run(window=50, patience=3, keep=3, max_disk=12000)  # a step has about 2.3 kB
    training.go(8, only(1, 3))
    assert training.indices() == {1, 3}
    training.go(1, only(8))
    training.collector.stop()
    training.go(30, only(10, 12, 14, 16, 18))
    assert training.indices() == {1, 3, 8, 16, 18}


def test_files_of_an_earlier_training_in_the_process_stay(npu_device: Any, run: Callable[..., Run], tmp_path: Path) -> None:
    first = run(window=5)
    first.go(2, only(1))
    second = Run(npu_device, tmp_path / "dump", window=5).prepare()
    second.graph = object()
    second.go(20, only(3))
    assert second.collector.tree == first.collector.tree
    assert second.indices() == {1}


def test_the_budget_holds_over_many_trainings_of_a_process(npu_device: Any, run: Callable[..., Run], tmp_path: Path) -> None:
    # "max_disk holds (oldest pruned first, never the kept ones)"
    first = run(patience=2, keep=2, window=50, max_disk=12000)  # a step has about 2.3 kB
    first.go(4, only(1, 2))
    first.collector.stop()
    first.go(4, only(6))
    assert first.indices() == {1, 2, 6}
    for _number in range(6):
        later = Run(npu_device, tmp_path / "dump", window=50, max_disk=12000).prepare()
        later.graph, later.step = first.graph, 0
        later.go(3, only(1))
    reported = set(first.collector.kept_folders or ())
    left = {os.path.relpath(os.path.dirname(entry.path), str(first.collector.tree)) for entry in find(str(first.collector.tree)).records}
    assert reported <= left and len(reported) == 2
    assert sum(path.stat().st_size for path in (tmp_path / "dump").rglob("*") if path.is_file()) <= 12000 + 2400  # the newest can still be written to
    assert len(left) > 3


def test_dumps_before_the_trigger_are_taken_where_the_training_fails(run: Callable[..., Run]) -> None:
    training = run(window=10)
    training.go(30, only(3, 25, 27))
    assert training.collector.salvage() is True
    training.collector.stop()
    assert training.collector.kept_steps == [25, 27]
    assert training.collector.remarks == [("ascend.before_trigger", {"count": 2})]


def test_without_dumps_there_is_nothing_to_take(run: Callable[..., Run]) -> None:
    training = run(window=10)
    training.go(30)
    assert training.collector.salvage() is False
    training.collector.stop()
    assert training.collector.kept_folders is None


def test_another_rank_overflowed(npu_device: Any, run: Callable[..., Run]) -> None:
    training = run()
    training.training.world_size = 2
    training.collector.start(0)
    training.go(3)
    training.collector.stop()
    assert (training.collector.reason, training.collector.kept_folders) == ("other_rank", [])


def test_the_device_wrote_nothing(run: Callable[..., Run]) -> None:
    training = run()
    training.collector.start(0)
    training.collector.stop()
    assert training.collector.reason == "no_records"
    assert training.collector.tree is None


# --- files that are still being written


def test_files_that_grow_are_waited_for(npu_device: Any, run: Callable[..., Run]) -> None:
    npu_device._device.piece_bytes, npu_device._device.piece_seconds = 64, 0.01
    training = run(patience=2, keep=2)
    training.go(2, only(0, 1), flush=False)
    training.collector.stop()
    assert training.collector.kept_steps == [0, 1]
    assert training.collector.remarks == []
    assert training.collector.tree is not None
    assert [open_dump(entry.path).problem for entry in find(training.collector.tree).dumps] == [None, None]


def test_the_wait_ends_where_nothing_grows(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ascend, "STILL_SECONDS", 0.2)
    training = run(patience=2, keep=2)
    training.go(2, only(0, 1))
    assert training.collector.tree is not None
    cut = find(training.collector.tree).dumps[0].path
    with open(cut, "r+b") as file:
        file.truncate(os.path.getsize(cut) - 1)
    began = time.monotonic()
    training.collector.stop()
    assert time.monotonic() - began < 5
    assert training.collector.remarks == [("ascend.unfinished", {"count": 1})]
    (code, values), = training.collector.remarks
    assert messages.say(code, "en", **values) == "dumps of 1 step were still being written when they were analyzed."


def test_the_wait_ends_where_a_file_grows_for_ever(run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    # "files that are still being written are waited for, within a bound"
    monkeypatch.setattr(ascend, "WAIT_SECONDS", 0.5)
    monkeypatch.setattr(ascend, "STILL_SECONDS", 1e6)
    training = run(patience=2, keep=2)
    training.go(2, only(0, 1))
    assert training.collector.tree is not None
    growing = find(training.collector.tree).dumps[0].path
    with open(growing, "r+b") as file:
        file.truncate(10)  # its header says that more is to come
    looked, refresh = [], OwnFiles.refresh

    def grows(files: OwnFiles, unit: Unit) -> None:
        with open(growing, "ab") as file:
            file.write(b"\0")
        looked.append(unit)
        refresh(files, unit)

    monkeypatch.setattr(OwnFiles, "refresh", grows)
    training.collector.stop()
    assert len(looked) > 2
    assert training.collector.remarks == [("ascend.unfinished", {"count": 1})]


def test_a_folder_that_vanishes_does_no_harm(run: Callable[..., Run], tmp_path: Path) -> None:
    import shutil

    training = run(patience=2, keep=2, window=10)
    training.go(2, only(0, 1))
    shutil.rmtree(str(tmp_path / "dump"))
    assert training.collector.collected == 0
    training.go(20)
    training.collector.stop()
    training.collector.close()
    assert training.collector.reason == "no_records"


# --- deleting is confined


def _pruned(training: Run) -> None:
    """Train until everything sporadic has left the window."""
    training.go(training.options.window * 2 + 2)


def test_other_files_in_the_tree_stay(run: Callable[..., Run], tmp_path: Path) -> None:
    training = run(window=5)
    training.go(1, only(0))
    folder = Path(find(str(tmp_path / "dump")).records[0].path).parent
    notes = [folder / "notes.txt", folder / "weights.h5", folder / "12345", folder / ".hidden"]
    for path in notes:
        path.write_text("mine")
    _pruned(training)
    assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in notes)


def test_hashed_names_go_with_their_mapping(run: Callable[..., Run], tmp_path: Path) -> None:
    training = run(window=5)
    training.go(1, only(0))
    folder = Path(find(str(tmp_path / "dump")).records[0].path).parent
    (folder / "12345").write_bytes(b"x")
    (folder / "mapping.csv").write_text("12345,MatMul.a.1.2.1715938212345600\n")
    _pruned(training)
    assert not folder.exists()


def test_other_runs_and_other_devices_stay(run: Callable[..., Run], tmp_path: Path) -> None:
    older = tmp_path / "dump" / "20200101000000" / "0" / "graph" / "1" / "7"
    older.mkdir(parents=True)
    (older / "Opdebug.Node_OpDebug.1.5.1577836800000000").write_bytes(b"x")
    training = run(window=5)
    training.go(1, only(0))
    assert training.collector.tree is not None
    neighbour = Path(training.collector.tree) / "1" / "graph" / "1" / "0"
    neighbour.mkdir(parents=True)
    (neighbour / "Opdebug.Node_OpDebug.1.5.1577836800000000").write_bytes(b"x")
    _pruned(training)
    assert len(list(older.iterdir())) == len(list(neighbour.iterdir())) == 1
    assert training.indices() == {0}  # the neighbour's


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_links_are_not_followed(run: Callable[..., Run], tmp_path: Path, level: int) -> None:
    """A folder of the run is replaced by a link to a folder of the same shape elsewhere."""
    training = run(window=5)
    training.go(1, only(0))
    folder = Path(find(str(tmp_path / "dump")).records[0].path).parent
    replaced = [folder, *folder.parents][level]
    elsewhere = tmp_path / "elsewhere"
    replaced.rename(elsewhere)
    replaced.symlink_to(elsewhere, target_is_directory=True)
    before = sorted(str(path) for path in elsewhere.rglob("*"))
    _pruned(training)
    assert len(before) >= 2
    assert sorted(str(path) for path in elsewhere.rglob("*")) == before


def test_a_link_among_the_files_stays_and_its_target_too(run: Callable[..., Run], tmp_path: Path) -> None:
    training = run(window=5)
    training.go(1, only(0))
    folder = Path(find(str(tmp_path / "dump")).records[0].path).parent
    target = tmp_path / "MatMul.precious.1.2.1715938212345600"
    target.write_text("precious")
    (folder / target.name).symlink_to(target)
    _pruned(training)
    assert target.read_text() == "precious"


@pytest.mark.parametrize("parts", [("..", "x"), ("a/b",), (".",), ("",)])
def test_only_names_can_be_deleted(tmp_path: Path, parts: Tuple[str, ...]) -> None:
    inside = tmp_path / "dump"
    inside.mkdir()
    outside = tmp_path / "x"
    outside.mkdir()
    (outside / "MatMul.a.1.2.1715938212345600").write_text("precious")
    OwnFiles(str(inside), 0).delete(Unit(parts))
    assert (outside / "MatMul.a.1.2.1715938212345600").exists() and inside.is_dir()


def test_nothing_is_deleted_where_the_run_is_not_certain(run: Callable[..., Run], tmp_path: Path) -> None:
    training = run(window=5)
    other = tmp_path / "dump" / time.strftime("%Y%m%d%H%M%S", time.localtime(time.time() + 1)) / "0" / "graph" / "1" / "7"
    training.go(1, only(0), flush=True)
    other.mkdir(parents=True)
    training.collector._files._run = None  # type: ignore[union-attr]
    _pruned(training)
    assert len(find(str(tmp_path / "dump")).records) == 1
    assert other.is_dir()


# --- what is analyzed


def test_the_report_is_of_the_last_steps_only(run: Callable[..., Run]) -> None:
    training = run(patience=3, keep=2)
    training.go(4, only(0, 2, 3))
    training.collector.stop()
    tree = training.collector.tree
    assert tree is not None
    Manifest(kept_folders=training.collector.kept_folders, train_steps=training.collector.train_steps).write(tree)
    report = analyze(tree)
    assert [operator.op_name for operator in report.operators] == ["layer_2/MatMul", "layer_3/MatMul"]
    assert [operator.train_step for operator in report.operators] == [2, 3]
    assert [remark.code for remark in report.remarks if remark.code == "remark.sporadic"] == ["remark.sporadic"]
    assert [operator.op_name for operator in analyze(tree, run="all").operators] == ["layer_0/MatMul", "layer_2/MatMul", "layer_3/MatMul"]
    folder = os.path.dirname(find(tree).records[0].path)
    assert len(analyze(folder).operators) == 1


# --- a real training


SCRIPT = """
import sys
sys.path.insert(0, {double!r})
import npu_device
import npu_overflow
if {configured}:
    npu_overflow.npu_device_dump_config(npu_device)
npu_device.set_device_sat_mode({mode})
npu_device.open().as_default()

import numpy as np
import tensorflow as tf

def atomic(step):
    # an atomic addition overflows before the product: it is listed first, and is not the first AI Core operator
    npu_device._device.overflow("AddN", "gradients/AddN", [np.ones(4, np.float16)], [np.full(4, 65504, np.float16)], "DHA Atomic Add", 0x900)

sporadic = npu_device.testing.dense(8, "model/sporadic/MatMul", lambda step: step in (5, 25, 55))
faulty = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= {begin}, before={before})
model = tf.keras.Sequential([sporadic, faulty])
optimizer = {optimizer}
model.compile(optimizer=optimizer, loss="mse", steps_per_execution={loop})
npu_device.set_npu_loop_size({loop})
watch = npu_overflow.OverflowWatch(window=20, warmup=0, check_every=1)
x, y = np.ones((800, 4), "float32"), np.ones((800, 1), "float32")
model.fit(x, y, batch_size=10, epochs=1, verbose=0, callbacks=[watch])
npu_device.testing.flush()
print("STATE", watch.state, len(watch.reports))
for report in watch.reports:
    first = report.first
    print("FIRST", first.op_type, first.op_name, first.core, first.verdict, first.train_step)
    print("OPERATORS", sorted(set((item.op_name, item.core) for item in report.operators)))
    print("TREE", report.path)
"""

NPU = "npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**8)"
STOCK = "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**8)"
FIXED = "npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), dynamic=False, initial_scale=8.0)"


def _train(tmp_path: Path, **changes: Any) -> str:
    """Run the script; what it printed, errors after the rest."""
    values: Any = {"double": adapter.FOLDER, "mode": 0, "before": "None", "begin": 60, "optimizer": NPU, "configured": True, "loop": 1}
    values.update(changes)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(**values))
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=str(tmp_path), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def _tree(output: str) -> str:
    return output.split("TREE ")[1].split("\n")[0].strip()


@pytest.mark.tensorflow("<2.7")
@pytest.mark.parametrize(("mode", "core"), [(0, "AI Core"), (1, "AIC")])
def test_a_real_training_prints_the_first_ai_core_operator(tmp_path: Path, mode: int, core: str) -> None:
    output = _train(tmp_path, mode=mode)
    line = (
        "npu_overflow: step 64: 7 steps overflowed, the loss scale fell from 256 to 2, overflow is frequent: collecting the operators of overflowing steps.\n"
    )
    assert output.count(line) == 1
    assert "FIRST MatMul model/faulty/MatMul %s computed_here 61" % core in output  # the last 3 of 55, 60, 61, 62, 63
    printed = output.split("STATE")[0]
    assert "model/faulty/MatMul" in printed and "model/sporadic" not in printed
    tree = _tree(output)
    assert Path(tree).parent == tmp_path / "precision_data" / "overflow" / "dump"
    # the sporadic ones before are deleted; the one of step 55 left the window without a trigger of its own
    assert {open_dump(entry.path).op_name for entry in find(tree).dumps} == {"model/faulty/MatMul"}
    assert (Path(tree) / "session-0.json").is_file() and (Path(tree) / "report.txt").is_file()


@pytest.mark.tensorflow("<2.7")
def test_an_atomic_addition_before_is_listed_and_not_first(tmp_path: Path) -> None:
    output = _train(tmp_path, before="atomic")
    assert "FIRST MatMul model/faulty/MatMul AI Core" in output
    assert "('gradients/AddN', 'DHA Atomic Add')" in output


@pytest.mark.tensorflow("<2.7")
def test_sporadic_overflow_gives_no_report(tmp_path: Path) -> None:
    output = _train(tmp_path, begin=1000)
    assert "STATE watching 0" in output
    assert find(str(tmp_path / "precision_data" / "overflow" / "dump")).records == []


@pytest.mark.tensorflow("<2.7")
def test_a_device_opened_without_the_dump_gets_a_request(tmp_path: Path) -> None:
    output = _train(tmp_path, configured=False)
    assert "STATE reported 0" in output or "STATE watching 0" in output
    assert "npu_device_dump_config(npu_device) before npu_device.open()" in output
    (manifest,) = read_manifests(str(tmp_path / "precision_data" / "overflow" / "dump"))
    assert manifest.request is not None and manifest.request["why"] == "ascend.opened_without_dump"


@pytest.mark.tensorflow("<2.7")
def test_a_fixed_scale_in_saturation_mode(tmp_path: Path) -> None:
    assert "FIRST MatMul model/faulty/MatMul AI Core" in _train(tmp_path, optimizer=FIXED)


@pytest.mark.tensorflow("<2.7")
def test_the_stock_optimizer_in_saturation_mode_is_warned_of(tmp_path: Path) -> None:
    assert "NpuLossScaleOptimizer" in _train(tmp_path, optimizer=STOCK, begin=1000).split("STATE")[1]


@pytest.mark.tensorflow("<2.7")
def test_several_steps_a_call(tmp_path: Path) -> None:
    output = _train(tmp_path, loop=4)
    assert "FIRST MatMul model/faulty/MatMul AI Core computed_here" in output


STOCK_FIXED = "tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1e-12), dynamic=False, initial_scale=8.0)"
BLIND = (
    "npu_overflow: the optimizer LossScaleOptimizer sees no overflow on this device: in saturation mode overflowed values are finite, the loss scale does not "
    "fall, and the gradients are wrong. Use npu_device.train.optimizer.NpuLossScaleOptimizer."
)


@pytest.mark.tensorflow("<2.7")
@pytest.mark.parametrize("optimizer", [STOCK, STOCK_FIXED], ids=["dynamic", "fixed"])
def test_records_on_disk_are_the_sign_where_the_optimizer_sees_nothing(tmp_path: Path, optimizer: str) -> None:
    # "In saturation mode the stock one never sees an overflow (saturated values are finite): the scale does not fall, every check looks healthy"
    # "In saturation mode without any usable signal the appearance of overflow records on disk is one."
    output = _train(tmp_path, optimizer=optimizer)
    assert output.count(BLIND) == 1
    line = (
        r"npu_overflow: step (\d+): (\d+) steps overflowed although the loss scale stands still, overflow is frequent: collecting the operators of "
        r"overflowing steps\.\n"
    )
    assert [(int(step) > 60, int(count) >= 5) for step, count in re.findall(line, output)] == [(True, True)]
    assert "FIRST MatMul model/faulty/MatMul AI Core computed_here" in output


@pytest.mark.tensorflow("<2.7")
def test_sporadic_records_give_no_report_to_a_blind_optimizer(tmp_path: Path) -> None:
    assert "STATE watching 0" in _train(tmp_path, optimizer=STOCK, begin=1000)


SLOW = """
import threading
from npu_overflow.training import reports_io
enough, analyzed = threading.Event(), reports_io.analyzed
reports_io.analyzed = lambda *args: (enough.wait(60), analyzed(*args))[1]
class Notes(tf.keras.callbacks.Callback):
    between, threads = 0, set()
    def on_train_batch_end(self, batch, logs=None):
        self.between += watch.state == "reported" and not watch.reports
        if self.between > 3:
            enough.set()
watch = npu_overflow.OverflowWatch(window=20, warmup=0, check_every=1, on_report=lambda report: Notes.threads.add(threading.current_thread().name))
notes = Notes()
model.fit(x, y, batch_size=10, epochs=1, verbose=0, callbacks=[watch, notes])
print("BETWEEN", notes.between, sorted(Notes.threads), len(watch.reports))
"""


LATE = """
import threading, time
from npu_overflow.training import delivery, reports_io
delivery.JOIN_SECONDS = 0.5
reports_io.analyzed = lambda *args: threading.Event().wait(600)
began = []
class Ends(tf.keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        began.append(time.monotonic())
watch = npu_overflow.OverflowWatch(window=20, warmup=0, check_every=1, keep={keep}, max_collect_steps=99)
model.fit(x, y, batch_size=10, epochs=1, verbose=0, callbacks=[Ends(), watch])
print("JOINED", time.monotonic() - began[0] < 60, len(watch.reports))
"""


@pytest.mark.tensorflow("<2.7")
@pytest.mark.parametrize("keep", [3, 99], ids=["begun_beside_the_training", "begun_at_its_end"])
def test_an_analysis_that_hangs_is_given_up_at_the_end(tmp_path: Path, keep: int) -> None:
    # "a thread where needed, joined at exit within a bound"
    begin = SCRIPT.split("watch = npu_overflow.OverflowWatch(")[0]
    values: Any = {"double": adapter.FOLDER, "mode": 0, "before": "None", "begin": 60, "optimizer": NPU, "configured": True, "loop": 1, "keep": keep}
    script = begin + 'x, y = np.ones((800, 4), "float32"), np.ones((800, 1), "float32")\n' + LATE
    (tmp_path / "script.py").write_text(script.format(**values))
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=str(tmp_path), timeout=120)
    assert done.returncode == 0 and "JOINED True 0" in done.stdout, done.stdout + done.stderr
    (tree,) = (tmp_path / "precision_data" / "overflow" / "dump").glob("2*")
    line = "npu_overflow: the report is not ready after 0.5 s and is given up; to make it: npu-overflow analyze %s\n" % tree.relative_to(tmp_path)
    assert done.stderr.count(line) == 1
    assert done.stderr.count("Traceback") == 0


STATES = """
import json, os
from npu_overflow.training import manifest
renamed, replace = [], os.replace

def noted(one, other):
    replace(one, other)
    if os.path.basename(other) == "session-0.json":
        assert os.path.dirname(one) == os.path.dirname(other) and os.path.basename(one).startswith(".") and not os.path.exists(one)
        written = json.load(open(other))
        renamed.append((written["state"], written["argv"], written["environment"].get("NPU_API_TOKEN")))

os.replace = noted
sys.argv += ["--password", "hunter2", "--name", "x"]
os.environ["NPU_API_TOKEN"] = "hunter3"
watch = npu_overflow.OverflowWatch(window=20, warmup=0, check_every=1)
states = []
class Notes(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if not states or states[-1] != watch.state:
            states.append(watch.state)
            print("STATE", watch.state, renamed[-1][0] if renamed else None)
model.fit(x, y, batch_size=10, epochs=1, verbose=0, callbacks=[watch, Notes()])
path, = [os.path.join(folder, "session-0.json") for folder, _, names in os.walk("precision_data") if "session-0.json" in names]
print("ARGV", renamed[-1][1:], "SECRET", "hunter" in open(path).read())
"""


@pytest.mark.tensorflow("<2.7")
def test_every_change_of_state_is_renamed_into_place_without_secrets(tmp_path: Path) -> None:
    # "The manifest is renamed into place at every change of state; tokens and passwords in argv and environment are redacted"
    begin = SCRIPT.split("watch = npu_overflow.OverflowWatch(")[0]
    values: Any = {"double": adapter.FOLDER, "mode": 0, "before": "None", "begin": 30, "optimizer": NPU, "configured": True, "loop": 1}
    script = begin.format(**values) + 'x, y = np.ones((800, 4), "float32"), np.ones((800, 1), "float32")\n' + STATES
    (tmp_path / "script.py").write_text(script)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=str(tmp_path), timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("STATE")]
    assert "reported" in [state for state, _written in seen]
    assert [state for state, _written in seen[1:]] == [written for _state, written in seen[1:]]
    assert "ARGV (['script.py', '--password', '<redacted>', '--name', 'x'], '<redacted>') SECRET False" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.tensorflow("<2.7")
def test_the_training_goes_on_while_files_are_waited_for_and_analyzed(tmp_path: Path) -> None:
    # "at the trigger the tree is analyzed without stopping training …, printed once"
    begin, end = SCRIPT.split("watch = npu_overflow.OverflowWatch(")
    x_and_y = 'x, y = np.ones((800, 4), "float32"), np.ones((800, 1), "float32")\n'
    script = begin + x_and_y + SLOW + "print(" + end.split("print(", 1)[1]
    values: Any = {"double": adapter.FOLDER, "mode": 0, "before": "None", "begin": 60, "optimizer": NPU, "configured": True, "loop": 1}
    (tmp_path / "script.py").write_text(script.format(**values))
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=str(tmp_path), timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    between = done.stdout.split("BETWEEN ")[1].split("\n")[0]
    assert int(between.split()[0]) > 3 and between.endswith("['MainThread'] 1")
    assert done.stdout.count("First overflowing AI Core operator") == 1
    assert "FIRST MatMul model/faulty/MatMul AI Core" in done.stdout
