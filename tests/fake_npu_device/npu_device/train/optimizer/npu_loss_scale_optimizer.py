"""The loss-scale optimizer of the NPU."""
from __future__ import annotations

from typing import Any, Optional

import tensorflow as tf

from npu_device import _device, npu_device


class NpuLossScaleOptimizer(tf.keras.mixed_precision.LossScaleOptimizer):  # type: ignore[misc,name-defined]
    """In saturation mode it asks the device's register and skips the step; in INF/NaN mode, and where no device is the default, it is the stock one."""

    def __init__(
        self, inner_optimizer: Any, dynamic: bool = True, initial_scale: Optional[float] = None, dynamic_growth_steps: Optional[int] = None
    ) -> None:
        super().__init__(inner_optimizer, dynamic=dynamic, initial_scale=initial_scale, dynamic_growth_steps=dynamic_growth_steps)
        self._last_step_finite = tf.Variable(False, trainable=False, name="npu_last_step_finite")

    @property
    def last_step_finite(self) -> Any:
        """How the last step went, in saturation mode; False until the first."""
        return self._last_step_finite

    def apply_gradients(self, grads_and_vars: Any, name: Optional[str] = None) -> Any:
        if npu_device.global_npu_ctx() is None or npu_device.is_inf_nan_enabled():  # the mode is baked in when the step is traced
            return super().apply_gradients(grads_and_vars, name)
        pairs = [(gradient, variable) for gradient, variable in grads_and_vars if gradient is not None]
        with tf.init_scope():
            _ = self._optimizer.iterations
            self._optimizer._create_hypers()
            self._optimizer._create_slots([variable for _gradient, variable in pairs])
        with tf.control_dependencies([gradient for gradient, _variable in pairs]):
            overflowed = tf.numpy_function(_device.read_and_clear, [], tf.bool)
        finite = tf.logical_not(tf.ensure_shape(overflowed, []))
        self._last_step_finite.assign(finite)
        if self.dynamic:
            self._loss_scale.update([tf.where(finite, 1.0, float("inf"))])

        def apply() -> Any:
            return tf.group(self._optimizer.apply_gradients(pairs, name))

        def skip() -> Any:
            return tf.group(self._optimizer.iterations.assign_add(1, read_value=False))

        return tf.cond(finite, apply, skip)
