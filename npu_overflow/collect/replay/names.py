"""What people are told of an operator: its name in the graph, its layer, its phase, its lines and its forward operator.

All of it is made only for what is reported.
"""
from __future__ import annotations

import re
import weakref
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, MutableMapping, Optional, Sequence, Set, Tuple

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.lines import Location, Place, locate
from npu_overflow.collect.replay.recorder import Entry, Record
from npu_overflow.collect.replay.taint import OpRef, Path

__all__ = ["Facts", "Names", "layers_known_by_variables"]

_GRADIENT = re.compile(r"(?:^|/)(?:gradient_tape|gradients)/")
_CONTROL_GRADIENT = re.compile(r".*(?:^|/)gradients/(.+?)_grad/")
_REPLICA = re.compile(r"(?:^|/)replica_(\d+)/")


@dataclass(frozen=True)
class Facts:
    """What is known of an operator besides its tensors.

    Args:
        name: full name in the graph.
        layer: path of the user's layer, where it is not what the name begins with.
        phase: "forward" or "backward".
        forward: full name of the operator whose gradient this one computes.
        location: the user's lines; of a gradient those of the forward operator.
        replica: of a distribution strategy.
    """

    name: str
    layer: Optional[str]
    phase: str
    forward: Optional[str]
    location: Optional[Location]
    replica: int = 0


class Names:
    """Describes the operators of one record.

    Args:
        record: the record.
        layers: names of the model's layers, as the user gave them -> the layers that have them, as
            far as they are known.
        model: the name of the model itself.
    """

    def __init__(
        self, record: Record, layers: Mapping[str, Sequence[Any]], model: str = ""
    ) -> None:
        self._record, self._layers, self._model = record, layers, model
        self._eager: Optional[Dict[int, str]] = None
        self._makers = {number: i for i, entry in enumerate(record.entries) for number in entry.outputs}

    def of(self, ref: OpRef) -> Facts:
        """What is known of an operator."""
        if ref.node.op is None:
            return self._of_eager(ref)
        op = ref.node.op
        prefix = self.prefix(ref.path)
        forward, forward_prefix = None, prefix
        backward = is_gradient(op) or _works_on_gradients(op)
        if backward and is_gradient(op):
            caller = _forward_call(ref.path)
            forward = forward_of(op, None if caller is None else caller[0])
            if caller is not None:
                forward_prefix = self.prefix(caller[1]) + _scope(caller[0])
        location = self._location(ref, forward if forward is not None else op)
        name = prefix + op.name
        forward_name = None if forward is None else forward_prefix + forward.name
        replica = _REPLICA.search(name)
        return Facts(
            name, self._layer(forward_name or name), "backward" if backward else "forward", forward_name, location,
            int(replica.group(1)) if replica else 0,
        )

    def _location(self, ref: OpRef, op: Any) -> Optional[Location]:
        """The user's lines of an operator; where it has none inside the step, those of the call that leads to it."""
        best = locate(_frames(op))
        path = ref.path
        while (best is None or best.kind != "call") and path.parent is not None:
            outer = locate(_frames(path.node.op))
            best = outer if outer is not None and (best is None or outer.kind == "call") else best
            path = path.parent
        if best is None:
            best = locate(_stack(self._record.entries[path.entry]))
        return best

    # --- eager operators --------------------------------------------------------------------------------------------------------

    def _of_eager(self, ref: OpRef) -> Facts:
        entry = self._record.entries[ref.path.entry]
        source = self._forward_entry(entry)
        forward = None if source is None else self.eager_name(source)
        backward = entry.backward or self._eager_on_gradients(ref.path.entry)
        name = self.eager_name(ref.path.entry)
        location = locate(_stack(entry if source is None else self._record.entries[source]))
        return Facts(name, self._layer(forward or name), "backward" if backward else "forward", forward, location)

    def eager_name(self, number: int) -> str:
        """Name of the eager operator that entry ``number`` is, numbered as in a graph."""
        if self._eager is None:
            self._eager = {}
            count: Dict[str, int] = {}
            for i, entry in enumerate(self._record.entries):
                if entry.is_call:
                    continue
                scope = entry.scope.rstrip("/")
                if entry.backward and "gradient_tape" not in scope:
                    forward = self._forward_entry(entry)
                    own = self._eager.get(forward, "") if forward is not None else ""
                    scope = "gradient_tape/" + (own or scope)
                name = (scope.rstrip("/") + "/" if scope else "") + entry.type
                count[name] = count.get(name, -1) + 1
                self._eager[i] = name + ("_%d" % count[name] if count[name] else "")
        return self._eager.get(number, self._record.entries[number].type)

    def _forward_entry(self, entry: Entry) -> Optional[int]:
        if entry.forward is None:
            return None
        op_type, outputs = entry.forward
        makers = [self._makers[number] for number in outputs if number in self._makers]
        return next((i for i in makers if self._record.entries[i].type == op_type), None)

    def _eager_on_gradients(self, number: int) -> bool:
        """Whether an eager operator descends from gradients and no gradient from it."""
        entries = self._record.entries
        down: Set[int] = set()
        for entry in entries[: number + 1]:
            if entry.backward or down.intersection(entry.numbers):
                down.update(entry.outputs)
        if not down.intersection(entries[number].numbers):
            return False
        below = set(entries[number].outputs)
        for entry in entries[number + 1 :]:
            if below.intersection(entry.numbers):
                if entry.backward:
                    return False
                below.update(entry.outputs)
        return True

    # --- layers -----------------------------------------------------------------------------------------------------------------

    def _layer(self, name: str) -> Optional[str]:
        """The path of layers in an operator's name; None where the name says the same."""
        path = "/".join(self._layers_in(name))
        return path if path and path not in name else None

    def _layers_in(self, name: str) -> Tuple[str, ...]:
        found: List[str] = []
        for part in self.without_gradient(name).split("/")[:-1]:
            plain = part if part in self._layers else re.sub(r"_\d+$", "", part)
            if plain in self._layers and plain not in found[-1:]:
                found.append(plain)
        return tuple(found)

    def layers_in(self, name: str) -> Tuple[str, ...]:
        """The layers that an operator's name leads through, the outermost first, as the user named
        them; without the model itself. Of a layer that makes layers of its own (an RNN's cell,
        the projections of attention) only that one: its type is theirs."""
        path = self._layers_in(name)
        path = path[1:] if path[:1] == (self._model,) else path
        whole = next((i for i, layer in enumerate(path) if self._is_stock(layer)), len(path))
        return path[: whole + 1]

    def _is_stock(self, name: str) -> bool:
        """Whether a layer is one of Keras', and no model or wrapper of the user's layers."""
        return bool(self._layers.get(name)) and all(map(_is_stock, self._layers[name]))

    def layers_named(self, name: str) -> Sequence[Any]:
        """The layers that have a name, as far as they are known."""
        return self._layers.get(name, ())

    @staticmethod
    def without_gradient(name: str) -> str:
        """An operator's name without the scopes that say that it computes a gradient."""
        return "/".join(part for part in _GRADIENT.sub("/", "/" + name).split("/") if part)

    @staticmethod
    def prefix(path: Path) -> str:
        """The scopes of the calls that lead into a graph. Graphs of branches and loops repeat the
        scopes around them."""
        parts = []
        inside: Optional[Path] = path
        while inside is not None and inside.parent is not None:
            if inside.node.type in _CALLS:
                parts.append(_scope(inside.node.op))
            inside = inside.parent
        return "".join(reversed(parts))

    def name(self, ref: OpRef) -> str:
        """Full name of an operator."""
        if ref.node.op is None:
            return self.eager_name(ref.path.entry)
        return self.prefix(ref.path) + str(ref.node.op.name)

    @staticmethod
    def is_narrowed_by_name(op: Any) -> bool:
        """Whether an operator is a cast whose line names the narrow type: it stays one whatever the
        type of the layer is."""
        location = locate(_frames(op)) if op is not None and op.type == "Cast" else None
        return location is not None and location.kind == "call" and "float16" in location.text

    def made_by(self, ref: OpRef) -> Any:
        """What stands for an operator in every run: TensorFlow's, or the entry of an eager one."""
        return ref.node.op if ref.node.op is not None else self._record.entries[ref.path.entry]

    def differentiated(self, ref: OpRef) -> Any:
        """The same of the operator whose gradient this one computes; None where it is none."""
        if ref.node.op is None:
            number = self._forward_entry(self.made_by(ref))
            return None if number is None else self._record.entries[number]
        if not is_gradient(ref.node.op):
            return None
        caller = _forward_call(ref.path)
        return forward_of(ref.node.op, None if caller is None else caller[0])


def _is_stock(layer: Any) -> bool:
    kind = type(layer)
    if kind.__module__.split(".")[0] not in ("keras", "tf_keras", "tensorflow"):
        return False
    bases = {base.__name__ for base in kind.__mro__}
    return not bases.intersection(("Model", "Wrapper", "StackedRNNCells", "Lambda"))


def layers_known_by_variables(names: Iterable[str]) -> FrozenSet[str]:
    """Names of layers as the names of their weights tell them."""
    return frozenset(part for name in names for part in name.split(":")[0].split("/")[:-1])


_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def _scope(op: Any) -> str:
    scope = op.name.rpartition("/")[0]
    return scope + "/" if scope else ""


def _forward_call(path: Path) -> Optional[Tuple[Any, Path]]:
    """Where a graph is the backward pass of a function: the call of the forward pass, from which it takes what that kept."""
    inside: Optional[Path] = path
    while inside is not None and inside.parent is not None:
        node = inside.node
        if node.type in _CALLS and any("__backward_" in name for name in node.functions["f"]):
            for tensor in node.op.inputs:
                called = tensor.op
                if called.type in _CALLS and "__forward_" in called.get_attr("f").name:
                    return called, inside.parent
        inside = inside.parent
    return None


def is_gradient(op: Any) -> bool:
    """Whether an operator of a graph was made by the backward pass."""
    if _GRADIENT.search(op.name):
        return True
    if op.type in ("Const", "ReadVariableOp"):
        return False
    return any(_is_backward_frame(frame.filename, frame.name) for frame in op.traceback or ())


def _is_backward_frame(file: str, function: str) -> bool:
    file = file.replace("\\", "/")
    return (file.endswith("eager/backprop.py") and function in ("gradient", "_gradient_function")) or (
        file.endswith("ops/gradients_util.py") and function == "_GradientsHelper"
    )


def _works_on_gradients(op: Any) -> bool:
    """Whether an operator descends from gradients and no gradient from it: a gradient penalty belongs to the forward pass."""
    graph = op.graph
    if graph not in _after_gradients:
        ops = graph.get_operations()
        below: Set[Any] = set()
        for item in ops:
            if _GRADIENT.search(item.name) or any(tensor.op in below for tensor in item.inputs):
                below.add(item)
        above: Set[Any] = set()
        for item in reversed(ops):
            users = (user for tensor in item.outputs for user in tensor.consumers())
            if _GRADIENT.search(item.name) or any(user in above for user in users):
                above.add(item)
        _after_gradients[graph] = frozenset(item.name for item in below - above)
    return op.name in _after_gradients[graph]


#: by graph: names of the operators that work on gradients after the backward pass
_after_gradients: MutableMapping[Any, FrozenSet[str]] = weakref.WeakKeyDictionary()


def forward_of(op: Any, call: Any = None) -> Any:
    """The forward operator whose registered gradient function made ``op``: by that function's name on the stack, by the scope, and
    by what ``op`` reads. None where nothing tells.

    Args:
        call: the call of the function whose backward pass ``op`` lies in, or None.
    """
    graph = op.graph
    inside = _CONTROL_GRADIENT.match(op.name)
    if inside is not None:  # the gradient of a graph that is a branch, a body or a function: scopes tell
        found = _in_forward_graphs(op, inside.group(1), call)
        return found if found is not None else _Named(inside.group(1), op)
    scope = re.sub(r"^(?:.*/)?gradient_tape/", "", op.name).rpartition("/")[0]
    exact = _by_name(graph, scope) if scope else None
    kinds = _gradient_functions(op)
    if exact is not None and (not kinds or exact.type in kinds):
        return exact
    near = _operators_read(op)
    candidates = [item for item in near if "gradient" not in item.name and _encloses(item.name, scope)]
    return next((item for kind in kinds for item in candidates if item.type == kind), None)


def _in_forward_graphs(op: Any, name: str, call: Any) -> Any:
    """The operator of this name in the graphs whose gradients ``op``'s graph computes, and in functions that these call."""
    graphs, graph = [], op.graph
    while graph is not None:
        graphs += [getattr(graph, "_forward_graph", None), graph]
        graph = getattr(graph, "outer_graph", None)
    if call is not None:
        graphs.append(private.traced_graph(call.get_attr("f").name, call.graph))
    for graph in graphs:
        found = None if graph is None else _by_name(graph, name)
        if found is not None:
            return found
    for graph in graphs[-1:]:  # a loop inside the function: its body has graphs of its own
        for inner in _functions_of(graph) if graph is not None else ():
            found = _by_name(inner, name)
            if found is not None:
                return found
    return None


def _functions_of(graph: Any) -> Iterator[Any]:
    for item in graph.get_operations():
        for value in item.node_def.attr.values():
            if value.func.name:
                inner = private.traced_graph(value.func.name, graph)
                if inner is not None:
                    yield inner


class _Named:
    """A forward operator of which only the name is known; its lines are those of its gradient."""

    def __init__(self, name: str, gradient: Any) -> None:
        self.name, self.traceback = name, gradient.traceback


def _by_name(graph: Any, name: str) -> Any:
    try:
        return graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        return None


def _gradient_functions(op: Any) -> List[str]:
    """Operator types whose gradient functions are on the stack that made ``op``, the innermost first."""
    import tensorflow as tf

    found = []
    for frame in reversed(list(op.traceback or ())):
        if frame.filename.endswith("_grad.py"):
            matched = re.match(r"_?(\w+?)(?:Grad|Gradient)?(?:Helper)?$", frame.name)
            if matched:
                found.append(matched.group(1))
    kinds = []
    for name in found:
        kinds += [name, name + "V2", "Batch" + name, "_" + name]
    return [kind for kind in kinds if hasattr(tf.raw_ops, kind.lstrip("_"))]


def _operators_read(op: Any) -> List[Any]:
    """Forward operators near a gradient: what it and its neighbours read, and what reads the same."""
    found: List[Any] = []
    for item in _walk_up(op, 6):
        found.append(item)
        for tensor in item.inputs:
            found += [user for user in tensor.consumers() if user not in found]
    return found


def _walk_up(op: Any, levels: int) -> List[Any]:
    seen, level = [op], [op]
    for _ in range(levels):
        level = [tensor.op for item in level for tensor in item.inputs if tensor.op not in seen]
        seen += [item for item in level if item not in seen]
    return seen


def _encloses(name: str, scope: str) -> bool:
    own = name.rpartition("/")[0]
    return own == scope or (scope + "/").startswith(own + "/")


def _frames(op: Any) -> List[Place]:
    return [(frame.filename, frame.lineno, frame.name) for frame in getattr(op, "traceback", None) or ()]


def _stack(entry: Entry) -> Sequence[Place]:
    return [(code.co_filename, line, code.co_name) for code, line in reversed(entry.stack)]


def variable_name(variable: Any) -> str:
    """The name of a variable as a user knows it: Keras 3's path, else TensorFlow's name."""
    return str(getattr(variable, "path", None) or getattr(variable, "name", None) or "variable").split(":")[0]
