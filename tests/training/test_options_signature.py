"""Both entry points have the options in their signature, and are what Keras and pickle expect."""
from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import npu_overflow
from npu_overflow import OverflowWatch, UsageError, WatchOptions, overflow_dump

ENTRIES = [OverflowWatch, overflow_dump]


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_signature_is_that_of_the_options(entry: Any) -> None:
    found = inspect.signature(entry).parameters.values()
    assert {item.kind for item in found} == {inspect.Parameter.KEYWORD_ONLY}
    assert all(item.annotation is not inspect.Parameter.empty for item in found)
    options = {item.name: item.default for item in dataclasses.fields(WatchOptions)}
    assert {item.name: item.default for item in found} == options


@pytest.mark.parametrize("entry", ENTRIES)
def test_help_says_what_each_means(entry: Any) -> None:
    text = inspect.getdoc(entry)
    assert text is not None
    for item in dataclasses.fields(WatchOptions):
        assert item.name in text.partition("Args:")[2]


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_misspelt_name_is_refused_with_the_known_ones(entry: Any) -> None:
    with pytest.raises(UsageError, match=r"max_report.*max_reports"):
        entry(max_report=3)


def test_a_type_checker_refuses_it(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    file = tmp_path / "train.py"
    file.write_text("import npu_overflow\nnpu_overflow.OverflowWatch(max_report=3)\n")
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert 'Unexpected keyword argument "max_report"' in done.stdout, done.stdout + done.stderr


def test_pickled_and_copied_it_is_a_fresh_watch_with_its_options() -> None:
    class_of_the_users = Named(patience=7)
    class_of_the_users.label = "mine"
    for again in (pickle.loads(pickle.dumps(class_of_the_users)), copy.copy(class_of_the_users)):
        assert type(again) is Named and again.label == "mine"
        assert again._session.options.patience == 7
        assert again._session is not class_of_the_users._session


class Named(OverflowWatch):
    """A watch of the user's own class."""

    label = ""


def test_its_repr_tells_how_it_stands() -> None:
    assert repr(OverflowWatch()) == "OverflowWatch(watching)"


@pytest.mark.tensorflow
def test_it_is_a_callback_of_the_keras_that_is_loaded() -> None:
    import tensorflow as tf

    watch = npu_overflow.OverflowWatch()
    assert isinstance(watch, tf.keras.callbacks.Callback)
    assert isinstance(watch, OverflowWatch) and type(watch) is OverflowWatch
    assert not isinstance(watch, tf.keras.callbacks.EarlyStopping)
