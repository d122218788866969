"""Faults of the backward pass: the forward pass is finite (or harmless), a gradient is not."""
from __future__ import annotations

from typing import Any, Callable, Optional, Tuple

import numpy as np

from .kit import BATCH, INF, Fault, Fit, Hand, Setting, Steps, Truth, f16, fault
from .parts import LAST_SCALE, of_optimizer, slope, summed, weighted

START = 4


def _net(s: Setting, body: Callable[[Any], Any], good: Any, bad: Any, out: float = 1e-2, **details: Any) -> Fit:
    """A training of ``Setting.net`` under the loss with the known slope."""
    n = np.shape(good)[1]
    return Fit(s.compile(s.net(n, body, out, **details), summed(s)), good=good, bad=bad, start=START)


def _features(s: Setting, value: float, low: float = 0.5, high: float = 1.0, n: int = 4) -> Tuple[Any, Any, Tuple[int, ...]]:
    """A harmless batch, one with ``value`` in one place, and the place."""
    n = s.size(n)
    good = s.uniform((BATCH, n), low, high)
    bad, place = good.copy(), s.at(BATCH, n)
    bad[place] = value
    return good, bad, place


# --- derivatives that do not exist --------------------------------------------------------------------------------------------------


@fault("sqrt_gradient_at_zero")
def _(s: Setting) -> Fault:
    """sqrt(0) is 0, its derivative 0.5 / 0."""
    good, bad, place = _features(s, 0.0)
    training = _net(s, lambda x: s.tf.sqrt(x + 1e-3 if s.cured else x), good, bad)
    truth = Truth("SqrtGrad", s.path("gradient_tape/net/hot/SqrtGrad"), "backward", element=place, value=INF, start=START, cured_by_scale=False,
                  forward_op=s.path("net/hot/Sqrt"))
    y, dy = np.sqrt(f16(bad)), slope(1e-2)
    with np.errstate(divide="ignore"):
        return Fault(training, truth, Hand([y, dy], dy * f16(0.5) / y))


@fault("norm_gradient_at_zero")
def _(s: Setting) -> Fault:
    """The Euclidean norm of a row of zeros."""
    n = s.size(4)
    good = s.uniform((BATCH, n))
    bad, row = good.copy(), s.at(BATCH)[0]
    bad[row] = 0.0

    def body(x: Any) -> Any:
        return s.tf.sqrt(s.tf.reduce_sum(x * x, axis=-1, keepdims=True) + 1e-3) if s.cured else s.tf.norm(x, axis=-1, keepdims=True)

    training = _net(s, body, good, bad)
    truth = Truth("SqrtGrad", s.path("gradient_tape/net/hot/norm/SqrtGrad"), "backward", element=(row, 0), value=INF, start=START, cured_by_scale=False)
    y, dy = f16(np.sqrt((f16(bad) ** 2).sum(-1, keepdims=True))), slope(1e-2)
    with np.errstate(divide="ignore"):
        return Fault(training, truth, Hand([y, dy], dy * f16(0.5) / y))


@fault("pow_gradient_at_zero")
def _(s: Setting) -> Fault:
    """x ** 0.5 at 0: the derivative 0.5 * x ** -0.5."""
    good, bad, place = _features(s, 0.0)
    training = _net(s, lambda x: s.tf.pow(s.tf.maximum(x, 1e-3) if s.cured else x, 0.5), good, bad)
    truth = Truth("Pow", s.path("gradient_tape/net/hot/Pow/Pow"), "backward", element=place, value=INF, start=START, cured_by_scale=False)
    with np.errstate(divide="ignore"):
        return Fault(training, truth, Hand([f16(bad), f16(-0.5)], f16(bad) ** f16(-0.5)))


@fault("std_gradient_of_a_constant_row")
def _(s: Setting) -> Fault:
    """The standard deviation of equal values: a square root at 0."""
    n = s.size(4)
    good = s.uniform((BATCH, n))
    bad, row = good.copy(), s.at(BATCH)[0]
    bad[row] = 0.5

    def body(x: Any) -> Any:
        if s.cured:
            return s.tf.sqrt(s.tf.math.reduce_variance(x, axis=-1, keepdims=True) + 1e-3)
        return s.tf.math.reduce_std(x, axis=-1, keepdims=True)

    training = _net(s, body, good, bad)
    truth = Truth("SqrtGrad", s.path("gradient_tape/net/hot/reduce_std/SqrtGrad"), "backward", element=(row, 0), value=INF, start=START,
                  cured_by_scale=False)
    y, dy = f16(f16(bad).std(-1, keepdims=True)), slope(1e-2)
    y[y < 1e-6] = 0
    with np.errstate(divide="ignore"):
        return Fault(training, truth, Hand([y, dy], dy * f16(0.5) / y))


@fault("acos_gradient_at_one")
def _(s: Setting) -> Fault:
    """acos(1) is 0, its derivative -1 / sqrt(1 - 1)."""
    good, bad, place = _features(s, 1.0, 0.1, 0.8)
    training = _net(s, lambda x: s.tf.acos(x * 0.99 if s.cured else x), good, bad)
    truth = Truth("Reciprocal", s.path("gradient_tape/net/hot/Reciprocal"), "backward", element=place, value=INF, start=START, cured_by_scale=False)
    root = np.sqrt(f16(1) - f16(bad) ** 2)
    with np.errstate(divide="ignore"):
        return Fault(training, truth, Hand([root], f16(1) / root))


@fault("log_gradient_of_a_subnormal")
def _(s: Setting) -> Fault:
    """log(6e-8) is -16.6, its derivative 1.7e7."""
    good, bad, place = _features(s, 6e-8)
    training = _net(s, lambda x: s.tf.math.log(x + 1e-3 if s.cured else x), good, bad)
    truth = Truth("Reciprocal", s.path("gradient_tape/net/hot/Reciprocal"), "backward", element=place, value=INF, start=START, cured_by_scale=False,
                  forward_op=s.path("net/hot/Log"))
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([f16(bad)], f16(1) / f16(bad)))


# --- the where trap: the branch that was not taken has no value, but a gradient of 0 * Inf ----------------------------------------------


@fault("where_trap_pow")
def _(s: Setting) -> Fault:
    """where(x > 0, x ** 0.5, 0): at 0 the gradient is 0 * 0 ** -0.5."""
    tf = s.tf
    good, bad, place = _features(s, 0.0)

    def body(x: Any) -> Any:
        safe = tf.where(x > 0, x, tf.ones_like(x)) if s.cured else x
        return tf.where(x > 0, safe**0.5, tf.zeros_like(x))

    training = _net(s, body, good, bad)
    truth = Truth("Pow", s.path("gradient_tape/net/hot/pow/Pow"), "backward", element=place, value=INF, start=START, cured_by_scale=False)
    with np.errstate(divide="ignore"):
        return Fault(training, truth, Hand([f16(bad), f16(-0.5)], f16(bad) ** f16(-0.5)))


@fault("where_trap_log", numerics="blames the log(0) that where leaves out")
def _(s: Setting) -> Fault:
    """where(x > 0, log(x), 0): the -Inf is left out, its derivative 1 / 0 is not."""
    tf = s.tf
    good, bad, place = _features(s, 0.0)

    def body(x: Any) -> Any:
        safe = tf.where(x > 0, x, tf.ones_like(x)) if s.cured else x
        return tf.where(x > 0, tf.math.log(safe), tf.zeros_like(x))

    training = _net(s, body, good, bad)
    truth = Truth("Reciprocal", s.path("gradient_tape/net/hot/Reciprocal"), "backward", element=place, value=INF, start=START, cured_by_scale=False)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([f16(bad)], f16(1) / f16(bad)))


@fault("where_trap_division", numerics="blames the division that where leaves out")
def _(s: Setting) -> Fault:
    """where(x > 0, 1 / x, 0): the Inf is left out, the derivative -1 / x / x is not."""
    tf = s.tf
    good, bad, place = _features(s, 0.0)

    def body(x: Any) -> Any:
        safe = tf.where(x > 0, x, tf.ones_like(x)) if s.cured else x
        return tf.where(x > 0, 1.0 / safe, tf.zeros_like(x))

    training = _net(s, body, good, bad)
    truth = Truth("RealDiv", s.path("gradient_tape/net/hot/truediv/RealDiv_1"), "backward", element=place, value=-INF, start=START, cured_by_scale=False)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([f16(-1.0), f16(bad)], f16(-1.0) / f16(bad)))


# --- values that are too large ------------------------------------------------------------------------------------------------------------


@fault("division_gradient")
def _(s: Setting) -> Fault:
    """0.5 / 1e-3 is 500, its derivative -0.5 / 1e-3 / 1e-3."""
    good, bad, place = _features(s, 1e-3)
    training = _net(s, lambda x: 0.5 / (x + 0.1 if s.cured else x), good, bad)
    truth = Truth("RealDiv", s.path("gradient_tape/net/hot/truediv/RealDiv_2"), "backward", element=place, value=-INF, start=START, cured_by_scale=False)
    first = f16(-0.5) / f16(bad)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([first, f16(bad)], first / f16(bad)))


@fault("l2_normalize_gradient_of_zeros")
def _(s: Setting) -> Fault:
    """l2_normalize in float32 with its epsilon of 1e-12: the gradient of a zero row is 1e6 times the one given, and goes back to float16."""
    tf = s.tf
    n = s.size(4)
    good = s.uniform((BATCH, n))
    bad, row = good.copy(), s.at(BATCH)[0]
    bad[row] = 0.0

    def body(x: Any) -> Any:
        wide = tf.cast(x, tf.float32)
        return tf.cast(tf.math.l2_normalize(wide, axis=-1, epsilon=1e-4 if s.cured else 1e-12), tf.float16)

    training = _net(s, body, good, bad, out=1.0)
    truth = Truth("Cast", s.path("gradient_tape/net/hot/Cast/Cast"), "backward", element=(row, 0), value=INF, start=START, cured_by_scale=None)
    gradient = np.ones((BATCH, n), np.float32) * np.float32(slope(1.0))
    gradient[row] *= 1e6
    return Fault(training, truth, Hand([gradient], f16(gradient)))


@fault("square_gradient")
def _(s: Setting) -> Fault:
    """200 squared is 40 000, its derivative 400, times a gradient of 300 it is 120 000; at a scale of 1 the weights' gradient is still 200 * 30 000."""
    good, bad, place = _features(s, 200.0)
    training = _net(s, s.tf.square, good, bad, out=1e-2 if s.cured else 300.0)
    truth = Truth("Mul", s.path("gradient_tape/net/hot/Mul_1"), "backward", element=place, value=INF, start=START, cured_by_scale=False)
    twice = f16(2) * f16(bad)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([twice, slope(300.0)], twice * slope(300.0)))


@fault("weight_gradient_sum", whole=True)
def _(s: Setting) -> Fault:
    """Features of 950 and gradients of 40: 38 000 each, summed over the batch 152 000. The forward pass is small."""
    n, m = s.size(4), s.size(5)
    kernel = np.full((n, m), 1e-3)
    bad = s.uniform((BATCH, n), 900.0, 1000.0)
    out = 1e-2 if s.cured else 40.0
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.layer("first", lambda x: x * 1.0)(inputs)
    h = weighted(s, "hot", {"kernel": kernel}, lambda x, w: s.tf.matmul(x, w))(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, out)), summed(s)), good=s.uniform((BATCH, n)), bad=bad, start=START)
    truth = Truth("MatMul", s.path("gradient_tape/net/hot/MatMul/MatMul"), "backward", element=(0, 0), value=INF, start=START, cured_by_scale=True,
                  forward_op=s.path("net/hot/MatMul"), advice="gradient_scale")
    dy = np.full((BATCH, m), slope(out))
    return Fault(training, truth, Hand([f16(bad), dy], f16(f16(bad).T.astype(np.float32) @ dy.astype(np.float32))))


@fault("bias_gradient_sum")
def _(s: Setting) -> Fault:
    """Gradients of some 3 000 and 32 rows: their sum is the gradient of a bias."""
    n, rows = s.size(3), 32
    out = 10.0 if s.cured else 24000.0
    bad = s.uniform((rows, n), 0.95, 1.0)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = weighted(s, "hot", {"bias": np.zeros(n)}, lambda x, b: s.tf.nn.bias_add(x, b) * x)(inputs)
    training = Fit(s.compile(s.model(inputs, s.head(h, out)), summed(s)), good=bad * np.float32(1e-2), bad=bad, start=START)
    truth = Truth("BiasAddGrad", s.path("gradient_tape/net/hot/BiasAdd/BiasAddGrad"), "backward", element=(0,), value=INF, start=START,
                  cured_by_scale=True, forward_op=s.path("net/hot/BiasAdd"))
    dy = slope(out, batch=rows) * f16(bad)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([dy], f16(dy.astype(np.float32).sum(0))))


@fault("product_gradient")
def _(s: Setting) -> Fault:
    """200 * 200 * 0.001 is 40; the derivative by the last factor is 40 000, times a gradient of 4."""
    n = s.size(4)
    good, bad = s.uniform((BATCH, n)), np.ones((BATCH, n), np.float32)
    row = s.at(BATCH)[0]
    bad[row, :3] = 200.0, 200.0, 1e-3
    training = _net(s, lambda x: s.tf.reduce_prod(x / 16.0 if s.cured else x, axis=-1, keepdims=True), good, bad, out=4.0)
    truth = Truth("Mul", s.path("gradient_tape/net/hot/mul_1"), "backward", element=(row, 2), value=INF, start=START, cured_by_scale=False)
    others = np.ones((BATCH, n), np.float16)
    others[row] = f16(40.0)
    others[row, :3] = 0.2, 0.2, 40000.0
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([others, slope(4.0)], others * slope(4.0)))


@fault("conv_filter_gradient")
def _(s: Setting) -> Fault:
    """A filter's gradient sums over 6 by 6 places and 4 images: each product is small."""
    n = s.size(6)
    tf = s.tf
    filters = np.full((3, 3, 1, 2), 1e-3)
    bad = s.uniform((BATCH, n, n, 1), 93.0, 97.0) * np.float32(36.0 / n / n)
    out = 1e-2 if s.cured else 16.0
    inputs = s.keras.Input((n, n, 1), name=s.name("features"))
    h = weighted(s, "hot", {"filters": filters}, lambda x, w: tf.nn.conv2d(x, w, 1, "SAME"))(inputs)
    h = s.keras.layers.Flatten(name=s.name("flat"))(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, out)), summed(s)), good=s.uniform((BATCH, n, n, 1)), bad=bad, start=START)
    truth = Truth("Conv2DBackpropFilter", s.path("gradient_tape/net/hot/Conv2DBackpropFilter"), "backward", element=(0, 0, 0, 0), value=INF,
                  start=START, cured_by_scale=True, forward_op=s.path("net/hot/Conv2D"))
    dy = slope(out)
    padded = np.pad(f16(bad)[..., 0].astype(np.float32), ((0, 0), (1, 1), (1, 1)))
    sums = np.array([[padded[:, i : i + n, j : j + n].sum() * np.float32(dy) for j in range(3)] for i in range(3)])
    return Fault(training, truth, Hand([f16(bad), dy], f16(np.broadcast_to(sums[:, :, None, None], (3, 3, 1, 2)))))


def _gathered(s: Setting, gather: Callable[[Any, Any], Any], op_type: str, op_name: str) -> Fault:
    rows, width, length = s.size(5), s.size(3), 12
    out = 10.0 if s.cured else 1500.0
    inputs = s.keras.Input((length,), dtype="int32", name=s.name("ids"))
    h = weighted(s, "hot", {"table": s.uniform((rows, width))}, lambda ids, table: gather(table, ids))(inputs)
    h = s.keras.layers.Flatten(name=s.name("flat"))(h)
    spread = np.arange(BATCH * length).reshape(BATCH, length) % rows
    row = s.at(rows)[0]
    good, bad = spread.astype(np.int32), np.full((BATCH, length), row, np.int32)
    training = Fit(s.compile(s.model(inputs, s.head(h, out)), summed(s)), good=good, bad=bad, start=START)
    truth = Truth(op_type, s.path(op_name), "backward", element=(row, 0), value=INF, start=START, cured_by_scale=True)
    dy = np.full((BATCH * length, width), slope(out))
    sums = np.zeros((rows, width), np.float32)
    sums[row] = dy.astype(np.float32).sum(0)
    return Fault(training, truth, Hand([dy], f16(sums)))


@fault("embedding_gradient_sum")
def _(s: Setting) -> Fault:
    """The same row of a float16 table gathered 48 times: the gradients of all are summed in float16 (the graph names the sum after its argument)."""
    tf = s.tf
    return _gathered(s, lambda table, ids: tf.gather(tf.multiply(table, 0.5), ids), "UnsortedSegmentSum", "gradient_tape/net/hot/Mul/x")


@fault("gather_nd_gradient_sum")
def _(s: Setting) -> Fault:
    """The same by gather_nd, whose gradient is scattered into a table of zeros."""
    tf = s.tf
    return _gathered(s, lambda table, ids: tf.gather_nd(table, ids[..., None]), "ScatterNd", "gradient_tape/net/hot/ScatterNd")


@fault("custom_gradient_overflows")
def _(s: Setting) -> Fault:
    """A custom gradient that exponentiates features of 12; forwards they are only handed on."""
    tf = s.tf
    good, bad, place = _features(s, 12.0)

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def steep(x: Any) -> Any:
        def backward(dy: Any) -> Any:
            return dy * tf.exp(tf.minimum(x, 1.0) if s.cured else x)

        return tf.identity(x), backward

    training = _net(s, lambda x: steep(x * 1.0), good, bad)
    truth = Truth("Exp", of_optimizer(s, "Exp"), "backward", element=place, value=INF, start=START, cured_by_scale=False)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([f16(bad)], np.exp(f16(bad))))


@fault("custom_gradient_divides")
def _(s: Setting) -> Fault:
    """A custom gradient that divides by a value that can be 0, behind a layer of raw operators."""
    tf = s.tf
    good, bad, place = _features(s, 0.0)

    @tf.custom_gradient  # type: ignore[untyped-decorator, unused-ignore]
    def root(x: Any) -> Any:
        y = tf.sqrt(x)

        def backward(dy: Any) -> Any:
            return dy * tf.math.reciprocal(y + 1e-2 if s.cured else y)

        return y, backward

    training = _net(s, lambda x: root(x * 1.0), good, bad)
    truth = Truth("Reciprocal", of_optimizer(s, "Reciprocal"), "backward", element=place, value=INF, start=START, cured_by_scale=False)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([np.sqrt(f16(bad))], f16(1) / np.sqrt(f16(bad))))


# --- a loss scale that is too high ----------------------------------------------------------------------------------------------------------


def _cast_of_out(s: Setting) -> str:
    """Where the gradient of "out" goes back to float16. Keras 3 casts before it enters the layer's scope; the first cast is that of the features."""
    return s.path("gradient_tape/net/Cast_1/Cast" if s.keras3 else "gradient_tape/net/out/Cast/Cast")


def _loop(s: Setting, step: Callable[[Any, Any, Any], None], model: Any, optimizer: Any, batches: Any) -> Steps:
    """A loop of one tf.function: ``step(model, optimizer, batch)``."""
    return Steps(s, lambda x: step(model, optimizer, x), batches, optimizer)


def _applied(s: Setting, model: Any, optimizer: Any, tape: Any, scaled: Any, change: Optional[Callable[[Any], Any]] = None) -> None:
    gradients = s.unscaled(optimizer, tape.gradient(scaled, model.trainable_variables))
    gradients = change(gradients) if change is not None else gradients
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))


def _plain_model(s: Setting, n: int, out: float = 1.0) -> Any:
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.layer("hot", lambda x: s.tf.multiply(x, 0.5))(s.dense("first", np.eye(n))(inputs))
    return s.model(inputs, s.head(h, out))


@fault("loss_scaled_twice")
def _(s: Setting) -> Fault:
    """The loss is scaled twice, by 2 ** 26 instead of 2 ** 13: the gradient does not fit where it goes back to float16."""
    tf = s.tf
    n = s.size(4)
    model, optimizer = _plain_model(s, n), s.optimizer(2.0**13)

    def step(model: Any, optimizer: Any, x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x, training=True))
            scaled = s.scaled(optimizer, loss)
            scaled = scaled if s.cured else s.scaled(optimizer, scaled)
        _applied(s, model, optimizer, tape, scaled)

    training = _loop(s, step, model, optimizer, [s.uniform((BATCH, n)) for _ in range(9)])
    truth = Truth("Cast", _cast_of_out(s), "backward", element=(0, 0), value=INF, start=0, cured_by_scale=True,
                  advice="gradient_scale")
    gradient = np.full((BATCH, n), 2.0**22 / BATCH, np.float32)
    return Fault(training, truth, Hand([gradient], f16(gradient)))


@fault("initial_scale_far_too_high")
def _(s: Setting) -> Fault:
    """A loss scale of 2 ** 60 in fit, which would need 45 halvings."""
    n = s.size(4)
    model = s.compile(_plain_model(s, n), summed(s), s.optimizer(16.0 if s.cured else 2.0**60))
    training = Fit(model, good=s.uniform((BATCH, n)))
    truth = Truth("Cast", _cast_of_out(s), "backward", element=(0, 0), value=INF, start=0, cured_by_scale=True)
    gradient = np.full((BATCH, n), 2.0**58 / BATCH, np.float32)
    return Fault(training, truth, Hand([gradient], f16(gradient)))


@fault("scale_that_makes_the_loss_infinite", numerics="blames the scaled loss, which no gradient depends on")
def _(s: Setting) -> Fault:
    """A loss of 8 and a scale of 2 ** 127: the scaled loss is Inf in float32 and harms nobody, the gradient is too large for float16."""
    n = s.size(4)
    model = s.compile(_plain_model(s, n, 8.0), summed(s), s.optimizer(16.0 if s.cured else 2.0**127))
    training = Fit(model, good=s.uniform((BATCH, n), 1.0, 2.0))
    truth = Truth("Cast", _cast_of_out(s), "backward", element=(0, 0), value=INF, start=0, cured_by_scale=True)
    gradient = np.full((BATCH, n), 8 * 2.0**123, np.float32)
    return Fault(training, truth, Hand([gradient], f16(gradient)))


@fault("fixed_scale_too_high", whole=True, options={"at_steps": (4,)})
def _(s: Setting) -> Fault:
    """A fixed scale of 2 ** 20 that nobody lowers, asked for at the step in which features grow."""
    n = s.size(4)
    keras, scale = s.keras, 16.0 if s.cured else 2.0**20
    details = {"auto_scale_loss": False} if s.keras3 else {}  # compile would put a dynamic scale around it
    if s.keras3:
        optimizer = keras.optimizers.SGD(1e-12, loss_scale_factor=scale)
    else:
        optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(1e-12), dynamic=False, initial_scale=scale)
    inputs = keras.Input((n,), name=s.name("features"))
    h = s.layer("hot", lambda x: s.tf.multiply(x, x))(s.dense("first", np.eye(n))(inputs))
    model = s.compile(s.model(inputs, s.head(h, 1e-2)), summed(s), optimizer, **details)
    bad = s.uniform((BATCH, n), 50.0, 60.0)
    training = Fit(model, good=s.uniform((BATCH, n), 1e-2, 2e-2), bad=bad, start=START, steps=6)
    truth = Truth("Mul", s.path("gradient_tape/net/hot/Mul"), "backward", element=(0, 0), value=INF, start=START, falls=False)
    dy = slope(1e-2, scale)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([dy, f16(bad)], dy * f16(bad)))


@fault("float16_cross_entropy_times_scale")
def _(s: Setting) -> Fault:
    """Cross entropy of float16 logits, multiplied by a loss scale of 2 ** 19 that is cast to float16."""
    tf = s.tf
    n = s.size(4)
    inputs = s.keras.Input((n,), name=s.name("features"))
    model = s.model(inputs, s.dense("hot", s.uniform((n, 3)))(inputs))
    optimizer = s.optimizer(16.0 if s.cured else 2.0**19)
    labels = tf.constant(np.arange(BATCH) % 3)

    def step(model: Any, optimizer: Any, x: Any) -> None:
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(x, training=True))
            scaled = s.scaled(optimizer, tf.constant(1.0))
            loss = tf.reduce_mean(losses) * tf.cast(scaled, tf.float16)
        _applied(s, model, optimizer, tape, loss)

    training = _loop(s, step, model, optimizer, [s.uniform((BATCH, n)) for _ in range(9)])
    truth = Truth("Cast", "Cast", "forward", element=(), value=INF, start=0, cured_by_scale=True)
    return Fault(training, truth, Hand([np.float32(2.0**17)], f16(2.0**17)))


@fault("cross_entropy_gradient_of_float16_logits")
def _(s: Setting) -> Fault:
    """The gradient of a cross entropy of float16 logits times 10 000: 4 times 23 000 is past 65504 in the gradient of the weights."""
    tf = s.tf
    n = s.size(4)
    weight = 1.0 if s.cured else 10000.0
    kernel = s.uniform((n, 3), 0.1, 0.2)
    inputs = s.keras.Input((n,), name=s.name("features"))
    hot = weighted(s, "hot", {"kernel": kernel}, lambda x, w: tf.matmul(x, w))
    model = s.model(inputs, hot(inputs))

    def loss(targets: Any, logits: Any) -> Any:
        own = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(targets[:, 0], tf.int32), tf.cast(logits, tf.float32))
        return own * weight

    bad = s.uniform((BATCH, n), 3.0, 4.0)
    bad[:] = bad[:1]
    training = Fit(s.compile(model, loss), good=s.uniform((BATCH, n), 0.01, 0.02), bad=bad, start=START, targets=np.zeros((BATCH, 1), np.float32))
    truth = Truth("MatMul", s.path("gradient_tape/net/hot/MatMul/MatMul"), "backward", value=-INF, start=START, cured_by_scale=True)
    logits = (f16(bad).astype(np.float32) @ f16(kernel).astype(np.float32)).astype(np.float16).astype(np.float32)
    chance = np.exp(logits - logits.max(1, keepdims=True))
    chance /= chance.sum(1, keepdims=True)
    dy = f16((chance - np.eye(3)[np.zeros(BATCH, int)]) * weight)
    return Fault(training, truth, Hand([f16(bad), dy], f16(f16(bad).astype(np.float32).T @ dy.astype(np.float32))))


# --- what is done with gradients ------------------------------------------------------------------------------------------------------------


@fault("clip_by_global_norm_in_float16")
def _(s: Setting) -> Fault:
    """Gradients of 200 in float16: each fits, half their sum of squares does not."""
    tf = s.tf
    n = s.size(5)
    model, optimizer = _plain_model(s, n), s.optimizer(16.0)
    narrow = tf.float32 if s.cured else tf.float16

    def clipped(gradients: Any) -> Any:
        gradients, _ = tf.clip_by_global_norm([tf.cast(gradient, narrow) for gradient in gradients], 1.0)
        return [tf.cast(gradient, tf.float32) for gradient in gradients]

    def step(model: Any, optimizer: Any, x: Any) -> None:
        with tf.GradientTape() as tape:
            loss = s.tf.reduce_mean(model(x, training=True))
            scaled = s.scaled(optimizer, loss)
        _applied(s, model, optimizer, tape, scaled, clipped)

    good, bad = s.uniform((BATCH, n)), s.uniform((BATCH, n), 300.0, 400.0)
    training = _loop(s, step, model, optimizer, [good] * START + [bad] * 5)
    truth = Truth("L2Loss", "global_norm/L2Loss", "backward", element=(), value=INF, start=START)
    gradient = np.repeat(f16(bad).astype(np.float32).mean(0)[:, None], n, 1).astype(np.float16) * f16(0.5)
    half = (gradient.astype(np.float32) ** 2).sum() / 2
    return Fault(training, truth, Hand([gradient], f16(half)))


def _accumulated(s: Setting, empty: Callable[[Any], Any]) -> Fault:
    tf = s.tf
    n = s.size(3)
    model, optimizer = _plain_model(s, n), s.optimizer(16.0)
    narrow = tf.float32 if s.cured else tf.float16
    sums = [tf.Variable(tf.zeros(variable.shape, narrow), trainable=False, name="sum") for variable in model.trainable_variables]

    def step(model: Any, optimizer: Any, x: Any) -> None:
        for total in sums:
            total.assign(empty(total))
        for _ in range(8):
            with tf.GradientTape() as tape:
                scaled = s.scaled(optimizer, tf.reduce_mean(model(x, training=True)))
            for total, gradient in zip(sums, tape.gradient(scaled, model.trainable_variables)):
                total.assign_add(tf.cast(gradient, narrow))
        gradients = s.unscaled(optimizer, [tf.cast(total, tf.float32) / 8.0 for total in sums])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))

    # the gradient is half the mean of the features times the scale: 15 000 at a scale of 4, so the fifth sum is 75 000
    good, bad = s.uniform((BATCH, n)), s.uniform((BATCH, n), 7300.0, 7500.0)
    training = _loop(s, step, model, optimizer, [good] * START + [bad] * 5)
    truth = Truth("AssignAddVariableOp", "AssignAddVariableOp_8", "backward", start=START, cured_by_scale=True)
    return Fault(training, truth)


@fault("float16_gradient_accumulator", numerics="blames the read that follows the sum")
def _(s: Setting) -> Fault:
    """Eight gradients of some 15 000 added up in a float16 variable, within one step."""
    return _accumulated(s, lambda total: s.tf.zeros(total.shape, total.dtype))


@fault("float16_gradient_accumulator_kept", numerics="blames the read that follows the sum")
def _(s: Setting) -> Fault:
    """The same, emptied with zeros_like: the Inf that the step before left is read and harms nobody."""
    return _accumulated(s, s.tf.zeros_like)


@fault("gradient_penalty_at_zero")
def _(s: Setting) -> Fault:
    """A penalty on the norm of the gradient by the input, which is 0 where all units are cut off: the norm's own gradient is 0 / 0."""
    tf = s.tf
    n = s.size(4)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.layer("hot", lambda x: x * tf.nn.relu(x))(s.dense("first", np.eye(n))(inputs))
    model, optimizer = s.model(inputs, s.head(h, 1.0)), s.optimizer(16.0)

    def step(model: Any, optimizer: Any, x: Any) -> None:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = tf.reduce_sum(model(x, training=True))
            slopes = inner.gradient(score, x)
            squares = tf.reduce_sum(slopes * slopes, axis=1)
            norms = tf.sqrt(squares + 1e-6 if s.cured else squares)
            penalty = tf.reduce_mean(tf.square(norms - 1.0))
            scaled = s.scaled(optimizer, penalty)
        _applied(s, model, optimizer, outer, scaled)

    good = s.uniform((BATCH, n))
    bad, row = good.copy(), s.at(BATCH)[0]
    bad[row] *= -1.0
    training = _loop(s, step, model, optimizer, [good] * START + [bad] * 5)
    truth = Truth("SqrtGrad", "gradient_tape/SqrtGrad", "backward", element=(row,), value=-INF, start=START, cured_by_scale=False, forward_op="Sqrt")
    x = f16(np.maximum(bad, 0)).astype(np.float32)
    norms = np.sqrt(((2 * x) ** 2).sum(1))
    dy = (2 * (norms - 1) * LAST_SCALE / BATCH).astype(np.float32)
    with np.errstate(all="ignore"):
        return Fault(training, truth, Hand([norms, dy], dy * np.float32(0.5) / norms))


# --- recurrent networks: a small state forwards, a gradient that grows with each step backwards ------------------------------------------------


def _names(s: Setting) -> int:
    """Gives the names, so that paths can be made of them; returns the units."""
    for part in ("net", "features", "first", "hot", "out"):
        s.name(part)
    return 2 if not s.seed else 3


def _recurrent(s: Setting, make: Callable[..., Any], value: float, out: float, gates: int, truth: Truth, hand: Hand) -> Fault:
    """Features are 0, or large enough to drive every unit into saturation, where nothing flows back: the bad batch is that of zeros.

    Names are those of the loop's body, the same in every iteration.
    """
    n, units, length = 2, _names(s), 8
    recurrent = np.concatenate([np.full((units, units), value / units)] * gates, 1)
    if s.cured:
        recurrent *= 0.01
    inputs = s.keras.Input((length, n), name=s.name("features"))
    layer = make(units, name=s.name("hot"), kernel_initializer="ones", recurrent_initializer=s.constant(recurrent))
    model = s.model(inputs, s.head(layer(s.layer("first", lambda x: x * 1.0)(inputs)), out))
    good, bad = np.full((BATCH, length, n), 20.0, np.float32), np.zeros((BATCH, length, n), np.float32)
    truth.start, truth.phase, truth.cured_by_scale = START, "backward", False
    return Fault(Fit(s.compile(model, summed(s)), good=good, bad=bad, start=START), truth, hand)


_INSIDE = "leaves out the scope of the call, SGD/gradients"


@fault("simple_rnn_backward", whole=True)
def _(s: Setting) -> Fault:
    """tanh units at rest with a recurrent kernel of 8: the state stays 0, the gradient grows eightfold a step: 8 ** 5 in iteration 2, times 4 rows."""
    units = _names(s)
    cell = "net/hot/while/simple_rnn_cell/BiasAdd"
    dy = np.full((BATCH, units), 8.0**5, np.float16)
    truth = Truth("BiasAddGrad", s.path("gradient_tape/net/hot/while/gradients", cell + "_grad/BiasAddGrad"), element=(0,), value=INF, forward_op=s.path(cell))
    with np.errstate(over="ignore"):
        return _recurrent(s, s.keras.layers.SimpleRNN, 8.0, 1.0, 1, truth, Hand([dy], dy.sum(0)))


def _lstm_at_rest(iterations: int) -> Tuple[float, float]:
    """Gradients of state and memory, as they arrive ``iterations`` steps before the last: i = o = 0.5, f = sigmoid(1), recurrent kernels sum to 40."""
    state, memory = 1.0, 0.0
    for _ in range(iterations):
        memory += 0.5 * state
        state, memory = 40.0 * 0.5 * memory, memory / (1 + np.exp(-1.0))
    return state, memory


def _recurrent_product(s: Setting, cell: str) -> Tuple[str, str]:
    """The gradient of the product of kernel and state in the body of the loop, and that product. In Keras 2 the loop lies in a function of its own."""
    if s.keras3:
        forward = s.path("net/hot/while/%s/MatMul_1" % cell)
        return "%s/gradients/%s_grad/MatMul" % (s.path("gradient_tape/net/hot/while"), forward), forward
    return of_optimizer(s, "gradients/while_grad/gradients/while/MatMul_1_grad/MatMul"), s.path("net/hot/while/MatMul_1")


@fault("lstm_backward", numerics=_INSIDE)
def _(s: Setting) -> Fault:
    """An LSTM at rest with recurrent kernels of 40: the gradient grows elevenfold a step and is past 65504 when it leaves iteration 3."""
    units = _names(s)
    state, memory = _lstm_at_rest(4)
    gate = np.zeros((BATCH, 4 * units), np.float16)
    gate[:, 2 * units : 3 * units] = 0.5 * (0.5 * state + memory)
    kernel = np.full((units, 4 * units), 40.0 / units, np.float16)
    name, forward = _recurrent_product(s, "lstm_cell")
    truth = Truth("MatMul", name, element=(0, 0), value=INF, forward_op=forward)
    output = f16(gate.astype(np.float32) @ kernel.T.astype(np.float32))
    return _recurrent(s, s.keras.layers.LSTM, 40.0, 1.0, 4, truth, Hand([gate, kernel], output))


@fault("gru_backward", numerics=_INSIDE)
def _(s: Setting) -> Fault:
    """A GRU at rest with recurrent kernels of 40: the gradient grows 10.5 times a step and is past 65504 when it leaves iteration 2."""
    units = _names(s)
    gate = np.zeros((BATCH, 3 * units), np.float16)
    gate[:, 2 * units :] = 0.25 * 0.2 * 10.5**5
    kernel = np.full((units, 3 * units), 40.0 / units, np.float16)
    name, forward = _recurrent_product(s, "gru_cell")
    truth = Truth("MatMul", name, element=(0, 0), value=INF, forward_op=forward)
    output = f16(gate.astype(np.float32) @ kernel.T.astype(np.float32))
    return _recurrent(s, s.keras.layers.GRU, 40.0, 0.2, 3, truth, Hand([gate, kernel], output))
