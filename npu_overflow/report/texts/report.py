"""The words of the report itself: headings, verdicts, status bits."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
    # The meaning of a record's status. Old-layout AI Core: one sentence a bit; atomic parts: one code; others are not public.
    "status.ai_core.0x8": ("negating the smallest signed integer overflowed", "对最小有符号整数取负时溢出"),
    "status.ai_core.0x10": ("an integer add, subtract, multiply or multiply-add overflowed", "整数加、减、乘或乘加运算溢出"),
    "status.ai_core.0x20": ("a floating-point computation overflowed", "浮点计算溢出"),
    "status.ai_core.0x80": ("converting floating point to unsigned: the input was negative", "浮点数转无符号整数：输入为负数"),
    "status.ai_core.0x100": ("float32 to float16, or int32 to float16, overflowed", "float32 或 int32 转 float16 时溢出"),
    "status.ai_core.0x400": ("cube (matrix) accumulation overflowed", "Cube（矩阵）累加溢出"),
    "status.ai_core.unknown": ("unknown bit {bit}", "未知位 {bit}"),
    "status.dha.0x9": ("atomic add: overflow", "原子加：上溢"),
    "status.dha.0xa": ("atomic add: underflow", "原子加：下溢"),
    "status.dha.0xb": ("atomic add: the source is NaN", "原子加：源操作数为 NaN"),
    "status.dha.0xc": ("atomic add: the destination is NaN", "原子加：目的操作数为 NaN"),
    "status.dha.0xd": ("atomic add: source and destination are NaN", "原子加：源和目的操作数均为 NaN"),
    "status.l2.1": ("atomic add: overflow", "原子加：上溢"),
    "status.l2.2": ("atomic add: underflow", "原子加：下溢"),
    "status.l2.3": ("atomic add: the source is NaN", "原子加：源操作数为 NaN"),
    "status.l2.4": ("atomic add: the destination is NaN", "原子加：目的操作数为 NaN"),
    "status.l2.5": ("atomic add: source and destination are NaN", "原子加：源和目的操作数均为 NaN"),
    "status.atomic.unknown": ("atomic add: an overflow, unknown code {code}", "原子加：溢出，未知状态码 {code}"),
    "status.not_documented": ("bits not documented", "状态位未公开"),
    "status.host": ("a non-finite value came out of this operator", "该算子输出了非有限值"),
}
