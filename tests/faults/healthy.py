"""Healthy runs: sporadic overflow, harmless Inf, and ordinary networks. Nothing is to be blamed, also where collection is forced."""
from __future__ import annotations

from typing import Any, Callable, List, Optional

import numpy as np

from .kit import BATCH, Fit, Healthy, Loop, Outcome, Setting, healthy


def quiet_layer(s: Setting, body: Callable[[Any], Any], shape: Any = None, batch: Any = None, out: float = 1e-2, **details: Any) -> Healthy:
    """A layer "hot" that computes something harmless."""
    batch = s.uniform((BATCH,) + (shape or (s.size(4),))) if batch is None else batch
    return Healthy(Fit(s.compile(s.net(batch.shape[1:], body, out)), bad=batch, **details))


# --- how loss scaling behaves when all is well -----------------------------------------------------------------------------------------


def sharp(s: Setting, growth: int = 2000, scale: float = 16.0) -> Any:
    """A model that overflows for features of 12 only."""
    n = s.size(4)
    return s.compile(s.net(n, s.tf.exp, 1e-6), optimizer=s.optimizer(scale, growth=growth)), s.uniform((BATCH, n))


@healthy("sporadic_1_in_30", options={"warmup": 20, "patience": 5, "window": 100}, forced=(5, 6))
def _(s: Setting) -> Healthy:
    """One batch in thirty overflows: the step is skipped, the scale halves, that is all."""
    model, good = sharp(s, scale=2.0**15)
    bad = good.copy()
    bad[1, 1] = 12.0
    batches = [(bad if step % 30 == 29 else good, np.zeros((BATCH, 1), np.float32)) for step in range(130)]

    def check(outcome: Outcome) -> List[str]:
        steps = [drop[0] for drop in outcome.drops]
        return [] if steps == [29, 59, 89, 119] else ["falls of the scale were to be seen in steps 29, 59, …: %s" % steps]

    return Healthy(Fit(model, batches=batches), check)


def gradient_of_eight(s: Setting, scale: float, growth: int) -> Any:
    """A model whose float16 gradients are about 8 times the loss scale: from a scale of 8192 on they overflow."""
    n = s.size(4)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    h = s.keras.layers.Activation("linear", dtype="float32", name=s.name("out"))(s.dense("hot", np.ones((n, 1)))(h))
    model = s.compile(s.model(inputs, h), optimizer=s.optimizer(scale, growth=growth))
    return model, s.uniform((BATCH, n), 1.0, 1.1), np.full((BATCH, 1), n * 1.05 + 16.0, np.float32)


@healthy("probing_every_10", options={"warmup": 20, "patience": 3, "window": 100}, forced=(4, 5))
def _(s: Setting) -> Healthy:
    """A growth interval of 10: the scale doubles, overflows once, halves, again and again."""
    model, good, targets = gradient_of_eight(s, 2048.0, 10)

    def check(outcome: Outcome) -> List[str]:
        return [] if len(outcome.drops) >= 5 else ["the scale was to fall at least 5 times: %s" % outcome.drops]

    return Healthy(Fit(model, bad=good, targets=targets, steps=110), check)


@healthy("calibration_from_2_to_32", options={"warmup": 20, "patience": 5, "window": 100}, forced=(40, 41))
def _(s: Setting) -> Healthy:
    """A scale of 2^32 to begin with: about twenty halvings in a row, then all is well."""
    model, good, targets = gradient_of_eight(s, 2.0**32, 2000)

    def check(outcome: Outcome) -> List[str]:
        return [] if 15 <= len(outcome.drops) <= 26 else ["15 to 26 halvings were expected: %d" % len(outcome.drops)]

    return Healthy(Fit(model, bad=good, targets=targets, steps=50), check)


# --- harmless masks -------------------------------------------------------------------------------------------------------------------


def attention(s: Setting, bias: Callable[[Any], Any]) -> Healthy:
    """Attention over three places, the last of which is masked."""
    t, d = s.size(3), s.size(4)

    def body(x: Any) -> Any:
        scores = s.tf.einsum("bqd,bkd->bqk", x, x) / float(np.sqrt(d))
        return s.tf.reduce_mean(s.tf.einsum("bqk,bkd->bqd", s.tf.nn.softmax(bias(scores)), x), 1)

    return quiet_layer(s, body, (t, d))


def keep(s: Setting, scores: Any) -> Any:
    """1 where attention is allowed."""
    t = scores.shape[-1]
    return s.tf.constant(np.array([1.0] * (t - 1) + [0.0], np.float32))


@healthy("mask_minus_inf_where")
def _(s: Setting) -> Healthy:
    """where(keep, scores, -inf), no row masked whole."""
    return attention(s, lambda scores: s.tf.where(keep(s, scores) > 0, scores, s.tf.constant(-np.inf, scores.dtype)))


@healthy("mask_minus_inf_added")
def _(s: Setting) -> Healthy:
    """-Inf is added to the scores that are masked."""
    return attention(s, lambda scores: scores + s.tf.where(keep(s, scores) > 0, s.tf.constant(0.0, scores.dtype), s.tf.constant(-np.inf, scores.dtype)))


@healthy("mask_1e9_cast")
def _(s: Setting) -> Healthy:
    """-1e9 in float32, cast to float16."""
    return attention(s, lambda scores: scores + s.tf.cast((1.0 - keep(s, scores)) * -1e9, scores.dtype))


@healthy("mask_float32_minimum_cast")
def _(s: Setting) -> Healthy:
    """float32's minimum, cast to float16."""
    return attention(s, lambda scores: scores + s.tf.cast((1.0 - keep(s, scores)) * float(np.finfo(np.float32).min), scores.dtype))


@healthy("mask_float16_minimum_overflows")
def _(s: Setting) -> Healthy:
    """float16's minimum added to scores of -40: -Inf, where it was meant to be small anyway."""
    return attention(s, lambda scores: (scores - 40.0) + s.tf.cast(1.0 - keep(s, scores), scores.dtype) * -65504.0)


@healthy("causal_mask_of_a_transformer")
def _(s: Setting) -> Healthy:
    """A causal mask of -Inf over two heads."""
    t, d = s.size(4), 4

    def body(x: Any) -> Any:
        heads = s.tf.reshape(x, (-1, t, 2, d // 2))
        scores = s.tf.einsum("bqhd,bkhd->bhqk", heads, heads)
        causal = s.tf.linalg.band_part(s.tf.ones((t, t)), -1, 0)
        scores = s.tf.where(causal > 0, scores, s.tf.constant(float("-inf"), scores.dtype))
        return s.tf.reduce_mean(s.tf.einsum("bhqk,bkhd->bqhd", s.tf.nn.softmax(scores), heads), [1, 2])

    return quiet_layer(s, body, (t, d))


# --- Inf that is absorbed ---------------------------------------------------------------------------------------------------------------


def with_large(s: Setting, value: float) -> Any:
    batch = s.uniform((BATCH, s.size(4)))
    batch[1, 1] = value
    return batch


@healthy("inf_into_min_without_gradient")
def _(s: Setting) -> Healthy:
    """exp overflows in a weight that is clipped and through which no gradient flows."""
    return quiet_layer(s, lambda x: x * 0.01 * s.tf.minimum(s.tf.exp(s.tf.stop_gradient(x)), 10.0), batch=with_large(s, 13.0))


@healthy("inf_into_clip_by_value")
def _(s: Setting) -> Healthy:
    """x² overflows and is clipped; the gradient of the clip is 0 there, and 0 * 2x stays 0."""
    return quiet_layer(s, lambda x: s.tf.clip_by_value(s.tf.square(x), 0.0, 100.0), batch=with_large(s, 400.0))


@healthy("inf_into_tanh")
def _(s: Setting) -> Healthy:
    """tanh of Inf is 1, its gradient 0."""
    return quiet_layer(s, lambda x: s.tf.tanh(s.tf.square(x)), batch=with_large(s, 400.0))


@healthy("inf_into_sigmoid")
def _(s: Setting) -> Healthy:
    """The sigmoid of -Inf is 0, its gradient 0."""
    return quiet_layer(s, lambda x: s.tf.sigmoid(-s.tf.square(x)), batch=with_large(s, 400.0))


@healthy("minus_inf_into_relu")
def _(s: Setting) -> Healthy:
    """relu of -Inf is 0, its gradient 0."""
    return quiet_layer(s, lambda x: s.tf.nn.relu(-s.tf.square(x)), batch=with_large(s, 400.0))


@healthy("inf_into_rsqrt")
def _(s: Setting) -> Healthy:
    """l2_normalize of a row with a large element: the sum of squares is Inf, its rsqrt 0."""
    return quiet_layer(s, lambda x: s.tf.math.l2_normalize(x, -1), batch=with_large(s, 400.0))


@healthy("inf_in_a_divisor")
def _(s: Setting) -> Healthy:
    """1 / (1 + exp(x)) where exp(x) is Inf: 0, and no gradient flows."""
    return quiet_layer(s, lambda x: x * 0.1 + 1.0 / (1.0 + s.tf.exp(s.tf.stop_gradient(x))), batch=with_large(s, 13.0))


@healthy("log_zero_in_an_unused_branch")
def _(s: Setting) -> Healthy:
    """where(x > 0, log(x), 0) at 0 without a gradient through the logarithm."""
    return quiet_layer(s, lambda x: x + s.tf.where(x > 0, s.tf.math.log(s.tf.stop_gradient(x)), s.tf.zeros_like(x)), batch=with_large(s, 0.0))


@healthy("where_with_safe_input")
def _(s: Setting) -> Healthy:
    """The double where: the logarithm never sees the 0."""

    def body(x: Any) -> Any:
        safe = s.tf.where(x > 0, x, s.tf.ones_like(x))
        return s.tf.where(x > 0, s.tf.math.log(safe), s.tf.zeros_like(x))

    return quiet_layer(s, body, batch=with_large(s, 0.0))


@healthy("inf_as_the_start_of_a_minimum")
def _(s: Setting) -> Healthy:
    """A running minimum that begins at Inf."""

    def body(x: Any) -> Any:
        least = s.tf.fill([BATCH], s.tf.constant(float("inf"), x.dtype))
        for i in range(x.shape[1]):
            least = s.tf.minimum(least, x[:, i])
        return least[:, None]

    return quiet_layer(s, body)


@healthy("inf_in_a_metric")
def _(s: Setting) -> Healthy:
    """A metric (perplexity) that overflows: it gives no gradient."""
    n = s.size(4)
    model = s.net(n, lambda x: x, 1.0)
    name = s.name("perplexity")

    def perplexity(y: Any, p: Any) -> Any:
        return s.tf.exp(s.tf.cast(p, s.tf.float32) * 100.0)

    perplexity.__name__ = name
    s.compile(model, metrics=[perplexity])
    return Healthy(Fit(model, bad=s.uniform((BATCH, n))))


@healthy("nan_in_a_metric_of_variance")
def _(s: Setting) -> Healthy:
    """A metric of NaN (0 / 0)."""
    n = s.size(4)
    model = s.net(n, lambda x: x, 1.0)

    def share(y: Any, p: Any) -> Any:
        return s.tf.reduce_sum(y) / s.tf.reduce_sum(y)

    s.compile(model, metrics=[share])
    return Healthy(Fit(model, bad=s.uniform((BATCH, n))))


@healthy("inf_loss_with_finite_gradients")
def _(s: Setting) -> Healthy:
    """The loss is Inf in every step (a constant term), its gradients are finite: training goes on."""
    n = s.size(4)

    def loss(y: Any, p: Any) -> Any:
        return s.tf.reduce_mean(s.tf.square(p - y)) + s.tf.exp(s.tf.stop_gradient(s.tf.reduce_mean(p)) * 0.0 + 200.0)

    return Healthy(Fit(s.compile(s.net(n, lambda x: x, 1e-2), loss=loss), bad=s.uniform((BATCH, n))))


@healthy("the_largest_finite_value")
def _(s: Setting) -> Healthy:
    """65504 is an ordinary finite value."""
    return quiet_layer(s, lambda x: s.tf.maximum(x, 1.0) * 1.0, batch=with_large(s, 65504.0), out=1e-6)


@healthy("subnormal_features")
def _(s: Setting) -> Healthy:
    """Features of 1e-7 are subnormal in float16, and a product flushes to 0."""
    return quiet_layer(s, lambda x: x * 0.01, batch=with_large(s, 1e-7))


@healthy("stable_softplus_and_logsumexp")
def _(s: Setting) -> Healthy:
    """TensorFlow's own stable functions at 10 000."""
    return quiet_layer(s, lambda x: s.tf.nn.softplus(x) * 0.01 + s.tf.reduce_logsumexp(x, -1, keepdims=True) * 0.01 + s.tf.nn.log_softmax(x) * 1e-3,
                       batch=with_large(s, 10000.0), out=1e-4)  # fmt: skip


@healthy("mean_in_float32")
def _(s: Setting) -> Healthy:
    """The mean of 60 000s, taken in float32."""
    batch = s.uniform((BATCH, s.size(5)))
    batch[1] = 60000.0
    return quiet_layer(s, lambda x: s.tf.cast(s.tf.reduce_mean(s.tf.cast(x, s.tf.float32), -1, keepdims=True), x.dtype), batch=batch, out=1e-6)


# --- ordinary networks ------------------------------------------------------------------------------------------------------------------


def trained(s: Setting, model: Any, batch: Any, targets: Any, loss: str = "mse", optimizer: Optional[Any] = None, **details: Any) -> Healthy:
    """A network that really learns, with Adam."""
    optimizer = optimizer or s.optimizer(1024.0, s.keras.optimizers.Adam(1e-3))
    s.compile(model, loss, optimizer, **details)
    return Healthy(Fit(model, bad=batch, targets=targets, steps=8))


def classes(s: Setting, count: int) -> Any:
    return s.random.randint(0, count, (BATCH,)).astype(np.int32)


@healthy("clean_convolutional_net")
def _(s: Setting) -> Healthy:
    """Convolutions, BatchNormalization, pooling, dropout, softmax in float32."""
    layers, count = s.keras.layers, s.size(3)
    inputs = s.keras.Input((8, 8, 1), name=s.name("image"))
    h = layers.Conv2D(s.size(4), 3, padding="same", name=s.name("conv"))(inputs)
    h = layers.BatchNormalization(name=s.name("norm"))(h)
    h = layers.MaxPooling2D(name=s.name("pool"))(layers.ReLU(name=s.name("relu"))(h))
    h = layers.GlobalAveragePooling2D(name=s.name("mean"))(layers.Conv2D(s.size(4), 3, strides=2, name=s.name("conv_2"))(h))
    h = layers.Dropout(0.3, seed=3, name=s.name("drop"))(h)
    outputs = layers.Dense(count, activation="softmax", dtype="float32", name=s.name("out"))(h)
    return trained(s, s.model(inputs, outputs), s.uniform((BATCH, 8, 8, 1)), classes(s, count), "sparse_categorical_crossentropy", metrics=["accuracy"])


@healthy("clean_recurrent_net")
def _(s: Setting) -> Healthy:
    """Embedding with masking, LSTM, GRU."""
    layers = s.keras.layers
    inputs = s.keras.Input((s.size(5),), dtype="int32", name=s.name("ids"))
    h = layers.Embedding(12, s.size(4), mask_zero=True, name=s.name("table"))(inputs)
    h = layers.LSTM(s.size(4), return_sequences=True, name=s.name("lstm"))(h)
    h = layers.GRU(s.size(3), name=s.name("gru"))(h)
    model = s.model(inputs, layers.Dense(1, dtype="float32", name=s.name("out"))(h))
    ids = s.random.randint(1, 12, (BATCH, inputs.shape[1])).astype(np.int32)
    ids[:, -1] = 0
    return trained(s, model, ids, s.uniform((BATCH, 1)))


@healthy("clean_transformer")
def _(s: Setting) -> Healthy:
    """Keras' MultiHeadAttention with a mask, LayerNormalization, GELU."""
    layers, t, d = s.keras.layers, s.size(4), 8
    inputs = s.keras.Input((t, d), name=s.name("features"))
    causal = np.tril(np.ones((1, t, t), bool))
    h = layers.LayerNormalization(name=s.name("norm_1"))(inputs)
    h = layers.Add(name=s.name("add_1"))([inputs, layers.MultiHeadAttention(2, d // 2, name=s.name("heads"))(h, h, attention_mask=causal)])
    f = layers.Dense(4 * d, activation="gelu", name=s.name("up"))(layers.LayerNormalization(name=s.name("norm_2"))(h))
    h = layers.Add(name=s.name("add_2"))([h, layers.Dense(d, name=s.name("down"))(f)])
    h = layers.GlobalAveragePooling1D(name=s.name("mean"))(h)
    model = s.model(inputs, layers.Dense(1, dtype="float32", name=s.name("out"))(h))
    return trained(s, model, s.uniform((BATCH, t, d)), s.uniform((BATCH, 1)), optimizer=s.optimizer(64.0, s.keras.optimizers.Adam(1e-3)))


def dense_net(s: Setting) -> Any:
    layers, n = s.keras.layers, s.size(4)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = layers.Dense(s.size(8), activation="relu", name=s.name("hidden"))(inputs)
    h = layers.BatchNormalization(name=s.name("norm"))(layers.Dropout(0.2, seed=3, name=s.name("drop"))(h))
    return s.model(inputs, layers.Dense(1, dtype="float32", name=s.name("out"))(h)), s.uniform((BATCH, n)), s.uniform((BATCH, 1))


@healthy("clean_dense_net")
def _(s: Setting) -> Healthy:
    """Dense layers, BatchNormalization, dropout, a regularizer's loss and metrics."""
    model, batch, targets = dense_net(s)
    return trained(s, model, batch, targets, metrics=["mae", "mse"])


@healthy("clean_float32", policy="float32")
def _(s: Setting) -> Healthy:
    """The same in float32, without loss scaling."""
    model, batch, targets = dense_net(s)
    return trained(s, model, batch, targets, optimizer=s.keras.optimizers.Adam(1e-3))


@healthy("clean_bfloat16", policy="mixed_bfloat16")
def _(s: Setting) -> Healthy:
    """The same in bfloat16, without loss scaling."""
    model, batch, targets = dense_net(s)
    return trained(s, model, batch, targets, optimizer=s.keras.optimizers.SGD(1e-3))


@healthy("bfloat16_at_100000", policy="mixed_bfloat16")
def _(s: Setting) -> Healthy:
    """100 000 fits bfloat16."""
    return quiet_layer(s, lambda x: x * 1.0, batch=with_large(s, 1e5), out=1e-6)


@healthy("clean_custom_loop")
def _(s: Setting) -> Healthy:
    """A loop of the user's own in one tf.function."""
    model, batch, targets = dense_net(s)
    optimizer = s.optimizer(1024.0, s.keras.optimizers.Adam(1e-3))
    tf = s.tf

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            scaled = s.scaled(optimizer, loss)
        gradients = s.unscaled(optimizer, tape.gradient(scaled, model.trainable_variables))
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    def run() -> None:
        for _ in range(8):
            step(tf.constant(batch), tf.constant(targets))

    return Healthy(Loop(run))


@healthy("a_mask_through_an_ordinary_net")
def _(s: Setting) -> Healthy:
    """Logits of padded places are set to -Inf before a softmax cross entropy in float32."""
    n, count = s.size(4), 5
    inputs = s.keras.Input((n,), name=s.name("features"))
    logits = s.keras.layers.Dense(count, dtype="float32", name=s.name("logits"))(inputs)
    padded = np.array([[0.0, 0.0, 0.0, 0.0, -np.inf]], np.float32)
    outputs = s.layer("masked", lambda x: s.tf.nn.softmax(x + padded), dtype="float32")(logits)
    targets = s.random.randint(0, 4, (BATCH,)).astype(np.int32)
    return trained(s, s.model(inputs, outputs), s.uniform((BATCH, n)), targets, "sparse_categorical_crossentropy")
