"""Training helpers."""
from __future__ import annotations

from npu_device.train import optimizer

__all__ = ["optimizer"]
