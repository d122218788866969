"""Opening a device, and what it does to TensorFlow."""
from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, Dict, Iterator, List, Optional

from npu_device import _device
from npu_device.configs import NpuConfig

VERSION = os.environ.get("FAKE_NPU_DEVICE_VERSION", "new")

_npu_device_instances: Dict[int, NpuDeviceHandle] = {}
_global_options = NpuConfig(VERSION)
_npu_ctx: Optional[NpuDeviceHandle] = None


def global_options() -> NpuConfig:
    """The one options object of the process."""
    return _global_options


def global_npu_ctx() -> Optional[NpuDeviceHandle]:
    """The handle that is the default, or None."""
    return _npu_ctx


def open(device_id: Optional[int] = None) -> NpuDeviceHandle:
    """Open the device. The options are read now, once; a second call returns the same handle, up and running or not."""
    if device_id is None:
        device_id = int(os.getenv("ASCEND_DEVICE_ID", "0"))
    if device_id in _npu_device_instances:
        return _npu_device_instances[device_id]
    if _npu_device_instances:
        raise RuntimeError("Failed create npu device instance on device %d: existed instance on %s" % (device_id, sorted(_npu_device_instances)))
    if os.getenv("RANK_SIZE") and os.getenv("CM_WORKER_SIZE"):
        raise RuntimeError("RANK_SIZE and CM_WORKER_SIZE cannot be configured at the same time")
    options = global_options().as_dict()
    if "op_debug_level" in options:
        print("[warning][tf_adapter] op_debug_level is deprecated, please use op_debug_config")
    _device.start(device_id, options)
    if not _device.keep_context:
        _replace_context()
    _npu_device_instances[device_id] = NpuDeviceHandle(device_id)
    return _npu_device_instances[device_id]


def close() -> None:
    """Shut the engine down. The handles stay and are stale."""
    _device.stop()


def set_npu_loop_size(size: int) -> None:
    """Steps that the device runs in each call."""
    _device.loop_size = int(size)


def set_device_sat_mode(mode: int) -> None:
    """0 saturation, 1 INF/NaN."""
    if mode not in (0, 1):
        raise ValueError("mode %s is not supported" % mode)
    _device.inf_nan = bool(mode)


def is_inf_nan_enabled() -> bool:
    """Whether overflow gives Inf and NaN; else values saturate."""
    return _device.inf_nan


class NpuDeviceHandle:
    """An open device."""

    def __init__(self, device_id: int) -> None:
        self.device_id = device_id

    def name(self) -> str:
        return "/job:localhost/replica:0/task:0/device:NPU:%d" % self.device_id

    def as_default(self) -> NpuDeviceHandle:
        """Make it the default; assigns what it patches, whatever stood there before."""
        global _npu_ctx
        _npu_ctx = self
        _patch_tensorflow()
        return self

    @contextlib.contextmanager
    def scope(self) -> Iterator[NpuDeviceHandle]:
        yield self.as_default()


def _replace_context() -> None:
    """A new eager context: variables, functions, iterators and seeds of before are gone."""
    from tensorflow.python.eager import context

    context._reset_context()  # type: ignore[attr-defined]


def _patch_tensorflow() -> None:
    import tensorflow as tf
    from tensorflow.python.eager import def_function
    from tensorflow.python.ops import nn_ops, script_ops

    real_function = getattr(tf.function, "_fake_npu_original", tf.function)

    def function(func: Any = None, **options: Any) -> Any:
        options.pop("experimental_compile", None)
        options["jit_compile"] = None  # forced off
        return real_function(func, **options) if func is not None else lambda f: real_function(f, **options)

    function._fake_npu_original = real_function  # type: ignore[attr-defined]
    tf.function = function
    def_function.Function.__call__ = _call_of(_device.original_call())
    tf.device = lambda name: contextlib.nullcontext()
    real_eager_func = script_ops.EagerFunc
    if not getattr(real_eager_func, "_fake_npu", False):
        script_ops.EagerFunc = type("EagerFunc", (real_eager_func,), {"_fake_npu": True})
        tf.py_function = _renamed(tf.py_function)
    for space in raw_operators():
        if not getattr(space.MatMul, "_fake_npu", False):
            space.MatMul = _on_device(space.MatMul)
    # the dropout of before is kept under one name: after a second call it is this one, and calls itself
    nn_ops._npu_dropout = nn_ops.dropout_v2

    def dropout(*args: Any, **kwargs: Any) -> Any:
        return nn_ops._npu_dropout(*args, **kwargs)

    nn_ops.dropout_v2 = tf.nn.dropout = dropout


def _renamed(function: Any) -> Any:
    def py_function(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return py_function


def raw_operators() -> List[Any]:
    """The modules from which layers take their product; Keras has one of its own, which comes with it."""
    import keras  # noqa: F401

    return [module for name, module in sorted(sys.modules.items()) if name.startswith("tensorflow.") and name.endswith("raw_ops") and hasattr(module, "MatMul")]


def _on_device(original: Any) -> Any:
    """The float16 products of layers run on the device, under the names that they have in the graph."""

    def MatMul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, name: Optional[str] = None) -> Any:
        import tensorflow as tf

        if not _device.running_graph() or tf.executing_eagerly() or a.dtype != tf.float16 or transpose_a or transpose_b:
            return original(a=a, b=b, transpose_a=transpose_a, transpose_b=transpose_b, name=name)
        from npu_device import testing

        scope = tf.compat.v1.get_default_graph().get_name_scope()
        return testing.matmul(a, b, (scope + "/" if scope else "") + (name or "MatMul"), lambda step: False)

    MatMul._fake_npu = True  # type: ignore[attr-defined]
    return MatMul


def _call_of(original: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _device.running_graph():
            try:  # nested functions are inlined as plain Python, and run again where that raises
                return self._python_function(*args, **kwargs)
            except Exception:
                return original(self, *args, **kwargs)
        self._jit_compile = None
        with _device.graph_run(self):
            return original(self, *args, **kwargs)

    return __call__
