"""Plants overflows: operators that run on the device, with values that overflow at chosen steps."""
from __future__ import annotations

from typing import Any, Callable, Optional

import numpy as np

from npu_device import _device

MAX = 65504.0


def flush() -> None:
    """Wait until every dump file is whole."""
    _device.flush()


def narrow(values: Any) -> Any:
    """float32 to float16 as the device does it: saturating, or to Inf."""
    if _device.inf_nan:
        with np.errstate(over="ignore"):
            return values.astype(np.float16)
    return np.clip(values, -MAX, MAX).astype(np.float16)


def matmul(x: Any, w: Any, op_name: str, when: Callable[[int], bool], op_type: str = "MatMul", before: Optional[Callable[[int], None]] = None) -> Any:
    """A float16 matrix product on the device. In the steps for which ``when(step)`` holds its operands are so large that it overflows.

    Args:
        before: called with the step before the operator runs there, e.g. to have another operator overflow first.
    """
    import tensorflow as tf

    def kernel(left: Any, right: Any) -> Any:
        step = _device.next_step(op_name)
        if when(step):
            left, right = np.full_like(left, 300), np.full_like(right, 300)
        exact = left.astype(np.float32) @ right.astype(np.float32)
        result = narrow(exact)
        if (np.abs(exact) > MAX).any():
            if before is not None:
                before(step)
            _device.overflow(op_type, op_name, [left, right], [result])
        _device.executed(op_name)
        return result

    def product(one: Any, other: Any, **transposed: bool) -> Any:
        exact = tf.matmul(tf.cast(one, tf.float32), tf.cast(other, tf.float32), **transposed)
        return tf.cast(exact if _device.inf_nan else tf.clip_by_value(exact, -MAX, MAX), tf.float16)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def run(left: Any, right: Any) -> Any:
        result = tf.numpy_function(kernel, [left, right], tf.float16)
        result.set_shape([left.shape[0], right.shape[1]])

        def gradient(upstream: Any) -> Any:
            return product(upstream, right, transpose_b=True), product(left, upstream, transpose_a=True)

        return result, gradient

    return run(tf.cast(x, tf.float16), tf.cast(w, tf.float16))


def dense(units: int, op_name: str, when: Callable[[int], bool], **options: Any) -> Any:
    """A Keras layer whose product runs on the device; see ``matmul``."""
    import tensorflow as tf

    class DeviceDense(tf.keras.layers.Layer):  # type: ignore[misc,name-defined]
        def build(self, shape: Any) -> None:
            self.kernel = self.add_weight("kernel", [int(shape[-1]), units])
            super().build(shape)

        def call(self, x: Any) -> Any:
            return matmul(x, self.kernel, op_name, when, **options)

    return DeviceDense()
