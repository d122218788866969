"""Opening a device, and what it does to TensorFlow."""
from __future__ import annotations

import contextlib
import os
import sys
import threading
from typing import Any, Dict, Iterator, List, Optional

from npu_device import _device
from npu_device.configs import VERSION, NpuConfig

_npu_device_instances: Dict[int, NpuDeviceHandle] = {}
_global_options = NpuConfig()
_npu_ctx: Optional[NpuDeviceHandle] = None
_thread = threading.local()


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
    if not _device.keep_context:
        _replace_context()
    if device_id in _npu_device_instances:
        return _npu_device_instances[device_id]
    if _npu_device_instances:
        raise RuntimeError("Failed create npu instance on device %d as existed instance on %s" % (device_id, list(_npu_device_instances)))
    options = global_options().as_dict()
    size = _rank_size()
    if size > 1:
        _find_the_others(options)
    try:
        _device.start(device_id, options)
    except ValueError as error:
        raise RuntimeError("Failed open npu device %d : %s" % (device_id, error)) from None
    _npu_device_instances[device_id] = NpuDeviceHandle(device_id, size, _device.number_of_rank(device_id) if size > 1 else 0)
    return _npu_device_instances[device_id]


def _rank_size() -> int:
    if "CM_WORKER_SIZE" in os.environ and "RANK_SIZE" in os.environ:
        raise ValueError("RANK_SIZE and CM_WORK_SIZE cannot be configured at the same time")
    return int(os.environ.get("RANK_SIZE", os.environ.get("CM_WORKER_SIZE", "1")))


def _find_the_others(options: Dict[str, str]) -> None:
    """Several ranks find each other by a rank table or by a chief; old versions know tables only."""
    by_table, by_chief = "RANK_TABLE_FILE" in os.environ, "CM_CHIEF_IP" in os.environ
    if VERSION != "old" and by_table and by_chief:
        raise RuntimeError("CM_CHIEF_IP and RANK_TABLE_FILE cannot be configured at the same time.")
    if VERSION != "old" and not by_table and not by_chief:
        raise RuntimeError("CM_CHIEF_IP and RANK_TABLE_FILE are all not be configured.")
    needed = {"RANK_TABLE_FILE": "a rank table file", "RANK_ID": "rank id"}
    if by_chief and VERSION != "old":
        needed = {"CM_CHIEF_PORT": "cm chief port", "CM_CHIEF_DEVICE": "cm chief device"}
    for name, what in needed.items():
        if not os.environ.get(name):
            raise RuntimeError("You must specify %s by set env %s in distribution mode" % (what, name))
        options["_distribute." + name.lower()] = os.environ[name]


def close() -> None:
    """Shut the engine down. The handles stay and are stale."""
    _device.stop()


def set_npu_loop_size(size: int) -> None:
    """Steps that the device runs in each call."""
    _device.loop_size = int(size)


def set_device_sat_mode(mode: int) -> None:
    """0 saturation, 1 INF/NaN; the device refuses any other, which only its log tells."""
    if mode in (0, 1):
        _device.inf_nan = bool(mode)


def is_inf_nan_enabled() -> bool:
    """Whether overflow gives Inf and NaN; else values saturate."""
    return _device.inf_nan


class NpuDeviceHandle:
    """An open device."""

    def __init__(self, device_id: int, workers_num: int, worker_id: int) -> None:
        self._device_id, self.workers_num, self.worker_id = device_id, workers_num, worker_id

    def name(self) -> str:
        return "/job:localhost/replica:0/task:0/device:NPU:%d" % self._device_id

    def is_cluster_worker(self) -> bool:
        return self.workers_num > self.worker_id >= 0 and self.workers_num > 1

    def as_default(self) -> NpuDeviceHandle:
        """Make it the default; assigns what it patches, whatever stood there before."""
        global _npu_ctx
        _patch_tensorflow()
        _npu_ctx = self
        return self

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """What is made inside is placed on the device, which does not become the default."""
        yield


def _replace_context() -> None:
    """A new eager context, where it is not the adapter's own yet: variables, functions, iterators and seeds of before are gone."""
    from tensorflow.python.eager import context

    current: Any = context.context()
    if not getattr(current, "_fake_npu", False):
        fresh: Any = context.Context()  # type: ignore[attr-defined]
        fresh.ensure_initialized()
        fresh._fake_npu = True
        context._set_context(fresh)  # type: ignore[attr-defined]
        _npu_device_instances.clear()


def npu_compat_function(func: Any = None, *args: Any, **options: Any) -> Any:
    """``tf.function`` without XLA."""
    for name in ("experimental_compile", "jit_compile"):
        if options.get(name):
            options[name] = False
    made = _device.original_function()(*args, **options)
    return made if func is None else made(func)


def _never_nested_function_call(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Nested functions are inlined as plain Python, and run again where that raises."""
    original = _device.original_call()
    if getattr(_thread, "entrance", None) is not None:
        try:
            return self._python_function(*args, **kwargs)
        except BaseException:
            return original(self, *args, **kwargs)
    _thread.entrance = self._python_function.__name__
    try:
        with _device.graph_run(self):
            return original(self, *args, **kwargs)
    finally:
        _thread.entrance = None


def _patch_tensorflow() -> None:
    import tensorflow as tf
    from tensorflow.python.eager import def_function
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import nn_ops, script_ops

    _device.original_call()  # before it is replaced, where the import of this package has not asked for it
    def_function.Function.__call__ = _never_nested_function_call
    def_function.function = tf.function = npu_compat_function
    ops.device = lambda *args, **kwargs: contextlib.nullcontext()  # tf.device asks this one
    if not getattr(script_ops.EagerFunc, "_fake_npu", False):
        script_ops.EagerFunc = type("NpuCompatEagerFunc", (script_ops.EagerFunc,), {"_fake_npu": True})
    tf.py_function = _renamed(tf.py_function)
    for space in raw_operators():
        if not getattr(space.MatMul, "_fake_npu", False):
            space.MatMul = _on_device(space.MatMul)
    if VERSION != "old":
        tf.nn.dropout = _converted(tf.nn.dropout)
        tf.compat.v2.nn.dropout = _converted(tf.compat.v2.nn.dropout)
        nn_ops.dropout_v2 = _converted(nn_ops.dropout_v2)


def _dropout(x: Any, rate: Any, noise_shape: Any = None, seed: Optional[int] = None, name: Optional[str] = None) -> Any:
    """Dropout in a graph on the device. What it can't do it leaves to the dropout that was replaced last: after a second as_default, to itself."""
    import tensorflow as tf

    if noise_shape is not None:
        return _dropout.plain(x, rate=rate, noise_shape=noise_shape, seed=seed, name=name)  # type: ignore[attr-defined]
    return x * tf.cast(tf.random.uniform(tf.shape(x), seed=seed) >= rate, x.dtype) / tf.cast(1.0 - rate, x.dtype)


def _converted(original: Any) -> Any:
    _dropout.plain = original  # type: ignore[attr-defined]

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        import tensorflow as tf

        return (original if _npu_ctx is None or tf.executing_eagerly() else _dropout)(*args, **kwargs)

    return wrapper


def _renamed(function: Any) -> Any:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def raw_operators() -> List[Any]:
    """The modules from which layers take their product; Keras has one of its own, which comes with it."""
    import keras  # noqa: F401

    return [module for name, module in sorted(sys.modules.items()) if name.startswith("tensorflow.") and name.endswith("raw_ops") and hasattr(module, "MatMul")]


def _on_device(original: Any) -> Any:
    """The float16 products of layers run on the device, under the names that they have in the graph."""

    def MatMul(a: Any, b: Any, transpose_a: bool = False, transpose_b: bool = False, name: Optional[str] = None) -> Any:
        import tensorflow as tf

        if getattr(_thread, "entrance", None) is None or tf.executing_eagerly() or a.dtype != tf.float16 or transpose_a or transpose_b:
            return original(a=a, b=b, transpose_a=transpose_a, transpose_b=transpose_b, name=name)
        from npu_device import testing

        scope = tf.compat.v1.get_default_graph().get_name_scope()
        return testing.matmul(a, b, (scope + "/" if scope else "") + (name or "MatMul"), lambda step: False)

    MatMul._fake_npu = True  # type: ignore[attr-defined]
    return MatMul
