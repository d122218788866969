"""Where a step hands its gradients over: the outermost ``apply_gradients`` or ``apply`` of any Keras optimizer."""
from __future__ import annotations

import threading
from typing import Any, Callable, List

from npu_overflow.collectors import compat

__all__ = ["intercept"]


class _Depth(threading.local):
    inside = False


def intercept(mine: Callable[[], bool], given: Callable[[Any, List[Any]], bool]) -> List[Callable[[], None]]:
    """Stand before every optimizer.

    Args:
        mine: whether the present thread is concerned; others pass through.
        given: called with the optimizer and its gradients; returns whether they shall be applied.

    Returns:
        what undoes it.
    """
    depth = _Depth()
    undo = []
    for kind in compat.iter_optimizer_classes():
        for method in ("apply_gradients", "apply"):
            if method in vars(kind):
                undo.append(compat.patch(kind, method, _method(method, vars(kind)[method], mine, given, depth)))
    return undo


def _method(method: str, real: Callable[..., Any], mine: Callable[[], bool], given: Callable[[Any, List[Any]], bool], depth: _Depth) -> Callable[..., Any]:
    def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if depth.inside or not mine():
            return real(optimizer, *args, **kwargs)
        name = "grads_and_vars" if method == "apply_gradients" else "grads"
        handed = list(args[0] if args else kwargs.get(name, ()))  # often a zip, which can be read once only
        if not given(optimizer, [pair[0] for pair in handed] if method == "apply_gradients" else handed):
            return getattr(optimizer, "iterations", None)
        depth.inside = True
        try:
            return real(optimizer, handed, *args[1:], **kwargs) if args else real(optimizer, **dict(kwargs, **{name: handed}))
        finally:
            depth.inside = False

    return apply
