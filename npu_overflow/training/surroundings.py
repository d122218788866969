"""What an Ascend device changes in a process when it opens and when it becomes the default."""
from __future__ import annotations

import sys
from typing import Any, Optional

from npu_overflow.collect.ascend import device as ascend_device

__all__ = ["Surroundings"]


class Surroundings:
    """TensorFlow's eager context and the default device, as they are when this is made."""

    def __init__(self) -> None:
        self._context = _context()
        self._is_settled = ascend_device.is_default() or not ascend_device.is_device_open()

    @property
    def is_settled(self) -> bool:
        """Whether it is clear where optimizers train: an open device that is not the default yet
        may become it."""
        return self._is_settled

    def device_became_default(self) -> bool:
        """Whether it has since the last call."""
        if self._is_settled or not ascend_device.is_default():
            return False
        self._is_settled = True
        return True

    def context_changed(self) -> Optional[str]:
        """"made" or "replaced" where TensorFlow's eager context is another than at the last call.

        Opening a device replaces it: every variable of before is dead.
        """
        context, before = _context(), self._context
        if context is None or context is before:
            return None
        self._context = context
        return "made" if before is None else "replaced"


def _context() -> Any:
    """The eager context as it is now, or None; nothing is imported or made to look."""
    safe = getattr(sys.modules.get("tensorflow.python.eager.context"), "context_safe", None)
    return None if safe is None else safe()
