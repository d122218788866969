"""The random generators that a whole process shares: during a replay its thread draws from copies of its own, every other thread as always.

Other threads prepare batches meanwhile. Were the shared generators themselves put back, batches would repeat.
"""
from __future__ import annotations

import contextlib
import functools
import random
import threading
from typing import Any, Callable, Iterator, List, Tuple

from npu_overflow.collectors import compat

__all__ = ["OwnSeeds", "States", "own_draws", "shared_states"]

States = List[Tuple[Any, Any]]  # module, state of its generator

_OTHER_NAMES = {"sample": "random_sample", "ranf": "random_sample"}  # of functions in numpy.random that RandomState calls otherwise


def shared_states() -> States:
    """How Python's and numpy's shared generators stand now."""
    import numpy as np

    return [(random, random.getstate()), (np.random, np.random.get_state())]


@contextlib.contextmanager
def own_draws(states: States) -> Iterator[None]:
    """This thread's calls of the functions of ``random`` and ``numpy.random`` go to generators that begin with these states."""
    thread, undo = threading.get_ident(), []
    try:
        for module, state in states:
            own = _generator(module, state)
            for name, function in list(vars(module).items()):
                mine = getattr(own, name, None) or getattr(own, _OTHER_NAMES.get(name, name), None)
                if mine is not None and callable(function) and not name.startswith("_") and not isinstance(function, type):
                    undo.append(compat.patch(module, name, _by_thread(thread, mine, function)))
        yield
    finally:
        for put_back in undo:
            put_back()


class OwnSeeds(random.Random):
    """The source of seeds of eager random operators: this thread draws them from ``seed`` on, every other thread from the source of before."""

    def __new__(cls, seed: int, before: Any) -> OwnSeeds:
        return super().__new__(cls, seed)  # type: ignore[call-arg]  # Python 3.7's takes one argument

    def __init__(self, seed: int, before: Any) -> None:
        super().__init__(seed)
        self._thread, self._before = threading.get_ident(), before

    def randint(self, a: int, b: int) -> int:
        if self._before is not None and threading.get_ident() != self._thread:
            return int(self._before.randint(a, b))
        return super().randint(a, b)


def _generator(module: Any, state: Any) -> Any:
    import numpy as np

    if module is random:
        python = random.Random()
        python.setstate(state)
        return python
    numpys = np.random.RandomState(0)
    numpys.set_state(state)
    return numpys


def _by_thread(thread: int, mine: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def draw(*args: Any, **kwargs: Any) -> Any:
        return (mine if threading.get_ident() == thread else function)(*args, **kwargs)

    return draw
