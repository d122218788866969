"""Copies of variables at the beginning of a call: needed where weights move between the steps of one call."""
from __future__ import annotations

from typing import Any, List, Tuple

__all__ = ["Snapshot"]


class Snapshot:
    """Variables and their values at one moment.

    Use: ``take`` before the call; ``swap`` puts the values in and keeps what was there; ``swap`` again puts that back.
    """

    def __init__(self, pairs: List[Tuple[Any, Any]]) -> None:
        self._pairs = pairs

    @classmethod
    def take(cls, variables: List[Any]) -> Snapshot:
        """Read every variable once. Values share memory with the variables until these are written (copy on write)."""
        import tensorflow as tf

        return cls([(variable, tf.convert_to_tensor(variable)) for variable in variables])

    def swap(self) -> Snapshot:
        """Put the values in; returns the snapshot of what was there."""
        import tensorflow as tf

        now = [(variable, tf.convert_to_tensor(variable)) for variable, _ in self._pairs]
        for variable, value in self._pairs:
            variable.assign(value)
        return Snapshot(now)
