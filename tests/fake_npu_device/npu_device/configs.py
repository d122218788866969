"""The options and their errors."""
from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

VERSION = os.environ.get("FAKE_NPU_DEVICE_VERSION", "new")


class OptionValue:
    """One option. ``value`` is a string or None; booleans are "1" and "0". Without a list of values anything is accepted."""

    def __init__(self, default: Any, optional: Optional[List[Any]] = None) -> None:
        self.default, self.optional, self._value = default, optional, default

    @property
    def value(self) -> Optional[str]:
        return None if self._value is None else {"True": "1", "False": "0"}.get(str(self._value), str(self._value))

    @value.setter
    def value(self, value: Any) -> None:
        if self.optional is not None and value not in self.optional:
            if VERSION != "old" and self.default is not None and not isinstance(value, type(self.default)):
                raise TypeError("Expected %s, got %s" % (type(self.default).__name__, type(value).__name__))
            raise ValueError("'%s' not in optional list %s" % (value, self.optional))
        self._value = value


class DeprecatedValue(OptionValue):
    """An option that warns whenever the options are read; unset at first, and without a way back to that."""

    def __init__(self, optional: List[Any], replacement: str) -> None:
        super().__init__(None, optional)
        self.replacement = replacement


class NpuBaseConfig:
    """A group of options; nothing else can be set."""

    def __init__(self) -> None:
        self.__dict__["_fixed_attrs"] = [name for name, item in self.__dict__.items() if isinstance(item, (OptionValue, NpuBaseConfig))]

    def __setattr__(self, name: str, value: Any) -> None:
        if "_fixed_attrs" not in self.__dict__:
            self.__dict__[name] = value
            return
        if name not in self._fixed_attrs:
            raise ValueError("%s has no option %s, all options %s" % (type(self).__name__, name, self._fixed_attrs))
        if isinstance(self.__dict__[name], OptionValue):
            self.__dict__[name].value = value
        else:
            self.__dict__[name] = value

    def as_dict(self) -> Dict[str, str]:
        """Flat, strings only."""
        result: Dict[str, str] = {}
        for name in self._fixed_attrs:
            item = self.__dict__[name]
            if isinstance(item, NpuBaseConfig):
                result.update(item.as_dict())
            elif item.value is not None:
                if isinstance(item, DeprecatedValue):
                    print(
                        "[warning][tf_adapter] Option '%s' is deprecated and will be removed in future version. Please use '%s' instead."
                        % (name, item.replacement)
                    )
                result[name] = item.value
        return result


class NpuDumpConfig(NpuBaseConfig):
    """Options of the dumps."""

    def __init__(self) -> None:
        self.enable_dump = OptionValue(False, [True, False])
        self.dump_path = OptionValue(None)
        self.dump_step = OptionValue(None)
        self.dump_mode = OptionValue("output", ["input", "output", "all"])
        self.enable_dump_debug = OptionValue(False, [True, False])
        if VERSION == "old":
            self.dump_debug_mode = OptionValue(None)
        else:
            self.dump_debug_mode = OptionValue("all", ["aicore_overflow", "atomic_overflow", "all"])
            self.dump_data = OptionValue("tensor", ["tensor", "stats"])
            self.dump_layer = OptionValue(None)
        super().__init__()


class NpuConfig(NpuBaseConfig):
    """All options of the process."""

    def __init__(self) -> None:
        self.dump_config = NpuDumpConfig()
        self.fusion_switch_file = OptionValue(None)
        self.modify_mixlist = OptionValue(None)
        if VERSION == "old":
            self.op_debug_level = OptionValue(0, [0, 1, 2, 3, 4])
            self.enable_exception_dump = OptionValue(0, [0, 1])
            self.precision_mode = OptionValue("allow_fp32_to_fp16", ["force_fp32", "allow_fp32_to_fp16", "force_fp16", "allow_mix_precision"])
        else:
            self.op_debug_level = DeprecatedValue([0, 1, 2, 3, 4], "op_debug_config")
            self.op_debug_config = OptionValue(None)
            self.enable_exception_dump = OptionValue(2, [0, 1, 2])
            self.precision_mode = OptionValue(None, ["force_fp32", "allow_fp32_to_fp16", "force_fp16", "allow_mix_precision", "allow_mix_precision_bf16"])
            self.precision_mode_v2 = OptionValue(None, ["fp16", "origin", "mixed_float16", "mixed_bfloat16"])
        super().__init__()
