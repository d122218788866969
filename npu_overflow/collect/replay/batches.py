"""The batches of one training call: drawn from the pipeline by hand, fed to the compiled function,
kept for a replay.

A compiled training function takes an iterator. It is given one over just the batches of this call,
with the same ``element_spec``, so it runs without retracing and the pipeline advances exactly as it
would have.
"""
from __future__ import annotations

import itertools
from typing import Any, Dict, Iterable, List, Optional, Tuple

from npu_overflow.collect.replay import tensorflow as private

__all__ = ["Feed", "can_feed", "draw", "fed", "feed", "labels_of", "names_in"]


def can_feed(iterator: Any) -> bool:
    """Whether the iterator is no distributed one: those can't be fed by hand."""
    return hasattr(iterator, "element_spec") and hasattr(iterator, "_iterator_resource")


def draw(iterator: Any, steps: int) -> List[Any]:
    """The next ``steps`` batches, fewer where the pipeline ends."""
    return list(itertools.islice(iterator, steps))


class Feed:
    """An iterator over the batches that one call drew, with the ``element_spec`` of theirs."""

    def __init__(self, drawn: List[Any], spec: Any) -> None:
        import tensorflow as tf

        self._drawn, self._spec = drawn, spec
        dataset = tf.data.Dataset.from_tensors(drawn[0])
        for batch in drawn[1:]:
            dataset = dataset.concatenate(tf.data.Dataset.from_tensors(batch))
        # the data keep their exact shapes; the declared spec is the pipeline's: no retracing
        variant = tf.data.experimental.to_variant(dataset)
        self.iterator = iter(tf.data.experimental.from_variant(variant, spec))

    def run(self) -> Feed:
        """The same for one run of a record."""
        return Feed(self._drawn, self._spec)

    def draw(self, op_type: str, attrs: Any, outputs: int) -> Optional[List[Any]]:
        """What an operator that draws the next batch gives; None where there is no further one."""
        try:
            return private.run_op(op_type, [self.iterator._iterator_resource], attrs, outputs)
        except Exception:  # of a class that is TensorFlow's own: the end
            return None


#: those made last, by the numbers of their handles: of two watches each draws what the other feeds
fed: Dict[int, Feed] = {}
_MOST_FED = 4


def feed(drawn: List[Any], spec: Any) -> Any:
    """An iterator over these batches with this ``element_spec``; ``fed`` knows it for a while."""
    made = Feed(drawn, spec)
    fed[private.tensor_id(made.iterator._iterator_resource)] = made
    while len(fed) > _MOST_FED:
        del fed[next(iter(fed))]
    return made.iterator


def names_in(structure: Any, names: Tuple[str, ...] = ()) -> List[Tuple[str, Any]]:
    """Tensors of a batch or of a function's arguments (tuples, lists, dicts) with their names, in
    TensorFlow's order; ``names``: those of the outermost elements."""
    if isinstance(structure, dict):
        parts = [(str(key), structure[key]) for key in sorted(structure)]
    elif isinstance(structure, (tuple, list)):
        own = [*names, *map(str, range(len(names), len(structure)))]
        parts = list(zip(own, structure))
    else:
        parts = [(names[0] if names else "batch", structure)]
    return [found for name, value in parts for found in _named(name, value)]


def _named(name: str, value: Any) -> List[Tuple[str, Any]]:
    if isinstance(value, dict):
        inside = [("%s[%r]" % (name, key), value[key]) for key in sorted(value)]
    elif isinstance(value, (tuple, list)):
        inside = [("%s[%d]" % (name, i), item) for i, item in enumerate(value)]
    else:
        return [] if value is None else [(name, value)]
    return [found for part in inside for found in _named(*part)]


def labels_of(named: Iterable[Tuple[str, Any]]) -> Dict[int, str]:
    """Names of the eager tensors among what ``names_in`` found, by their numbers."""
    found: Dict[int, str] = {}
    for name, value in named:
        for tensor in _tensors(value):
            found.setdefault(private.tensor_id(tensor), name)
    return found


def _tensors(value: Any) -> List[Any]:
    """The eager tensors of a tensor, a ragged tensor or a value of several replicas."""
    if private.is_eager(value):
        return [value]
    if isinstance(getattr(value, "values", None), tuple):  # one value a replica
        return [tensor for item in value.values for tensor in _tensors(item)]
    return _tensors(value.flat_values) if hasattr(value, "flat_values") else []
