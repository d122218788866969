"""The English sentences that a report holds beside their codes."""
from __future__ import annotations

from typing import Any

from npu_overflow.errors import NpuOverflowError

__all__ = ["english"]


def english(code: str, **values: Any) -> str:
    """The sentence ``code`` of the catalogue with ``values`` filled in; errors know where sentences live."""
    return NpuOverflowError(code, **values).message("en")
