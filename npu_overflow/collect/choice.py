"""Which collector a training gets."""
from __future__ import annotations

import sys
from typing import Any, Tuple

from npu_overflow.collect.ascend.device import is_device_open
from npu_overflow.collect.base import Collector, adapted

__all__ = ["choose"]


def choose(wanted: Any, may_open: bool = False) -> Tuple[Collector, str]:
    """The collector for ``wanted`` ("auto", "ascend", "host" or an object with the protocol), and
    the code of the reason.

    "auto" is "ascend" where npu_device is loaded and its device open: importing it only to look
    would load its libraries, and one that is installed and not used says nothing.

    Args:
        may_open: the device can still be opened before the first step; not so where a model exists,
            which that would kill.
    """
    if not isinstance(wanted, str):
        return adapted(wanted), "given"
    loaded = "npu_device" in sys.modules
    usable = loaded and (may_open or is_device_open())
    found = "loaded" if usable else "unopened" if loaded else "unloaded"
    why = found if wanted == "auto" else "given"
    if wanted == "ascend" or (wanted == "auto" and usable):
        from npu_overflow.collect.ascend.collector import AscendCollector

        return AscendCollector(), why
    from npu_overflow.collect.replay.collector import ReplayCollector

    return ReplayCollector(), why
