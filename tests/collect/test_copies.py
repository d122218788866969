"""Tuners copy callbacks for each trial: a copy of a watch is a fresh one with the same options."""
from __future__ import annotations

import copy
from typing import Any

import pytest
import training

import npu_overflow


class Counting(npu_overflow.OverflowWatch):
    """A watch of the user's own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.seen = [0]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_a_copy_is_a_fresh_watch_with_the_same_options(copied: Any) -> None:
    def told(report: Any) -> None:
        raise AssertionError

    watch = npu_overflow.OverflowWatch(patience=7, keep=2, verbose=0, dump_path="elsewhere", on_report=told)
    watch._session.run.machine.drops.append((1, 2.0, 1.0))
    other = copied(watch)
    assert type(other) is npu_overflow.OverflowWatch and other._session is not watch._session
    assert other._session.options == watch._session.options and other._session.options.on_report is told
    assert other.state == "watching" and other.drops == [] and other.reports == []


def test_a_class_of_the_users_keeps_what_it_added() -> None:
    watch = Counting(keep=2)
    shallow, deep = copy.copy(watch), copy.deepcopy(watch)
    assert type(shallow) is type(deep) is Counting
    assert shallow.seen is watch.seen and deep.seen == watch.seen and deep.seen is not watch.seen


def test_a_watch_that_is_twice_in_what_is_copied_is_copied_once() -> None:
    watch = npu_overflow.OverflowWatch()
    one, other = copy.deepcopy([watch, watch])
    assert one is other and one is not watch


@pytest.mark.tensorflow
@pytest.mark.usefixtures("own_folder")
def test_copies_of_a_used_watch_watch_trainings_of_their_own() -> None:
    keras = training.set_up()
    first = npu_overflow.OverflowWatch(verbose=0)
    for watch in (first, None):
        watch = watch or copy.deepcopy(first)
        assert watch.reports == []
        model = training.compiled(training.functional(keras), keras)
        training.weights(model)
        x, y = training.data(48, range(training.HOT_FROM, 48))
        model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch])
        assert [training.named(report.first) for report in watch.reports] == ["net/hot/MatMul"]
    assert len(first.reports) == 1
