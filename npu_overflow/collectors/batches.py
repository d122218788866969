"""The batches of one training call: drawn from the pipeline by hand, fed to the compiled function, kept for a replay.

A compiled training function takes an iterator. It is given one over just the batches of this call, with the same ``element_spec``, so it
runs without retracing and the pipeline advances exactly as it would have.
"""
from __future__ import annotations

from typing import Any, Dict, List, Tuple

from npu_overflow.collectors import compat

__all__ = ["Batches", "as_tensors", "can_feed", "draw", "feed", "labels_of"]


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
    """An iterator over these batches with this ``element_spec``."""
    import tensorflow as tf

    internals = compat.internals()
    if not (internals.has("from_variant") and internals.has("to_variant")):
        # Slower (some 70 ms): a Python generator, whose spec can be given in public.
        return iter(tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec))
    dataset = None
    for batch in batches:
        one = tf.data.Dataset.from_tensors(batch)
        dataset = one if dataset is None else dataset.concatenate(one)
    # The data keep their exact shapes; only the declared spec is the pipeline's, so the function is not traced again.
    return iter(internals.get("from_variant")(internals.get("to_variant")(dataset), spec))


def labels_of(structure: Any, names: Tuple[str, ...] = ()) -> Dict[int, Tuple[str, str, Any]]:
    """Tensors of a batch or of a function's arguments by number: ("data", name as a user would write it, tensor).

    Args:
        structure: tensors in tuples, lists and dicts.
        names: names of the outermost elements.
    """
    found: Dict[int, Tuple[str, str, Any]] = {}
    if isinstance(structure, dict):
        parts = [(str(key), value) for key, value in structure.items()]
    elif isinstance(structure, (tuple, list)):
        parts = [(names[i] if i < len(names) else str(i), value) for i, value in enumerate(structure)]
    else:
        parts = [(names[0] if names else "batch", structure)]
    for name, value in parts:
        _label(name, value, found, 0)
    return found


def _label(name: str, value: Any, found: Dict[int, Tuple[str, str, Any]], depth: int) -> None:
    if hasattr(value, "_id") and hasattr(value, "dtype"):
        found[compat.tensor_id(value)] = ("data", name, value)
    elif depth < 8 and isinstance(value, dict):
        for key, item in value.items():
            _label("%s[%r]" % (name, key), item, found, depth + 1)
    elif depth < 8 and isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            _label("%s[%d]" % (name, i), item, found, depth + 1)
    elif depth < 8 and isinstance(getattr(value, "values", None), tuple):  # one value a replica
        for item in value.values:
            _label(name, item, found, depth + 1)
    elif depth < 8 and hasattr(value, "flat_values"):  # RaggedTensor
        _label(name, value.flat_values, found, depth + 1)


def as_tensors(structure: Any, spec: Any = None) -> Any:
    """The structure with tensors in place of NumPy arrays, as a tf.function makes them of its arguments; itself where it holds none.

    Args:
        structure: a function's arguments, in tuples, lists and dicts.
        spec: the function's ``input_signature``, which says the types, or None.
    """
    return _as_tensors(structure, spec, 0)


def _as_tensors(structure: Any, spec: Any, depth: int) -> Any:
    import numpy as np

    if isinstance(structure, np.ndarray):
        return _as_tensor(structure, getattr(spec, "dtype", None))
    if depth > 8 or (type(structure) not in (tuple, list, dict) and not hasattr(structure, "_fields")):
        return structure
    if isinstance(structure, dict):
        changed = {key: _as_tensors(item, spec.get(key) if isinstance(spec, dict) else None, depth + 1) for key, item in structure.items()}
        return changed if any(changed[key] is not structure[key] for key in changed) else structure
    if not isinstance(structure, (tuple, list)):
        return structure
    specs = spec if isinstance(spec, (tuple, list)) else ()
    items = [_as_tensors(item, specs[i] if i < len(specs) else None, depth + 1) for i, item in enumerate(structure)]
    if all(now is then for now, then in zip(items, structure)):
        return structure
    return type(structure)(*items) if hasattr(structure, "_fields") else type(structure)(items)


def _as_tensor(array: Any, dtype: Any) -> Any:
    """A tensor of the array; the array itself where TensorFlow can't make one of it."""
    import tensorflow as tf

    try:
        return tf.convert_to_tensor(array, dtype=dtype)
    except (TypeError, ValueError, tf.errors.OpError):
        return array


class Batches:
    """Stands in for an iterator in a replay: hands on the batches that the real call drew, as they are."""

    def __init__(self, drawn: List[Any], spec: Any) -> None:
        self._rest, self.element_spec = list(drawn), spec

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        if not self._rest:
            raise StopIteration
        return self._rest.pop(0)

    next = get_next = __next__
