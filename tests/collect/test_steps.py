"""Steps of many kinds, each small: what is named in them, and what is refused with the cure."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, List, Optional

import numpy as np
import pytest
import test_loops
import training
from records import SOON

import npu_overflow

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS = 12


def scaling(keras: Any, optimizer: Any, **options: Any) -> Any:
    return keras.mixed_precision.LossScaleOptimizer(optimizer, **options)  # dynamic unless told


def scaled(optimizer: Any, loss: Any) -> Any:
    old = hasattr(optimizer, "get_scaled_loss")
    return optimizer.get_scaled_loss(loss) if old else optimizer.scale_loss(loss)


def unscaled(optimizer: Any, gradients: Any) -> Any:
    old = hasattr(optimizer, "get_unscaled_gradients")
    return optimizer.get_unscaled_gradients(gradients) if old else gradients


def constant(keras: Any, value: float) -> Any:
    return keras.initializers.Constant(value)


def line_of(text: str) -> str:
    with open(__file__, encoding="utf-8") as file:
        number = next(i for i, line in enumerate(file, 1) if text in line and "line_of" not in line)
    return "test_steps.py:%d" % number


def same_with_and_without(train: Callable[[Optional[Any]], Any], made: Any, **options: Any) -> Any:
    """The watch of a training that has the same weights without it."""
    plain = train(None)
    watch = made(**{**SOON, **options})
    assert training.same(plain, train(watch))
    return getattr(watch, "_watch", watch)


# --- gradients that the user works on


def test_a_cast_of_gradients_is_named_and_not_the_clipping_after_it() -> None:
    import tensorflow as tf

    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up("float32")
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        training_weights(model)
        optimizer = scaling(keras, keras.optimizers.SGD(1e-9))

        @tf.function
        def step(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = scaled(optimizer, tf.reduce_mean(tf.square(model(x, training=True) - y)))
            gradients = tape.gradient(loss, model.trainable_variables)
            small = [tf.cast(g, tf.float16) for g in gradients]  # compressed
            gradients = [tf.cast(g, tf.float32) for g in small]
            gradients, _ = tf.clip_by_global_norm(unscaled(optimizer, gradients), 1e9)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        with watch or contextlib.nullcontext():
            for _ in range(STEPS):
                step(tf.ones((8, 4)), tf.fill((8, 1), 2e5))
        return model.get_weights()

    watch = same_with_and_without(train, npu_overflow.overflow_dump)
    first = watch.reports[0].first
    assert (first.op_type, first.origin, first.phase) == ("Cast", "operator", "backward")
    assert first.location == line_of("# compressed")


def training_weights(model: Any) -> None:
    random = np.random.RandomState(3)
    values = [random.uniform(0.5, 1.0, v.shape).astype(v.dtype) for v in model.get_weights()]
    model.set_weights(values)


class Accumulating:
    """Gradients that are added up in variables over some calls, then given to the optimizer."""

    def __init__(self, given: str) -> None:
        import tensorflow as tf

        keras = training.set_up()
        self.tf, self.given = tf, given
        hidden = keras.layers.Dense(16, activation="relu", name="hidden")
        layers = [keras.Input((32,)), hidden, keras.layers.Dense(4, dtype="float32", name="out")]
        self.model = keras.Sequential(layers)
        training_weights(self.model)
        kernel, bias = self.model.get_layer("out").get_weights()
        self.model.get_layer("out").set_weights([1e-3 * kernel, bias])
        self.optimizer = scaling(keras, keras.optimizers.Adam(), initial_scale=64.0)
        zeros = [tf.zeros(v.shape) for v in self.model.trainable_variables]
        self.sums = [tf.Variable(zero, trainable=False) for zero in zeros]

    def add(self, x: Any, y: Any) -> None:
        tf, weights = self.tf, self.model.trainable_variables
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.model(x, training=True) - y))
            loss = scaled(self.optimizer, loss)
        for item, g in zip(self.sums, unscaled(self.optimizer, tape.gradient(loss, weights))):
            item.assign_add(g)

    def apply(self) -> None:
        tensor = self.tf.convert_to_tensor
        given = [item if self.given == "variable" else tensor(item) for item in self.sums]
        self.optimizer.apply_gradients(zip(given, self.model.trainable_variables))
        for item in self.sums:
            item.assign(self.tf.zeros_like(item))


def train_in_one_function(given: str, micro: int, watch: Optional[Any]) -> Any:
    own = Accumulating(given)

    @own.tf.function
    def step(x: Any, y: Any) -> None:
        for part in range(micro):
            own.add(x[part], y[part])
        own.apply()

    run_micro_steps(own, micro, watch, lambda x, y: step(x, y))
    return own.model.get_weights()


def train_in_two_functions(given: str, micro: int, watch: Optional[Any]) -> Any:
    own = Accumulating(given)
    add, apply = own.tf.function(own.add), own.tf.function(own.apply)

    def step(x: Any, y: Any) -> None:
        for part in range(micro):
            add(x[part], y[part])
        apply()

    run_micro_steps(own, micro, watch, step)
    return own.model.get_weights()


def train_eagerly(given: str, micro: int, watch: Optional[Any]) -> Any:
    own = Accumulating(given)

    def step(x: Any, y: Any) -> None:
        for part in range(micro):
            own.add(x[part], y[part])
        own.apply()

    run_micro_steps(own, micro, watch, step)
    return own.model.get_weights()


def run_micro_steps(own: Any, micro: int, watch: Optional[Any], step: Any) -> None:
    random = np.random.RandomState(0)
    with watch or contextlib.nullcontext():
        for _ in range(STEPS):
            x = random.rand(micro, 8, 32).astype(np.float32)
            x[min(1, micro - 1)] *= 6e4
            step(own.tf.constant(x), own.tf.zeros((micro, 8, 4)))


@pytest.mark.parametrize(
    ("given", "micro"),
    [("variable", 1), ("variable", 3), ("tensor", 3)],
    ids=["variable", "variable_earlier", "tensor_earlier"],
)
@pytest.mark.parametrize(
    "train",
    [train_in_one_function, train_in_two_functions, train_eagerly],
    ids=lambda train: train.__name__[6:],
)
def test_gradients_that_were_added_up_in_variables(train: Any, given: str, micro: int) -> None:
    watch = same_with_and_without(
        lambda watch: train(given, micro, watch), npu_overflow.overflow_dump
    )
    assert [report.reason for report in watch.reports[:1]] == [None]
    first = watch.reports[0].first
    assert (first.op_type, first.phase, first.origin) == ("MatMul", "forward", "operator")
    assert "hidden" in training.named(first) and first.verdict == "computed_here"


def test_accumulation_inside_keras() -> None:
    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up()
        layers = keras.layers
        parts = [
            keras.Input((8,)),
            layers.Dense(8, name="a", kernel_initializer="ones"),
            layers.Dense(8, name="hot", kernel_initializer=constant(keras, 4.0)),
            layers.Dense(1, dtype="float32", name="out", kernel_initializer=constant(keras, 1e-4)),
        ]
        model = keras.Sequential(parts)
        inner = {"gradient_accumulation_steps": 4} if hasattr(keras, "ops") else {}
        model.compile(scaling(keras, keras.optimizers.Adam(1e-5, **inner)), "mse")
        x = np.random.RandomState(0).rand(8 * STEPS, 8).astype(np.float32)
        x.reshape(2 * STEPS, 4, 8)[1::4] *= 2000
        y = np.ones((len(x), 1), np.float32)
        callbacks = [watch] if watch else []
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)
        return training.state(model)

    watch = same_with_and_without(train, npu_overflow.OverflowWatch)
    first = watch.reports[0].first
    assert (first.op_type, first.phase, first.origin) == ("MatMul", "forward", "operator")
    assert "hot" in training.named(first)


# --- jacobians and penalties


@pytest.mark.parametrize("way", ["function", "eager", "marked"])
def test_a_jacobian_in_the_loss(way: str) -> None:
    import tensorflow as tf

    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up()
        dense = keras.layers.Dense(
            6, activation="softplus", name="e1", kernel_initializer=constant(keras, 350.0)
        )
        model = keras.Sequential([keras.Input((5,)), dense], name="enc")
        optimizer = scaling(keras, keras.optimizers.Adam(1e-4))

        def step(x: Any) -> None:
            with tf.GradientTape() as tape:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    h = model(x)
                j = inner.batch_jacobian(h, x)
                squares = tf.reduce_sum(tf.square(j), axis=[1, 2])  # the penalty
                loss = tf.reduce_mean(tf.square(tf.cast(tf.sqrt(squares), tf.float32) - 1.0)) * 1e-9
                loss = scaled(optimizer, loss)
            weights = model.trainable_variables
            none = tf.UnconnectedGradients.ZERO
            gradients = tape.gradient(loss, weights, unconnected_gradients=none)
            optimizer.apply_gradients(zip(unscaled(optimizer, gradients), weights))

        run = tf.function(step) if way == "function" else step
        with watch or contextlib.nullcontext() as seen:
            for _ in range(STEPS):
                with seen.step() if way == "marked" and seen else contextlib.nullcontext():
                    run(tf.fill((4, 5), tf.constant(0.01, tf.float16)))
        return model.get_weights()

    watch = same_with_and_without(train, npu_overflow.overflow_dump)
    first = watch.reports[0].first
    assert first.op_type in ("Square", "Sum") and first.phase == "forward"
    assert first.location == line_of("# the penalty")


# --- several models


def test_a_gan_in_fit_with_optimizers_of_its_own() -> None:
    import tensorflow as tf

    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up()
        dense = keras.layers.Dense
        disc = keras.Sequential(
            [
                keras.Input((6,)),
                dense(8, activation="relu", name="d1", kernel_initializer="ones"),
                dense(8, name="d_hot", kernel_initializer=constant(keras, 4000.0)),
                dense(1, name="d_out", kernel_initializer=constant(keras, 1e-4), dtype="float32"),
            ],
            name="disc",
        )
        start = dense(
            6, name="g1", bias_initializer=constant(keras, 5.0), kernel_initializer="zeros"
        )
        gen = keras.Sequential([keras.Input((4,)), start], name="gen")

        class Gan(keras.Model):  # type: ignore[misc, name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.d, self.g = disc, gen

            def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
                super().compile()
                self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

            def call(self, x: Any) -> Any:
                return self.d(x)

            def one(self, optimizer: Any, weights: Any, loss_of: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = loss_of()
                    larger = scaled(optimizer, loss)
                gradients = unscaled(optimizer, tape.gradient(larger, weights))
                optimizer.apply_gradients(zip(gradients, weights))
                return loss

            def train_step(self, data: Any) -> Any:
                real = data[0] if isinstance(data, (tuple, list)) else data
                z = tf.ones((tf.shape(real)[0], 4))

                def bce(y: float, p: Any) -> Any:
                    logits = tf.nn.sigmoid_cross_entropy_with_logits(y * tf.ones_like(p), p)
                    return tf.reduce_mean(logits)

                def loss_d() -> Any:
                    return bce(1.0, self.d(real, training=True)) + bce(
                        0.0, self.d(self.g(z), training=True)
                    )

                d = self.one(self.d_optimizer, self.d.trainable_variables, loss_d)
                g = self.one(
                    self.g_optimizer,
                    self.g.trainable_variables,
                    lambda: bce(1.0, self.d(self.g(z))),
                )
                return {"d_loss": d, "g_loss": g}

        gan = Gan()
        gan(tf.ones((1, 6)))
        gan.compile(
            scaling(keras, keras.optimizers.Adam(1e-5)), scaling(keras, keras.optimizers.Adam(1e-5))
        )
        x = np.random.RandomState(0).rand(8 * STEPS, 6).astype(np.float32) * 1e-3
        gan.fit(x, batch_size=8, shuffle=False, verbose=0, callbacks=[watch] if watch else [])
        return disc.get_weights() + gen.get_weights()

    watch = same_with_and_without(train, npu_overflow.OverflowWatch)
    first = watch.reports[0].first
    assert (first.op_type, first.phase, first.verdict) == ("MatMul", "forward", "computed_here")
    assert "d_hot" in training.named(first)


# --- nothing skips a step


def unguarded(keras: Any, kind: str) -> Any:
    adam = keras.optimizers.Adam
    if kind == "none":
        return adam(1e-4)
    if hasattr(keras, "ops"):  # Keras 3 has a fixed factor of any optimizer
        return adam(1e-4, loss_scale_factor=4.0)
    return scaling(keras, adam(1e-4), dynamic=False, initial_scale=4.0)


@pytest.mark.parametrize("kind", ["none", "fixed"])
@pytest.mark.parametrize("at", [5, 3], ids=["overflows", "healthy"])
def test_a_forced_step_where_nothing_skips_overflows(kind: str, at: int) -> None:
    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up()
        model = training.functional(keras)
        old = {"auto_scale_loss": False} if hasattr(keras, "ops") else {}
        model.compile(unguarded(keras, kind), "mse", **old)
        training.weights(model)
        x, y = training.data(8, [5, 6, 7])
        callbacks = [watch] if watch else []
        model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=callbacks)
        return training.state(model)

    watch = same_with_and_without(train, npu_overflow.OverflowWatch, at_steps=[at], warmup=100)
    firsts = [r.first for r in watch.reports if r.first is not None and r.first.train_step == at]
    names = [(training.named(first).split("/")[-2:], first.origin) for first in firsts]
    assert names == ([(["hot", "MatMul"], "operator")] if at == 5 else [])


def test_an_infinite_loss_with_finite_gradients_is_harmless_and_says_what_absorbed_it() -> None:
    import tensorflow as tf

    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up()
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, name="out")])
        training_weights(model)

        def mae(y: Any, p: Any) -> Any:
            off = tf.abs(tf.cast(y, tf.float16) - tf.cast(p, tf.float16))
            return tf.reduce_mean(off) * tf.constant(1e-3, tf.float16)  # the loss

        sgd = keras.optimizers.SGD(1e-6)
        if hasattr(keras, "ops"):
            model.compile(sgd, mae, auto_scale_loss=False)
        else:
            model.compile(scaling(keras, sgd, dynamic=False, initial_scale=16), mae)
        x = np.random.RandomState(0).rand(4 * STEPS, 4).astype(np.float32)
        y = np.full((len(x), 1), 4e4, np.float32)
        callbacks = [watch] if watch else []
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0, callbacks=callbacks)
        return training.state(model)

    watch = same_with_and_without(train, npu_overflow.OverflowWatch)
    assert watch.reports and {report.reason for report in watch.reports} == {"absorbed"}
    for report in watch.reports:
        assert not [remark for remark in report.remarks if remark.code == "replay.not_reproduced"]
    named = [(op.op_type, op.verdict, op.location) for op in watch.reports[0].operators]
    assert named and all(verdict == "absorbed" for _, verdict, _ in named)
    assert ("Mean", "absorbed", line_of("# the loss")) in named


# --- what overflowed after the culprit


@pytest.mark.parametrize("factor", [0.5, 2.0], ids=["one_origin", "several_origins"])
def test_after_the_culprit_come_the_operators_that_inherited(factor: float) -> None:
    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up()
        x, wide = keras.Input((16,)), keras.initializers.RandomUniform(-16000, 16000, seed=2)
        h = keras.layers.Dense(64, name="a", kernel_initializer=wide)(x)
        h = (
            keras.layers.Rescaling(factor, name="double")(h)
            if hasattr(keras.layers, "Rescaling")
            else h * factor
        )
        out = keras.layers.Dense(
            1, dtype="float32", name="head", kernel_initializer=constant(keras, 0.01)
        )
        model = keras.Model(x, out(h), name="net")
        model.compile(scaling(keras, keras.optimizers.Adam()), "mse")
        x = np.random.RandomState(1).randn(16 * STEPS, 16).astype(np.float32)
        callbacks = [watch] if watch else []
        model.fit(
            x, np.zeros((len(x), 1)), batch_size=16, shuffle=False, verbose=0, callbacks=callbacks
        )
        return training.state(model)

    watch = same_with_and_without(train, npu_overflow.OverflowWatch)
    report = watch.reports[0]
    step = [op for op in report.operators if op.train_step == report.first.train_step]
    assert step[0] is report.first and training.named(report.first).endswith("a/MatMul")
    chain = [op for op in step if op.verdict == "inherited"]
    assert len(chain) >= 4, [(op.op_name, op.verdict) for op in step]
    assert {op.inherited_from for op in chain} <= {op.op_name for op in step} and all(
        op.inherited_from for op in chain
    )
    above = {op.op_name: op.inherited_from for op in chain}
    for name in above:  # each chain ends at what computed its values, the culprit's at the culprit
        while name in above:
            name = above[name]
        assert next(op for op in step if op.op_name == name).verdict == "computed_here"
    assert report.first.op_name in above.values()


# --- what is refused


def drawing(loop: Any, turns: int, iterator: Any) -> Any:
    tf = loop.tf

    @tf.function
    def steps() -> None:
        for _ in tf.range(turns):
            x, y = next(iterator)
            loop.step(x, y)

    return steps


def test_a_function_that_draws_many_steps_inside_is_refused_with_the_cure(capsys: Any) -> None:
    import tensorflow as tf

    turns, calls, hot_from = 4, 6, 16

    def train(watch: Optional[Any]) -> Any:
        loop = test_loops.Loop(training.set_up())
        data = training.data(turns * calls, list(range(hot_from, turns * calls)))
        iterator = iter(tf.data.Dataset.from_tensor_slices(data).batch(training.BATCH))
        steps = drawing(loop, turns, iterator)
        with watch or contextlib.nullcontext():
            for _ in range(calls):
                steps()
        return loop.weights()

    watch = same_with_and_without(train, npu_overflow.overflow_dump, verbose=1, language="en")
    report = watch.reports[0]
    assert report.first is None and report.reason == "replay.draws"
    assert any(
        "steps_per_loop=1" in remark.text and "IteratorGetNext" in remark.text
        for remark in report.remarks
    )
    assert "8 of 24 steps overflowed.\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["py_function", "numpy_function"])
def test_a_python_function_is_not_run_again_and_refused_by_name(name: str) -> None:
    import tensorflow as tf

    ran: List[int] = []

    def python(x: Any) -> Any:
        ran.append(1)
        return x

    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up()

        class Through(keras.layers.Layer):  # type: ignore[misc, name-defined]
            def call(self, x: Any) -> Any:
                made = getattr(tf, name)(python, [x], x.dtype)
                made.set_shape(x.shape)
                return made * tf.constant(6e4, x.dtype) * tf.constant(6e4, x.dtype)

            def compute_output_shape(self, shape: Any) -> Any:
                return shape

        inputs = keras.Input((training.FEATURES,))
        h = Through(name="through")(keras.layers.Dense(6, name="hot")(inputs))
        out = keras.layers.Dense(1, dtype="float32", name="out")
        model = training.compiled(keras.Model(inputs, out(h), name="net"), keras)
        training.weights(model)
        del ran[:]
        x, y = training.data(STEPS, [])
        callbacks = [watch] if watch else []
        model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=callbacks)
        return [*training.state(model), np.array(len(ran))]

    watch = same_with_and_without(train, npu_overflow.OverflowWatch)
    report = watch.reports[0]
    assert report.first is None and report.reason == "replay.python"
    assert "tf.%s" % name in report.remarks[0].text
