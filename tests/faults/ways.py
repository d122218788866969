"""One simple fault, trained in many ways: a product of 100 000 in the layer "hot", or an exponential of 12."""
from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from .kit import BATCH, INF, NAN, Fault, Fit, Hand, Loop, Outcome, Setting, Truth, f16
from .kit import fault as any_fault

START = 4

#: what is tried here is the training: all of it
fault = functools.partial(any_fault, whole=True)


class Planted:
    """The layer "hot" with a kernel of 100, batches of some 0.7 and of some 200, and what is true of it."""

    def __init__(self, s: Setting, path: str = "net/hot/MatMul", **truth: Any) -> None:
        self.s = s
        self.n, self.m = s.size(4), s.size(6)
        self.good = s.uniform((BATCH, self.n))
        self.bad = s.uniform((BATCH, self.n), 150.0, 300.0)
        self._path, self._truth = path, dict({"cured_by_scale": False, "start": START}, **truth)

    def hot(self) -> Any:
        """The layer; in float32 where it is cured."""
        return self.s.dense("hot", np.full((self.n, self.m), 100.0), dtype="float32" if self.s.cured else None)

    def model(self) -> Any:
        """A functional model, not compiled."""
        inputs = self.s.keras.Input((self.n,), name=self.s.name("features"))
        return self.s.model(inputs, self.s.head(self.hot()(self.s.dense("first", np.eye(self.n))(inputs)), 1e-6))

    def fit(self, model: Any, **details: Any) -> Fit:
        """A training of a model that is compiled here if it is not."""
        if getattr(model, "optimizer", None) is None:
            self.s.compile(model)
        return Fit(model, good=self.good, bad=self.bad, start=START, **details)

    def batches(self, count: int = 9) -> List[Any]:
        """Batches of a loop."""
        return [self.s.tf.constant(self.good if i < START else self.bad) for i in range(count)]

    def fault(self, training: Any, check: Optional[Callable[[Outcome], List[str]]] = None) -> Fault:
        """The fault, once everything has its name."""
        kernel = np.full((self.n, self.m), 100.0, np.float16)
        output = f16(f16(self.bad).astype(np.float32) @ kernel.astype(np.float32))
        truth = Truth("MatMul", self.s.path(self._path), element=(0, 0), value=INF, **self._truth)
        return Fault(training, truth, Hand([f16(self.bad), kernel], output), check)


def _scaled_gradients(s: Setting, model: Any, optimizer: Any, loss: Callable[[], Any]) -> Any:
    with s.tf.GradientTape() as tape:
        scaled = s.scaled(optimizer, loss())
    return tape.gradient(scaled, model.trainable_variables)


def _apply(s: Setting, model: Any, optimizer: Any, gradients: Any) -> None:
    optimizer.apply_gradients(zip(s.unscaled(optimizer, gradients), model.trainable_variables))


# --- models of every kind, in fit -------------------------------------------------------------------------------------------------------


@fault("sequential_model")
def _(s: Setting) -> Fault:
    """Sequential."""
    planted = Planted(s)
    layers = [s.keras.Input((planted.n,), name=s.name("features")), s.dense("first", np.eye(planted.n)), planted.hot()]
    out = s.keras.layers.Dense(1, kernel_initializer=s.keras.initializers.Constant(1e-6), use_bias=False, dtype="float32", name=s.name("out"))
    return planted.fault(planted.fit(s.keras.Sequential([*layers, out], name=s.name("net"))))


@fault("subclassed_model")
def _(s: Setting) -> Fault:
    """A subclassed model, built by its first batch."""
    planted = Planted(s)

    class Net(s.keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self, **details: Any) -> None:
            super().__init__(**details)
            self.a, self.b = s.dense("first", np.eye(planted.n)), planted.hot()
            self.c = s.dense("out", np.full((planted.m, 1), 1e-6), dtype="float32")

        def call(self, x: Any) -> Any:
            return self.c(self.b(self.a(x)))

    return planted.fault(planted.fit(Net(name=s.name("net"))))


@fault("nested_models")
def _(s: Setting) -> Fault:
    """A functional model in a Sequential in a functional model."""
    planted = Planted(s, "net/middle/inner/hot/MatMul")
    keras = s.keras
    inside = keras.Input((planted.n,), name=s.name("inside"))
    inner = keras.Model(inside, planted.hot()(inside), name=s.name("inner"))
    middle = keras.Sequential([keras.Input((planted.n,)), s.dense("first", np.eye(planted.n)), inner], name=s.name("middle"))
    inputs = keras.Input((planted.n,), name=s.name("features"))
    return planted.fault(planted.fit(s.model(inputs, s.head(middle(inputs), 1e-6))))


@fault("layer_of_layers_with_raw_operators")
def _(s: Setting) -> Fault:
    """A custom layer that holds layers and exponentiates by itself."""
    tf = s.tf
    n = s.size(4)

    class Block(s.keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self, **details: Any) -> None:
            super().__init__(**details)
            self.inner = s.dense("first", np.eye(n))

        def build(self, shape: Any) -> None:
            self.inner.build(shape)
            self.built = True

        def call(self, x: Any) -> Any:
            h = self.inner(x)
            return tf.exp(tf.minimum(h, 5.0) if s.cured else h) * 1e-3

    inputs = s.keras.Input((n,), name=s.name("features"))
    model = s.compile(s.model(inputs, s.head(Block(name=s.name("hot"))(inputs))))
    good, place = s.uniform((BATCH, n)), s.at(BATCH, n)
    bad = good.copy()
    bad[place] = 12.0
    truth = Truth("Exp", s.path("net/hot/Exp"), element=place, value=INF, start=START, cured_by_scale=False, advice="exponent")
    with np.errstate(over="ignore"):
        return Fault(Fit(model, good=good, bad=bad, start=START), truth, Hand([f16(bad)], np.exp(f16(bad))))


@fault("custom_train_step")
def _(s: Setting) -> Fault:
    """A train_step of the user's own that scales the loss by itself."""
    tf = s.tf
    planted = Planted(s)

    class Net(s.keras.Model):  # type: ignore[misc, name-defined]
        def train_step(self, data: Any) -> Dict[str, Any]:
            x, y = data
            loss = []

            def of_batch() -> Any:
                loss.append(tf.reduce_mean(tf.square(self(x, training=True) - y)))
                return loss[0]

            _apply(s, self, self.optimizer, _scaled_gradients(s, self, self.optimizer, of_batch))
            return {"loss": loss[0]}

    plain = planted.model()
    return planted.fault(planted.fit(Net(plain.inputs, plain.outputs, name=s.name("net"))))


@fault("two_outputs_two_losses")
def _(s: Setting) -> Fault:
    """Two outputs with a loss each; the overflow is on the way to the second only."""
    planted = Planted(s)
    inputs = s.keras.Input((planted.n,), name=s.name("features"))
    h = s.dense("first", np.eye(planted.n))(inputs)
    second = s.keras.layers.Dense(1, kernel_initializer=s.keras.initializers.Constant(1e-6), use_bias=False, dtype="float32", name=s.name("second"))
    model = s.compile(s.model(inputs, [s.head(h), second(planted.hot()(h))]), ["mse", "mae"])
    zeros = np.zeros((BATCH, 1), np.float32)
    return planted.fault(planted.fit(model, targets=[zeros, zeros] if s.keras3 else (zeros, zeros)))


# --- options of compile and fit -----------------------------------------------------------------------------------------------------------


@fault("steps_per_execution", numerics="leaves out the loop and the branch around the call (Keras 3)")
def _(s: Setting) -> Fault:
    """Four steps a call: the scale falls four times within one."""
    planted = Planted(s, "while/cond/net/hot/MatMul" if s.keras3 else "while/net/hot/MatMul", falls=False)
    model = s.compile(planted.model(), steps_per_execution=4)

    def check(outcome: Outcome) -> List[str]:
        falls = outcome.drops and 4 <= outcome.drops[0][0] < 8 and outcome.drops[0][2] == 1.0
        return [] if falls else ["the scale was to fall to 1 in the second call, its falls: %s" % outcome.drops]

    return planted.fault(planted.fit(model, steps=12), check)


@fault("run_eagerly", numerics="gives eager operators no name")
def _(s: Setting) -> Fault:
    """The training itself runs eagerly."""
    planted = Planted(s, eager=True)
    details = {} if s.version < (2, 12) else {"jit_compile": False}
    model = planted.model()
    model.compile(s.optimizer(), "mse", run_eagerly=True, **details)
    return planted.fault(planted.fit(model))


@fault("jit_compile", versions=">=2.12", numerics="can't be compiled by XLA")
def _(s: Setting) -> Fault:
    """The training is compiled by XLA."""
    planted = Planted(s)
    return planted.fault(planted.fit(s.compile(planted.model(), jit_compile=True)))


class _Twice(Fit):
    """One fit that is healthy, then one that is not, under the same watch."""

    def __init__(self, first: Fit, second: Fit) -> None:
        self._fits = first, second

    def run(self, callbacks: Sequence[Any] = ()) -> None:
        for fit in self._fits:
            fit.run(callbacks)


@fault("fit_twice")
def _(s: Setting) -> Fault:
    """A healthy fit, then one with the fault from its step 4 on: steps are counted anew."""
    planted = Planted(s)
    model = s.compile(planted.model())
    return planted.fault(_Twice(Fit(model, good=planted.good), planted.fit(model)))


class _Dataset(Fit):
    """``fit`` over a tf.data pipeline, with validation and several epochs."""

    def __init__(self, s: Setting, model: Any, batches: List[Any]) -> None:
        self._s, self.model, self._batches = s, model, batches

    def run(self, callbacks: Sequence[Any] = ()) -> None:
        x = np.concatenate(self._batches)
        data = self._s.tf.data.Dataset.from_tensor_slices((x, np.zeros((len(x), 1), np.float32))).batch(BATCH).prefetch(2)
        self.model.fit(data, validation_data=data.take(1), epochs=2, verbose=0, callbacks=list(callbacks))


@fault("pipeline_with_validation")
def _(s: Setting) -> Fault:
    """A tf.data pipeline, validation after each epoch, the fault in every epoch."""
    planted = Planted(s)
    return planted.fault(_Dataset(s, s.compile(planted.model()), [planted.good] * START + [planted.bad] * 4))


# --- loops ----------------------------------------------------------------------------------------------------------------------------------


@fault("train_on_batch")
def _(s: Setting) -> Fault:
    """train_on_batch inside overflow_dump."""
    planted = Planted(s)
    model = s.compile(planted.model())
    targets = np.zeros((BATCH, 1), np.float32)

    def run() -> None:
        for x in planted.batches():
            model.train_on_batch(x.numpy(), targets)

    return planted.fault(Loop(run))


def _one_loss(s: Setting, model: Any, x: Any) -> Callable[[], Any]:
    return lambda: s.tf.reduce_mean(s.tf.square(model(x, training=True)))


@fault("loop_of_one_function")
def _(s: Setting) -> Fault:
    """The whole step in one tf.function."""
    planted = Planted(s)
    model, optimizer = planted.model(), s.optimizer()

    def step(x: Any) -> None:
        _apply(s, model, optimizer, _scaled_gradients(s, model, optimizer, _one_loss(s, model, x)))

    def run() -> None:
        compiled = s.tf.function(step)
        for x in planted.batches():
            compiled(x)

    return planted.fault(Loop(run))


@fault("loop_of_several_functions")
def _(s: Setting) -> Fault:
    """One tf.function for the gradients, one that scales them, one that applies them."""
    tf = s.tf
    planted = Planted(s)
    model, optimizer = planted.model(), s.optimizer()

    def run() -> None:
        gradients = tf.function(lambda x: _scaled_gradients(s, model, optimizer, _one_loss(s, model, x)))
        halve = tf.function(lambda given: [0.5 * gradient for gradient in given])
        apply = tf.function(lambda given: _apply(s, model, optimizer, given))
        for x in planted.batches():
            apply(halve(gradients(x)))

    return planted.fault(Loop(run))


@fault("loop_without_functions", numerics="gives eager operators no name")
def _(s: Setting) -> Fault:
    """A loop without any tf.function, its steps marked with watch.step()."""
    planted = Planted(s, eager=True)
    model, optimizer = planted.model(), s.optimizer()

    def run(watch: Any) -> None:
        for x in planted.batches():
            with watch.step() if watch is not None else contextlib.ExitStack():
                _apply(s, model, optimizer, _scaled_gradients(s, model, optimizer, _one_loss(s, model, x)))

    return planted.fault(Loop(run))


@fault("loop_over_an_iterator")
def _(s: Setting) -> Fault:
    """A tf.function that draws its batch from the iterator it is given."""
    tf = s.tf
    planted = Planted(s)
    model, optimizer = planted.model(), s.optimizer()

    def step(iterator: Any) -> None:
        x = next(iterator)
        _apply(s, model, optimizer, _scaled_gradients(s, model, optimizer, _one_loss(s, model, x)))

    def run() -> None:
        compiled = tf.function(step)
        iterator = iter(tf.data.Dataset.from_tensor_slices(tf.concat(planted.batches(), 0)).batch(BATCH))
        for _ in range(9):
            compiled(iterator)

    return planted.fault(Loop(run))


@fault("gradient_accumulation")
def _(s: Setting) -> Fault:
    """Three calls that add up gradients in variables, a fourth that applies them; the second of three overflows."""
    tf = s.tf
    planted = Planted(s)
    model, optimizer = planted.model(), s.optimizer()
    sums = [tf.Variable(tf.zeros(variable.shape), trainable=False) for variable in model.trainable_variables]

    def add(x: Any) -> None:
        for total, gradient in zip(sums, _scaled_gradients(s, model, optimizer, _one_loss(s, model, x))):
            total.assign_add(gradient)

    def apply() -> None:
        _apply(s, model, optimizer, [total / 3.0 for total in sums])
        for total in sums:
            total.assign(tf.zeros(total.shape))

    def run() -> None:
        adds, applies = tf.function(add), tf.function(apply)
        good = tf.constant(planted.good)
        for x in planted.batches():
            for part in (good, x, good):
                adds(part)
            applies()

    return planted.fault(Loop(run))


@fault("two_optimizers")
def _(s: Setting) -> Fault:
    """A GAN: generator and critic with a loss-scale optimizer each; the critic overflows on the real data."""
    tf = s.tf
    keras = s.keras
    planted = Planted(s, "critic/hot/MatMul")
    noise = keras.Input((3,), name=s.name("noise"))
    generator = s.model(noise, s.dense("made", s.uniform((3, planted.n), 0.1, 0.2))(noise), "generator")
    inputs = keras.Input((planted.n,), name=s.name("features"))
    critic = s.model(inputs, s.head(planted.hot()(s.dense("first", np.eye(planted.n))(inputs)), 1e-6), "critic")
    of_critic, of_generator = s.optimizer(), s.optimizer()
    seed = s.uniform((BATCH, 3))

    def step(x: Any) -> None:
        made = generator(seed, training=True)
        loss = lambda: tf.reduce_mean(critic(x, training=True)) - tf.reduce_mean(critic(made, training=True))  # noqa: E731
        _apply(s, critic, of_critic, _scaled_gradients(s, critic, of_critic, loss))
        fooled = lambda: -tf.reduce_mean(critic(generator(seed, training=True), training=True))  # noqa: E731
        _apply(s, generator, of_generator, _scaled_gradients(s, generator, of_generator, fooled))

    def run() -> None:
        compiled = tf.function(step)
        for x in planted.batches():
            compiled(x)

    return planted.fault(Loop(run))


# --- without a loss scale that moves --------------------------------------------------------------------------------------------------------


def _unscaled(s: Setting) -> Dict[str, Any]:
    return {"auto_scale_loss": False} if s.keras3 else {}  # Keras 3 would put a loss scale around any optimizer


@fault("fixed_loss_scale", options={"at_steps": (5,)})
def _(s: Setting) -> Fault:
    """A fixed loss scale skips no step; step 5 is asked for, the first with the fault."""
    planted = Planted(s, falls=False, start=5, cured_by_scale=None)
    keras = s.keras
    if s.keras3:
        optimizer = keras.optimizers.SGD(1e-12, loss_scale_factor=16.0)
    else:
        optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1e-12), dynamic=False, initial_scale=16.0)
    model = s.compile(planted.model(), optimizer=optimizer, **_unscaled(s))
    return planted.fault(Fit(model, good=planted.good, bad=planted.bad, start=5))


@fault("no_loss_scale", options={"at_steps": (5,)}, policy="float16")
def _(s: Setting) -> Fault:
    """Plain float16 without a loss scale; step 5 is asked for, the first with the fault."""
    planted = Planted(s, falls=False, start=5, cured_by_scale=None)
    model = s.compile(planted.model(), optimizer=s.keras.optimizers.SGD(1e-12), **_unscaled(s))
    return planted.fault(Fit(model, good=planted.good, bad=planted.bad, start=5))


@fault("no_loss_scale_weights_lost", policy="float16", numerics="blames the product, which ran in a step that nobody looked at")
def _(s: Setting) -> Fault:
    """The same, and no step asked for: the weights are lost (the rate is 0 in float16, 0 * Inf is NaN). That is said, and since when."""
    planted = Planted(s)
    model = s.compile(planted.model(), optimizer=s.keras.optimizers.SGD(1e-12), **_unscaled(s))
    truth = Truth("MatMul", s.path("net/first/MatMul"), origin="variable", element=(0, 0), value=NAN, start=START + 1, falls=False,
                  source=s.path("first/kernel"))

    def check(outcome: Outcome) -> List[str]:
        lost = [remark for report in outcome.reports for remark in report.remarks if remark.code == "host.weights_lost"]
        return [] if lost and str(START) in lost[0].text else ["nothing said of lost weights: %s" % [remark.text for remark in lost]]

    return Fault(planted.fit(model), truth, None, check)


def _exponential(s: Setting) -> Fault:
    n = s.size(4)
    good, place = s.uniform((BATCH, n)), s.at(BATCH, n)
    bad = good.copy()
    bad[place] = 100.0
    tf = s.tf
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.layer("hot", lambda x: tf.exp(tf.minimum(x, 8.0) if s.cured else x))(s.dense("first", np.eye(n))(inputs))
    model = s.compile(s.model(inputs, s.head(h, 1e-30)), optimizer=s.keras.optimizers.SGD(1e-9), **_unscaled(s))
    truth = Truth("Exp", s.path("net/hot/Exp"), element=place, value=INF, start=START, falls=False)
    with np.errstate(over="ignore"):
        return Fault(Fit(model, good=good, bad=bad, start=START), truth, Hand([bad], np.exp(bad.astype(np.float32))))


@fault("float32", options={"at_steps": (START,)}, policy="float32")
def _(s: Setting) -> Fault:
    """exp(100) in float32."""
    return _exponential(s)


@fault("bfloat16", options={"at_steps": (START,)}, policy="mixed_bfloat16")
def _(s: Setting) -> Fault:
    """exp(100) in bfloat16, which has float32's range."""
    return _exponential(s)


# --- another Keras, several replicas ----------------------------------------------------------------------------------------------------------


@fault("tf_keras", versions=">=2.16")
def _(s: Setting) -> Fault:
    """The Keras 2 that TensorFlow 2.16 and later keep as tf_keras."""
    import tf_keras

    s.keras, s.keras3 = tf_keras, False
    tf_keras.backend.clear_session()
    tf_keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        planted = Planted(s)
        return planted.fault(planted.fit(planted.model()))
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")


class Apart:
    """A training under MirroredStrategy on two CPU devices, in a process of its own: devices are split before TensorFlow starts.

    Args:
        replica: the one whose half of the batch overflows.
    """

    def __init__(self, s: Setting, replica: int) -> None:
        self._task = {"replica": replica, "seed": s.seed, "cured": s.cured}

    def train(self, **options: Any) -> Outcome:
        """Train in the other process under watch."""
        from npu_overflow.report.model import Report

        said = self._child(dict(self._task, options=options))
        answer = next((json.loads(line[1:]) for line in said.splitlines() if line.startswith("@")), None)
        if answer is None:
            return Outcome([], [], "died", said[-3000:], "")
        reports = [Report.from_json(report) for report in answer["reports"]]
        return Outcome(reports, [tuple(drop) for drop in answer["drops"]], answer["state"], answer["said"], "")

    def run(self) -> None:
        """Train in the other process."""
        self._child(self._task)

    def _child(self, task: Dict[str, Any]) -> str:
        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        places = os.pathsep.join([folder, os.path.dirname(folder)])
        given = dict(os.environ, PYTHONPATH=places, TF_CPP_MIN_LOG_LEVEL="3")
        command = [sys.executable, "-m", "faults.mirrored", json.dumps(task)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=given, check=False)
        return done.stdout.decode(errors="replace")


_APART = "is not tried in a process of its own"


def _mirrored(s: Setting, replica: int, **truth: Any) -> Tuple[Planted, Apart]:
    from .mirrored import planted

    return planted(s, "net/hot/MatMul" if replica == 0 else "replica_1/net/hot/MatMul", **truth), Apart(s, replica)


@fault("first_replica", numerics=_APART)
def _(s: Setting) -> Fault:
    """MirroredStrategy, the first replica's half of the batch overflows."""
    planted, training = _mirrored(s, 0)
    return planted.fault(training)


@fault("second_replica", numerics=_APART, versions="<2.16")
def _(s: Setting) -> Fault:
    """MirroredStrategy, the second replica's half of the batch overflows."""
    planted, training = _mirrored(s, 1)
    return planted.fault(training)


@fault("second_replica_poisons", numerics=_APART, versions=">=2.16")
def _(s: Setting) -> Fault:
    """The same in Keras 3, which asks only the first replica: the weights are lost (w - rate * Inf), and that is said."""
    planted, training = _mirrored(s, 1, falls=False)

    def check(outcome: Outcome) -> List[str]:
        return [] if any(remark.code == "host.weights_lost" for report in outcome.reports for remark in report.remarks) else ["nothing said of lost weights"]

    built = planted.fault(training, check)
    built.truth = Truth("Cast", s.path("net/first/Cast/Cast"), origin="variable", element=(0, 0), value=-INF, start=START + 1, falls=False,
                        source=s.path("first/kernel"))
    built.hand = None
    return built


@fault("second_replica_asked_for", numerics=_APART, versions=">=2.16", options={"at_steps": (START,)})
def _(s: Setting) -> Fault:
    """The same, asked for in the step in which it happens: then it is the operator."""
    planted, training = _mirrored(s, 1, falls=False)
    return planted.fault(training)
