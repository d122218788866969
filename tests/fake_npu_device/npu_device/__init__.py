"""A double of the Ascend adapter for TensorFlow 2: the same names, the same rules, no NPU.

What the real package does in its compiled part is played by ``_device``. The real one imports TensorFlow; so does this where it is the TensorFlow
that the adapter is made for. Elsewhere the options can be tested.
"""
from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from npu_device import _device, npu_device
from npu_device.npu_device import (
    VERSION,
    global_options,
    npu_compat_function,
    open,
    set_npu_loop_size,
)
from npu_device.scope import keep_dtype_scope

__all__ = ["_device", "global_options", "keep_dtype_scope", "npu_compat_function", "npu_device", "open", "set_npu_loop_size", "testing"]

if VERSION != "old":
    from npu_device.npu_device import is_inf_nan_enabled, set_device_sat_mode  # noqa: F401

# TensorFlow 2.6 is for no newer Python
if sys.version_info < (3, 10) and importlib.util.find_spec("tensorflow") is not None:
    _device.original_call()
    from npu_device._api import train  # noqa: F401


def __getattr__(name: str) -> Any:
    if name == "testing":
        return importlib.import_module("npu_device.testing")
    raise AttributeError("module 'npu_device' has no attribute %r" % name)
