"""Where the host collector can work: what can't be replayed is named once, with what works there instead."""
from __future__ import annotations

import sys
from typing import Any

from npu_overflow.errors import CannotCollect

__all__ = ["check", "core"]


def check(model: Any) -> None:
    """Raises CannotCollect for a kind of training that can't be replayed in this process.

    Args:
        model: the Keras model in ``fit``, or None.
    """
    backend = _keras_backend(model)
    if backend not in (None, "tensorflow"):
        raise CannotCollect("host.backend", backend=backend)
    import tensorflow as tf

    if not tf.executing_eagerly():
        raise CannotCollect("host.graph_mode")
    strategy = _strategy(model)
    name = type(strategy).__name__ if strategy is not None else ""
    if "ParameterServer" in name or "TPU" in name:
        raise CannotCollect("host.strategy", strategy=name)
    if "MultiWorker" in name or "CollectiveAllReduce" in name:
        raise CannotCollect("host.workers", strategy=name)


def replicas(model: Any) -> int:
    """How many replicas a step has: 1 without a distribution strategy."""
    return int(getattr(_strategy(model), "num_replicas_in_sync", 1))


def _strategy(model: Any) -> Any:
    import tensorflow as tf

    return getattr(model, "distribute_strategy", None) or (tf.distribute.get_strategy() if tf.distribute.has_strategy() else None)


def _keras_backend(model: Any) -> Any:
    """The backend of the Keras 3 that the model belongs to; None where it is no Keras 3 model."""
    if model is None:
        return None
    root = next((kind.__module__.split(".")[0] for kind in type(model).__mro__ if kind.__module__.split(".")[0] in ("keras", "tf_keras")), None)
    keras = sys.modules.get(root) if root else None
    if keras is None or not str(getattr(keras, "__version__", "2")).startswith("3"):
        return None
    return keras.backend.backend()


def core() -> str:
    """"GPU" where TensorFlow places operators on one, else "CPU"."""
    import tensorflow as tf

    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
