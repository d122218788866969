"""Small trainings with a known fault, the same on every supported TensorFlow."""
from __future__ import annotations

import re
from typing import Any, List, Optional, Tuple

import numpy as np

BATCH = 8
FEATURES = 4
HOT_FROM = 30


def set_up(policy: str = "mixed_float16", keras: Any = None) -> Any:
    """The Keras to use, cleared, seeded and under ``policy``."""
    import tensorflow as tf

    keras = keras or tf.keras
    keras.backend.clear_session()
    np.random.seed(7)
    tf.random.set_seed(7)
    keras.mixed_precision.set_global_policy(policy) if hasattr(keras.mixed_precision, "set_global_policy") else keras.config.set_dtype_policy(policy)
    return keras


def tear_down(keras: Any) -> None:
    keras.mixed_precision.set_global_policy("float32") if hasattr(keras.mixed_precision, "set_global_policy") else keras.config.set_dtype_policy("float32")


def data(steps: int, hot: List[int], seed: int = 0) -> Tuple[Any, Any]:
    """Batches in order; those in ``hot`` make the layer "hot" exceed 65504, the others stay far below."""
    random = np.random.RandomState(seed)
    x = random.uniform(0.5, 1.0, (steps, BATCH, FEATURES)).astype(np.float32)
    x[hot] *= 300.0
    return x.reshape(-1, FEATURES), np.zeros((steps * BATCH, 1), np.float32)


def weights(model: Any) -> None:
    """Fixed weights: the layer "hot" multiplies by 100, so features of some 250 overflow in float16."""
    random = np.random.RandomState(3)
    fixed = []
    for value in model.get_weights():
        fixed.append(random.uniform(0.5, 1.0, value.shape).astype(value.dtype))
    model.set_weights(fixed)
    model.get_layer("hot").set_weights([100 * value for value in model.get_layer("hot").get_weights()])
    model.get_layer("out").set_weights([1e-3 * value for value in model.get_layer("out").get_weights()])


def functional(keras: Any) -> Any:
    inputs = keras.Input((FEATURES,), name="features")
    h = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    h = keras.layers.Dense(6, name="hot")(h)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")
    return model


def compiled(model: Any, keras: Any, optimizer: Optional[Any] = None, scale: float = 1024.0, **kwargs: Any) -> Any:
    inner = optimizer or keras.optimizers.Adam(1e-4)
    scaling = keras.mixed_precision.LossScaleOptimizer
    try:
        wrapped = scaling(inner, initial_scale=scale)
    except TypeError:
        wrapped = scaling(inner, dynamic=True, initial_scale=scale)
    model.compile(wrapped, "mse", metrics=["mae"], **kwargs)
    return model


def state(model: Any) -> List[Any]:
    """Everything that training changes: weights, slots, metrics, loss scale and counters."""
    import tensorflow as tf

    optimizer = model.optimizer
    slots = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    variables = list(model.variables) + list(slots) + [v for metric in model.metrics for v in metric.variables]
    inner = getattr(optimizer, "_loss_scale", None)
    variables += [inner._current_loss_scale, inner._counter] if hasattr(inner, "_current_loss_scale") else []
    return [np.array(tf.convert_to_tensor(value)) for value in variables]


def same(one: List[Any], other: List[Any]) -> bool:
    """Bit for bit, NaN equal to NaN."""
    return len(one) == len(other) and all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in zip(one, other))


def named(operator: Any) -> str:
    """An operator's name without the numbers that a second trace adds in Keras 3, and without what runs several steps a call."""
    return re.sub(r"^(while/|cond/)+", "", re.sub(r"_\d+(?=/)", "", operator.op_name))
