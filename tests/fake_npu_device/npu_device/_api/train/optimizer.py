"""Optimizers for an NPU."""
from __future__ import annotations

from npu_device.train.optimizer.npu_loss_scale_optimizer import NpuLossScaleOptimizer

__all__ = ["NpuLossScaleOptimizer"]
