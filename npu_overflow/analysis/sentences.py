"""The English sentences that a report holds beside their codes."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from npu_overflow.errors import NpuOverflowError

__all__ = ["english", "fillable", "sentence"]

#: names that the functions which fill sentences use themselves
_TAKEN = ("code", "_code", "language", "self")


def english(code: str, **values: Any) -> str:
    """The sentence ``code`` of the catalogue with ``values`` filled in; errors know where sentences live."""
    return NpuOverflowError(code, **values).message("en")


def sentence(code: str, language: Optional[str] = None, **values: Any) -> str:
    """The sentence in ``language``; None takes the user's."""
    error = NpuOverflowError(code, **values)
    return error.for_user() if language is None else error.message(language)


def fillable(values: Mapping[str, Any]) -> Dict[str, Any]:
    """``values`` from a file, without names that no sentence can use."""
    return {name: value for name, value in values.items() if name not in _TAKEN}
