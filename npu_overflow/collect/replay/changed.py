"""A record run again with one thing changed: operators computed in float32, another loss scale, a
constant within the range of its type, a small number added to an input."""
from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Callable, Dict, FrozenSet, Iterator, Optional, Sequence, Set, Tuple

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.finite import is_float
from npu_overflow.collect.replay.interpreter import Interpreter, Marks, Results, Step, Values
from npu_overflow.collect.replay.names import Names
from npu_overflow.collect.replay.program import Node
from npu_overflow.collect.replay.taint import Label, Mark, Path

__all__ = ["Change", "ChangedRun", "half_range"]

_HALF = ("float16", "bfloat16")
# attributes of operators that say of which type their tensors are
_TYPE_ATTRIBUTES = frozenset("T DstT dtype Tout U out_type output_type element_dtype".split())
# a small number beside what must not be zero
_ADDS = ("Add", "AddV2", "Maximum")
_HALF_RANGE = {"bfloat16": 1.6947e38}  # half of a type's largest value
_HALF_OF_FLOAT16 = 32752.0


@dataclass(frozen=True)
class Change:
    """What is changed in a run.

    Args:
        wide: says of an operator's name whether it is computed in float32.
        scale: the loss scale.
        clip: keys of constants that are brought within half of their type's range.
        shift: operators of one type, which of their inputs, and what is added to that.
    """

    wide: Optional[Callable[[str], bool]] = None
    scale: Optional[float] = None
    clip: FrozenSet[Any] = frozenset()
    shift: Optional[Tuple[Sequence[Any], int, float]] = None


class ChangedRun(Interpreter):
    """A run with one thing changed.

    Attributes:
        too_large: key of an origin -> the magnitude that did not fit when it was cast back.
        was_rounded: whether a constant that a wide operator adds was rounded to zero when the graph
            was made: in float32 it would be another.
    """

    def __init__(self, step: Step, change: Change, names: Names, **more: Any) -> None:
        super().__init__(step, scale=change.scale, **more)
        self._change, self._names = change, names
        self._wide: FrozenSet[int] = frozenset()  # numbers of the nodes of the present graph
        self._known: Dict[Tuple[int, str], FrozenSet[int]] = {}
        self._prefix = ""  # of the names in the present graph
        self._narrow: Set[str] = set()  # names of operators whose line names the narrow type
        self._passed: Set[str] = set()  # names of casts that were given what they make
        self._elements: Dict[int, int] = {}  # number of a list of tensors -> number of their type
        self._shifted: Dict[int, Any] = {}
        self.too_large: Dict[Any, float] = {}
        self.was_rounded = False

    def _run_graph(self, path: Path, args: Values, given: Marks) -> Results:
        outer = self._wide, self._prefix
        if self._change.wide is not None:
            key = (id(path.program), self._names.prefix(path))
            self._prefix = key[1]
            if key not in self._known:
                wide, prefix = self._change.wide, key[1]
                self._known[key] = self._wide_nodes(path, wide, prefix)
            self._wide = self._known[key]
        try:
            return super()._run_graph(path, args, given)
        finally:
            self._wide, self._prefix = outer

    def _wide_nodes(
        self, path: Path, wide: Callable[[str], bool], prefix: str
    ) -> FrozenSet[int]:
        """Those of a graph, without what names the narrow type itself, and its gradient; with the
        sums of what flows back into one of them: they have the type of its result."""
        found = []
        for node in path.program.nodes:
            name = prefix + node.name
            if wide(name):
                plain = self._names.without_gradient(name)
                if plain == name and self._names.is_narrowed_by_name(node.op):
                    self._narrow.add(name)
                elif not self._narrow or self._narrow.isdisjoint(_scopes(plain)):
                    found.append(node)
        taken = {place for node in found for place in node.inputs}
        sums = [node for node in path.program.nodes if node.type == "AddN"]
        found += [node for node in sums if not taken.isdisjoint(node.outputs)]
        return frozenset(node.number for node in found)

    def _plain(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        ins, inm = list(ins), list(inm)
        if (path.key, node.number, self._turn) in self._change.clip:
            ins[0] = _clipped(ins[0])
        if self._change.shift is not None:
            self._shift(node, path, ins)
        if self._change.wide is None:
            return super()._plain(node, path, ins, inm)
        wide = self._is_wide(node, path)
        element = self._element(node, ins, wide)
        wanted = "float32" if wide else None
        if wide and node.type in _ADDS:
            self.was_rounded = self.was_rounded or any(map(_is_zero, ins, inm))
        self._cast_inputs(node, path, ins, inm, wanted if element is None else _name_of(element))
        if node.type == "Cast" and node.taken[0].name in _HALF and ins[0].dtype.name == "float32":
            self._passed.add(self._prefix + node.name)
        out, outm = super()._plain(_retyped(node, ins, wide, element), path, ins, inm)
        if element is not None:
            for tensor in out:
                if tensor.dtype.name == "variant":
                    self._elements[private.tensor_id(tensor)] = element
        return out, outm

    def _write(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        ins, inm = list(ins), list(inm)
        if self._change.wide is not None:
            self._cast_inputs(node, path, ins, inm, None)
        return super()._write(node, path, ins, inm)

    def _from_outside(self, tensor: Any, label: Label, key: Any) -> Tuple[Any, Optional[Mark]]:
        if key in self._change.clip:
            tensor = _clipped(tensor)
        return super()._from_outside(tensor, label, key)

    def _is_wide(self, node: Node, path: Path) -> bool:
        if any(kind.name == "resource" for kind in node.taken):  # of the variable's own type
            return False
        if path.program is None:
            assert self._change.wide is not None
            return self._change.wide(self._names.eager_name(path.entry))
        if node.type == "Cast":  # the gradient of a cast that would not be there
            name = self._names.without_gradient(self._prefix + node.name)
            if name.rpartition("/")[0] in self._passed:
                return True
        return node.number in self._wide

    def _element(self, node: Node, ins: Values, wide: bool) -> Optional[int]:
        """Type of the tensors in a list of them (its number), where the operator makes or takes a
        list: the list's own, whatever the graph says."""
        if "element_dtype" not in node.attrs and not any(t.name == "variant" for t in node.taken):
            return None
        known = (self._elements.get(private.tensor_id(v)) for v in ins if v.dtype.name == "variant")
        found = next((kind for kind in known if kind is not None), None)
        if found is None and "element_dtype" in node.attrs:
            kind = node.attrs[node.attrs.index("element_dtype") + 1]
            found = _widened(kind) if wide else kind
        return found

    def _cast_inputs(
        self, node: Node, path: Path, ins: Values, inm: Marks, wanted: Optional[str]
    ) -> None:
        """Give the operator inputs of the type that it takes, or of the wider one. A cast between
        layers, or into one of float32, takes what it gets: Keras casts only where types differ."""
        passes = node.type == "Cast" and not self._names.is_narrow(self._prefix + node.name)
        for i, taken in enumerate(node.taken if not passes else ()):
            to = wanted or taken.name
            if taken.name in _HALF and ins[i].dtype.name not in (to, "resource", "variant"):
                value, ins[i] = ins[i], _cast(ins[i], to)
                mark = inm[i]
                if to in _HALF and (mark is None or not mark.bits):
                    key = (path.key, node.number, self._turn, "cast", i)
                    if not self._finite(ins[i], key):
                        origin = self._origin("operator", key, self._ref(node, path), None, False)
                        label = mark.label if mark is not None else None
                        inm[i] = Mark(origin.bit, label, mark is not None and mark.scaled)
                        self.too_large[key] = _largest(value)

    def _shift(self, node: Node, path: Path, ins: Values) -> None:
        """Add to an input of the operator, and where its gradient takes the same tensor."""
        assert self._change.shift is not None
        targets, place, epsilon = self._change.shift
        own = node.op if node.op is not None else self.step.record.entries[path.entry]
        if any(own is target for target in targets):
            number = private.tensor_id(ins[place])
            self._shifted[number] = _added(ins[place], epsilon)
        for i, value in enumerate(ins):
            ins[i] = self._shifted.get(private.tensor_id(value), value)


def _scopes(name: str) -> Iterator[str]:
    """An operator's name, and each scope that it lies in."""
    while name:
        yield name
        name = name.rpartition("/")[0]


def _is_zero(value: Any, mark: Optional[Mark]) -> bool:
    """Whether a value is a narrow constant of one element that is zero."""
    constant = mark is not None and mark.label is not None and mark.label.kind == "constant"
    return (
        constant
        and value.dtype.name in _HALF
        and value.shape.num_elements() == 1
        and not value.numpy().any()
    )


def _name_of(kind: int) -> str:
    import tensorflow as tf

    return str(tf.as_dtype(kind).name)


def _cast(tensor: Any, to: str) -> Any:
    import tensorflow as tf

    attrs = ("SrcT", tensor.dtype.as_datatype_enum, "DstT", tf.as_dtype(to).as_datatype_enum)
    return private.run_op("Cast", [tensor], attrs, 1)[0]


def _added(tensor: Any, number: float) -> Any:
    import tensorflow as tf

    more = tf.constant(number, tensor.dtype)
    return private.run_op("AddV2", [tensor, more], ("T", tensor.dtype.as_datatype_enum), 1)[0]


def _clipped(tensor: Any) -> Any:
    """The tensor within half of its narrow type's range."""
    import numpy as np
    import tensorflow as tf

    if not is_float(tensor):
        return tensor
    limit = half_range(tensor)
    values = np.clip(tensor.numpy().astype(np.float32), -limit, limit)
    return tf.constant(values, tensor.dtype)


def half_range(tensor: Any) -> float:
    """Half of the largest magnitude of the narrow type that a constant is used in."""
    return _HALF_RANGE.get(tensor.dtype.name, _HALF_OF_FLOAT16)


def _largest(tensor: Any) -> float:
    import numpy as np

    values = np.abs(tensor.numpy().astype(np.float32))
    return float(values[np.isfinite(values)].max(initial=0.0))


def _widened(kind: Any) -> Any:
    """float32 in the place of a narrower type (its number, or a list of such)."""
    import tensorflow as tf

    if isinstance(kind, (list, tuple)):
        return [_widened(item) for item in kind]
    narrow = (tf.float16.as_datatype_enum, tf.bfloat16.as_datatype_enum)
    return tf.float32.as_datatype_enum if kind in narrow else kind


def _retyped(node: Node, ins: Values, wide: bool, element: Any) -> Node:
    """The operator as it runs with other types than it was made for."""
    attrs = list(node.attrs)
    for i in range(0, len(attrs), 2):
        if attrs[i] == "element_dtype" and element is not None:
            attrs[i + 1] = element
        elif attrs[i] == "SrcT":
            attrs[i + 1] = ins[0].dtype.as_datatype_enum
        elif wide and attrs[i] in _TYPE_ATTRIBUTES:
            attrs[i + 1] = _widened(attrs[i + 1])
    if tuple(attrs) == node.attrs:
        return node
    changed = copy.copy(node)
    changed.attrs = tuple(attrs)
    return changed
