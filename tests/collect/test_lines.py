"""Whose line is it: files of the user's, notebook cells, never an installed package."""

from __future__ import annotations

import os
import sysconfig
from typing import Any

import pytest

from npu_overflow.collect.replay import lines

SITE = sysconfig.get_paths()["purelib"]


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("/home/someone/train.py", True),
        ("train.py", True),
        ("/tmp/ipykernel_4711/1234567.py", True),
        ("<ipython-input-3-abcdef>", True),
        ("<string>", False),
        ("<frozen importlib._bootstrap>", False),
        (os.path.join(SITE, "somepackage", "layers.py"), False),
        ("/elsewhere/lib/python3.9/site-packages/keras/layers.py", False),
        ("/usr/lib/python3/dist-packages/numpy/core.py", False),
        (os.path.join(sysconfig.get_paths()["stdlib"], "threading.py"), False),
        (lines.__file__, False),
        ("/tmp/__autograph_generated_file0x1.py", False),
    ],
)
def test_whose_file(name: str, user: bool) -> None:
    assert lines.is_user_file(name) is user


def test_shown_as_a_user_would_write_it(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        lines.shown((str(tmp_path / "models" / "net.py"), 13, "call"))
        == os.path.join("models", "net.py") + ":13"
    )
    assert lines.shown(("/somewhere/else/train.py", 7, "fit")) == "train.py:7"
    assert lines.shown(("/tmp/ipykernel_4711/1234567.py", 3, "call")) == "<cell>:3"


KERAS = os.path.join(SITE, "keras", "src", "trainer.py")
LIBRARY = os.path.join(SITE, "somepackage", "layers.py")
OUTSIDE = [("/home/someone/train.py", 5, "<module>"), (KERAS, 100, "fit")]


def test_a_line_of_the_users_below_the_training_call_is_the_operators() -> None:
    step = [
        ("/home/someone/net.py", 31, "call"),
        ("/home/someone/net.py", 40, "block"),
        (LIBRARY, 2, "dense"),
    ]
    found = lines.locate([*OUTSIDE, step[0], *step, (KERAS, 7, "matmul")])
    assert found is not None and found.kind == "call"
    assert [place[1] for place in found.places] == [40, 31]  # innermost first, each line once


def test_a_model_of_a_library_is_named_by_its_own_file() -> None:
    found = lines.locate([*OUTSIDE, (LIBRARY, 9, "call"), (KERAS, 7, "matmul")])
    assert found is not None and (found.kind, found.places) == ("call", ((LIBRARY, 9, "call"),))


def test_where_only_frameworks_are_below_the_training_call_that_is_the_line() -> None:
    found = lines.locate([*OUTSIDE, (KERAS, 7, "matmul")])
    assert found is not None and (found.kind, found.places) == ("fit", (OUTSIDE[0],))
    assert lines.locate([(KERAS, 7, "matmul")]) is None


def test_at_most_five_frames_are_told_with_the_text_of_the_innermost() -> None:
    here = os.path.abspath(__file__)
    found = lines.locate([*OUTSIDE, *[(here, number, "call") for number in range(1, 7)]])
    assert found is not None and [place[1] for place in found.places] == [6, 5, 4, 3, 2]
    with open(here, encoding="utf-8") as file:
        assert found.text == file.readlines()[5].strip()


def test_a_command_of_an_installed_package_is_not_the_users() -> None:
    command = os.path.join(sysconfig.get_paths()["scripts"], "npu-overflow")
    assert not lines.is_user_file(command)
