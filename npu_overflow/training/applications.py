"""Where a step hands its gradients over: the outermost ``apply_gradients`` or ``apply`` of any
Keras optimizer."""
from __future__ import annotations

import functools
import threading
from typing import Any, Callable, List, Set

from npu_overflow.collect.replay import tensorflow as private

__all__ = ["Applications"]


class _Depth(threading.local):
    inside = False


class Applications:
    """While installed, ``ended(optimizer)`` is called after each outermost ``apply_gradients`` that
    runs eagerly on the thread that installed it.

    Several may be installed, and they may end in any order.

    Args:
        mine: whether it is asked for now.
        ended: is told of the optimizer that ended a step.
    """

    def __init__(self, mine: Callable[[], bool], ended: Callable[[Any], None]) -> None:
        self._mine, self._ended = mine, ended
        self._thread = threading.get_ident()

    def install(self) -> None:
        """Begin."""
        if self not in _behind.installed:
            _behind.installed = [*_behind.installed, self]

    def see(self, optimizer: Any) -> None:
        """Stand behind the optimizers of this one's class, too."""
        _behind.add(type(optimizer))

    def remove(self) -> None:
        """End."""
        _behind.installed = [item for item in _behind.installed if item is not self]
        if not _behind.installed:
            _behind.clear()

    def concerned(self) -> bool:
        """Whether an optimizer that applies gradients now ends a step of this one's."""
        return threading.get_ident() == self._thread and self._mine()

    def tell(self, optimizer: Any) -> None:
        """The optimizer has applied its gradients."""
        self._ended(optimizer)


class _Behind:
    """What stands behind the optimizers of some classes, for all that are installed."""

    def __init__(self) -> None:
        self.installed: List[Applications] = []  # oldest first
        self._undo: List[Callable[[], None]] = []
        self._kinds: Set[type] = set()
        self._depth = _Depth()

    def add(self, optimizer_kind: type) -> None:
        for kind in optimizer_kind.__mro__:
            if kind not in self._kinds:
                self._kinds.add(kind)
                for method in ("apply_gradients", "apply"):
                    if method in vars(kind):
                        ours = self._method(vars(kind)[method])
                        self._undo.append(private.patch(kind, method, ours))

    def clear(self) -> None:
        while self._undo:
            self._undo.pop()()
        self._kinds.clear()

    def _method(self, real: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(real)
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            concerned: List[Applications] = []
            if not self._depth.inside:
                concerned = [item for item in self.installed if item.concerned()]
            if not concerned or not private.found("context")().executing_eagerly():
                return real(optimizer, *args, **kwargs)
            self._depth.inside = True
            try:
                result = real(optimizer, *args, **kwargs)
            finally:
                self._depth.inside = False
            for item in concerned:
                item.tell(optimizer)
            return result

        return apply


_behind = _Behind()

