"""The batches of one training call: drawn from the pipeline by hand, fed to the compiled function, kept for a replay.

A compiled training function takes an iterator. It is given one over just the batches of this call, with the same ``element_spec``, so it
runs without retracing and the pipeline advances exactly as it would have.
"""
from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional, Tuple

from npu_overflow.collect.replay import tensorflow as private

__all__ = ["Batches", "Feed", "can_feed", "draw", "fed", "feed", "labels_of", "names_in"]


def can_feed(iterator: Any) -> bool:
    """Whether the iterator is one of this process's own devices (distributed ones can't be fed by hand)."""
    return hasattr(iterator, "element_spec") and hasattr(iterator, "_iterator_resource")


def draw(iterator: Any, steps: int) -> List[Any]:
    """The next ``steps`` batches, fewer where the pipeline ends."""
    batches: List[Any] = []
    for _ in range(steps):
        try:
            batches.append(next(iterator))
        except StopIteration:
            break
    return batches


def feed(batches: List[Any], spec: Any) -> Any:
    """An iterator over these batches with this ``element_spec``; ``fed`` knows it for a while."""
    iterator = _iterator(batches, spec)
    fed[private.tensor_id(iterator._iterator_resource)] = Feed(batches, spec)
    while len(fed) > _MOST_FED:
        del fed[next(iter(fed))]
    return iterator


def _iterator(batches: List[Any], spec: Any) -> Any:
    import tensorflow as tf

    if not (private.has("from_variant") and private.has("to_variant")):
        # Slower (some 70 ms): a Python generator, whose spec can be given in public.
        return iter(tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec))
    dataset = None
    for batch in batches:
        one = tf.data.Dataset.from_tensors(batch)
        dataset = one if dataset is None else dataset.concatenate(one)
    # The data keep their exact shapes; only the declared spec is the pipeline's, so the function is not traced again.
    return iter(private.found("from_variant")(private.found("to_variant")(dataset), spec))


class Feed:
    """Gives the runs of a record the batches that its call drew.

    Args:
        drawn: the batches.
        spec: the iterator's ``element_spec``.
    """

    def __init__(self, drawn: List[Any], spec: Any) -> None:
        self._drawn, self._spec = drawn, spec

    def run(self) -> _FeedRun:
        """For one run: the batches from the first on."""
        import tensorflow as tf

        flat = [tf.nest.flatten(batch) for batch in self._drawn]
        if all(private.is_eager(item) for batch in flat for item in batch):
            return _FeedRun(iter(flat), None)
        return _FeedRun(iter(()), _iterator(self._drawn, self._spec))


class _FeedRun:
    def __init__(self, tensors: Iterator[List[Any]], iterator: Any) -> None:
        self._tensors, self._iterator = tensors, iterator

    def draw(self, op_type: str, attrs: Any, outputs: int) -> Optional[List[Any]]:
        """What an operator that draws the next batch gives; None where there is no further one."""
        if self._iterator is not None:
            return private.run_op(op_type, [self._iterator._iterator_resource], attrs, outputs)
        tensors = next(self._tensors, None)
        if not op_type.endswith("AsOptional"):
            return None if tensors is None else list(tensors)
        if tensors is None:
            return private.run_op("OptionalNone", [], (), 1)
        types = ("Toutput_types", [tensor.dtype.as_datatype_enum for tensor in tensors])
        return private.run_op("OptionalFromValue", list(tensors), types, 1)


#: the iterators made last, by the numbers of their handles: of two watches on one training, each draws what the other feeds
fed: Dict[int, Feed] = {}
_MOST_FED = 4


def names_in(structure: Any, names: Tuple[str, ...] = ()) -> List[Tuple[str, Any]]:
    """Tensors of a batch or of a function's arguments with their names, in TensorFlow's order.

    Args:
        structure: tensors in tuples, lists and dicts.
        names: names of the outermost elements.
    """
    if isinstance(structure, dict):
        parts = [(str(key), structure[key]) for key in _sorted(structure)]
    elif isinstance(structure, (tuple, list)):
        parts = [(names[i] if i < len(names) else str(i), value) for i, value in enumerate(structure)]
    else:
        parts = [(names[0] if names else "batch", structure)]
    found: List[Tuple[str, Any]] = []
    for name, value in parts:
        _add(name, value, found, 0)
    return found


def labels_of(structure: Any, names: Tuple[str, ...] = ()) -> Dict[int, str]:
    """Names of the eager tensors in a structure, by their numbers."""
    found: Dict[int, str] = {}
    for name, value in names_in(structure, names):
        for tensor in _tensors(value):
            found.setdefault(private.tensor_id(tensor), name)
    return found


def _add(name: str, value: Any, found: List[Tuple[str, Any]], depth: int) -> None:
    if depth < 8 and isinstance(value, dict):
        for key in _sorted(value):
            _add("%s[%r]" % (name, key), value[key], found, depth + 1)
    elif depth < 8 and isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            _add("%s[%d]" % (name, i), item, found, depth + 1)
    elif value is not None:
        found.append((name, value))


def _sorted(structure: Dict[Any, Any]) -> List[Any]:
    try:
        return sorted(structure)
    except TypeError:
        return list(structure)


def _tensors(value: Any) -> List[Any]:
    """The eager tensors that a tensor, a ragged tensor or a value of several replicas is made of."""
    if private.is_eager(value):
        return [value]
    if isinstance(getattr(value, "values", None), tuple):  # one value a replica
        return [tensor for item in value.values for tensor in _tensors(item)]
    return _tensors(value.flat_values) if hasattr(value, "flat_values") else []


class Batches:
    """An iterator over batches that were drawn by hand, for a function that is traced over it."""

    def __init__(self, drawn: List[Any]) -> None:
        self._rest = list(drawn)

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if not self._rest:
            raise StopIteration
        return self._rest.pop(0)

    next = get_next = __next__
