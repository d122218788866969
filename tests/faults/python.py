"""Faults in code that Python and TensorFlow share: branches and loops that AutoGraph rewrites, losses and gradients of the user's own, layers with effects,
and loops that end their steps in Python, outside every tf.function."""
from __future__ import annotations

import contextlib
import linecache
import random
from pathlib import Path
from typing import Any, Callable, List, Optional

import numpy as np

from .forward import hot_batch, planted, quiet
from .kit import BATCH, INF, Fault, Fit, Hand, Loop, Outcome, Setting, Steps, Truth, f16, fault
from .parts import Between, of_optimizer

START = 4
STEPS = 10


def on_line(text: str) -> Callable[[Outcome], List[str]]:
    """A check that the operator's line holds ``text``: it is in this file, and neither the line of a call nor one of generated code."""

    def check(outcome: Outcome) -> List[str]:
        first = outcome.reports[0].first if outcome.reports else None
        name, _, line = str(first and first.location).rpartition(":")
        found = linecache.getline(__file__, int(line)) if line.isdigit() and Path(name).name == Path(__file__).name else ""
        return [] if text in found else ["line: expected %r, got %s: %r" % (text, first and first.location, found.strip())]

    return check


class _Training:
    """A kernel (identity), its optimizer, and a gradient of whatever ``forward`` makes of their product, as users write them."""

    def __init__(self, s: Setting, n: int, forward: Callable[[Any], Any], scaled: bool = True) -> None:
        self.tf, self._s, self._forward = s.tf, s, forward
        self.kernel = s.tf.Variable(np.eye(n, dtype=np.float32), name=s.name("kernel"))
        self.optimizer = s.optimizer(16.0 if scaled else None)
        if hasattr(self.optimizer, "build"):
            self.optimizer.build([self.kernel])

    def gradients(self, x: Any, scale: Optional[Any] = None) -> Any:
        tf = self.tf
        with tf.GradientTape() as tape:
            y = self._forward(tf.matmul(tf.cast(x, tf.float16), tf.cast(self.kernel, tf.float16)))
            loss = 1e-6 * tf.reduce_mean(tf.square(tf.cast(y, tf.float32)))
            loss = self._s.scaled(self.optimizer, loss) if scale is None else loss * scale
        return tape.gradient(loss, [self.kernel])

    def apply(self, gradients: Any) -> None:
        self.optimizer.apply_gradients(zip(self._s.unscaled(self.optimizer, gradients), [self.kernel]))


def _batches(s: Setting, bad: Any) -> List[Any]:
    good = s.uniform(bad.shape)
    return [s.tf.constant(good if step < START else bad) for step in range(STEPS)]


def _rewritten(s: Setting, forward: Callable[[Any], Any], op_type: str, op_name: str, bad: Any, hand: Hand, line: str) -> Fault:
    """One tf.function that AutoGraph rewrites."""
    training = _Training(s, bad.shape[1], forward)
    steps = Steps(s, lambda x: training.apply(training.gradients(x)), _batches(s, bad), training.optimizer)
    return Fault(steps, Truth(op_type, op_name, value=INF, start=START), hand, check=on_line(line))


# --- what AutoGraph rewrites --------------------------------------------------------------------------------------------------------------


@fault("branch_that_autograph_rewrites")
def _(s: Setting) -> Fault:
    """``if`` on a tensor: in the graph it is a tf.cond, and so are its names."""
    tf, bad, gain = s.tf, hot_batch(s, 300.0), 0.01 if s.cured else 1.0

    def forward(h: Any) -> Any:
        if tf.reduce_max(h) > 100.0:
            h = tf.square(h * gain)
        return h

    return _rewritten(s, forward, "Square", "cond/Square", bad, Hand([f16(bad)], quiet(np.square, f16(bad))), "tf.square(h * gain)")


@fault("loop_that_autograph_rewrites")
def _(s: Setting) -> Fault:
    """``for`` over tf.range: 20 is multiplied by 20 until it is 160 000."""
    tf, bad = s.tf, hot_batch(s, 20.0)

    def forward(h: Any) -> Any:
        product, h = h, h * 0.1 if s.cured else h
        for _ in tf.range(3):
            product = tf.multiply(product, h, name="power")
        return product

    cube = f16(bad) * f16(bad) * f16(bad)
    return _rewritten(s, forward, "Mul", "while/power", bad, Hand([cube, f16(bad)], quiet(np.multiply, cube, f16(bad))), "tf.multiply(product, h")


@fault("while_that_autograph_rewrites")
def _(s: Setting) -> Fault:
    """``while`` on a tensor, with a ``break``: what follows it lies in a branch."""
    tf, bad, most = s.tf, hot_batch(s, 300.0), 200.0 if s.cured else 60000.0

    def forward(h: Any) -> Any:
        count = tf.constant(0)
        while tf.reduce_max(h) < most:
            if count >= 9:
                break
            h = tf.square(h, name="again")
            count += 1
        return h * 0.01

    # features below 1 get smaller all along; the hot one is squared once too often
    return _rewritten(s, forward, "Square", "while/cond_1/again", bad, Hand([f16(bad)], quiet(np.square, f16(bad))), "tf.square(h, name=")


@fault("rows_that_autograph_loops_over")
def _(s: Setting) -> Fault:
    """``for row in tensor``: each row is squared on its own."""
    tf, bad, gain = s.tf, hot_batch(s, 300.0), 0.01 if s.cured else 1.0
    n = bad.shape[1]

    def forward(h: Any) -> Any:
        total = tf.zeros([n], tf.float16)
        for row in h:
            total = total + tf.square(row * gain)
        return total

    row = f16(bad)[bad.max(axis=1).argmax()]
    return _rewritten(s, forward, "Square", "while/Square", bad, Hand([row], quiet(np.square, row)), "tf.square(row * gain)")


@fault("layer_that_autograph_rewrites")
def _(s: Setting) -> Fault:
    """A layer with an ``if`` on a tensor: Keras 2 lets AutoGraph rewrite it. Keras 3 does not, so there it asks tf.cond itself."""
    tf, bad, gain, asks = s.tf, hot_batch(s, 300.0), 0.01 if s.cured else 1.0, s.keras3

    class Branching(s.keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, inputs: Any) -> Any:
            if asks:
                return tf.cond(tf.reduce_max(inputs) > 100.0, lambda: tf.square(inputs * gain), lambda: inputs * 0.5)
            if tf.reduce_max(inputs) > 100.0:
                inputs = tf.square(inputs * gain)
            return inputs

    inputs = s.keras.Input((bad.shape[1],), name=s.name("features"))
    h = Branching(name=s.name("hot"))(s.dense("first", np.eye(bad.shape[1]))(inputs))
    model = s.compile(s.model(inputs, s.head(h, 1e-6)))
    truth = Truth("Square", s.path("net/hot/cond/Square"), value=INF, start=START)
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=START), truth, Hand([f16(bad)], quiet(np.square, f16(bad))),
                 check=on_line("tf.square(inputs * gain)"))


@fault("branch_of_switch_case")
def _(s: Setting) -> Fault:
    """One of several branches of tf.switch_case."""
    tf, bad = s.tf, hot_batch(s, 300.0)

    def body(x: Any) -> Any:
        index = tf.cast(tf.reduce_max(x) > 100.0, tf.int32)
        return tf.switch_case(index, [lambda: x * 0.5, lambda: tf.square(x * (0.01 if s.cured else 1.0))])

    return planted(s, body, "Square", "switch_case/indexed_case/Square", bad, quiet(np.square, f16(bad)))


@fault("loss_of_the_users_own")
def _(s: Setting) -> Fault:
    """A loss function that AutoGraph rewrites, although nothing in it needs to: the line is the user's, not one of the rewritten code."""
    tf, bad = s.tf, hot_batch(s, 12.0)

    def loss(y: Any, prediction: Any) -> Any:
        hot = tf.cast(prediction, tf.float32 if s.cured else tf.float16)
        return tf.reduce_mean(tf.cast(tf.exp(hot, name="loud"), tf.float32)) * 1e-3

    n = bad.shape[1]
    inputs = s.keras.Input((n,), name=s.name("features"))
    model = s.compile(s.model(inputs, s.dense("first", np.eye(n))(inputs)), loss)
    path = "compile_loss/loss/loud" if s.keras3 else "loss/loud"  # each Keras has a scope of its own for losses
    truth = Truth("Exp", path, value=INF, start=START, advice="exponent")
    training = Fit(model, good=s.uniform(bad.shape), bad=bad, start=START, targets=np.zeros((BATCH, n), np.float32))
    return Fault(training, truth, Hand([f16(bad)], quiet(np.exp, f16(bad))), check=on_line('tf.exp(hot, name="loud")'))


@fault("line_of_a_custom_gradient")
def _(s: Setting) -> Fault:
    """A custom gradient divides by a feature of 0: the line to mend is in the gradient, not where it is called."""
    tf, bad, floor = s.tf, hot_batch(s, 0.0), 0.1 if s.cured else 0.0

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def logarithmic(x: Any) -> Any:
        def backward(dy: Any) -> Any:
            return dy / tf.maximum(x, tf.cast(floor, x.dtype))

        return tf.identity(x), backward

    fault_ = planted(s, lambda x: logarithmic(x * 1.0), "RealDiv", "truediv", bad, quiet(np.divide, np.ones_like(f16(bad)), f16(bad)), [f16(bad)],
                     value=INF, phase="backward", out=1.0)
    fault_.truth.op_name = of_optimizer(s, "truediv")
    fault_.check = on_line("dy / tf.maximum(")
    return fault_


# --- nothing of the user's runs twice -----------------------------------------------------------------------------------------------------


def _counted(s: Setting, each: int, **compiled: Any) -> Fault:
    """A layer that notes its calls and draws from Python's generator: ``each`` calls a step, in those that are collected too."""
    bad, calls, before = hot_batch(s, 12.0), [], []  # type: Any, List[float], List[int]

    def body(x: Any) -> Any:
        calls.append(random.random())
        return s.tf.exp(s.tf.minimum(x, 8.0) if s.cured else x)

    model = s.compile(s.net(bad.shape[1], body, 1e-6), **compiled)
    training = Between(s, model, lambda step: before.append(len(calls)), good=s.uniform(bad.shape), bad=bad, start=START)

    def check(outcome: Outcome) -> List[str]:
        counts = [*before[1:], len(calls)]
        return [] if all(b - a == each for a, b in zip(counts, counts[1:])) else ["calls by the end of each step: %s" % counts]

    truth = Truth("Exp", s.path("net/hot/Exp"), value=INF, start=START, advice="exponent", eager=each > 0)
    return Fault(training, truth, Hand([f16(bad)], quiet(np.exp, f16(bad))), check)


@fault("layer_that_counts_its_calls", whole=True)
def _(s: Setting) -> Fault:
    """A layer with effects of its own, compiled: it is traced, and never called again."""
    return _counted(s, 0)


@fault("layer_that_counts_its_calls_eagerly", whole=True, numerics="gives eager operators no name")
def _(s: Setting) -> Fault:
    """The same run eagerly: called once a step, in collected steps too."""
    return _counted(s, 1, run_eagerly=True)


# --- steps that end in Python -------------------------------------------------------------------------------------------------------------


def _square(s: Setting) -> Callable[[Any], Any]:
    return lambda h: s.tf.square(h * (0.01 if s.cured else 1.0), name="hot")


def _ending(s: Setting, train: Callable[[_Training, List[Any], Any], None], falls: bool = True, scaled: bool = True) -> Fault:
    bad = hot_batch(s, 300.0)
    training, batches = _Training(s, bad.shape[1], _square(s), scaled), _batches(s, bad)

    def run(watch: Any) -> None:
        train(training, batches, watch)

    truth = Truth("Square", "hot", value=INF, start=START, cured_by_scale=False if scaled else None)
    return Fault(Loop(run), truth, Hand([f16(bad)], quiet(np.square, f16(bad))), check=on_line('name="hot"'))


@fault("gradients_applied_in_python", whole=True)
def _(s: Setting) -> Fault:
    """A tf.function gives the gradients; they are halved and applied in Python, between functions that have nothing to do with it."""

    def train(training: _Training, batches: List[Any], watch: Any) -> None:
        gradients, look = s.tf.function(training.gradients), s.tf.function(lambda x: s.tf.reduce_mean(x))
        for x in batches:
            found = gradients(x)
            look(x)
            training.apply([gradient / 2.0 for gradient in found])
            look(x)

    return _ending(s, train)


@fault("function_in_a_marked_step", whole=True)
def _(s: Setting) -> Fault:
    """The same inside ``with watch.step()``: what happens in place is a call of a function, so the function is looked into."""

    def train(training: _Training, batches: List[Any], watch: Any) -> None:
        gradients = s.tf.function(training.gradients)
        for x in batches:
            with watch.step() if watch is not None else contextlib.nullcontext():
                training.apply(gradients(x))

    return _ending(s, train)


@fault("loss_scale_by_hand", whole=True)
def _(s: Setting) -> Fault:
    """No loss-scale optimizer: the user scales, skips and halves, and tells the watch how each step went."""

    def train(training: _Training, batches: List[Any], watch: Any) -> None:
        gradients, scale = s.tf.function(training.gradients), 1024.0
        for x in batches:
            found = gradients(x, s.tf.constant(scale))
            finite = bool(s.tf.reduce_all(s.tf.math.is_finite(found[0])))
            if finite:
                training.optimizer.apply_gradients([(found[0] / scale, training.kernel)])
            else:
                scale /= 2
            if watch is not None:
                watch.step(loss_scale=scale, finite=finite)

    return _ending(s, train, scaled=False)


@fault("loss_scale_in_a_variable", whole=True)
def _(s: Setting) -> Fault:
    """The same in one tf.function, with an ``if`` around the optimizer: an overflowing step gives it nothing."""
    tf = s.tf

    def train(training: _Training, batches: List[Any], watch: Any) -> None:
        scale = tf.Variable(1024.0, trainable=False)

        @tf.function  # type: ignore[untyped-decorator, unused-ignore]
        def step(x: Any) -> Any:
            found = training.gradients(x, scale)
            finite = tf.reduce_all(tf.math.is_finite(found[0]))
            if finite:
                training.optimizer.apply_gradients([(found[0] / scale, training.kernel)])
            else:
                scale.assign(scale / 2.0)
            return finite

        for x in batches:
            finite = step(x)
            if watch is not None:
                watch.step(loss_scale=float(scale), finite=bool(finite))

    return _ending(s, train, scaled=False)
