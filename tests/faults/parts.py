"""What several modules of cases build with: layers with weights of their own, a loss with a known slope, trainings with a hand in them."""
from __future__ import annotations

from typing import Any, Callable, Dict, Optional, Sequence

import numpy as np

from .kit import BATCH, Fit, Setting, f16

__all__ = ["LAST_SCALE", "Between", "embedding", "of_optimizer", "slope", "summed", "weighted"]

#: the loss scale in the step that is reported: 16 at first, halved by the two overflows that trigger
LAST_SCALE = 4.0


def summed(s: Setting) -> Callable[[Any, Any], Any]:
    """A loss that is the output itself, so that its gradient is known: loss scale / batch size."""
    return lambda targets, outputs: s.tf.reduce_sum(outputs, axis=-1)


def slope(out: float, scale: float = LAST_SCALE, batch: int = BATCH) -> Any:
    """The float16 gradient of each element that ``Setting.head(h, out)`` sums, under ``summed``."""
    return f16(np.float32(out) * np.float32(scale / batch))


def of_optimizer(s: Setting, name: str) -> str:
    """A graph's name of an operator whose gradient has no scope of its own: old optimizers call the tape in theirs."""
    return "SGD/gradients/" + name if s.version < (2, 11) else name


def weighted(s: Setting, name: str, weights: Dict[str, Any], call: Callable[..., Any], **details: Any) -> Any:
    """A layer with weights: ``call(inputs, *tensors of the weights)``, the weights cast as the layer's policy says."""
    tf = s.tf

    class Weighted(s.keras.layers.Layer):  # type: ignore[misc, name-defined]
        def build(self, shape: Any) -> None:
            for key, values in weights.items():
                setattr(self, "own_" + key, self.add_weight(name=key, shape=np.shape(values), initializer=s.constant(values)))
            self.built = True

        def call(self, inputs: Any) -> Any:
            return call(inputs, *[tf.convert_to_tensor(getattr(self, "own_" + key)) for key in weights])

    return Weighted(name=s.name(name), **details)


def embedding(s: Setting, name: str, table: Any, **details: Any) -> Any:
    """An Embedding layer with this table."""
    rows, width = np.shape(table)
    return s.keras.layers.Embedding(rows, width, embeddings_initializer=s.constant(table), name=s.name(name), **details)


class Between(Fit):
    """``Fit`` with a hand in it: ``before`` is called with the number of each step that is about to run."""

    def __init__(self, s: Setting, model: Any, before: Callable[[int], None], **given: Any) -> None:
        super().__init__(model, setting=s, **given)
        self._keras, self._before = s.keras, before

    def before(self, step: int) -> None:
        """The hand."""
        self._before(step)

    def run(self, callbacks: Sequence[Any] = ()) -> None:
        before = self.before

        class Hand(self._keras.callbacks.Callback):  # type: ignore[misc, name-defined]
            def on_train_batch_begin(self, batch: int, logs: Optional[Any] = None) -> None:
                before(batch)

        super().run([Hand(), *callbacks])
