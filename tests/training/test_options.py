"""Options of the watch: what is accepted, and what is said of the rest."""
from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npu_overflow.errors import UsageError
from npu_overflow.training.options import WatchOptions


class Adam:
    def apply_gradients(self, pairs: Any) -> None:
        pass


class Collecting:
    def prepare(self, training: Any) -> None:
        pass

    def start(self, step: int) -> None:
        pass

    def stop(self) -> None:
        pass


ADAM, COLLECTING = Adam(), Collecting()


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("optimizer", "adam", "option.optimizer"),
        ("optimizer", 5, "option.optimizer"),
        ("optimizer", Adam, "option.optimizer"),
        ("optimizer", [ADAM, "adam"], "option.optimizer"),
        ("optimizer", [None], "option.optimizer"),
        ("dump_path", 5, "option.folder"),
        ("dump_path", b"x", "option.folder"),
        ("dump_path", "a\0b", "option.folder"),
        ("dump_path", "http://a/b", "option.url"),
        ("dump_path", "s3://x", "option.url"),
        ("tensorboard_dir", 5, "option.folder"),
        ("tensorboard_dir", b"q", "option.folder"),
        ("tensorboard_dir", "gs://bucket/logs", "option.url"),
        ("collector", None, "option.choice"),
        ("collector", 5, "option.choice"),
        ("collector", "npu", "option.choice"),
        ("collector", Collecting, "option.choice"),
        ("collector", ADAM, "option.choice"),
        ("restore", "yes", "option.choice"),
        ("restore", 1, "option.choice"),
        ("restore", None, "option.choice"),
        ("on_overflow", np.zeros(2), "option.choice"),
        ("language", 5, "option.choice"),
        ("at_steps", "5", "option.steps"),
        ("at_steps", None, "option.steps"),
        ("at_steps", {1: 2}, "option.steps"),
        ("at_steps", [1.5], "option.whole"),
        ("at_steps", [-1], "option.whole"),
        ("at_steps", True, "option.whole"),
        ("at_steps", np.zeros((2, 2), np.int64), "option.whole"),
        ("at_steps", range(10**12), "option.many_steps"),
        ("at_steps", itertools.count(), "option.many_steps"),
        ("at_steps", itertools.repeat(1), "option.many_steps"),
        ("patience", np.array([1, 2]), "option.whole"),
        ("check_every", np.zeros(2), "option.whole"),
        ("max_collect_seconds", 0, "option.number_above"),
        ("max_collect_seconds", float("nan"), "option.number_above"),
        ("max_collect_seconds", 10**400, "option.number_above"),
        ("min_scale", -1, "option.number"),
        ("min_scale", "1", "option.number"),
        ("max_disk", "9" * 400, "option.size"),
        ("max_disk", None, "option.size"),
    ],
)
def test_what_is_not_accepted_is_said_in_one_short_line(name: str, value: Any, code: str) -> None:
    with pytest.raises(UsageError) as raised:
        WatchOptions.of(**{name: value})
    assert raised.value.code == code
    for language in ("en", "zh"):
        message = raised.value.message(language)
        assert message.startswith(name + " ") and "\n" not in message and "\0" not in message and len(message) < 400


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("optimizer", None, None),
        ("optimizer", ADAM, ADAM),
        ("optimizer", [], []),
        ("optimizer", (ADAM, ADAM), (ADAM, ADAM)),
        ("dump_path", Path("xx"), "xx"),
        ("dump_path", None, None),
        ("tensorboard_dir", "logs", "logs"),
        ("collector", "host", "host"),
        ("collector", COLLECTING, COLLECTING),
        ("restore", np.bool_(True), True),
        ("at_steps", 5, (5,)),
        ("at_steps", np.int64(5), (5,)),
        ("at_steps", np.array([4, 3]), (3, 4)),
        ("at_steps", range(3), (0, 1, 2)),
        ("at_steps", (step for step in [2, 1, 2]), (1, 2)),
        ("at_steps", [], ()),
        ("patience", np.int64(7), 7),
        ("max_disk", np.int64(7), 7),
        ("min_scale", 0, 0.0),
        ("max_collect_seconds", np.float32(0.5), 0.5),
        ("max_collect_seconds", float("inf"), float("inf")),
    ],
)
def test_what_is_accepted(name: str, value: Any, kept: Any) -> None:
    found = getattr(WatchOptions.of(**{name: value}), name)
    assert found == kept and type(found) is type(kept)


def test_steps_are_numbers_of_python() -> None:
    assert {type(step) for step in WatchOptions.of(at_steps=np.arange(3)).at_steps} == {int}


@pytest.mark.parametrize("name", ["dump_path", "tensorboard_dir"])
def test_the_home_folder(name: str) -> None:
    assert getattr(WatchOptions.of(**{name: "~/dumps"}), name) == os.path.expanduser("~") + "/dumps"
    assert getattr(WatchOptions.of(**{name: "a~"}), name) == "a~"
