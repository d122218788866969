"""A double of the Ascend adapter for TensorFlow 2: the same names, the same rules, no NPU.

What the real package does in its compiled part is played by ``_device``. TensorFlow is imported where it is used, so that the options can be
tested without it.
"""
from __future__ import annotations

import importlib
import sys
from typing import Any

from npu_device import _device, npu_device
from npu_device.npu_device import VERSION, close, global_options, open, set_device_sat_mode, set_npu_loop_size
from npu_device.scope import keep_dtype_scope

__all__ = ["_device", "close", "global_options", "keep_dtype_scope", "npu_device", "open", "set_device_sat_mode", "set_npu_loop_size", "train", "testing"]
__version__ = "2.6.5"

if VERSION != "old":
    from npu_device.npu_device import is_inf_nan_enabled  # noqa: F401


if "tensorflow" in sys.modules:
    _device.original_call()


def __getattr__(name: str) -> Any:
    if name in ("train", "testing"):
        return importlib.import_module("npu_device." + name)
    raise AttributeError("module 'npu_device' has no attribute %r" % name)
