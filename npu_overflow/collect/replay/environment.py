"""Where the host collector can work: what can't be replayed is named once, with what works there
instead."""
from __future__ import annotations

import sys
from typing import Any

from npu_overflow.errors import CannotCollect

__all__ = ["check", "core", "is_mirrored", "replicas"]


def check(model: Any) -> None:
    """Raises CannotCollect for a kind of training that can't be replayed in this process.

    Args:
        model: the Keras model in ``fit``, or None.
    """
    kinds = [kind.__module__.split(".")[0] for kind in type(model).__mro__]
    keras = next((sys.modules[kind] for kind in kinds if kind in ("keras", "tf_keras")), None)
    if keras is not None and keras.__version__.startswith("3"):
        backend = keras.backend.backend()
        if backend != "tensorflow":
            raise CannotCollect("host.backend", backend=backend)
    import tensorflow as tf

    if not tf.executing_eagerly():
        raise CannotCollect("host.graph_mode")
    name = type(_strategy(model)).__name__
    if "ParameterServer" in name or "TPU" in name:
        raise CannotCollect("host.strategy", strategy=name)
    if "MultiWorker" in name or "CollectiveAllReduce" in name:
        raise CannotCollect("host.workers", strategy=name)


def replicas(model: Any) -> int:
    """How many replicas a step has: 1 without a distribution strategy."""
    return int(getattr(_strategy(model), "num_replicas_in_sync", 1))


def is_mirrored(model: Any) -> bool:
    """Whether a model is trained under MirroredStrategy, the only one whose batches are known."""
    return type(_strategy(model)).__name__ == "MirroredStrategy"


def _strategy(model: Any) -> Any:
    import tensorflow as tf

    return getattr(model, "distribute_strategy", None) or tf.distribute.get_strategy()


def core() -> str:
    """"GPU" where TensorFlow places operators on one, else "CPU"."""
    import tensorflow as tf

    return "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
