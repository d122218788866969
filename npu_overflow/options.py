"""The options of ``OverflowWatch`` and ``overflow_dump``: names, defaults, checks. Plain Python, safe before a device opens."""
from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any, Callable, Optional, Tuple, Union

from npu_overflow.errors import UsageError

__all__ = ["DEFAULT_DUMP_PATH", "WatchOptions", "bytes_of"]

DEFAULT_DUMP_PATH = "precision_data/overflow/dump"

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}


def bytes_of(value: Union[int, str], name: str = "size") -> int:
    """Bytes of a size such as ``268435456``, "256MB" (10**6) or "1GiB" (2**30).

    Raises:
        UsageError: not a size, or not above 0.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = re.match(r"^\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*$", value) if isinstance(value, str) else None
        if match is None or match.group(2).lower() not in _UNITS:
            raise UsageError("option.size", name=name, value=repr(value))
        size = int(float(match.group(1)) * _UNITS[match.group(2).lower()])
    if size <= 0:
        raise UsageError("option.size", name=name, value=repr(value))
    return size


@dataclass(frozen=True)
class WatchOptions:
    """How a training is watched. All are given by keyword; see the README for their meaning.

    Args:
        patience: counted overflows within ``window`` that trigger a collection.
        window: steps.
        warmup: steps in which calibration of a scale that begins too high is forgiven.
        min_scale: one counted overflow that leaves the loss scale at or below it triggers at once.
        at_steps: training steps (from 0) that are collected whatever the scale does.
        check_every: steps between looks at the loss scale, or "auto": 1 on a CPU, 10 on accelerators.
        keep: overflowing steps collected after the trigger.
        max_collect_steps, max_collect_seconds: after either, what there is gets analyzed.
        max_reports: reports in one training.
        limit: operators shown in the terminal.
        dump_path: folder of the dump trees.
        max_disk: bytes kept on disk, an int or such as "2GB".
        max_memory: bytes of tensors held while a step is collected.
        collector: "auto", "ascend", "host", or an object with the methods of ``collectors.base.Collector``.
        on_overflow: "report" goes on, "stop" ends ``fit`` after the report, "restart" writes a restart request.
        on_report: called with each Report.
        optimizer: the loss-scale optimizer, or a list of them, where they can't be found.
        restore: start from the weights, the optimizer's state and the loss scale saved at the trigger of the run before (in ``fit``; a loop of one's
            own starts from its own beginning and says so).
        tensorboard_dir: folder for scalars and text.
        language: "en", "zh" or None for the user's locale.
        verbose: 0 prints nothing but errors.
    """

    patience: int = 5
    window: int = 100
    warmup: int = 20
    min_scale: float = 1.0
    at_steps: Tuple[int, ...] = ()
    check_every: Union[int, str] = "auto"
    keep: int = 3
    max_collect_steps: int = 20
    max_collect_seconds: float = 300.0
    max_reports: int = 5
    limit: int = 3
    dump_path: Optional[str] = None
    max_disk: int = 2 * 10**9
    max_memory: int = 256 * 10**6
    collector: Any = "auto"
    on_overflow: str = "report"
    on_report: Optional[Callable[[Any], None]] = None
    optimizer: Any = None
    restore: bool = False
    tensorboard_dir: Optional[str] = None
    language: Optional[str] = None
    verbose: int = 1

    @classmethod
    def of(cls, **given: Any) -> WatchOptions:
        """Options from keywords.

        Raises:
            UsageError: an unknown name (the known ones are listed) or a value that is not accepted.
        """
        known = [item.name for item in dataclasses.fields(cls)]
        for name in given:
            if name not in known:
                raise UsageError("option.unknown", name=name, known=", ".join(known))
            if name in NOT_BUILT_YET and given[name] not in (None, False):
                raise UsageError("option.not_built", name=name)
        return cls(**{name: _checked(name, value) for name, value in given.items()})


#: accepted by the interface, not built yet: giving one raises
NOT_BUILT_YET: Tuple[str, ...] = ()

_WHOLE = {"patience": 1, "window": 1, "warmup": 0, "keep": 1, "max_collect_steps": 1, "max_reports": 1, "limit": 0, "verbose": 0}
_CHOICES = {"on_overflow": ("report", "stop", "restart"), "language": ("en", "zh", None)}


def _checked(name: str, value: Any) -> Any:
    """``value`` in its final form, or UsageError."""
    if name in _WHOLE:
        return _whole(name, value, _WHOLE[name])
    if name in _CHOICES and value not in _CHOICES[name]:
        raise UsageError("option.choice", name=name, value=repr(value), accepted=", ".join(map(repr, _CHOICES[name])))
    if name in ("max_disk", "max_memory"):
        return bytes_of(value, name)
    if name == "check_every" and value != "auto":
        return _whole(name, value, 1)
    if name in ("min_scale", "max_collect_seconds"):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise UsageError("option.number", name=name, value=repr(value))
        return float(value)
    if name == "at_steps":
        steps = (value,) if isinstance(value, int) else value
        if not isinstance(steps, (tuple, list, set, frozenset, range)):
            raise UsageError("option.steps", name=name, value=repr(value))
        return tuple(sorted({_whole(name, step, 0) for step in steps}))
    if name == "collector" and isinstance(value, str) and value not in ("auto", "ascend", "host"):
        raise UsageError("option.choice", name=name, value=repr(value), accepted="'auto', 'ascend', 'host', an object with the collector protocol")
    if name == "on_report" and value is not None and not callable(value):
        raise UsageError("option.callable", name=name, value=repr(value))
    if name in ("dump_path", "tensorboard_dir") and value is not None:
        return str(value)
    return value


def _whole(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value.__index__() < least:
        raise UsageError("option.whole", name=name, value=repr(value), least=least)
    return int(value)
