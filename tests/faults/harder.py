"""Faults of the forward pass that are harder to tell: absorbed going forward and poisonous going back, mixed with harmless Inf, inside control flow, in losses,
in values that come from outside."""
from __future__ import annotations

from typing import Any

import numpy as np

from .forward import hot_batch, planted, quiet
from .kit import BATCH, INF, Fault, Fit, Hand, Setting, Truth, f16, fault

# --- harmless going forward only ---------------------------------------------------------------------------------------------------------


@fault("clipped_exp", whole=True)
def _(s: Setting) -> Fault:
    """exp(x) overflows and is clipped: the result is finite, but going back 0 is multiplied by exp(x). Cure: clip x."""
    bad = hot_batch(s, 12.0)

    def body(x: Any) -> Any:
        return s.tf.exp(s.tf.minimum(x, 8.0)) if s.cured else s.tf.minimum(s.tf.exp(x), 3000.0)

    return planted(s, body, "Exp", "Exp", bad, quiet(np.exp, f16(bad)), value=INF, advice="exponent")


@fault("own_sigmoid")
def _(s: Setting) -> Fault:
    """1 / (1 + exp(-x)) at -15 is 0 going forward and NaN going back."""
    bad = hot_batch(s, -15.0)

    def body(x: Any) -> Any:
        return s.tf.sigmoid(x) if s.cured else 1.0 / (1.0 + s.tf.exp(-x))

    return planted(s, body, "Exp", "Exp", bad, quiet(np.exp, -f16(bad)), value=INF, advice="exponent")


@fault("weight_of_zero")
def _(s: Setting) -> Fault:
    """A branch that overflows is multiplied by 0, so that it plays no part: 0 times Inf is NaN."""
    bad = hot_batch(s, 300.0)

    def body(x: Any) -> Any:
        weight = s.tf.minimum(x, 0.0)  # a literal 0 would be folded away
        return x * 0.01 + weight * s.tf.square(x * (1e-2 if s.cured else 1.0))

    return planted(s, body, "Square", "Square", bad, quiet(np.square, f16(bad)))


@fault("mask_and_overflow_in_one_softmax", numerics="it blames the harmless mask")
def _(s: Setting) -> Fault:
    """The scores of one row overflow to +Inf, and -Inf is added to them where they are masked: both meet in one softmax."""
    t, d = s.size(3), s.size(4)
    bad = s.uniform((BATCH, t, d))
    bad[2] = 200.0

    def body(x: Any) -> Any:
        keep = np.array([1.0] * (t - 1) + [0.0], np.float32)
        bias = s.tf.cast((1.0 - s.tf.constant(keep)) * -1e9, x.dtype)
        scores = s.tf.matmul(x * (0.01 if s.cured else 1.0), x, transpose_b=True)
        return s.tf.reduce_mean(s.tf.matmul(s.tf.nn.softmax(scores + bias), x), 1)

    wide = f16(bad).astype(np.float32)
    return planted(s, body, "BatchMatMulV2", "MatMul", bad, f16(np.matmul(wide, wide.transpose(0, 2, 1))), value=INF)


@fault("two_masks_and_an_overflow", numerics="it blames the harmless mask")
def _(s: Setting) -> Fault:
    """Two attention layers with masks of -Inf around a layer that overflows."""
    t, d = s.size(3), s.size(4)
    bad = s.uniform((BATCH, t, d))
    bad[1] = 300.0
    keep = np.tril(np.ones((t, t), bool))

    def attend(x: Any) -> Any:
        scores = s.tf.matmul(x * 1e-2, x * 1e-2, transpose_b=True)
        return s.tf.matmul(s.tf.nn.softmax(s.tf.where(keep, scores, s.tf.constant(-np.inf, x.dtype))), x)

    inputs = s.keras.Input((t, d), name=s.name("features"))
    h = s.dense("first", np.eye(d))(inputs)
    h = s.layer("above", attend)(s.layer("hot", lambda x: s.tf.square(x) * 1e-3 if not s.cured else s.tf.square(x * 0.03))(s.layer("below", attend)(h)))
    model = s.compile(s.model(inputs, s.head(s.layer("last", lambda x: s.tf.reduce_mean(x, 1))(h), 1e-6)))
    hot = f16(bad)  # rows of one example are equal where it is hot, so attention gives them back
    hot[[0, 2, 3]] = 0
    truth = Truth("Square", s.path("net/hot/Square"), value=INF, start=4)
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=4), truth, Hand([hot], quiet(np.square, hot)))


@fault("overflow_before_a_mask", numerics="it blames the harmless mask")
def _(s: Setting) -> Fault:
    """Two masked attention layers: the scores of the first overflow before its mask is put on, those of the second too."""
    t, d = s.size(3), s.size(4)
    bad = s.uniform((BATCH, t, d))
    bad[1] = 300.0
    keep = np.tril(np.ones((t, t), bool))

    def attend(x: Any) -> Any:
        scores = s.tf.matmul(x * (1e-2 if s.cured else 1.0), x * (1e-2 if s.cured else 1.0), transpose_b=True) * 1e-3
        return s.tf.matmul(s.tf.nn.softmax(s.tf.where(keep, scores, s.tf.constant(-np.inf, x.dtype))), x)

    inputs = s.keras.Input((t, d), name=s.name("features"))
    h = s.layer("above", attend)(s.layer("below", attend)(s.dense("first", np.eye(d))(inputs)))
    model = s.compile(s.model(inputs, s.head(s.layer("last", lambda x: s.tf.reduce_mean(x, 1))(h), 1e-6)))
    wide = f16(bad).astype(np.float32)
    truth = Truth("BatchMatMulV2", s.path("net/below/MatMul"), value=INF, start=4)
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=4), truth, Hand([f16(bad)], f16(np.matmul(wide, wide.transpose(0, 2, 1)))))


# --- control flow and functions -----------------------------------------------------------------------------------------------------------


@fault("in_a_branch_of_cond")
def _(s: Setting) -> Fault:
    """A branch of tf.cond that is taken only when a feature is large."""
    bad = hot_batch(s, 300.0)

    def body(x: Any) -> Any:
        scale = 0.01 if s.cured else 1.0
        return s.tf.cond(s.tf.reduce_max(x) > 100.0, lambda: s.tf.square(x * scale, name="branch"), lambda: s.tf.identity(x))

    return planted(s, body, "Square", "cond/branch", bad, quiet(np.square, f16(bad)))


@fault("in_map_fn")
def _(s: Setting) -> Fault:
    """tf.map_fn over the examples of a batch."""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[2, 1] = 300.0

    def body(x: Any) -> Any:
        mapped = s.tf.map_fn(lambda row: s.tf.square(row * (0.01 if s.cured else 1.0), name="each"), x)
        return s.tf.ensure_shape(mapped, (None, n))

    return planted(s, body, "Square", "map/while/each", bad, quiet(np.square, f16(bad)[2]), [f16(bad)[2]])


@fault("in_vectorized_map", numerics="it names the call that vectorized_map makes eagerly, or nothing")
def _(s: Setting) -> Fault:
    """tf.vectorized_map over the examples of a batch: that only works as a graph, so the step is replayed as one."""
    n = s.size(4)
    bad = hot_batch(s, 300.0)

    def body(x: Any) -> Any:
        mapped = s.tf.vectorized_map(lambda row: s.tf.square(row * (0.01 if s.cured else 1.0)), x)
        return s.tf.ensure_shape(mapped, (None, n))

    return planted(s, body, "Square", "loop_body/Square/pfor/Square", bad, quiet(np.square, f16(bad)))


@fault("a_loop_that_only_the_overflow_ends")
def _(s: Setting) -> Fault:
    """A value is squared until it is past 1e5, which float16 never is: Inf ends the loop. A replay with finite values in its place must end too."""
    bad = hot_batch(s, 300.0)

    def body(x: Any) -> Any:
        top = s.tf.cast(s.tf.reduce_max(x), s.tf.float32)
        cond = lambda y, times: s.tf.logical_and(s.tf.cast(s.tf.reduce_max(y), s.tf.float32) < 1e5, s.tf.logical_or(top > 100.0, times < 1))  # noqa: E731
        step = lambda y, times: (s.tf.square(y * (0.01 if s.cured else 1.0), name="grown"), times + 1)  # noqa: E731
        limit = 1 if s.cured else 1000
        return s.tf.while_loop(cond, step, (x, s.tf.constant(0)), maximum_iterations=limit)[0]

    return planted(s, body, "Square", "while/grown", bad, quiet(np.square, f16(bad)))


@fault("with_a_custom_gradient")
def _(s: Setting) -> Fault:
    """A function with a gradient of its own overflows going forward."""
    bad = hot_batch(s, 300.0)

    @s.tf.custom_gradient
    def own(x: Any) -> Any:
        y = s.tf.square(x * (0.01 if s.cured else 1.0))
        return y, lambda dy: dy * x

    return planted(s, own, "Square", "Square", bad, quiet(np.square, f16(bad)))


@fault("layer_used_twice")
def _(s: Setting) -> Fault:
    """One layer is called twice, its second call overflows: 160 000 after 400. Keras 2 numbers the operators below the
    layer's scope, Keras 3 the scopes, and opens two for each call."""
    bad = hot_batch(s, 20.0)
    n = bad.shape[1]
    inputs = s.keras.Input((n,), name=s.name("features"))
    hot = s.layer("hot", lambda x: s.tf.square(x) * (0.01 if s.cured else 1.0))
    h = hot(hot(s.dense("first", np.eye(n))(inputs)))
    model = s.compile(s.model(inputs, s.head(h, 1e-6)))
    once = quiet(np.square, f16(bad))
    op = s.path("net/hot") + ("_3/Square" if s.keras3 else "/Square_1")
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=4), Truth("Square", op, start=4), Hand([once], quiet(np.square, once)))


# --- layers of Keras ------------------------------------------------------------------------------------------------------------------------


@fault("dropout_scales_up", proof="check_numerics names it; which elements are kept is random")
def _(s: Setting) -> Fault:
    """Dropout of a half multiplies by 2 what it keeps: 40 000 becomes Inf, wherever it is kept. Cure: float32."""
    n = s.size(8)
    bad = np.full((BATCH, n), 40000.0, np.float32)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    h = s.keras.layers.Dropout(0.5, seed=1, name=s.name("hot"), dtype="float32" if s.cured else None)(h)
    model = s.compile(s.model(inputs, s.head(h, 1e-6)))
    # Keras 3 calls tf.nn.experimental.stateless_dropout, whose scope has another name
    op = "/stateless_dropout/Mul" if s.keras3 else "/dropout/Mul"
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=4), Truth("Mul", s.path("net/hot") + op, start=4))


@fault("average_pooling_layer")
def _(s: Setting) -> Fault:
    """Keras' AveragePooling2D over pixels of 30 000."""
    channels = s.size(2)
    bad = s.uniform((BATCH, 4, 4, channels))
    bad[2, 2:, :2, :] = 30000.0
    inputs = s.keras.Input((4, 4, channels), name=s.name("features"))
    dtype = "float32" if s.cured else None
    h = s.keras.layers.AveragePooling2D(2, name=s.name("hot"), dtype=dtype)(s.dense("first", np.eye(channels))(inputs))
    h = s.keras.layers.GlobalMaxPooling2D(name=s.name("top"), dtype=dtype)(h)
    model = s.compile(s.model(inputs, s.head(h, 1e-6)))
    pooled = f16(bad).reshape(BATCH, 2, 2, 2, 2, channels)
    by_hand = quiet(lambda: np.add.reduce(np.add.reduce(pooled, 4, dtype=np.float16), 2, dtype=np.float16) / np.float16(4))
    truth = Truth("AvgPool", s.path("net/hot/AvgPool"), start=4)
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=4), truth, Hand([f16(bad)], by_hand))


# --- losses -----------------------------------------------------------------------------------------------------------------------------------


@fault("own_loss_in_float16", versions="<2.16")
def _(s: Setting) -> Fault:
    """The model's output stays float16, an exponential loss of the user's own takes it as it is: exp(12). Cure: float32 in the loss.
    Keras 3 computes losses in float32: no fault there.

    (A squared error would overflow too, and its gradient 2 * error would not: that is healthy.)"""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[1] = 12.0
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    h = s.dense("hot", np.full((n, 1), 1.0 / n))(h)

    def loss(y: Any, p: Any) -> Any:
        if s.cured:
            p = s.tf.cast(p, s.tf.float32)
        with s.tf.name_scope("error"):
            return s.tf.reduce_mean(s.tf.cast(s.tf.exp(p, name="growth"), s.tf.float32) * 1e-4, -1)

    model = s.compile(s.model(inputs, h), loss=loss, optimizer=s.optimizer(4.0))
    error = f16(f16(bad).astype(np.float32) @ np.full((n, 1), np.float16(1.0 / n), np.float32))
    truth = Truth("Exp", "loss/error/growth", start=4, advice="exponent")
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=4), truth, Hand([error], quiet(np.exp, error)))


# --- from outside -----------------------------------------------------------------------------------------------------------------------------


@fault("integer_feature_over_65504")
def _(s: Setting) -> Fault:
    """An integer feature of 70 000 is cast to float16 in a layer. Cure: clip it."""
    n = s.size(4)
    good = s.random.randint(0, 9, (BATCH, n)).astype(np.int32)
    bad = good.copy()
    bad[s.at(BATCH, n)] = 70000
    inputs = s.keras.Input((n,), dtype="int32", name=s.name("ids"))
    h = s.layer("hot", lambda x: s.tf.cast(s.tf.minimum(x, 60000) if s.cured else x, s.tf.float16))(inputs)
    model = s.compile(s.model(inputs, s.head(s.dense("first", np.eye(n))(h), 1e-6)))
    truth = Truth("Cast", s.path("net/hot/Cast"), origin="data", value=70000.0, source="x", start=4)
    return Fault(Fit(model, good=good, bad=bad, start=4), truth, Hand([], bad))


@fault("table_that_does_not_fit")
def _(s: Setting) -> Fault:
    """A literal table of float32 with 100 000 in it, cast to float16: the literal is to blame."""
    n = s.size(5)
    table = np.ones(n, np.float32)
    table[3] = 1000.0 if s.cured else 1e5

    def body(x: Any) -> Any:
        return x * s.tf.cast(s.tf.constant(table), x.dtype)

    model = s.compile(s.net(n, body, 1e-6))
    truth = Truth("Cast", s.path("net/hot/Cast"), origin="constant", element=(3,), value=1e5)
    return Fault(Fit(model, bad=s.uniform((BATCH, n))), truth, Hand([], table))
