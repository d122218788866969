"""The options and their errors."""
from __future__ import annotations

from typing import Any, Dict, List, Optional


class OptionValue:
    """One option. ``value`` is a string or None; booleans are "1" and "0"."""

    def __init__(self, default: Any, optional: Optional[List[Any]] = None) -> None:
        self._default, self._optional, self._value = default, optional, default

    @property
    def value(self) -> Optional[str]:
        if self._value is None:
            return None
        return str(int(self._value)) if isinstance(self._value, bool) else str(self._value)

    def set(self, value: Any) -> None:
        if isinstance(self._default, bool) and not isinstance(value, bool):
            raise TypeError("Expected bool, got %s" % type(value).__name__)
        if self._optional is not None and value not in self._optional:
            raise ValueError("'%s' not in optional list %s" % (value, self._optional))
        self._value = value


class NpuBaseConfig:
    """A group of options; nothing else can be set."""

    def __init__(self) -> None:
        self.__dict__["_options"] = [name for name, item in self.__dict__.items() if isinstance(item, (OptionValue, NpuBaseConfig))]

    def __setattr__(self, name: str, value: Any) -> None:
        if "_options" not in self.__dict__:
            self.__dict__[name] = value
            return
        if name not in self._options:
            raise ValueError("%s has no option %s, all options %s" % (type(self).__name__, name, self._options))
        self.__dict__[name].set(value)

    def as_dict(self) -> Dict[str, str]:
        """Flat, strings only."""
        result: Dict[str, str] = {}
        for name in self._options:
            item = self.__dict__[name]
            if isinstance(item, NpuBaseConfig):
                result.update(item.as_dict())
            elif item.value is not None:
                result[name] = item.value
        return result


class NpuDumpConfig(NpuBaseConfig):
    """Options of the dumps."""

    def __init__(self, version: str) -> None:
        self.enable_dump = OptionValue(False, [True, False])
        self.dump_path = OptionValue(None)
        self.dump_step = OptionValue(None)
        self.dump_mode = OptionValue("output", ["input", "output", "all"])
        self.enable_dump_debug = OptionValue(False, [True, False])
        self.dump_debug_mode = OptionValue("all", ["aicore_overflow", "atomic_overflow", "all"])
        if version != "old":
            self.dump_data = OptionValue("tensor", ["tensor", "stats"])
            self.dump_layer = OptionValue(None)
        super().__init__()


class NpuConfig(NpuBaseConfig):
    """All options of the process."""

    def __init__(self, version: str) -> None:
        self.dump_config = NpuDumpConfig(version)
        # deprecated for op_debug_config: unset until somebody sets it, and never unset again
        self.op_debug_level = OptionValue(None, [0, 1, 2, 3, 4])
        if version != "old":
            self.op_debug_config = OptionValue(None)
        self.enable_exception_dump = OptionValue("2", ["0", "1", "2"])
        self.fusion_switch_file = OptionValue(None)
        self.modify_mixlist = OptionValue(None)
        self.precision_mode = OptionValue(None)
        self.precision_mode_v2 = OptionValue(None)
        super().__init__()
