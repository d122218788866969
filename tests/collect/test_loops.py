"""Training loops of the user's own, on every supported TensorFlow."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Tuple

import numpy as np
import pytest
import training

import npu_overflow
from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.training.loss_scale import reader_for

pytestmark = pytest.mark.tensorflow

STEPS = 60
HOT = list(range(training.HOT_FROM, STEPS))


class Loop:
    """A model, its loss-scale optimizer and one step, written as users write them for their Keras."""

    def __init__(self, keras: Any, model: Any = None) -> None:
        import tensorflow as tf

        self.tf, self.keras = tf, keras
        self.model = model or training.functional(keras)
        training.weights(self.model)
        scaling = keras.mixed_precision.LossScaleOptimizer
        try:
            self.optimizer = scaling(keras.optimizers.Adam(1e-4), initial_scale=1024.0)
        except TypeError:
            self.optimizer = scaling(keras.optimizers.Adam(1e-4), dynamic=True, initial_scale=1024.0)

    def gradients(self, x: Any, y: Any) -> Any:
        with self.tf.GradientTape() as tape:
            loss = self.tf.reduce_mean(self.tf.square(self.model(x, training=True) - y))
            scaled = self.optimizer.get_scaled_loss(loss) if hasattr(self.optimizer, "get_scaled_loss") else self.optimizer.scale_loss(loss)
        return tape.gradient(scaled, self.model.trainable_variables)

    def apply(self, gradients: Any) -> None:
        if hasattr(self.optimizer, "get_unscaled_gradients"):
            gradients = self.optimizer.get_unscaled_gradients(gradients)
        self.optimizer.apply_gradients(zip(gradients, self.model.trainable_variables))

    def step(self, x: Any, y: Any) -> None:
        self.apply(self.gradients(x, y))

    def batches(self) -> List[Tuple[Any, Any]]:
        x, y = training.data(STEPS, HOT)
        return [(self.tf.constant(x[i : i + 8]), self.tf.constant(y[i : i + 8])) for i in range(0, len(x), 8)]

    def weights(self) -> List[Any]:
        return [np.array(value) for value in self.model.get_weights()]


def one_function(loop: Loop, watch: Optional[Any]) -> None:
    step = loop.tf.function(loop.step)
    for x, y in loop.batches():
        step(x, y)


def two_functions(loop: Loop, watch: Optional[Any]) -> None:
    gradients, apply = loop.tf.function(loop.gradients), loop.tf.function(loop.apply)
    for x, y in loop.batches():
        apply(gradients(x, y))


def nested_functions(loop: Loop, watch: Optional[Any]) -> None:
    inner = loop.tf.function(loop.gradients)

    @loop.tf.function
    def step(x: Any, y: Any) -> None:
        loop.apply(inner(x, y))

    for x, y in loop.batches():
        step(x, y)


def iterator_argument(loop: Loop, watch: Optional[Any]) -> None:
    x, y = training.data(STEPS, HOT)
    iterator = iter(loop.tf.data.Dataset.from_tensor_slices((x, y)).batch(8))

    @loop.tf.function
    def step(it: Any) -> None:
        x, y = next(it)
        loop.step(x, y)

    for _ in range(STEPS):
        step(iterator)


def no_function(loop: Loop, watch: Optional[Any]) -> None:
    import contextlib

    for x, y in loop.batches():
        with watch.step() if watch is not None else contextlib.nullcontext():
            loop.step(x, y)


def no_function_and_no_mark(loop: Loop, watch: Optional[Any]) -> None:
    for x, y in loop.batches():
        loop.step(x, y)


def with_evaluation(loop: Loop, watch: Optional[Any]) -> None:
    step = loop.tf.function(loop.step)
    evaluate = loop.tf.function(lambda x: loop.model(x, training=False))
    for x, y in loop.batches():
        evaluate(x)
        step(x, y)
        evaluate(x)


LOOPS = [one_function, two_functions, nested_functions, iterator_argument, no_function, no_function_and_no_mark, with_evaluation]


@pytest.mark.parametrize("kind", LOOPS, ids=lambda kind: kind.__name__)
def test_a_loop_gets_its_culprit_and_the_weights_it_would_have_had(keras: Any, kind: Callable[[Loop, Any], None]) -> None:
    plain = Loop(keras)
    kind(plain, None)
    training.set_up()
    loop = Loop(keras)
    begin = loop.weights()
    with npu_overflow.overflow_dump(verbose=0) as watch:
        kind(loop, watch)
    assert [training.named(report.first) for report in watch.reports] == ["net/hot/MatMul"]
    first = watch.reports[0].first
    assert first.phase == "forward" and first.train_step >= training.HOT_FROM
    assert first.location is not None and first.location.startswith("test_loops.py:") and first.location_kind == "call"
    assert training.same(plain.weights(), loop.weights())
    assert max(np.abs(a - b).max() for a, b in zip(begin, loop.weights())) > 1e-4


def arrays() -> List[Tuple[Any, Any]]:
    """Batches as NumPy arrays; in the later ones a feature is too large for float16."""
    x, y = training.data(STEPS, [])
    pairs = [(np.array(x[i : i + 8]), np.array(y[i : i + 8])) for i in range(0, len(x), 8)]
    for wide, _ in pairs[training.HOT_FROM :]:
        wide[1, 2] = 70000.0
    return pairs


def arrays_by_position(loop: Loop) -> None:
    step = loop.tf.function(loop.step)
    for x, y in arrays():
        step(x, y)


def arrays_by_name(loop: Loop) -> None:
    step = loop.tf.function(loop.step)
    for x, y in arrays():
        step(y=y, x=x)


def arrays_with_a_signature(loop: Loop) -> None:
    step = loop.tf.function(loop.step, input_signature=[loop.tf.TensorSpec((None, None), loop.tf.float32)] * 2)
    for x, y in arrays():
        step(x.astype(np.float32), y)


def arrays_in_a_dict(loop: Loop) -> None:
    step = loop.tf.function(lambda batch: loop.step(batch["x"], batch["y"]))
    for x, y in arrays():
        step({"x": x, "y": y})


def on_batches(loop: Loop) -> None:
    loop.model.compile(loop.optimizer, "mse")
    for x, y in arrays():
        loop.model.train_on_batch(x, y)


@pytest.mark.parametrize("kind", [arrays_by_position, arrays_by_name, arrays_with_a_signature, arrays_in_a_dict, on_batches], ids=lambda kind: kind.__name__)
def test_an_array_given_to_a_step_is_its_batch(keras: Any, kind: Callable[[Loop], None]) -> None:
    with npu_overflow.overflow_dump(verbose=0) as watch:
        kind(Loop(keras))
    first = watch.reports[0].first
    assert (first.op_type, first.origin) == ("Cast", "data")
    detail = dict(first.origin_detail)
    # arrays become tensors inside the call: of a part of an argument the graph knows the argument's name
    assert detail.pop("name") in (("batch", "batch['x']", "batch_x") if kind is arrays_in_a_dict else ("x",))
    assert detail == {"element": [1, 2], "value": 70000.0}


def test_fit_inside_the_context_manager(keras: Any) -> None:
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(STEPS, HOT)
    with npu_overflow.overflow_dump(verbose=0) as watch:
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    assert [training.named(report.first) for report in watch.reports] == ["net/hot/MatMul"]


def test_hooks_are_gone_after_an_exception(keras: Any) -> None:
    kind = private.found("function_class")
    before = (kind.__call__, kind.__dict__["__call__"])

    class Mine(Exception):
        pass

    loop = Loop(keras)
    step = loop.tf.function(loop.step)
    with pytest.raises(Mine), npu_overflow.overflow_dump(verbose=0) as watch:
        for number, (x, y) in enumerate(loop.batches()):
            step(x, y)
            if watch.state == "collecting" and number > training.HOT_FROM + 5:
                raise Mine()
    assert (kind.__call__, kind.__dict__["__call__"]) == before
    assert len(watch.reports) == 1 and training.named(watch.reports[0].first) == "net/hot/MatMul"


def test_told_steps_are_watched(keras: Any, capsys: Any) -> None:
    with npu_overflow.overflow_dump(language="en") as watch:
        scale = 2.0**15
        for step in range(60):
            scale = scale / 2 if step >= 40 and scale > 1 else scale
            watch.step(loss_scale=scale, finite=step < 40)
    assert watch.drops[0] == (40, 2.0**15, 2.0**14)
    assert "overflow is frequent" in capsys.readouterr().err


def test_an_optimizer_that_stands_still_at_its_floor_is_no_overflow(keras: Any) -> None:
    idle = Loop(keras)
    idle.step(*idle.batches()[0])
    reader = reader_for(idle.optimizer)
    reader.set_scale(1.0)
    reader.counter_variable().assign(0)
    loop = Loop(keras)
    step = loop.tf.function(loop.step)
    with npu_overflow.overflow_dump(verbose=0, warmup=0, patience=2, keep=2, optimizer=[idle.optimizer, loop.optimizer]) as watch:
        for number, (x, y) in enumerate(loop.batches()[28:42]):
            step(x / 300.0 if number % 3 == 0 else x, y)  # every third step is healthy, while collecting too
    assert watch.reports and all(report.first is not None and training.named(report.first) == "net/hot/MatMul" for report in watch.reports)
    assert not [remark for report in watch.reports for remark in report.remarks if remark.code == "replay.not_reproduced"]


def applied_in_python(loop: Loop, watch: Optional[Any]) -> None:
    gradients = loop.tf.function(loop.gradients)
    for x, y in loop.batches():
        loop.apply(gradients(x, y))


def tape_in_python(loop: Loop, watch: Optional[Any]) -> None:
    model = loop.model
    loop.model = Calls(loop.tf.function(lambda x: model(x, training=True)), model.trainable_variables)
    for x, y in loop.batches():
        loop.step(x, y)
    loop.model = model


class Calls:
    """A model whose call is a tf.function."""

    def __init__(self, forward: Any, variables: Any) -> None:
        self.forward, self.trainable_variables = forward, variables

    def __call__(self, x: Any, training: bool) -> Any:
        return self.forward(x)


@pytest.mark.parametrize("kind", [applied_in_python, tape_in_python], ids=lambda kind: kind.__name__)
def test_a_step_that_ends_in_python(keras: Any, kind: Callable[[Loop, Any], None]) -> None:
    plain = Loop(keras)
    kind(plain, None)
    training.set_up()
    loop = Loop(keras)
    with npu_overflow.overflow_dump(verbose=0) as watch:
        kind(loop, watch)
    assert [training.named(report.first) for report in watch.reports] == ["net/hot/MatMul"]
    assert training.same(plain.weights(), loop.weights())


def test_each_of_two_optimizers_ends_the_step(keras: Any) -> None:
    loop, other = Loop(keras), Loop(keras)
    gradients, others = loop.tf.function(loop.gradients), loop.tf.function(other.gradients)
    with npu_overflow.overflow_dump(verbose=0) as watch:
        for x, y in loop.batches():
            given, first = gradients(x, y), others(x * 0.0, y)  # only the second optimizer's gradients overflow
            other.apply(first)
            loop.apply(given)
    assert [training.named(report.first) for report in watch.reports] == ["net/hot/MatMul"]


def test_what_the_user_tells_is_not_mixed_with_an_idle_optimizer(keras: Any) -> None:
    idle, loop = Loop(keras), Loop(keras)
    assert reader_for(idle.optimizer).read() is not None
    gradients = loop.tf.function(lambda x, y: [gradient * 1.0 for gradient in loop.gradients(x, y)])
    with npu_overflow.overflow_dump(verbose=0) as watch:
        for i, (x, y) in enumerate(loop.batches()):
            gradients(x, y)
            watch.step(loss_scale=2.0 ** -max(0, i - training.HOT_FROM + 1), finite=i < training.HOT_FROM)
    first = watch.reports[0].first
    assert training.named(first) == "net/hot/MatMul" and first.cured_by_scale is not True
    assert watch.drops[0] == (training.HOT_FROM, 1.0, 0.5)
