"""Loads the double of npu_device fresh, and takes it away again."""
from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any, Iterator, List, Tuple

FOLDER = os.path.dirname(os.path.abspath(__file__))


def _forget() -> None:
    for name in [name for name in sys.modules if name == "npu_device" or name.startswith("npu_device.")]:
        del sys.modules[name]


def _patched() -> List[Tuple[Any, str]]:
    """What ``as_default`` replaces."""
    import keras  # noqa: F401
    import tensorflow as tf
    from tensorflow.python.eager import def_function
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import nn_ops, script_ops

    raw = [module for name, module in sys.modules.items() if name.startswith("tensorflow.") and name.endswith("raw_ops")]
    places: List[Tuple[Any, str]] = [(module, "MatMul") for module in raw if hasattr(module, "MatMul")]
    places += [(tf, "function"), (def_function, "function"), (def_function.Function, "__call__"), (ops, "device"), (script_ops, "EagerFunc")]
    return places + [(tf, "py_function"), (nn_ops, "dropout_v2"), (tf.nn, "dropout"), (tf.compat.v2.nn, "dropout")]


@contextlib.contextmanager
def loaded(version: str = "new") -> Iterator[Any]:
    """The double as a freshly imported module: nothing configured, no device open.

    Args:
        version: "new", or "old" for an adapter without op_debug_config, dump_data, dump_layer, is_inf_nan_enabled and set_device_sat_mode.
    """
    _forget()
    before = os.environ.get("FAKE_NPU_DEVICE_VERSION")
    os.environ["FAKE_NPU_DEVICE_VERSION"] = version
    sys.path.insert(0, FOLDER)
    kept = [(place, name, getattr(place, name)) for place, name in _patched()] if "tensorflow" in sys.modules else []
    try:
        module = importlib.import_module("npu_device")
        yield module
        module._device.flush()
    finally:
        for place, name, value in kept:
            setattr(place, name, value)
        sys.path.remove(FOLDER)
        _forget()
        os.environ.pop("FAKE_NPU_DEVICE_VERSION")
        if before is not None:
            os.environ["FAKE_NPU_DEVICE_VERSION"] = before
