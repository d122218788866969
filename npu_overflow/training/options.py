"""The options of ``OverflowWatch`` and ``overflow_dump``: names, defaults, checks. Plain Python,
safe before a device opens."""
from __future__ import annotations

import dataclasses
import itertools
import numbers
import operator
import os
import re
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Optional, Tuple, Union

from npu_overflow.errors import UsageError

__all__ = ["DEFAULT_DUMP_PATH", "MOST_STEPS", "WatchOptions", "bytes_of"]

DEFAULT_DUMP_PATH = "precision_data/overflow/dump"

#: training steps that ``at_steps`` may name
MOST_STEPS = 10**6

_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS.update({"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40})
_SIZE = re.compile(r"^\s*(\d{1,30}(?:\.\d+)?)\s*([a-zA-Z]*)\s*$")


def bytes_of(value: Union[int, str], name: str = "size") -> int:
    """Bytes of a size such as ``268435456``, "256MB" (10**6) or "1GiB" (2**30).

    Raises:
        UsageError: not a size, or not above 0.
    """
    size = _index(value)
    if size is None:
        match = _SIZE.match(value) if isinstance(value, str) else None
        if match is None or match.group(2).lower() not in _UNITS:
            raise UsageError("option.size", name=name, value=_shown(value))
        size = int(float(match.group(1)) * _UNITS[match.group(2).lower()])
    if size <= 0:
        raise UsageError("option.size", name=name, value=_shown(value))
    return size


@dataclass(frozen=True)
class WatchOptions:
    """How a training is watched. All are given by keyword; see the README for their meaning.

    Args:
        patience: counted overflows within ``window`` that trigger a collection.
        window: steps.
        warmup: steps in which calibration of a scale that begins too high is forgiven.
        min_scale: one counted overflow that leaves the loss scale at or below it triggers at once.
        at_steps: training steps (from 0) that are collected whatever the scale does: one, or any
            iterable of them.
        check_every: steps between looks at the loss scale, or "auto": 1 on a CPU, 10 on
            accelerators.
        keep: overflowing steps collected after the trigger.
        max_collect_steps, max_collect_seconds: when either limit is reached, what was collected is
            analyzed; the seconds also bound what finding the culprit of one step may take.
        max_reports: reports in one training; as many again of ``at_steps``.
        limit: operators shown in the terminal.
        dump_path: local folder of the dump trees; ``~`` is the home folder.
        dump: on an Ascend NPU that is not open yet, configure its overflow dump; False leaves the
            device's options alone.
        max_disk: bytes kept on disk, an int or such as "2GB".
        max_memory: bytes held while a step is collected: of what it took from outside, of variables
            as they were, and of tensors for the dump, each.
        collector: "auto", "ascend", "host", or an object with the methods of
            ``collect.base.Collector``.
        on_overflow: "report" goes on, "stop" ends ``fit`` after the report, "restart" writes a
            restart request.
        on_report: called with each Report.
        optimizer: the loss-scale optimizer, or a list of them, where they can't be found.
        restore: start from the weights, the optimizer's state and the loss scale saved at the
            trigger of the run before (in ``fit``; a loop of one's own starts from its own beginning
            and says so).
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
    dump: bool = True
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
        return cls(**{name: _checked(name, value) for name, value in given.items()})


_WHOLE = {"patience": 1, "window": 1, "warmup": 0, "keep": 1, "max_collect_steps": 1}
_WHOLE.update({"max_reports": 1, "limit": 0, "verbose": 0})
_CHOICES = {"on_overflow": ("report", "stop", "restart"), "language": ("en", "zh", None)}
_COLLECTORS = ("auto", "ascend", "host")


def _checked(name: str, value: Any) -> Any:
    """``value`` in its final form, or UsageError."""
    if name in _WHOLE:
        return _whole(name, value, _WHOLE[name])
    if name in _CHOICES and not (isinstance(value, (str, type(None))) and value in _CHOICES[name]):
        accepted = ", ".join(map(repr, _CHOICES[name]))
        raise UsageError("option.choice", name=name, value=_shown(value), accepted=accepted)
    if name in ("max_disk", "max_memory"):
        return bytes_of(value, name)
    if name == "check_every" and not (isinstance(value, str) and value == "auto"):
        return _whole(name, value, 1)
    if name in ("min_scale", "max_collect_seconds"):
        return _number(name, value, zero=name == "min_scale")
    if name == "at_steps":
        return _steps(name, value)
    if name == "collector" and not _is_collector(value):
        accepted = "'auto', 'ascend', 'host', an object with the collector protocol"
        raise UsageError("option.choice", name=name, value=_shown(value), accepted=accepted)
    if name == "on_report" and value is not None and not callable(value):
        raise UsageError("option.callable", name=name, value=_shown(value))
    known = ("bool", "bool_")  # numpy's own, too
    if name in ("dump", "restore") and type(value).__name__ not in known:
        raise UsageError("option.choice", name=name, value=_shown(value), accepted="True, False")
    given = value if isinstance(value, (list, tuple)) else [value]
    if name == "optimizer" and value is not None and not all(map(_is_optimizer, given)):
        raise UsageError("option.optimizer", name=name, value=_shown(value))
    if name in ("dump_path", "tensorboard_dir") and value is not None:
        return _folder(name, value)
    return bool(value) if name in ("dump", "restore") else value


def _whole(name: str, value: Any, least: int) -> int:
    whole = _index(value)
    if whole is None or whole < least:
        raise UsageError("option.whole", name=name, value=_shown(value), least=least)
    return whole


def _index(value: Any) -> Optional[int]:
    """A whole number of Python or numpy; True and False are none."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _number(name: str, value: Any, zero: bool) -> float:
    """A number, infinity included; ``zero``: whether 0 makes sense."""
    try:
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        number = float(value) if is_number else -1.0
    except OverflowError:
        number = -1.0
    if not (number > 0 or (zero and number == 0)):
        code = "option.number" if zero else "option.number_above"
        raise UsageError(code, name=name, value=_shown(value))
    return number


def _steps(name: str, value: Any) -> Tuple[int, ...]:
    """One step, or any iterable of steps: bounded, as it may have no end."""
    steps: Optional[Iterable[Any]] = (value,)
    if not isinstance(value, numbers.Integral):
        try:
            steps = None if isinstance(value, (str, bytes, dict)) else iter(value)
        except TypeError:
            steps = None
    if steps is None:
        raise UsageError("option.steps", name=name, value=_shown(value))
    given = [_whole(name, step, 0) for step in itertools.islice(steps, MOST_STEPS + 1)]
    if len(given) > MOST_STEPS:
        raise UsageError("option.many_steps", name=name, most=MOST_STEPS)
    return tuple(sorted(set(given)))


def _folder(name: str, value: Any) -> str:
    """A local folder; ``~`` at its beginning is the home folder."""
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or "\0" in path:
        raise UsageError("option.folder", name=name, value=_shown(value))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", path):
        raise UsageError("option.url", name=name, value=_shown(value))
    return os.path.expanduser(path)


def _is_optimizer(value: Any) -> bool:
    """Whether it applies gradients, or wraps something that does; the class alone is no optimizer
    yet."""
    names = ("apply_gradients", "apply", "_optimizer", "optimizer", "inner_optimizer")
    return not isinstance(value, type) and any(hasattr(value, name) for name in names)


def _is_collector(value: Any) -> bool:
    if isinstance(value, (str, type)):
        return value in _COLLECTORS
    return all(callable(getattr(value, name, None)) for name in ("prepare", "start", "stop"))


def _shown(value: Any) -> str:
    """What came, on one line that stays short."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else text[:199] + "…"
