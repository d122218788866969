"""Optimizers as tf.keras 2 has them, without TensorFlow."""
from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class Value:
    """A variable."""

    def __init__(self, value: float) -> None:
        self.now = value

    def numpy(self) -> float:
        return self.now


class LossScaleOptimizer:
    """Halves its scale at each step that overflows, as the real ones do."""

    def __init__(self, scale: float = 1024.0) -> None:
        state = {"_current_loss_scale": Value(scale), "_counter": Value(0)}
        self._loss_scale: Any = SimpleNamespace(_growth_steps=2000, **state)
        self._iterations = Value(0)

    def apply_gradients(self, overflow: bool = False) -> None:
        """One step."""
        self._iterations.now += 1
        self._loss_scale._counter.now = 0 if overflow else self._loss_scale._counter.now + 1
        if overflow:
            self._loss_scale._current_loss_scale.now /= 2


class Plain:
    """No loss scaling: nothing is skipped."""

    def __init__(self) -> None:
        self._iterations = Value(0)

    def apply_gradients(self) -> None:
        """One step."""
        self._iterations.now += 1
