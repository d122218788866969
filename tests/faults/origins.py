"""Faults that are no operator's: a variable, a batch or a literal that is bad before any operator runs."""
from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Tuple

import numpy as np

from .kit import BATCH, INF, NAN, Fault, Fit, Hand, Loop, Setting, Steps, Truth, f16, fault
from .parts import Between, embedding, weighted

START = 4

_READ = "blames the read of the variable, as it would any operator's output"
_PLACE = "blames a placeholder, args_1 or so"


# --- variables ------------------------------------------------------------------------------------------------------------------------


def _poison(s: Setting, layer: Any, index: int, values: Any) -> Callable[[int], None]:
    """Sets a weight of a layer to ``values`` before step ``START``."""

    def before(step: int) -> None:
        if step == START and not s.cured:
            weights = layer.get_weights()
            weights[index] = values
            layer.set_weights(weights)

    return before


def _with(values: Any, place: Tuple[int, ...], value: float) -> Any:
    changed = np.array(values, np.float32)
    changed[place] = value
    return changed


def _dense_net(s: Setting, n: int, m: int, **details: Any) -> Tuple[Any, Any]:
    inputs = s.keras.Input((n,), name=s.name("features"))
    hot = s.dense("hot", np.full((n, m), 0.1), bias=np.zeros(m), **details)
    return s.model(inputs, s.head(hot(s.dense("first", np.eye(n))(inputs)), 1e-4)), hot


@fault("inf_in_a_kernel", whole=True, proof="the kernel is set by the case", numerics=_READ)
def _(s: Setting) -> Fault:
    """One element of a Dense kernel is Inf from step 4 on."""
    n, m = s.size(4), s.size(5)
    model, hot = _dense_net(s, n, m)
    place = s.at(n, m)
    kernel = _with(np.full((n, m), 0.1), place, INF)
    training = Between(s, s.compile(model), _poison(s, hot, 0, kernel), good=s.uniform((BATCH, n)))
    truth = Truth("Cast", _weight_cast(s, "MatMul"), origin="variable", element=place, value=INF, start=START, source=_variable(s, "hot", "kernel"),
                  cured_by_scale=False, advice="weights_lost")
    return Fault(training, truth, Hand([], kernel))


@fault("nan_in_a_bias", proof="the bias is set by the case", numerics=_READ)
def _(s: Setting) -> Fault:
    """One element of a Dense bias is NaN from step 4 on."""
    n, m = s.size(4), s.size(5)
    model, hot = _dense_net(s, n, m)
    place = s.at(m)
    bias = _with(np.zeros(m), place, NAN)
    training = Between(s, s.compile(model), _poison(s, hot, 1, bias), good=s.uniform((BATCH, n)))
    truth = Truth("Cast", _weight_cast(s, "BiasAdd"), origin="variable", element=place, value=NAN, start=START, source=_variable(s, "hot", "bias"))
    return Fault(training, truth, Hand([], bias))


@fault("inf_in_a_float32_kernel", proof="the kernel is set by the case", numerics=_READ)
def _(s: Setting) -> Fault:
    """A float32 layer, so that the first to read the weight is the product itself."""
    n, m = s.size(4), s.size(5)
    model, hot = _dense_net(s, n, m, dtype="float32")
    place = s.at(n, m)
    kernel = _with(np.full((n, m), 0.1), place, -INF)
    training = Between(s, s.compile(model), _poison(s, hot, 0, kernel), good=s.uniform((BATCH, n)))
    truth = Truth("MatMul", s.path("net/hot/MatMul"), origin="variable", element=place, value=-INF, start=START, source=_variable(s, "hot", "kernel"))
    return Fault(training, truth, Hand([], kernel))


@fault("weight_too_large_for_float16")
def _(s: Setting) -> Fault:
    """A weight of 70 000 is finite; the cast to float16 is what overflows, an operator like any other."""
    n, m = s.size(4), s.size(5)
    model, hot = _dense_net(s, n, m, **({"dtype": "float32"} if s.cured else {}))
    place = s.at(n, m)
    kernel = _with(np.full((n, m), 0.1), place, 70000.0)

    def before(step: int) -> None:
        if step == START:
            hot.set_weights([kernel, np.zeros(m)])

    training = Between(s, s.compile(model), before, good=s.uniform((BATCH, n)))
    truth = Truth("Cast", _weight_cast(s, "MatMul"), element=place, value=INF, start=START, cured_by_scale=False, advice="weight_range")
    return Fault(training, truth, Hand([kernel], f16(kernel)))


@fault("embedding_row")
def _(s: Setting) -> Fault:
    """One row of an embedding holds NaN all along; only from step 4 on it is looked up."""
    rows, width, length = s.size(6), s.size(3), s.size(4)
    row = s.at(rows)[0]
    place = (row, s.at(width)[0])
    table = _with(np.full((rows, width), 0.1), place, 0.1 if s.cured else NAN)
    inputs = s.keras.Input((length,), dtype="int32", name=s.name("ids"))
    h = s.keras.layers.Flatten(name=s.name("flat"))(embedding(s, "hot", table)(inputs))
    good = np.full((BATCH, length), (row + 1) % rows, np.int32)
    bad = good.copy()
    bad[s.at(BATCH, length)] = row
    training = Fit(s.compile(s.model(inputs, s.head(h))), good=good, bad=bad, start=START)
    reader = ("GatherV2", s.path("net/hot/GatherV2")) if s.keras3 else ("ResourceGather", s.path("net/hot/embedding_lookup"))
    truth = Truth(*reader, origin="variable", element=place, value=NAN, start=START, source=_variable(s, "hot", "embeddings"))
    return Fault(training, truth, Hand([], table))


@fault("batch_norm_moving_variance", numerics=_READ)
def _(s: Setting) -> Fault:
    """A frozen BatchNormalization uses its moving statistics in training; one variance is NaN from step 4 on."""
    n = s.size(4)
    inputs = s.keras.Input((n,), name=s.name("features"))
    hot = s.keras.layers.BatchNormalization(name=s.name("hot"), trainable=False)
    model = s.model(inputs, s.head(hot(s.dense("first", np.eye(n))(inputs))))
    place = s.at(n)
    variance = _with(np.ones(n), place, NAN)
    training = Between(s, s.compile(model), _poison(s, hot, 3, variance), good=s.uniform((BATCH, n)))
    truth = Truth("AddV2", s.path("net/hot/batchnorm/add"), origin="variable", element=place, value=NAN, start=START,
                  source=_variable(s, "hot", "moving_variance"))
    return Fault(training, truth, Hand([], variance))


@fault("batch_norm_moving_mean", numerics=_READ)
def _(s: Setting) -> Fault:
    """The same with a moving mean of Inf, and gamma and beta in use."""
    n = s.size(4)
    hot = s.keras.layers.BatchNormalization(name=s.name("hot"))
    first, out = s.dense("first", np.eye(n)), s.dense("out", np.full((n, 1), 1e-3), dtype="float32")

    class Net(s.keras.Model):  # type: ignore[misc, name-defined]  # a functional model of Keras 3 hands its own ``training`` to every layer
        def __init__(self, **details: Any) -> None:
            super().__init__(**details)
            self.a, self.b, self.c = first, hot, out

        def call(self, x: Any, training: Optional[bool] = None) -> Any:
            return self.c(self.b(self.a(x), training=False))

    model = Net(name=s.name("net"))
    model(np.zeros((1, n), np.float32))
    place = s.at(n)
    mean = _with(np.zeros(n), place, INF)
    training = Between(s, s.compile(model), _poison(s, hot, 2, mean), good=s.uniform((BATCH, n)))
    truth = Truth("Mul", s.path("net/hot/batchnorm/mul_2"), origin="variable", element=place, value=INF, start=START, source=s.path("net/hot/moving_mean"))
    return Fault(training, truth, Hand([], mean))


@fault("optimizer_slot", whole=True, numerics="blames the read of the slot, one step before anything overflows")
def _(s: Setting) -> Fault:
    """The momentum of a kernel is Inf from step 3 on: the gradients of that step are finite, the weight is not afterwards."""
    n, m = s.size(4), s.size(5)
    model, hot = _dense_net(s, n, m)
    inner = s.keras.optimizers.SGD(1e-6, momentum=0.5)
    s.compile(model, optimizer=s.optimizer(16.0, inner))
    place = s.at(n, m)

    def before(step: int) -> None:
        if step != START - 1 or s.cured:
            return
        if hasattr(inner, "get_slot"):
            slot = inner.get_slot(hot.kernel, "momentum")
        else:
            slots = inner.variables() if callable(inner.variables) else inner.variables
            slot = next(v for v in slots if tuple(v.shape) == (n, m))
        slot.assign(_with(np.zeros((n, m)), place, INF))

    training = Between(s, model, before, good=s.uniform((BATCH, n)))
    truth = Truth("Cast", _weight_cast(s, "MatMul"), origin="variable", element=place, value=INF, start=START, source=_variable(s, "hot", "kernel"))
    return Fault(training, truth, Hand([], np.float32(0.1) + np.float32(0.5) * _with(np.zeros((n, m)), place, INF)))


@fault("poisoned_accumulator", numerics=_READ)
def _(s: Setting) -> Fault:
    """A gradient accumulator that was Inf before the step: the gradients of the step are finite, their sum is not."""
    tf = s.tf
    n = s.size(4)
    inputs = s.keras.Input((n,), name=s.name("features"))
    model, optimizer = s.model(inputs, s.head(s.dense("first", np.eye(n))(inputs))), s.optimizer(16.0)
    sums = [tf.Variable(tf.zeros(variable.shape), trainable=False, name=s.name("total_%d" % i)) for i, variable in enumerate(model.trainable_variables)]
    place = s.at(n, n)
    poison = _with(np.zeros((n, n)), place, INF)

    def step(x: Any) -> None:
        with tf.GradientTape() as tape:
            scaled = s.scaled(optimizer, tf.reduce_mean(model(x, training=True)))
        gradients = tape.gradient(scaled, model.trainable_variables)
        gradients = [total * 0.5 + gradient for total, gradient in zip(sums, gradients)]
        for total, gradient in zip(sums, gradients):
            total.assign(gradient)
        optimizer.apply_gradients(zip(s.unscaled(optimizer, gradients), model.trainable_variables))

    def before(i: int) -> None:
        if i == START and not s.cured:
            sums[0].assign(poison)

    training = Steps(s, step, [s.uniform((BATCH, n)) for _ in range(9)], optimizer, before)
    truth = Truth("Mul", "mul_1", origin="variable", element=place, value=INF, start=START, source=s.path("total_0"), cured_by_scale=False)
    return Fault(training, truth, Hand([], poison))


@fault("running_statistic_of_the_users_own", numerics=_READ)
def _(s: Setting) -> Fault:
    """A layer divides by a running mean of its own, a variable that is not trained and that is NaN from step 4 on."""
    tf = s.tf
    n = s.size(4)
    inputs = s.keras.Input((n,), name=s.name("features"))
    hot = weighted(s, "hot", {"mean": np.ones(n)}, lambda x, mean: tf.divide(x, tf.cast(mean, x.dtype)), trainable=False)
    model = s.model(inputs, s.head(hot(s.dense("first", np.eye(n))(inputs))))
    place = s.at(n)
    mean = _with(np.ones(n), place, NAN)
    training = Between(s, s.compile(model), _poison(s, hot, 0, mean), good=s.uniform((BATCH, n)))
    truth = Truth("Cast", s.path("net/hot/Cast"), origin="variable", element=place, value=NAN, start=START, source=_variable(s, "hot", "mean"))
    return Fault(training, truth, Hand([], mean))


def _variable(s: Setting, layer: str, weight: str) -> str:
    """A variable's name."""
    return s.path(layer, weight)


def _weight_cast(s: Setting, reader: str) -> str:
    """The cast by which a Dense layer of mixed precision reads a weight, named after the operator that wants it (Keras 3 casts the kernel before)."""
    return s.path("net/hot/Cast/Cast" if reader == "MatMul" and s.keras3 else "net/hot/%s/Cast" % reader)


# --- batches --------------------------------------------------------------------------------------------------------------------------


def _small(s: Setting, n: int) -> Any:
    inputs = s.keras.Input((n,), name=s.name("features"))
    return s.model(inputs, s.head(s.dense("hot", np.eye(n))(inputs)))


@fault("nan_in_the_features", proof="the batch is made by the case", numerics=_PLACE)
def _(s: Setting) -> Fault:
    """One NaN in a batch of features."""
    n = s.size(4)
    good, place = s.uniform((BATCH, n)), s.at(BATCH, n)
    bad = good if s.cured else _with(good, place, NAN)
    training = Fit(s.compile(_small(s, n)), good=good, bad=bad, start=START)
    truth = Truth("Cast", _input_cast(s), origin="data", element=place, value=NAN, start=START, source="x", cured_by_scale=False, advice="constant_input")
    return Fault(training, truth, Hand([], bad))


@fault("feature_over_65504", whole=True, proof="the batch is made by the case")
def _(s: Setting) -> Fault:
    """A feature of 70 000 meets the first cast to float16."""
    n = s.size(4)
    good, place = s.uniform((BATCH, n)), s.at(BATCH, n)
    bad = _with(good, place, 1.0 if s.cured else 70000.0)
    training = Fit(s.compile(_small(s, n)), good=good, bad=bad, start=START)
    truth = Truth("Cast", _input_cast(s), origin="data", element=place, value=70000.0, start=START, source="x", cured_by_scale=False, advice="cast_range")
    return Fault(training, truth, Hand([], bad))


@fault("inf_in_the_second_input", proof="the batch is made by the case", numerics=_PLACE)
def _(s: Setting) -> Fault:
    """Two inputs, the second one holds an Inf."""
    n, m = s.size(4), s.size(3)
    keras = s.keras
    one, two = keras.Input((n,), name=s.name("left")), keras.Input((m,), name=s.name("right"))
    h = keras.layers.Concatenate(name=s.name("both"))([s.dense("first", np.eye(n))(one), s.dense("hot", np.eye(m))(two)])
    model = s.compile(s.model([one, two], s.head(h)))
    left, right, place = s.uniform((BATCH, n)), s.uniform((BATCH, m)), s.at(BATCH, m)
    bad = right if s.cured else _with(right, place, INF)
    training = Fit(model, good=(left, right), bad=(left, bad), start=START)
    truth = Truth("Cast", _input_cast(s, 1), origin="data", element=place, value=INF, start=START, source="x[1]")
    return Fault(training, truth, Hand([], bad))


@fault("nan_in_a_dict_input", proof="the batch is made by the case", numerics=_PLACE)
def _(s: Setting) -> Fault:
    """Inputs by name, one of which holds a NaN; it goes into a float32 layer."""
    n, m = s.size(4), s.size(3)
    keras = s.keras
    one, two = keras.Input((n,), name=s.name("left")), keras.Input((m,), name=s.name("right"))
    h = keras.layers.Concatenate(name=s.name("both"), dtype="float32")([s.dense("first", np.eye(n))(one), s.dense("hot", np.eye(m), dtype="float32")(two)])
    model = s.compile(s.model({s.name("left"): one, s.name("right"): two}, s.head(h)))
    left, right, place = s.uniform((BATCH, n)), s.uniform((BATCH, m)), s.at(BATCH, m)
    bad = right if s.cured else _with(right, place, NAN)
    names = s.name("left"), s.name("right")
    training = Fit(model, good=dict(zip(names, (left, right))), bad=dict(zip(names, (left, bad))), start=START)
    truth = Truth("MatMul", s.path("net/hot/MatMul"), origin="data", element=place, value=NAN, start=START, source="x[%r]" % names[1])
    return Fault(training, truth, Hand([], bad))


@fault("nan_in_the_labels", proof="the batch is made by the case", numerics=_PLACE)
def _(s: Setting) -> Fault:
    """One label is NaN."""
    n = s.size(4)
    good, place = s.uniform((BATCH, n)), (s.at(BATCH)[0], 0)
    labels = np.zeros((BATCH, 1), np.float32)
    bad = labels if s.cured else _with(labels, place, NAN)
    training = Fit(s.compile(_small(s, n)), batches=[(good, labels if step < START else bad) for step in range(9)])
    reader = ("Sub", "compile_loss/mse/sub") if s.keras3 else ("SquaredDifference", "mean_squared_error/SquaredDifference")
    truth = Truth(*reader, origin="data", element=place, value=NAN, start=START, source="y", cured_by_scale=False)
    return Fault(training, truth, Hand([], bad))


def _input_cast(s: Setting, number: int = 0) -> str:
    """The cast of the features to float16: a layer's own in tf.keras; Keras 3 does it before it enters the layer's scope, and numbers the casts."""
    if s.keras3:
        return s.path("net/Cast" if number == 0 else "net/Cast_%d" % number)
    return s.path("net/hot/Cast")


class _Weighted(Fit):
    """``Fit`` with sample weights, one array a batch."""

    def __init__(self, model: Any, x: Any, weights: Any) -> None:
        super().__init__(model, good=x, steps=len(weights), sample_weight=np.concatenate(weights))


@fault("inf_in_the_sample_weights", proof="the batch is made by the case", numerics=_PLACE)
def _(s: Setting) -> Fault:
    """One sample weight is Inf."""
    n = s.size(4)
    good, place = s.uniform((BATCH, n)), s.at(BATCH)
    bad = np.ones(BATCH, np.float32) if s.cured else _with(np.ones(BATCH), place, INF)
    model = s.compile(_small(s, n))
    training = _Weighted(model, good, [np.ones(BATCH, np.float32) if step < START else bad for step in range(9)])
    reader = ("Mul", "compile_loss/mse/mul") if s.keras3 else ("ExpandDims", "ExpandDims")
    truth = Truth(*reader, origin="data", element=place, value=INF, start=START, source="sample_weight")
    return Fault(training, truth, Hand([], bad))


@fault("float16_features_with_inf", proof="the batch is made by the case", numerics=_PLACE)
def _(s: Setting) -> Fault:
    """A pipeline that hands out float16 has overflowed already."""
    n = s.size(4)
    inputs = s.keras.Input((n,), dtype="float16", name=s.name("features"))
    model = s.compile(s.model(inputs, s.head(s.dense("hot", np.eye(n))(inputs))))
    good, place = f16(s.uniform((BATCH, n))), s.at(BATCH, n)
    bad = good if s.cured else f16(_with(good, place, 1e5))
    training = Fit(model, good=good, bad=bad, start=START)
    truth = Truth("Cast", s.path("net/Cast"), origin="data", element=place, value=INF, start=START, source="x")
    return Fault(training, truth, Hand([], bad))


@fault("nan_in_a_loops_argument", whole=True, proof="the batch is made by the case")
def _(s: Setting) -> Fault:
    """A loop of the user's own whose function takes a dict; one entry holds a NaN."""
    tf = s.tf
    n = s.size(4)
    model, optimizer = _small(s, n), s.optimizer(16.0)

    def step(batch: Dict[str, Any]) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(batch["image"], training=True) - batch["target"]))
            scaled = s.scaled(optimizer, loss)
        gradients = tape.gradient(scaled, model.trainable_variables)
        optimizer.apply_gradients(zip(s.unscaled(optimizer, gradients), model.trainable_variables))

    place = (s.at(BATCH)[0], 0)
    good = np.ones((BATCH, 1), np.float32)
    bad = good if s.cured else _with(good, place, NAN)

    def run() -> None:
        compiled = tf.function(step)
        for i in range(9):
            compiled({"image": tf.constant(s.uniform((BATCH, n))), "target": tf.constant(good if i < START else bad)})

    truth = Truth("Sub", "sub", origin="data", element=place, value=NAN, start=START, source="batch['target']")
    return Fault(Loop(run), truth, Hand([], bad))


@fault("bad_data_is_absorbed", numerics="blames the data that tf.where replaces")
def _(s: Setting) -> Fault:
    """All batches hold NaN for what is missing, and the model replaces it; the fault is a product that is too large."""
    tf = s.tf
    n = s.size(4)
    place = s.at(BATCH, n)
    good = _with(s.uniform((BATCH, n)), place, NAN)
    bad = good * np.float32(300.0)
    kernel = np.full((n, 3), 100.0)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.layer("first", lambda x: tf.where(tf.math.is_nan(x), tf.zeros_like(x), x))(inputs)
    h = s.dense("hot", kernel, **({"dtype": "float32"} if s.cured else {}))(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=good, bad=bad, start=START)
    truth = Truth("MatMul", s.path("net/hot/MatMul"), element=(0, 0), value=INF, start=START, cured_by_scale=False)
    given = f16(np.where(np.isnan(bad), 0, bad))
    return Fault(training, truth, Hand([given, f16(kernel)], f16(given.astype(np.float32) @ kernel)))


@fault("clipped_inf_in_the_data", numerics="blames the data that tf.minimum clips")
def _(s: Setting) -> Fault:
    """Inf in every batch, clipped by tf.minimum; the fault is an exponential behind it."""
    tf = s.tf
    n = s.size(4)
    place, hot = (1, 1), (2, 0)
    good = _with(s.uniform((BATCH, n)), place, INF)
    bad = _with(good, hot, 12.0)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.layer("first", lambda x: tf.minimum(tf.minimum(x, 12.0), tf.where(x > 1e4, tf.ones_like(x), x)))(inputs)
    h = s.layer("hot", lambda x: tf.exp(x - 4.0 if s.cured else x))(s.dense("middle", np.eye(n))(h))
    training = Fit(s.compile(s.model(inputs, s.head(h))), good=good, bad=bad, start=START)
    truth = Truth("Exp", s.path("net/hot/Exp"), element=hot, value=INF, start=START)
    given = f16(np.where(np.isinf(bad), 1.0, bad))
    with np.errstate(over="ignore"):
        return Fault(training, truth, Hand([given], np.exp(given)))


# --- literals -------------------------------------------------------------------------------------------------------------------------


def _gated(s: Setting, call: Callable[[Any], Any], gate: float = 2.0) -> Tuple[Any, Any, Any]:
    """A layer whose literal counts only where a feature is above ``gate``."""
    n = s.size(4)
    good = s.uniform((BATCH, n))
    bad = good + np.float32(gate)
    return s.compile(s.net(n, call)), good, bad


@fault("literal_over_65504", proof="100 000 is above 65504")
def _(s: Setting) -> Fault:
    """tf.constant(1e5) in float16."""
    tf = s.tf
    model, good, _ = _gated(s, lambda x: tf.multiply(x, tf.constant(1e2 if s.cured else 1e5, x.dtype)))
    truth = Truth("Mul", s.path("net/hot/Mul"), origin="constant", element=(), value=INF, start=0, cured_by_scale=False)
    return Fault(Fit(model, good=good), truth)


@fault("literal_that_is_cast", proof="100 000 is above 65504")
def _(s: Setting) -> Fault:
    """tf.cast(1e5) to float16: the cast of a literal."""
    tf = s.tf
    model, good, _ = _gated(s, lambda x: tf.multiply(x, tf.cast(tf.constant(1e2 if s.cured else 1e5), x.dtype)))
    truth = Truth("Cast", s.path("net/hot/Cast"), origin="constant", element=(), value=1e5, start=0, cured_by_scale=False)
    return Fault(Fit(model, good=good), truth)


@fault("mask_multiplied_into_scores", proof="-1e9 is below -65504; 0 * -Inf is NaN")
def _(s: Setting) -> Fault:
    """(1 - mask) * -1e9 in float16: where nothing is masked, 0 * -Inf."""
    tf = s.tf
    n = s.size(4)

    def body(x: Any) -> Any:
        masked = tf.cast(x < 0, x.dtype)
        return tf.nn.softmax(x + masked * (-1e4 if s.cured else -1e9))

    training = Fit(s.compile(s.net(n, body)), good=s.uniform((BATCH, n)))
    truth = Truth("Mul", s.path("net/hot/mul"), origin="constant", element=(), value=-INF, start=0, cured_by_scale=False)
    return Fault(training, truth)


@fault("fully_masked_row", proof="-1e9 is below -65504; the softmax of a row of -Inf is NaN", numerics="blames the mask in a step without a fully masked row")
def _(s: Setting) -> Fault:
    """where(mask, score, -1e9) in float16: harmless until a row is masked as a whole."""
    tf = s.tf
    n = s.size(4)
    good = s.uniform((BATCH, n))
    good[0, 0] = -1.0
    bad = good.copy()
    bad[s.at(BATCH)[0]] = -1.0

    def body(x: Any) -> Any:
        return tf.nn.softmax(tf.where(x < 0, tf.constant(-1e4 if s.cured else -1e9, x.dtype), x))

    training = Fit(s.compile(s.net(n, body)), good=good, bad=bad, start=START)
    truth = Truth("SelectV2", s.path("net/hot/SelectV2"), origin="constant", element=(), value=-INF, start=START, cured_by_scale=False)
    return Fault(training, truth)


@fault("table_of_constants", proof="the table is made by the case")
def _(s: Setting) -> Fault:
    """A table of numbers in the model's code holds NaN in one row, which is gathered from step 4 on."""
    tf = s.tf
    rows, width = s.size(5), s.size(3)
    place = s.at(rows, width)
    table = _with(np.full((rows, width), 0.1), place, 0.1 if s.cured else NAN)
    inputs = s.keras.Input((1,), dtype="int32", name=s.name("ids"))
    h = s.layer("hot", lambda ids: tf.gather(tf.constant(table, tf.float16), ids[:, 0]))(inputs)
    model = s.compile(s.model(inputs, s.head(s.dense("last", np.eye(width))(h))))
    good = np.full((BATCH, 1), (place[0] + 1) % rows, np.int32)
    bad = good.copy()
    bad[s.at(BATCH)[0]] = place[0]
    training = Fit(model, good=good, bad=bad, start=START)
    truth = Truth("GatherV2", s.path("net/hot/GatherV2"), origin="constant", element=place, value=NAN, start=START, cured_by_scale=False)
    return Fault(training, truth, Hand([], table))
