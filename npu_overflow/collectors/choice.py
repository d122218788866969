"""Which collector a training gets."""
from __future__ import annotations

import sys
from typing import Any, Tuple

from npu_overflow.collectors.base import Collector

__all__ = ["choose"]


def choose(wanted: Any) -> Tuple[Collector, str]:
    """The collector for ``wanted`` ("auto", "ascend", "host" or an object with the protocol), and the code of the reason.

    "auto" is "ascend" where npu_device is loaded: importing it only to look would load its libraries.
    """
    if not isinstance(wanted, str):
        return wanted, "given"
    if wanted == "ascend" or (wanted == "auto" and "npu_device" in sys.modules):
        from npu_overflow.collectors.ascend import AscendCollector

        return AscendCollector(), "auto" if wanted == "auto" else "given"
    from npu_overflow.collectors.host import HostCollector

    return HostCollector(), "auto" if wanted == "auto" else "given"
