"""Tensors counted by several processes: histograms of bit patterns hold the interpreter's lock, so
threads would not help."""
from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from npu_overflow.analysis.statistics import Facts, summarize
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError

if TYPE_CHECKING:  # takes 10 ms, and most trees need none of it
    from concurrent.futures import Future, ProcessPoolExecutor

__all__ = ["Workers", "processors"]

#: a smaller tensor is counted before another process has heard of it
_LARGE_BYTES = 8 << 20

Answer = Tuple[Optional[Facts], Optional[DumpFormatError]]


def processors() -> int:
    """Processes that can run at once here."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Workers:
    """Counts tensors, large ones in processes of their own where there is more than one.

    Args:
        processes: that may run. More than 1 forks this process, which must have no other threads
            then; never in a training.
    """

    def __init__(self, processes: int = 1) -> None:
        self._processes = processes if _can_fork() else 1
        #: operators that may be begun before one is waited for
        self.ahead = 4 if self._processes > 1 else 0
        self._pool: Optional[ProcessPoolExecutor] = None

    def count(self, tensor: Tensor, mode: Optional[str]) -> Callable[[], Facts]:
        """Begin to count; what is returned waits for the result, and raises what ``summarize``
        does."""
        if self._processes < 2 or tensor.bytes < _LARGE_BYTES:
            return lambda: summarize(tensor, mode)
        from concurrent.futures import BrokenExecutor

        if self._pool is None:
            self._pool = _pool(self._processes)
        try:
            answer = self._pool.submit(_summarized, tensor, mode)
        except BrokenExecutor:
            return lambda: summarize(tensor, mode)
        return lambda: self._result(answer, tensor, mode)

    def _result(self, answer: Future[Answer], tensor: Tensor, mode: Optional[str]) -> Facts:
        from concurrent.futures import BrokenExecutor

        try:
            facts, error = answer.result()
        # a process was killed, for its memory perhaps: this one can do it too
        except BrokenExecutor:
            return summarize(tensor, mode)
        if facts is None:
            raise error if error is not None else DumpFormatError("file.gone")
        return facts

    def end(self) -> None:
        """No more tensors come; those that are being counted are given up."""
        if self._pool is not None:
            for process in list((getattr(self._pool, "_processes", None) or {}).values()):
                process.terminate()
            self._pool.shutdown()
            self._pool = None


def _can_fork() -> bool:
    # TensorFlow's threads would not be there in a forked process, its locks would
    return (
        sys.platform.startswith("linux")
        and threading.active_count() == 1
        and "tensorflow" not in sys.modules
    )


def _pool(processes: int) -> ProcessPoolExecutor:
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor

    with warnings.catch_warnings():
        # numpy's threads wait for work and hold nothing
        warnings.simplefilter("ignore", DeprecationWarning)
        pool = ProcessPoolExecutor(
            processes, mp_context=multiprocessing.get_context("fork"), initializer=_start
        )
        pool.submit(os.getpid).result()
    return pool


def _start() -> None:
    # Ctrl-C is for the one that asked; this one has nothing to say
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _summarized(tensor: Tensor, mode: Optional[str]) -> Any:
    try:
        return summarize(tensor, mode), None
    except DumpFormatError as error:
        return None, error
