"""Whose line is it: files of the user's, notebook cells, never an installed package."""
from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any

import pytest

from npu_overflow.collectors import source

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
        (source.__file__, False),
        ("/tmp/__autograph_generated_file0x1.py", False),
    ],
)
def test_whose_file(name: str, user: bool) -> None:
    assert source.is_user_file(name, source.package_roots()) is user


def test_shown_as_a_user_would_write_it(tmp_path: Any, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert source.shown((str(tmp_path / "models" / "net.py"), 13, "call")) == os.path.join("models", "net.py") + ":13"
    assert source.shown(("/somewhere/else/train.py", 7, "fit")) == "train.py:7"
    assert source.shown(("/tmp/ipykernel_4711/1234567.py", 3, "call")) == "<cell>:3"


def _step(lines: source.SourceLines) -> Any:
    return lines.here(sys._getframe())


def test_frames_below_the_boundary_are_the_training_call() -> None:
    def boundary() -> Any:
        return compiled(source.SourceLines(boundary.__code__))

    # the step itself is library code: only the line that called the training is the user's
    space: Any = {"sys": sys}
    exec(compile("def compiled(lines): return lines.here(sys._getframe())", os.path.join(SITE, "library.py"), "exec"), space)
    compiled = space["compiled"]
    found = boundary()
    assert found is not None and os.path.basename(found[0]) == "test_source.py" and found[2] == "fit"
    inside = _step(source.SourceLines(boundary.__code__))
    assert inside[2] == "call" and inside[1] == _step.__code__.co_firstlineno + 1


def test_a_command_of_an_installed_package_is_not_the_users() -> None:
    command = os.path.join(sysconfig.get_paths()["scripts"], "npu-overflow")
    assert not source.is_user_file(command, source.package_roots())
