"""Training helpers."""
from __future__ import annotations

from npu_device._api.train import optimizer

__all__ = ["optimizer"]
