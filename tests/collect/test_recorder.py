"""What a record holds: numbers and leaves, no activations; and no more than is allowed."""

from __future__ import annotations

import contextlib
import gc
import threading
import weakref
from typing import Any, List, Optional

import numpy as np
import pytest
import test_loops
import training
from records import ROOM, SOON, nothing_is_hooked, recorder_around

import npu_overflow
from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.recorder import Recorder

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]


class Outputs:
    """Weak references to all that eager operators of this thread make."""

    def __init__(self) -> None:
        self.made: List[Any] = []

    def _see(
        self,
        op_type: Any,
        inputs: Any,
        attrs: Any,
        outputs: Any,
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        if graph is None:
            self.made += [(str(op_type), weakref.ref(tensor)) for tensor in outputs or ()]

    def __enter__(self) -> Outputs:
        private.found("add_callback")(self._see)
        return self

    def __exit__(self, *exc: object) -> None:
        private.found("remove_callback")(self._see)

    def alive(self) -> List[str]:
        gc.collect()
        return [op_type for op_type, tensor in self.made if tensor() is not None]


def test_an_eager_loop_holds_leaves_and_no_activations() -> None:
    import tensorflow as tf

    loop = test_loops.Loop(training.set_up())
    x, y = training.data(1, [0])
    batch = tf.constant(x), tf.constant(y)
    loop.step(*batch)
    with Outputs() as outputs:
        recorder, record = recorder_around(lambda: loop.step(*batch))
    assert not record.too_large and len(record.entries) > 40
    assert {"MatMul", "Relu"} <= {entry.type for entry in record.entries}
    assert len(outputs.made) > 40
    alive = outputs.alive()
    assert not {"MatMul", "BiasAdd", "Relu", "Mul", "Sub", "Square"} & set(alive), alive
    assert any(tensor is batch[0] for entry in record.entries for tensor in entry.inputs)  # a leaf
    del recorder, record
    assert len(outputs.alive()) <= len(alive)


def test_what_a_record_holds_does_not_grow_with_the_steps() -> None:
    import tensorflow as tf

    loop = test_loops.Loop(training.set_up())
    x, y = training.data(1, [0])
    recorder = Recorder(ROOM)
    recorder.on()
    seen = []
    try:
        for _ in range(4):
            recorder.begin_step(loop.model.trainable_variables)
            loop.step(tf.constant(x), tf.constant(y))
            gc.collect()
            leaves = {
                id(t)
                for entry in recorder.record().entries
                for t in entry.inputs
                if not isinstance(t, int)
            }
            seen.append((len(recorder.record().entries), len(leaves)))
    finally:
        recorder.off()
    assert len(set(seen[1:])) == 1 and nothing_is_hooked()
    assert recorder.record().entries == []


def test_a_function_is_one_entry_with_what_it_was_given() -> None:
    import tensorflow as tf

    weight = tf.Variable(2.0)
    double = tf.function(lambda x: weight * x * 2.0)
    x = tf.constant(3.0)
    double(x)
    _, record = recorder_around(lambda: double(x))
    calls = [entry for entry in record.entries if entry.is_call]
    assert len(calls) == 1 and len(record.entries) == 1
    assert (
        calls[0].inputs[0] is x
        and calls[0].graph is not None
        and calls[0].numbers[0] == private.tensor_id(x)
    )


def test_the_values_with_which_a_step_began_are_kept() -> None:
    import tensorflow as tf

    weight, other = tf.Variable(1.0), tf.Variable(5.0)
    step = tf.function(lambda: weight.assign_add(other))
    step()
    weight.assign(1.0)
    _, record = recorder_around(step)
    values = {number: float(value) for number, (_, value) in record.begin.items()}
    assert (
        values == {private.tensor_id(private.handles_of(weight)[0]): 1.0} and float(weight) == 6.0
    )


def test_other_threads_are_not_recorded() -> None:
    import tensorflow as tf

    double = tf.function(lambda x: x * 2.0)
    double(tf.constant(1.0))

    def elsewhere() -> None:
        double(tf.constant(1.0))
        tf.math.rsqrt(tf.constant(0.0))

    def run() -> None:
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        tf.square(tf.constant(2.0))

    _, record = recorder_around(run)
    assert [entry.type for entry in record.entries] == ["Square"]


def test_a_record_that_is_larger_than_allowed_says_so() -> None:
    import tensorflow as tf

    step = tf.function(tf.reduce_sum)
    given = tf.ones((100, 100))
    step(given)
    assert recorder_around(lambda: step(given), room=10**4)[1].too_large
    assert not recorder_around(lambda: step(given), room=10**5)[1].too_large


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_a_step_that_takes_too_much_from_outside_is_refused(eager: bool) -> None:
    """The batch alone is larger than max_memory."""
    import tensorflow as tf

    def train(watch: Optional[Any]) -> Any:
        loop = test_loops.Loop(training.set_up())
        step = loop.step if eager else tf.function(loop.step)
        x, y = (np.tile(part, (800, 1)) for part in training.data(1, [0]))
        with watch or contextlib.nullcontext():
            for _ in range(8):
                step(tf.constant(x), tf.constant(y))
        return loop.weights()

    plain = train(None)
    watch = npu_overflow.overflow_dump(**SOON, max_memory=10**5)
    assert training.same(plain, train(watch))
    report = watch._watch.reports[0]
    assert report.first is None and report.reason == "replay.memory"
    assert any("Raise max_memory" in remark.text for remark in report.remarks)
