"""Ctrl-C at a chosen moment, for tests of what is left then."""
from __future__ import annotations

from typing import Any, Callable, List

__all__ = ["interrupted_at"]


def interrupted_at(count: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, but its call number ``count`` is where the user presses Ctrl-C."""
    calls: List[int] = []

    def wrapped(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            raise KeyboardInterrupt
        return function(*given, **named)

    return wrapped
