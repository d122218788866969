"""Finds the first overflowing operator in mixed-precision TensorFlow training, on Ascend NPUs and
on CPU or GPU.

    model.fit(data, callbacks=[npu_overflow.OverflowWatch()])

    with npu_overflow.overflow_dump():
        train()

    report = npu_overflow.analyze("precision_data/overflow/dump")

Importing this package imports nothing else: every public name is loaded when it is first used (PEP
562). That keeps the import cheap, and on an NPU it matters: nothing of TensorFlow may exist before
the device is opened.
"""
from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Dict, List

from npu_overflow.version import __version__

if TYPE_CHECKING:
    from npu_overflow.analysis.analyzer import analyze
    from npu_overflow.collect.ascend.device import npu_device_dump_config
    from npu_overflow.errors import (
        CannotCollect,
        CannotWrite,
        DumpFormatError,
        MissingExtra,
        NpuOverflowError,
        PathError,
        UsageError,
    )
    from npu_overflow.report.model import Operator, Report, TensorSummary
    from npu_overflow.training.options import WatchOptions
    from npu_overflow.training.watch import OverflowWatch, overflow_dump

__all__ = [
    "CannotCollect",
    "CannotWrite",
    "DumpFormatError",
    "MissingExtra",
    "NpuOverflowError",
    "Operator",
    "OverflowWatch",
    "PathError",
    "Report",
    "TensorSummary",
    "UsageError",
    "WatchOptions",
    "__version__",
    "analyze",
    "npu_device_dump_config",
    "overflow_dump",
]

#: public name -> the module that defines it
_HOMES: Dict[str, str] = {
    "OverflowWatch": "training.watch",
    "overflow_dump": "training.watch",
    "WatchOptions": "training.options",
    "npu_device_dump_config": "collect.ascend.device",
    "analyze": "analysis.analyzer",
    "Report": "report.model",
    "Operator": "report.model",
    "TensorSummary": "report.model",
    "NpuOverflowError": "errors",
    "UsageError": "errors",
    "PathError": "errors",
    "CannotWrite": "errors",
    "DumpFormatError": "errors",
    "CannotCollect": "errors",
    "MissingExtra": "errors",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError("module %r has no attribute %r" % (__name__, name))
    value = getattr(importlib.import_module("%s.%s" % (__name__, home)), name)
    globals()[name] = value
    return value


def __dir__() -> List[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
