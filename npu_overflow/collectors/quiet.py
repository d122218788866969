"""Keeps back what TensorFlow says only because a replay runs eagerly what the training runs compiled."""
from __future__ import annotations

import contextlib
import logging
import threading
from typing import Iterator

__all__ = ["quiet"]


class _OwnWarnings(logging.Filter):
    """Drops the warning that a distribution strategy runs eagerly, where it comes from the thread of the replay."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.thread == self._thread and "eagerly has significant" in str(record.msg))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Around a replayed step; what other threads log is passed on."""
    logger, own = logging.getLogger("tensorflow"), _OwnWarnings()
    logger.addFilter(own)
    try:
        yield
    finally:
        logger.removeFilter(own)
