"""What trainings in these tests begin with."""
from __future__ import annotations

from typing import Any, Iterator

import pytest
import training


@pytest.fixture()
def keras(tmp_path: Any, monkeypatch: Any) -> Iterator[Any]:
    """The Keras of this TensorFlow, under mixed_float16, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    yield training.set_up()
    import tensorflow as tf

    training.tear_down(tf.keras)


@pytest.fixture()
def own_folder(tmp_path: Any, monkeypatch: Any) -> Iterator[None]:
    """A folder of its own; the policy is put back afterwards."""
    monkeypatch.chdir(tmp_path)
    yield
    import tensorflow as tf

    training.tear_down(tf.keras)
