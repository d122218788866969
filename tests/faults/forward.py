"""Faults of the forward pass: operators that turn finite inputs into Inf or NaN.

Most are one formula in a layer "hot" between a Dense layer that hands the features on and a small float32 head, so that hand computation is one line.
"""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

import numpy as np

from .kit import BATCH, INF, Fault, Fit, Hand, Setting, Truth, f16, fault

START = 4


def planted(
    s: Setting,
    body: Callable[[Any], Any],
    op_type: str,
    op: str,
    bad: Any,
    output: Any,
    inputs: Optional[Sequence[Any]] = None,
    good: Any = None,
    float32: bool = False,
    out: float = 1e-6,
    **truth: Any,
) -> Fault:
    """A layer "hot" that computes ``body``.

    Args:
        op_type, op: type and name of the operator to blame, inside the layer.
        bad: a batch with the fault.
        output: of the operator by hand; ``inputs`` of it, default: the batch in float16.
        good: a batch without, default: between 0.5 and 1.
        float32: the cure is ``dtype="float32"`` on the layer (else ``body`` has its own).
    """
    hot = {"dtype": "float32"} if float32 and s.cured else None
    model = s.compile(s.net(bad.shape[1:], body, out, hot))
    training = Fit(model, good=s.uniform(bad.shape) if good is None else good, bad=bad, start=START)
    known = dict({"start": START, "cured_by_scale": False}, **truth)
    with np.errstate(all="ignore"):
        return Fault(training, Truth(op_type, s.path("net", "hot") + "/" + op, **known), Hand([f16(bad)] if inputs is None else inputs, output))


def hot_batch(s: Setting, value: float, n: Optional[int] = None, low: float = 0.5, high: float = 1.0) -> Any:
    """A batch of two dimensions that does no harm but for one element."""
    n = n or s.size(4)
    bad = s.uniform((BATCH, n), low, high)
    bad[s.at(BATCH, n)] = value
    return bad


def quiet(function: Callable[..., Any], *args: Any) -> Any:
    """numpy without its warnings of overflow: that is what is wanted here."""
    with np.errstate(all="ignore"):
        return function(*args)


# --- products and sums --------------------------------------------------------------------------------------------------------------


@fault("matmul_large_weights", whole=True)
def _(s: Setting) -> Fault:
    """Weights of 100 and features of 250: products of 25 000, several of them are summed."""
    n, m = s.size(4), s.size(6)
    kernel = np.full((n, m), 100.0)
    bad = s.uniform((BATCH, n), 200.0, 300.0)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    h = s.dense("hot", kernel, dtype="float32" if s.cured else None)(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=s.uniform((BATCH, n)), bad=bad, start=4)
    truth = Truth("MatMul", s.path("net/hot/MatMul"), element=(0, 0), value=INF, start=4, cured_by_scale=False, advice="keep_float32")
    return Fault(training, truth, Hand([f16(bad), f16(kernel)], f16(f16(bad).astype(np.float32) @ kernel)))


@fault("bias_of_60000")
def _(s: Setting) -> Fault:
    """A product of 10 000 fits, with a bias of 60 000 it does not."""
    n, m = s.size(4), s.size(3)
    kernel, bias = np.full((n, m), 1.0), np.full(m, 60000.0)
    bad = hot_batch(s, 10000.0, n)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    h = s.dense("hot", kernel, bias, dtype="float32" if s.cured else None)(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=s.uniform((BATCH, n)), bad=bad, start=4)
    product = f16(f16(bad).astype(np.float32) @ kernel)
    return Fault(training, Truth("BiasAdd", s.path("net/hot/BiasAdd"), value=INF, start=4), Hand([product, f16(bias)], quiet(np.add, product, f16(bias))))


@fault("square_in_a_layer")
def _(s: Setting) -> Fault:
    """300 squared is 90 000."""
    bad = hot_batch(s, 300.0)
    return planted(s, s.tf.square, "Square", "Square", bad, quiet(np.square, f16(bad)), float32=True, advice=("power", "keep_float32"))


@fault("product_of_two")
def _(s: Setting) -> Fault:
    """x times 1000 x, written with the operators of Python."""
    bad = hot_batch(s, 10.0)
    big = quiet(np.multiply, f16(bad), np.float16(1000))
    return planted(s, lambda x: x * (x * 1000.0), "Mul", "mul_1", bad, quiet(np.multiply, f16(bad), big), [f16(bad), big], float32=True, advice="product_range")


@fault("pow_three")
def _(s: Setting) -> Fault:
    """50 to the power of 3 is 125 000."""
    bad = hot_batch(s, 50.0)
    return planted(s, lambda x: x**3.0, "Pow", "pow", bad, quiet(np.power, f16(bad), np.float16(3)), float32=True, advice="power")


@fault("pow_negative")
def _(s: Setting) -> Fault:
    """0.001 to the power of -2 is a million."""
    bad = hot_batch(s, 0.001)
    by_hand = quiet(np.power, f16(bad), np.float16(-2))
    return planted(s, lambda x: s.tf.pow(x, -2.0), "Pow", "Pow", bad, by_hand, float32=True, out=1e-12, advice="log_or_reciprocal")


@fault("sum_of_a_row")
def _(s: Setting) -> Fault:
    """A row of 20 000s: its sum exceeds 65504."""
    n = s.size(5)
    bad = s.uniform((BATCH, n))
    bad[2] = 20000.0
    by_hand = quiet(np.sum, f16(bad), -1)[:, None]
    return planted(s, lambda x: s.tf.reduce_sum(x, -1, keepdims=True), "Sum", "Sum", bad, by_hand, float32=True, advice="sum_range")


@fault("inner_sum_of_a_mean")
def _(s: Setting) -> Fault:
    """The mean of 20 000s is 20 000, the sum on the way is not: TensorFlow's kernel sums in float16."""
    n = s.size(5)
    bad = s.uniform((BATCH, n))
    bad[1] = 20000.0
    by_hand = quiet(lambda: np.add.reduce(f16(bad), -1, dtype=np.float16)[:, None] / np.float16(n))
    return planted(s, lambda x: s.tf.reduce_mean(x, -1, keepdims=True), "Mean", "Mean", bad, by_hand, float32=True, advice="mean_range")


@fault("own_mean")
def _(s: Setting) -> Fault:
    """A mean written as sum divided by count: the sum is to blame, not the quotient. Cure: divide first."""
    n = s.size(5)
    bad = s.uniform((BATCH, n))
    bad[1] = 20000.0

    def body(x: Any) -> Any:
        return s.tf.reduce_sum(x / n, -1, keepdims=True) if s.cured else s.tf.reduce_sum(x, -1, keepdims=True) / n

    return planted(s, body, "Sum", "Sum", bad, quiet(lambda: np.add.reduce(f16(bad), -1, dtype=np.float16)[:, None]))


@fault("average_pooling")
def _(s: Setting) -> Fault:
    """Pixels of 30 000, pooled by 2 x 2: the sum before the division is 120 000."""
    side, channels = 4, s.size(2)
    bad = s.uniform((BATCH, side, side, channels))
    bad[2, 2:, :2, :] = 30000.0

    def body(x: Any) -> Any:
        return s.tf.reduce_sum(s.tf.nn.avg_pool2d(x, 2, 2, "VALID") * 0.01, [1, 2])

    pooled = f16(bad).reshape(BATCH, 2, 2, 2, 2, channels)
    by_hand = quiet(lambda: np.add.reduce(np.add.reduce(pooled, 4, dtype=np.float16), 2, dtype=np.float16) / np.float16(4))
    return planted(s, body, "AvgPool", "AvgPool2D", bad, by_hand, float32=True, advice="mean_range")


@fault("global_average_pooling", versions="<2.16")
def _(s: Setting) -> Fault:
    """A Keras layer that averages over time. Keras 3 takes means of float16 in float32: no fault there."""
    t, n = s.size(5), s.size(3)
    bad = s.uniform((BATCH, t, n))
    bad[1, :, 1] = 25000.0
    inputs = s.keras.Input((t, n), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    h = s.keras.layers.GlobalAveragePooling1D(name=s.name("hot"), dtype="float32" if s.cured else None)(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=s.uniform(bad.shape), bad=bad, start=4)
    by_hand = quiet(lambda: np.add.reduce(f16(bad), 1, dtype=np.float16) / np.float16(t))
    return Fault(training, Truth("Mean", s.path("net/hot/Mean"), start=4), Hand([f16(bad)], by_hand))


@fault("running_sum")
def _(s: Setting) -> Fault:
    """A cumulative sum along the row."""
    n = s.size(5)
    bad = s.uniform((BATCH, n))
    bad[2] = 20000.0
    return planted(s, lambda x: s.tf.cumsum(x, -1), "Cumsum", "Cumsum", bad, quiet(np.cumsum, f16(bad), -1), float32=True)


@fault("running_product")
def _(s: Setting) -> Fault:
    """A cumulative product along the row."""
    n = s.size(5)
    bad = s.uniform((BATCH, n))
    bad[2] = 20.0
    return planted(s, lambda x: s.tf.math.cumprod(x, -1), "Cumprod", "Cumprod", bad, quiet(np.cumprod, f16(bad), -1), float32=True)


@fault("product_of_a_row")
def _(s: Setting) -> Fault:
    """The product of a row of 20s: 160 000 after four of them."""
    n = s.size(5)
    bad = s.uniform((BATCH, n))
    bad[3] = 20.0
    return planted(s, lambda x: s.tf.reduce_prod(x, -1, keepdims=True), "Prod", "Prod", bad, quiet(np.prod, f16(bad), -1)[:, None], float32=True, out=1e-12)


@fault("half_a_sum_of_squares")
def _(s: Setting) -> Fault:
    """An activity penalty by l2_loss in float16."""
    n = s.size(4)
    bad = hot_batch(s, 400.0, n)

    def body(x: Any) -> Any:
        return x * 1e-3 + s.tf.nn.l2_loss(x) * 1e-4

    by_hand = quiet(lambda: np.float16(0.5) * np.add.reduce(np.square(f16(bad)), None, dtype=np.float16))
    return planted(s, body, "L2Loss", "L2Loss", bad, by_hand, float32=True)


@fault("add_n")
def _(s: Setting) -> Fault:
    """Three branches of 30 000 are added up."""
    bad = hot_batch(s, 30000.0)
    by_hand = quiet(lambda: f16(bad) + f16(bad) + f16(bad))
    return planted(s, lambda x: s.tf.add_n([x, s.tf.identity(x), s.tf.identity(x)]), "AddN", "AddN", bad, by_hand, float32=True)


@fault("segment_sum")
def _(s: Setting) -> Fault:
    """Columns are gathered and summed by segments, as graph networks do."""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[:, :2] = 40000.0
    ids = np.zeros(n, np.int32)
    ids[2:] = 1

    def body(x: Any) -> Any:
        return s.tf.transpose(s.tf.math.unsorted_segment_sum(s.tf.transpose(x), ids, 2))

    by_hand = quiet(lambda: np.stack([np.add.reduce(f16(bad)[:, ids == i], 1, dtype=np.float16) for i in range(2)]))
    return planted(s, body, "UnsortedSegmentSum", "UnsortedSegmentSum", bad, by_hand, float32=True)


@fault("scatter_adds")
def _(s: Setting) -> Fault:
    """scatter_nd adds two rows into the same place."""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[:2] = 40000.0

    def body(x: Any) -> Any:
        return s.tf.scatter_nd([[0], [0], [1], [2]], x, [BATCH, n])

    by_hand = quiet(lambda: np.stack([f16(bad)[0] + f16(bad)[1], f16(bad)[2], f16(bad)[3], f16(np.zeros(n))]))
    return planted(s, body, "ScatterNd", "ScatterNd", bad, by_hand, float32=True, advice="sum_range")


# --- variance, norm, normalization ---------------------------------------------------------------------------------------------------


@fault("variance_by_squares")
def _(s: Setting) -> Fault:
    """E[x²] - E[x]²: the square of 500 overflows although the variance is small. Cure: in float32."""
    n = s.size(4)
    bad = s.uniform((BATCH, n), 499.0, 501.0)

    def body(x: Any) -> Any:
        square = s.tf.reduce_mean(x * x, -1, keepdims=True)
        return square - s.tf.square(s.tf.reduce_mean(x, -1, keepdims=True))

    return planted(s, body, "Mul", "mul", bad, quiet(np.multiply, f16(bad), f16(bad)), float32=True)


@fault("own_batch_normalization")
def _(s: Setting) -> Fault:
    """Batch normalization of the user's own in float16: the squared distance from the mean overflows."""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[1] = 2000.0

    def body(x: Any) -> Any:
        mean = s.tf.reduce_mean(x, 0, keepdims=True)
        variance = s.tf.reduce_mean(s.tf.math.squared_difference(x, mean), 0, keepdims=True)
        return (x - mean) / (s.tf.sqrt(variance) + 1e-3) + variance

    mean = (np.add.reduce(f16(bad), 0, dtype=np.float16) / np.float16(BATCH)).astype(np.float16)[None]
    by_hand = quiet(lambda: np.square(f16(bad) - mean))
    return planted(s, body, "SquaredDifference", "SquaredDifference", bad, by_hand, [f16(bad), mean], float32=True)


@fault("moments_back_to_float16")
def _(s: Setting) -> Fault:
    """tf.nn.moments computes in float32 and casts back: the variance does not fit."""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[2, 0] = 2000.0

    def body(x: Any) -> Any:
        mean, variance = s.tf.nn.moments(x, -1, keepdims=True)
        return x - mean + variance

    variance = f16(bad).astype(np.float32).var(-1, keepdims=True)
    return planted(s, body, "Cast", "moments/Cast_2", bad, f16(variance), [variance], float32=True)


@fault("norm_as_a_feature")
def _(s: Setting) -> Fault:
    """The Euclidean norm of a row: its squares overflow, and the norm is used as it is."""
    bad = hot_batch(s, 300.0)
    return planted(s, lambda x: s.tf.norm(x, axis=-1, keepdims=True), "Mul", "norm/mul", bad, quiet(np.square, f16(bad)), float32=True)


@fault("cosine_of_two")
def _(s: Setting) -> Fault:
    """A cosine: dot product divided by two norms. The dot product is Inf, the norms too: Inf / Inf."""
    n = s.size(4)
    bad = s.uniform((BATCH, n), 300.0, 400.0)

    def body(x: Any) -> Any:
        y = s.tf.reverse(x, [-1])
        return s.tf.reduce_sum(x * y, -1, keepdims=True) / (s.tf.norm(x, axis=-1, keepdims=True) * s.tf.norm(y, axis=-1, keepdims=True))

    return planted(s, body, "Mul", "mul", bad, quiet(np.multiply, f16(bad), f16(bad)[:, ::-1]), float32=True)


@fault("own_layer_normalization")
def _(s: Setting) -> Fault:
    """A layer normalization written in float16: distances of 300 from the mean, squared."""
    n = s.size(6)
    bad = s.uniform((BATCH, n))
    bad[2, 1] = 900.0

    def body(x: Any) -> Any:
        centred = x - s.tf.reduce_mean(x, -1, keepdims=True)
        variance = s.tf.reduce_mean(centred**2.0, -1, keepdims=True)
        return centred / (variance + 1e-3) + variance * 1e-3

    centred = f16(bad) - (np.add.reduce(f16(bad), -1, dtype=np.float16) / np.float16(n)).astype(np.float16)[:, None]
    return planted(s, body, "Pow", "pow", bad, quiet(np.square, centred), [centred], float32=True, advice="power")


# --- logarithms, exponentials, quotients ----------------------------------------------------------------------------------------------


@fault("log_of_zero")
def _(s: Setting) -> Fault:
    """A feature of 0 under a logarithm. Cure: an epsilon that float16 can hold."""
    bad = hot_batch(s, 0.0)
    return planted(s, lambda x: s.tf.math.log(x + 1e-4 if s.cured else x), "Log", "Log", bad, quiet(np.log, f16(bad)), value=-INF, advice="log_or_reciprocal")


@fault("epsilon_that_is_zero")
def _(s: Setting) -> Fault:
    """log(x + 1e-8): the epsilon is 0 in float16."""
    bad = hot_batch(s, 0.0)
    epsilon = 1e-4 if s.cured else 1e-8
    by_hand = quiet(np.log, f16(bad) + np.float16(1e-8))
    return planted(s, lambda x: s.tf.math.log(x + epsilon), "Log", "Log", bad, by_hand, value=-INF, advice="log_or_reciprocal")


@fault("log_of_a_negative")
def _(s: Setting) -> Fault:
    """A negative feature under a logarithm: NaN."""
    bad = hot_batch(s, -1.0)
    return planted(s, lambda x: s.tf.math.log(s.tf.maximum(x, 1e-4) if s.cured else x), "Log", "Log", bad, quiet(np.log, f16(bad)), advice="log_or_reciprocal")


@fault("sqrt_of_a_negative")
def _(s: Setting) -> Fault:
    """A variance that rounding made negative, under a root."""
    bad = hot_batch(s, -0.01)
    return planted(s, lambda x: s.tf.sqrt(s.tf.maximum(x, 1e-4) if s.cured else x), "Sqrt", "Sqrt", bad, quiet(np.sqrt, f16(bad)), advice="log_or_reciprocal")


@fault("quotient_with_epsilon_zero")
def _(s: Setting) -> Fault:
    """1 / (x + 1e-8) at x = 0."""
    bad = hot_batch(s, 0.0)
    epsilon = 1e-2 if s.cured else 1e-8
    return planted(s, lambda x: 1.0 / (x + epsilon), "RealDiv", "truediv", bad, quiet(np.divide, np.float16(1), f16(bad)), advice="log_or_reciprocal")


@fault("quotient_of_zeros")
def _(s: Setting) -> Fault:
    """A row normalized by its sum, and the row is empty: 0 / 0. Cure: divide_no_nan."""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[2] = 0.0

    def body(x: Any) -> Any:
        total = s.tf.reduce_sum(x, -1, keepdims=True)
        return s.tf.math.divide_no_nan(x, total) if s.cured else x / total

    total = f16(bad).sum(-1, keepdims=True)
    return planted(s, body, "RealDiv", "truediv", bad, quiet(np.divide, f16(bad), total), [f16(bad), total], advice="log_or_reciprocal")


@fault("division_by_tiny")
def _(s: Setting) -> Fault:
    """Scores divided by a temperature that stands in the first column: 1 / 1e-5."""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[2, 0] = 1e-5

    def body(x: Any) -> Any:
        return x[:, 1:] / (s.tf.maximum(x[:, :1], 1e-2) if s.cured else x[:, :1])

    scores, temperature = f16(bad)[:, 1:], f16(bad)[:, :1]
    return planted(s, body, "RealDiv", "truediv", bad, quiet(np.divide, scores, temperature), [scores, temperature], advice="log_or_reciprocal")


@fault("division_by_a_tiny_literal", whole=True)
def _(s: Setting) -> Fault:
    """x / 1e-5 with x below 0.2 fits float16, but TensorFlow's graph optimizer multiplies by the literal's reciprocal, which is Inf: the compiled step
    overflows, the same step run eagerly does not."""
    bad = s.uniform((BATCH, s.size(4)), 0.1, 0.2)
    training = Fit(s.compile(s.net(bad.shape[1], lambda x: x / (1e-2 if s.cured else 1e-5), 1e-6)), bad=bad)
    truth = Truth("RealDiv", s.path("net/hot") + "/truediv", or_reason="not_reproduced")
    return Fault(training, truth, Hand([f16(bad)], quiet(lambda: f16(bad) * (np.float16(1) / np.float16(1e-5)))))


@fault("reciprocal_of_tiny")
def _(s: Setting) -> Fault:
    """The reciprocal of 1e-5."""
    bad = hot_batch(s, 1e-5)
    return planted(s, lambda x: s.tf.math.reciprocal(s.tf.maximum(x, 1e-3) if s.cured else x), "Reciprocal", "Reciprocal", bad,
                   quiet(np.divide, np.float16(1), f16(bad)), advice="log_or_reciprocal")  # fmt: skip


@fault("exp_of_features")
def _(s: Setting) -> Fault:
    """Features of 12 and an exponential: above 11.09 float16 gives Inf."""
    bad = hot_batch(s, 12.0)
    return planted(s, lambda x: s.tf.exp(s.tf.minimum(x, 8.0) if s.cured else x), "Exp", "Exp", bad, quiet(np.exp, f16(bad)), value=INF, advice="exponent")


@fault("own_softmax")
def _(s: Setting) -> Fault:
    """A softmax without the maximum subtracted."""
    bad = hot_batch(s, 13.0)

    def body(x: Any) -> Any:
        if s.cured:
            x = x - s.tf.stop_gradient(s.tf.reduce_max(x, -1, keepdims=True))
        e = s.tf.exp(x)
        return e / s.tf.reduce_sum(e, -1, keepdims=True)

    return planted(s, body, "Exp", "Exp", bad, quiet(np.exp, f16(bad)), value=INF, advice="exponent")


@fault("own_softplus")
def _(s: Setting) -> Fault:
    """log(1 + exp(x)) at 15. Cure: TensorFlow's softplus."""
    bad = hot_batch(s, 15.0)

    def body(x: Any) -> Any:
        return s.tf.nn.softplus(x) if s.cured else s.tf.math.log(1.0 + s.tf.exp(x))

    return planted(s, body, "Exp", "Exp", bad, quiet(np.exp, f16(bad)), advice="exponent")


@fault("cosh_of_features")
def _(s: Setting) -> Fault:
    """log cosh as a robust loss, written out."""
    bad = hot_batch(s, -13.0)
    return planted(s, lambda x: s.tf.math.log(s.tf.cosh(x)), "Cosh", "Cosh", bad, f16(np.cosh(f16(bad).astype(np.float64))), float32=True, advice="exponent")


@fault("expm1_of_features")
def _(s: Setting) -> Fault:
    """exp(x) - 1 by its own operator."""
    bad = hot_batch(s, 12.5)
    return planted(s, s.tf.math.expm1, "Expm1", "Expm1", bad, quiet(np.expm1, f16(bad)), float32=True, advice="exponent")


@fault("log_of_a_softmax")
def _(s: Setting) -> Fault:
    """Cross entropy written as the log of a softmax of float16 logits: a probability of exp(-30) is 0."""
    n = s.size(4)
    bad = s.uniform((BATCH, n))
    bad[2, 1] = 30.0

    def body(x: Any) -> Any:
        return -s.tf.nn.log_softmax(x) if s.cured else -s.tf.math.log(s.tf.nn.softmax(x))

    wide = f16(bad).astype(np.float64)
    probability = f16(np.exp(wide - wide.max(-1, keepdims=True)) / np.exp(wide - wide.max(-1, keepdims=True)).sum(-1, keepdims=True))
    return planted(s, body, "Log", "Log", bad, quiet(np.log, probability), [probability], value=-INF, advice="log_or_reciprocal")


@fault("cross_entropy_of_float16_logits")
def _(s: Setting) -> Fault:
    """Logits of 40 000 and -40 000: the loss is their distance, 80 000."""
    n = s.size(3)
    bad = s.uniform((BATCH, n))
    bad[2, 0], bad[2, 1] = 40000.0, -40000.0

    def body(x: Any) -> Any:
        labels = s.tf.ones_like(x[:, 0], s.tf.int32)
        return s.tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x)[:, None]

    wide = f16(bad).astype(np.float64)
    top = wide.max(-1)
    loss = f16(top + np.log(np.exp(wide - top[:, None]).sum(-1)) - wide[:, 1])
    # the kernel runs in float32, the loss is cast back
    return planted(s, body, "Cast", "SparseSoftmaxCrossEntropyWithLogits/Cast_1", bad, loss, float32=True)


@fault("float32_product")
def _(s: Setting) -> Fault:
    """The product of a row leaves float32, in a layer that works in float32: no matter of precision, and no rule knows it."""
    n = s.size(6)
    bad = s.uniform((BATCH, n))
    bad[2] = 10000.0

    def body(x: Any) -> Any:
        wide = s.tf.cast(x, s.tf.float32) * (1.0 if s.cured else 1e4)
        return s.tf.reduce_prod(wide, -1, keepdims=True) * 1e-30

    wide = f16(bad).astype(np.float32) * np.float32(1e4)
    return planted(s, body, "Prod", "Prod", bad, quiet(np.prod, wide, -1)[:, None], [wide], advice="ask_support")


# --- convolutions -------------------------------------------------------------------------------------------------------------------


def patch(s: Setting, side: int, channels: int, value: float) -> Any:
    """Images that are bright in one corner."""
    bad = s.uniform((BATCH, side, side, channels))
    bad[1, 2:, 2:, :] = value
    return bad


@fault("convolution")
def _(s: Setting) -> Fault:
    """A 3 x 3 kernel of ones over bright pixels."""
    side, channels = 5, s.size(2)
    bad = patch(s, side, channels, 9000.0)
    kernel = np.ones((3, 3, channels, 2))

    def body(x: Any) -> Any:
        return s.tf.reduce_max(s.tf.nn.conv2d(x, s.tf.constant(kernel, x.dtype), 1, "VALID"), [1, 2])

    return planted(s, body, "Conv2D", "Conv2D", bad, convolved(bad, 3, 2), float32=True, advice="dot_product")


def convolved(images: Any, size: int, filters: int) -> Any:
    """Convolution with ones by hand, "VALID"."""
    wide = f16(images).astype(np.float32)
    places = wide.shape[1] - size + 1
    sums = [[wide[:, i : i + size, j : j + size].sum((1, 2, 3)) for j in range(places)] for i in range(places)]
    return f16(np.repeat(np.array(sums).transpose(2, 0, 1)[..., None], filters, -1))


@fault("convolution_layer")
def _(s: Setting) -> Fault:
    """Keras' Conv2D over bright pixels."""
    side, channels = 5, s.size(2)
    bad = patch(s, side, channels, 9000.0)
    inputs = s.keras.Input((side, side, channels), name=s.name("features"))
    h = s.dense("first", np.eye(channels))(inputs)
    conv = s.keras.layers.Conv2D(2, 3, kernel_initializer=s.constant(1.0), use_bias=False, name=s.name("hot"), dtype="float32" if s.cured else None)
    h = s.keras.layers.GlobalMaxPooling2D(name=s.name("pool"), dtype="float32" if s.cured else None)(conv(h))
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=s.uniform(bad.shape), bad=bad, start=4)
    # Keras 3 calls tf.nn.convolution, which names its operator so
    op = "convolution" if s.keras3 else "Conv2D"
    return Fault(training, Truth("Conv2D", s.path("net/hot") + "/" + op, start=4, advice="keep_float32"), Hand([f16(bad), f16(1.0)], convolved(bad, 3, 2)))


@fault("depthwise_convolution")
def _(s: Setting) -> Fault:
    """Each channel by its own kernel."""
    side, channels = 5, s.size(2)
    bad = patch(s, side, channels, 9000.0)

    def body(x: Any) -> Any:
        kernel = s.tf.ones((3, 3, channels, 1), x.dtype)
        return s.tf.reduce_max(s.tf.nn.depthwise_conv2d(x, kernel, [1, 1, 1, 1], "VALID"), [1, 2])

    by_hand = np.concatenate([convolved(bad[..., i : i + 1], 3, 1) for i in range(channels)], -1)
    return planted(s, body, "DepthwiseConv2dNative", "depthwise", bad, by_hand, float32=True)


# --- attention ------------------------------------------------------------------------------------------------------------------------


@fault("attention_scores")
def _(s: Setting) -> Fault:
    """Queries times keys by einsum, without the division by sqrt(d): 4 * 200 * 200. Cure: float32."""
    t, d = s.size(3), s.size(4)
    bad = s.uniform((BATCH, t, d))
    bad[2] = 200.0

    def body(x: Any) -> Any:
        scores = s.tf.einsum("bqd,bkd->bqk", x, x)
        return s.tf.reduce_mean(s.tf.matmul(s.tf.nn.softmax(scores), x), 1)

    by_hand = f16(np.einsum("bqd,bkd->bqk", f16(bad).astype(np.float32), f16(bad).astype(np.float32)))
    return planted(s, body, "Einsum", "einsum/Einsum", bad, by_hand, float32=True, advice="dot_product")


def attention(s: Setting, bias: Callable[[Any], Any], x: Any) -> Any:
    """Attention with a mask that ``bias`` adds to the scores, averaged over time."""
    scores = s.tf.matmul(x, x, transpose_b=True)
    return s.tf.reduce_mean(s.tf.matmul(s.tf.nn.softmax(bias(scores)), x), 1)


def mask(t: int, whole_row: bool) -> Any:
    """1 where attention is allowed; the last place is not, and in the last example of the batch nothing is."""
    keep = np.ones((BATCH, t, t), np.float32)
    keep[:, :, -1] = 0.0
    if whole_row:
        keep[-1, 1, :] = 0.0
    return keep


@fault("mask_1e9_whole_row", numerics="it blames the mask of every step, before the fault begins")
def _(s: Setting) -> Fault:
    """A mask of -1e9 is cast to float16, so it is -Inf: harmless, until a whole row is masked (softmax of nothing is NaN)."""
    return whole_row(s, -1e9)


@fault("mask_float32_minimum_whole_row", numerics="it blames the mask of every step, before the fault begins")
def _(s: Setting) -> Fault:
    """As above with float32's minimum."""
    return whole_row(s, float(np.finfo(np.float32).min))


def whole_row(s: Setting, value: float) -> Fault:
    """The mask is made from the features: a negative first feature masks the row."""
    t, d = s.size(3), s.size(4)
    good = s.uniform((BATCH, t, d))
    good[:, -1] = -0.5
    bad = good.copy()
    bad[2] = -0.5

    def body(x: Any) -> Any:
        masked = s.tf.cast(x[:, :, 0] < 0, s.tf.float32)  # (batch, keys)
        bias = s.tf.cast(masked * (-1e4 if s.cured else value), x.dtype)
        return attention(s, lambda scores: scores + bias[:, None, :], x)

    wide = (bad[:, :, 0] < 0).astype(np.float32) * np.float32(value)
    fault = planted(s, body, "Cast", "Cast_1", bad, f16(wide), [wide], good=good, value=-INF, advice="mask_constant")
    return fault


@fault("row_masked_by_infinity", numerics="it blames the mask of every step, before the fault begins")
def _(s: Setting) -> Fault:
    """Scores are replaced by -Inf where nothing may be seen: harmless, until a whole row is (softmax of nothing is NaN)."""
    t, d = s.size(3), s.size(4)
    good = s.uniform((BATCH, t, d))
    good[:, -1, 0] = -0.5
    bad = good.copy()
    bad[2, :, 0] = -0.5

    def body(x: Any) -> Any:
        keep = (x[:, :, 0] > 0)[:, None, :]
        scores = s.tf.matmul(x, x, transpose_b=True)
        masked = s.tf.where(keep, scores, s.tf.constant(-1e4 if s.cured else -np.inf, x.dtype))
        return s.tf.reduce_mean(s.tf.matmul(s.tf.nn.softmax(masked), x), 1)

    def check(outcome: Any) -> List[str]:
        softmax = [operator.advice for operator in outcome.reports[0].operators if operator.op_type == "Softmax"]
        return [] if softmax == [("masked_row",)] else ["advice of the softmax: %s" % softmax]

    found = planted(s, body, "SelectV2", "SelectV2", bad, f16(-np.inf), [], good=good, origin="constant", value=-INF, advice="mask_constant")
    found.check = check
    return found


@fault("mask_minimum_plus_score")
def _(s: Setting) -> Fault:
    """float16's own minimum as a mask: added to a score of -40 it is -Inf, and the row is masked whole."""
    t, d = s.size(3), s.size(4)
    good = s.uniform((BATCH, t, d), 0.1, 0.5)
    bad = good.copy()
    bad[2] = -0.5
    smallest = -1e4 if s.cured else -65504.0

    def body(x: Any) -> Any:
        bias = s.tf.where(x[:, :, 0] < 0, s.tf.constant(smallest, x.dtype), s.tf.constant(0.0, x.dtype))
        scores = s.tf.matmul(x, x, transpose_b=True) - 40.0
        return s.tf.reduce_mean(s.tf.matmul(s.tf.nn.softmax(scores + bias[:, None, :]), x), 1)

    half = f16(bad)
    scores = f16(f16(np.matmul(half.astype(np.float32), half.astype(np.float32).transpose(0, 2, 1))) - np.float16(40))
    bias = f16(np.where(bad[:, :, 0] < 0, -65504.0, 0.0))[:, None, :]
    return planted(s, body, "AddV2", "add", bad, quiet(np.add, scores, bias), [scores, bias], good=good, value=-INF)


@fault("mask_then_overflow", whole=True, numerics="it blames the harmless mask")
def _(s: Setting) -> Fault:
    """A harmless mask of -Inf in every step; later in the same layer a real overflow begins."""
    t, d = s.size(3), s.size(4)
    bad = s.uniform((BATCH, t, d))
    bad[1] = 40.0

    def body(x: Any) -> Any:
        keep = s.tf.constant(mask(t, False)[:1])
        bias = s.tf.cast((1.0 - keep) * -1e9, x.dtype)
        seen = attention(s, lambda scores: scores + bias, x)
        return s.tf.square(seen * 10.0)

    keys = f16(bad)
    ten = quiet(np.multiply, keys[:, 0], np.float16(10))  # rows of a batch's example are equal where it is hot, so attention gives them back
    hot = quiet(np.square, ten)
    hot[[0, 2, 3]] = 0
    return planted(s, body, "Square", "Square", bad, hot, [ten], float32=True)


@fault("mask_in_another_layer", numerics="it blames the harmless mask")
def _(s: Setting) -> Fault:
    """A masked attention layer, then a layer whose exponential overflows."""
    t, d = s.size(3), s.size(4)
    bad = s.uniform((BATCH, t, d))
    bad[1] = 12.0
    inputs = s.keras.Input((t, d), name=s.name("features"))
    h = s.dense("first", np.eye(d))(inputs)

    def attend(x: Any) -> Any:
        keep = s.tf.constant(mask(t, False)[:1] > 0)
        return attention(s, lambda scores: s.tf.where(keep, scores, s.tf.constant(-np.inf, x.dtype)), x)

    h = s.layer("attend", attend)(h)
    h = s.layer("hot", lambda x: s.tf.exp(s.tf.minimum(x, 5.0) if s.cured else x))(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=s.uniform(bad.shape), bad=bad, start=4)
    hot = quiet(np.exp, f16(bad)[:, 0])
    return Fault(training, Truth("Exp", s.path("net/hot/Exp"), value=INF, start=4, advice="exponent"), Hand([f16(bad)[:, 0]], hot))


@fault("mask_times_literal")
def _(s: Setting) -> Fault:
    """(1 - mask) * -1e9 in float16: the literal is -Inf already, and 0 times -Inf is NaN."""
    t, d = s.size(3), s.size(4)
    good = s.uniform((BATCH, t, d))
    value = -1e4 if s.cured else -1e9

    def body(x: Any) -> Any:
        keep = s.tf.cast(x[:, :, 0] > 0, x.dtype)
        return attention(s, lambda scores: scores + ((1.0 - keep) * value)[:, None, :], x)

    model = s.compile(s.net((t, d), body, 1e-6))
    truth = Truth("Mul", s.path("net/hot") + "/mul", origin="constant", element=(), value=-INF, start=0, cured_by_scale=False)
    return Fault(Fit(model, bad=good, start=0), truth, Hand([], f16(-1e9)))


# --- growth ---------------------------------------------------------------------------------------------------------------------------


@fault("residual_growth")
def _(s: Setting) -> Fault:
    """Each block adds twice its input: 300 * 3^k passes 65504 in block 5, counted from 1."""
    n = s.size(4)
    bad = s.uniform((BATCH, n), 0.5, 1.0)
    bad[1] = 300.0
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    for i in range(1, 8):
        h = s.layer("block_%d" % i, lambda x: x + 2.0 * x, dtype="float32" if s.cured else None)(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-9))), good=s.uniform(bad.shape), bad=bad, start=4)
    before = f16(bad)
    for _ in range(4):
        before = before + np.float16(2) * before
    twice = np.float16(2) * before
    truth = Truth("AddV2", s.path("net/block_5") + "/add", start=4, advice="keep_float32")
    return Fault(training, truth, Hand([before, twice], quiet(np.add, before, twice)))


@fault("matmul_chain")
def _(s: Setting) -> Fault:
    """Dense layers whose kernels amplify by 30: the third one overflows."""
    n = s.size(3)
    bad = s.uniform((BATCH, n))
    bad[2] = 5.0
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = inputs
    for i in range(1, 5):
        h = s.dense("stage_%d" % i, 30.0 * np.eye(n), dtype="float32" if s.cured else None)(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-9))), good=s.uniform(bad.shape, 0.01, 0.02), bad=bad, start=4)
    two = f16(f16(bad).astype(np.float32) * 900)
    return Fault(training, Truth("MatMul", s.path("net/stage_3/MatMul"), start=4), Hand([two], quiet(np.multiply, two, np.float16(30))))


# --- recurrent nets -------------------------------------------------------------------------------------------------------------------


def recurrent(s: Setting, kind: str, gates: Sequence[float], recurrent_gates: Sequence[float], name: str, unroll: bool = False) -> Fault:
    """A recurrent layer with relu whose state grows: the product of state and recurrent kernel overflows in the step in which 3 * 40 plus twice eight times the
    state before is more than float16 holds.

    Args:
        gates, recurrent_gates: what stands in the kernels, gate by gate.
        name: of the operator in the layer.
    """
    t, n, units = s.size(6), s.size(3), s.size(2)
    kernel = np.repeat(np.array(gates), units)[None, :].repeat(n, 0)
    weights = np.repeat(np.array(recurrent_gates), units)[None, :].repeat(units, 0)
    bad = np.zeros((BATCH, t, n), np.float32)
    bad[1] = 40.0
    inputs = s.keras.Input((t, n), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    more = {} if kind == "SimpleRNN" else {"implementation": 2}
    layer = getattr(s.keras.layers, kind)(
        units, activation=None if s.cured else "relu", kernel_initializer=s.constant(kernel * (1e-3 if s.cured else 1)), unroll=unroll, name=s.name("hot"),
        recurrent_initializer=s.constant(weights * (1e-3 if s.cured else 1)), bias_initializer="zeros", **more)  # fmt: skip
    training = Fit(s.compile(s.model(inputs, s.head(layer(h), 1e-9))), good=np.zeros_like(bad), bad=bad, start=4)
    state, product = np.float16(0), np.float16(0)
    with np.errstate(all="ignore"):
        while np.isfinite(product):  # gates are 0 or 1 here: a state of the hot example is 40 n + 8 units * state (LSTM: plus the cell before)
            state = np.float16(40 * n) + product + (state if kind == "LSTM" else np.float16(0))
            product = np.float16(8 * units) * state
    by_hand = np.zeros((BATCH, weights.shape[1]))
    by_hand[1, weights[0] != 0] = product
    return Fault(training, Truth("MatMul", s.path("net", "hot") + "/" + name, value=INF, start=4), Hand([f16(state), f16(weights)], by_hand))


@fault("lstm_state_growth", whole=True)
def _(s: Setting) -> Fault:
    """An LSTM with relu in a while loop: all gates open, the cell's state grows without bound."""
    return recurrent(s, "LSTM", [1, 1, 1, 1], [8, 8, 8, 8], "while/lstm_cell/MatMul_1")


@fault("gru_state_growth")
def _(s: Setting) -> Fault:
    """A GRU with relu in a while loop: the update gate is shut, so nothing of the state is kept and the candidate grows."""
    return recurrent(s, "GRU", [-1, 1, 1], [0, 0, 8], "while/gru_cell/MatMul_1")


@fault("simple_rnn_growth")
def _(s: Setting) -> Fault:
    """A plain recurrent layer with relu."""
    return recurrent(s, "SimpleRNN", [1], [8], "while/simple_rnn_cell/MatMul_1")


@fault("unrolled_rnn_growth")
def _(s: Setting) -> Fault:
    """The same unrolled: each time step has operators of its own, counted below the layer's scope (Keras 3 numbers the scopes, and opens two for each)."""
    built = recurrent(s, "SimpleRNN", [1], [8], "", unroll=True)
    units = built.hand.inputs[1].shape[0] if built.hand else 0
    features, state, step = np.float16(40 * s.sizes[1]), 0.0, 0
    while 8 * units * state < 65520:
        state, step = float(features) + 8 * units * state, step + 1
    number = 2 * step + 1
    built.truth.op_name += "simple_rnn_cell_%d/MatMul_1" % number if s.keras3 else "simple_rnn_cell/MatMul_%d" % number
    return built


@fault("state_of_a_loop")
def _(s: Setting) -> Fault:
    """tf.while_loop of the user's own: a value is multiplied by 20 again and again."""
    bad = s.uniform((BATCH, s.size(4)), 1e-3, 2e-3)
    bad[2, 1] = 2.0

    def body(x: Any) -> Any:
        factor = 2.0 if s.cured else 20.0
        return s.tf.while_loop(lambda i, h: i < 5, lambda i, h: (i + 1, s.tf.multiply(h, factor, name="grow")), (0, x))[1]

    grown = f16(bad)
    while np.isfinite(grown).all():
        grown, before = quiet(np.multiply, grown, np.float16(20)), grown
    return planted(s, body, "Mul", "while/grow", bad, grown, [before], good=s.uniform(bad.shape, 1e-3, 2e-3), out=1e-9)


# --- inputs ---------------------------------------------------------------------------------------------------------------------------


@fault("feature_of_70000")
def _(s: Setting) -> Fault:
    """A feature of 70 000 does not fit the first cast: the batch is to blame, not an operator. Cure: clip it."""
    n = s.size(4)
    bad = hot_batch(s, 70000.0, n)
    model = s.compile(s.net(n, lambda x: x * 0.01, 1e-3))
    # a functional model of Keras 3 casts its inputs itself, in Keras 2 the first layer does
    op = s.path("net") + "/Cast" if s.keras3 else s.path("net/first") + "/Cast"
    truth = Truth("Cast", op, origin="data", value=70000.0, start=4, source="x", cured_by_scale=False, advice="cast_range")
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=np.clip(bad, -6e4, 6e4) if s.cured else bad, start=4), truth, Hand([], bad))


@fault("embedding_scaled")
def _(s: Setting) -> Fault:
    """An embedding's row of 700 times 100."""
    n, d = s.size(4), s.size(3)
    table = np.ones((6, d))
    table[5] = 700.0
    good = s.random.randint(0, 5, (BATCH, n)).astype(np.int32)
    bad = good.copy()
    bad[1, 1] = 5
    inputs = s.keras.Input((n,), dtype="int32", name=s.name("ids"))
    h = s.keras.layers.Embedding(6, d, embeddings_initializer=s.constant(table), name=s.name("table"))(inputs)
    h = s.layer("hot", lambda x: s.tf.reduce_max(x * (10.0 if s.cured else 100.0), 1))(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=good, bad=bad, start=4)
    rows = f16(table[bad])
    return Fault(training, Truth("Mul", s.path("net/hot") + "/mul", start=4), Hand([rows, f16(100.0)], quiet(np.multiply, rows, np.float16(100))))


# --- models ---------------------------------------------------------------------------------------------------------------------------


@fault("inside_a_nested_model")
def _(s: Setting) -> Fault:
    """A functional model inside another one."""
    n = s.size(4)
    bad = hot_batch(s, 12.0, n)
    keras = s.keras
    inside = keras.Input((n,), name=s.name("inside"))
    inner = keras.Model(inside, s.layer("hot", lambda x: s.tf.exp(s.tf.minimum(x, 8.0) if s.cured else x))(inside), name=s.name("inner"))
    inputs = keras.Input((n,), name=s.name("features"))
    h = inner(s.dense("first", np.eye(n))(inputs))
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=s.uniform(bad.shape), bad=bad, start=4)
    return Fault(training, Truth("Exp", s.path("net/inner/hot/Exp"), start=4, advice="exponent"), Hand([f16(bad)], quiet(np.exp, f16(bad))))


@fault("inside_a_subclassed_model")
def _(s: Setting) -> Fault:
    """A subclassed model with a subclassed block."""
    n = s.size(4)
    bad = hot_batch(s, 12.0, n)

    class Block(s.keras.layers.Layer):  # type: ignore[misc, name-defined]
        def __init__(self, name: str) -> None:
            super().__init__(name=name)
            self.first = s.dense("first", np.eye(n))
            self.hot = s.layer("hot", lambda x: s.tf.exp(s.tf.minimum(x, 8.0) if s.cured else x))

        def call(self, x: Any) -> Any:
            return self.hot(self.first(x))

    class Net(s.keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name=s.name("net"))
            self.block = Block(s.name("block"))
            self.out = s.keras.layers.Dense(1, kernel_initializer=s.keras.initializers.Constant(1e-6), dtype="float32", name=s.name("out"))

        def call(self, x: Any) -> Any:
            return self.out(self.block(x))

    training = Fit(s.compile(Net()), good=s.uniform(bad.shape), bad=bad, start=4)
    return Fault(training, Truth("Exp", s.path("net/block/hot/Exp"), start=4, advice="exponent"), Hand([f16(bad)], quiet(np.exp, f16(bad))))


@fault("inside_a_sequential_model")
def _(s: Setting) -> Fault:
    """A Sequential model."""
    n = s.size(4)
    bad = hot_batch(s, 300.0, n)
    out = s.keras.layers.Dense(1, kernel_initializer=s.keras.initializers.Constant(1e-6), dtype="float32", name=s.name("out"))
    hot = s.layer("hot", s.tf.square, dtype="float32" if s.cured else None)
    model = s.keras.Sequential([s.dense("first", np.eye(n)), hot, out], name=s.name("net"))
    training = Fit(s.compile(model), good=s.uniform(bad.shape), bad=bad, start=4)
    return Fault(training, Truth("Square", s.path("net/hot/Square"), start=4), Hand([f16(bad)], quiet(np.square, f16(bad))))


@fault("two_faults_first_wins")
def _(s: Setting) -> Fault:
    """Two layers overflow on their own in the same step: the first of them is to blame. Cure: of the first and of the second."""
    n = s.size(4)
    bad = hot_batch(s, 300.0, n)
    bad[0, 0] = 13.0
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    dtype = "float32" if s.cured else None
    one = s.layer("one", s.tf.square, dtype=dtype)(h)
    two = s.layer("two", lambda x: s.tf.exp(s.tf.minimum(x, 20.0)), dtype=dtype)(h)
    h = s.keras.layers.Concatenate(name=s.name("join"), dtype=dtype)([one, two])
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-9))), good=s.uniform(bad.shape), bad=bad, start=4)
    return Fault(training, Truth("Square", s.path("net/one/Square"), start=4), Hand([f16(bad)], quiet(np.square, f16(bad))))


@fault("late_fault", whole=True, options={"warmup": 5, "patience": 3})
def _(s: Setting) -> Fault:
    """Sixty healthy steps, then a fault that stays."""
    bad = hot_batch(s, 12.0)
    model = s.compile(s.net(bad.shape[1], lambda x: s.tf.exp(s.tf.minimum(x, 8.0) if s.cured else x), 1e-6))
    training = Fit(model, good=s.uniform(bad.shape), bad=bad, start=60, steps=70)
    return Fault(training, Truth("Exp", s.path("net/hot/Exp"), start=60, advice=("exponent", "scale_at_floor")), Hand([f16(bad)], quiet(np.exp, f16(bad))))


@fault("float32_overflow", policy="float32")
def _(s: Setting) -> Fault:
    """Float32 overflows too: exp(90), with loss scaling."""
    bad = hot_batch(s, 90.0)
    model = s.compile(s.net(bad.shape[1], lambda x: s.tf.exp(s.tf.minimum(x, 8.0) if s.cured else x), 1e-6))
    wide = bad.astype(np.float32)
    truth = Truth("Exp", s.path("net/hot/Exp"), start=4, advice="exponent")
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=4), truth, Hand([wide], quiet(np.exp, wide)))


@fault("bfloat16_overflow", policy="mixed_bfloat16")
def _(s: Setting) -> Fault:
    """bfloat16 has float32's range: exp(90) is too much for both."""
    bad = hot_batch(s, 90.0)
    model = s.compile(s.net(bad.shape[1], lambda x: s.tf.exp(s.tf.minimum(x, 8.0) if s.cured else x), 1e-6))
    wide = bad.astype(np.float32)
    truth = Truth("Exp", s.path("net/hot/Exp"), start=4, advice="exponent")
    return Fault(Fit(model, good=s.uniform(bad.shape), bad=bad, start=4), truth, Hand([wide], quiet(np.exp, wide)))
