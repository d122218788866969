"""What people are told of an operator: its name in the graph, its layer, its phase, its lines and
its forward operator.

All of it is made only for what is reported.
"""
from __future__ import annotations

import os
import re
import sys
from types import SimpleNamespace
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.lines import Location, Place, is_user_file, locate, shown
from npu_overflow.collect.replay.recorder import Entry, Record, is_backward
from npu_overflow.collect.replay.taint import OpRef, Path

__all__ = ["Names", "layers_known_by_variables", "variable_name"]

_GRADIENT = re.compile(r"(?:^|/)(?:gradient_tape|gradients)/")
_CONTROL_GRADIENT = re.compile(r".*(?:^|/)gradients/(.+?)_grad/")
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_NARROW = re.compile(r"\btf\.(b?float16|half)\b|[\"'](b?float16|half)[\"']")  # in a line of code
_NEAR = 6  # operators between a gradient and one that reads what its forward operator read


class Names:
    """Describes the operators of one record.

    Args:
        layers: names of the model's layers, as the user gave them -> those layers that are known.
        model: the name of the model itself.
    """

    def __init__(
        self, record: Record, layers: Mapping[str, Sequence[Any]], model: str = ""
    ) -> None:
        self._entries, self._layers, self._model = record.entries, layers, model
        self._makers: Dict[int, int] = {}  # number of a tensor -> of the entry that made it
        self._eager: Dict[int, str] = {}
        #: of a graph, or None for the eager operators: those that work on gradients
        eager = [(i, e.backward, e.numbers, e.outputs) for i, e in enumerate(record.entries)]
        self._after: Dict[Any, Set[Any]] = {None: _after_gradients(eager)}
        count: Dict[str, int] = {}
        for i, entry in enumerate(record.entries):
            self._makers.update(dict.fromkeys(entry.outputs, i))
            if not entry.is_call:
                name = self._scope_of(entry) + entry.type
                count[name] = count.get(name, -1) + 1  # numbered as in a graph
                self._eager[i] = name + ("_%d" % count[name] if count[name] else "")

    def _scope_of(self, entry: Entry) -> str:
        scope, forward = entry.scope.rstrip("/"), self._forward_entry(entry)
        if entry.backward and "gradient_tape" not in scope:
            scope = "gradient_tape/" + (scope if forward is None else self._eager[forward])
        return scope.rstrip("/") + "/" if scope else ""

    def _forward_entry(self, entry: Entry) -> Optional[int]:
        op_type, outputs = entry.forward or ("", ())
        makers = (self._makers[number] for number in outputs if number in self._makers)
        return next((i for i in makers if self._entries[i].type == op_type), None)

    def of(self, ref: OpRef) -> Dict[str, Any]:
        """What people are told of an operator, by the names of ``ReplayInfo``."""
        name = self.name(ref)
        source, forward = self.source(ref)
        backward = self.is_gradient(ref) or self.works_on_gradients(ref)
        facts: Dict[str, Any] = {
            "op_name": name,
            "layer": self._layer(forward or name),
            "phase": "backward" if backward else "forward",
            "forward_op": forward,
        }
        location = self._location(ref.path, self.made_by(ref) if source is None else source)
        if location is not None:
            facts["location"] = shown(location.places[0])
            facts["location_kind"] = location.kind
            facts["source_line"] = location.text or None
            if location.kind == "call":
                facts["called_from"] = [shown(place) for place in location.places[1:]]
        return facts

    def name(self, ref: OpRef) -> str:
        """Full name of an operator."""
        if ref.node.op is None:
            return self.eager_name(ref.path.entry)
        return self.prefix(ref.path) + str(ref.node.op.name)

    def eager_name(self, number: int) -> str:
        """Name of the eager operator that entry ``number`` is."""
        return self._eager[number]

    def made_by(self, ref: OpRef) -> Any:
        """What stands for an operator in every run: TensorFlow's, or the entry of an eager one."""
        return ref.node.op if ref.node.op is not None else self._entries[ref.path.entry]

    def source(self, ref: OpRef) -> Tuple[Any, Optional[str]]:
        """What ``made_by`` says of the operator whose gradient this one computes, and its name."""
        op = ref.node.op
        if op is None:
            number = self._forward_entry(self._entries[ref.path.entry])
            return (None, None) if number is None else (self._entries[number], self._eager[number])
        if not is_gradient(op):
            return None, None
        call, around = _forward_call(ref.path)
        source = forward_of(op, call)
        prefix = self.prefix(around) + ("" if call is None else _scope(call))
        return source, None if source is None else prefix + source.name

    def _location(self, path: Path, made: Any) -> Optional[Location]:
        """The user's lines of an operator, or of the call that leads to it."""
        best = locate(_frames(made))
        inside = path
        while (best is None or best.kind != "call") and inside.parent is not None:
            outer = locate(_frames(inside.node.op))
            best = outer if outer is not None and (best is None or outer.kind == "call") else best
            inside = inside.parent
        return locate(self._entries[path.entry].stack) if best is None else best

    def user_files(self, ref: OpRef) -> Tuple[str, ...]:
        """The user's files on the stack of an operator, and the program itself."""
        made = self.source(ref)[0] or self.made_by(ref)
        frames = [*_frames(made), *self._entries[ref.path.entry].stack]
        program = getattr(sys.modules.get("__main__"), "__file__", None)
        files = [program] if isinstance(program, str) else []
        files += [file for file, _, _ in frames]
        # cells of a notebook have no path
        whole = (file if file.startswith("<") else os.path.abspath(file) for file in files)
        return tuple(dict.fromkeys(filter(is_user_file, whole)))

    def is_gradient(self, ref: OpRef) -> bool:
        """Whether the backward pass made an operator."""
        op = ref.node.op
        return bool(self._entries[ref.path.entry].backward if op is None else is_gradient(op))

    def works_on_gradients(self, ref: OpRef) -> bool:
        """Whether an operator descends from gradients, and no gradient from it."""
        op = ref.node.op
        if op is None:
            return ref.path.entry in self._after[None]
        if op.graph not in self._after:
            self._after[op.graph] = _after_gradients(
                (
                    item.name,
                    _GRADIENT.search(item.name),
                    tuple(map(id, item.inputs)),
                    tuple(map(id, item.outputs)),
                )
                for item in op.graph.get_operations()
            )
        return op.name in self._after[op.graph]

    # --- layers -----------------------------------------------------------------------------------

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
        them; without the model itself, and without a model of layers that it lies in directly. Of
        a layer that makes layers of its own (an RNN's cell, the projections of attention) only
        that one: its type is theirs."""
        path = self._layers_in(name)
        path = path[1:] if path[:1] == (self._model,) else path
        whole = next((i for i, layer in enumerate(path) if self._is_stock(layer)), len(path))
        path = path[: whole + 1]
        while path and any(map(_is_container, self.layers_named(path[-1]))):
            path = path[:-1]
        return path

    def _is_stock(self, name: str) -> bool:
        """Whether a layer is one of Keras', and no model or wrapper of the user's layers."""
        return bool(self._layers.get(name)) and all(map(_is_stock, self._layers[name]))

    def is_narrow(self, name: str) -> bool:
        """Whether an operator's name leads into a layer that computes in float16 or bfloat16."""
        path = self.layers_in(name)
        layers = self.layers_named(path[-1]) if path else ()
        kinds = {str(getattr(layer, "compute_dtype", "")) for layer in layers}
        return bool(kinds) and kinds <= {"float16", "bfloat16"}

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
        nodes = [inside.node for inside in _outward(path)]
        return "".join(_scope(node.op) for node in reversed(nodes) if node.type in _CALLS)

    @staticmethod
    def is_narrowed_by_name(op: Any) -> bool:
        """Whether the line that makes an operator names the narrow type: the operator keeps it
        whatever the type of the layer is. (A cast to the type that is there makes no operator.)"""
        location = locate(_frames(op)) if op is not None else None
        if location is None or location.kind != "call":
            return False
        return _NARROW.search(location.text) is not None


def _is_container(layer: Any) -> bool:
    """Whether a layer only holds others, as ``Sequential`` does."""
    return any(base.__name__ in ("Functional", "Sequential") for base in type(layer).__mro__)


def _is_stock(layer: Any) -> bool:
    kind = type(layer)
    if kind.__module__.split(".")[0] not in ("keras", "tf_keras", "tensorflow"):
        return False
    bases = {base.__name__ for base in kind.__mro__}
    return not bases.intersection(("Model", "Wrapper", "StackedRNNCells", "Lambda"))


def layers_known_by_variables(names: Iterable[str]) -> Set[str]:
    """Names of layers as the names of their weights tell them."""
    return {part for name in names for part in name.split(":")[0].split("/")[:-1]}


def variable_name(variable: Any) -> str:
    """The name of a variable as a user knows it: Keras 3's path, else TensorFlow's name."""
    name = getattr(variable, "path", None) or getattr(variable, "name", None) or "variable"
    return str(name).split(":")[0]


def _frames(made: Any) -> Sequence[Place]:
    if isinstance(made, Entry):
        return made.stack
    return [(frame.filename, frame.lineno, frame.name) for frame in made.traceback or ()]


def _scope(op: Any) -> str:
    scope = op.name.rpartition("/")[0]
    return scope + "/" if scope else ""


def _outward(path: Path) -> Iterator[Path]:
    """The calls that lead into a graph, the innermost first, without the record's entry."""
    while path.parent is not None:
        yield path
        path = path.parent


# --- gradients ------------------------------------------------------------------------------------


def is_gradient(op: Any) -> bool:
    """Whether an operator of a graph was made by the backward pass."""
    if _GRADIENT.search(op.name):
        return True
    if op.type in ("Const", "ReadVariableOp"):
        return False
    return any(is_backward(frame.filename, frame.name) for frame in op.traceback or ())


def _after_gradients(ops: Iterable[Tuple[Any, ...]]) -> Set[Any]:
    """Which operators descend from gradients, and no gradient from them: a gradient penalty belongs
    to the forward pass.

    Args:
        ops: in order, of each a key, whether it is a gradient, its inputs and its outputs.
    """
    below: Dict[Any, Tuple[Any, ...]] = {}
    down: Set[int] = set()
    up: Set[int] = set()
    for key, gradient, inputs, outputs in ops:
        if gradient or not down.isdisjoint(inputs):
            down.update(outputs)
            below[key] = gradient, inputs, outputs
    for key, (gradient, inputs, outputs) in reversed(list(below.items())):
        if gradient or not up.isdisjoint(outputs):
            up.update(inputs)
            del below[key]
    return set(below)


def _forward_call(path: Path) -> Tuple[Any, Path]:
    """Where a graph is the backward pass of a function: the call of the forward pass, from which it
    takes what that kept, and where that call lies; else None and the graph itself."""
    for inside in _outward(path):
        node = inside.node
        if node.type in _CALLS and "__backward_" in node.functions["f"][0]:
            for tensor in node.op.inputs:
                call = tensor.op
                if call.type in _CALLS and "__forward_" in call.get_attr("f").name:
                    assert inside.parent is not None
                    return call, inside.parent
    return None, path


def forward_of(op: Any, call: Any = None) -> Any:
    """The forward operator whose registered gradient function made ``op``: by that function's name
    on the stack, by the scope, and by what ``op`` reads. None where nothing tells.

    Args:
        call: the call of the function whose backward pass ``op`` lies in, or None.
    """
    inside = _CONTROL_GRADIENT.match(op.name)
    if inside is not None:  # the gradient of a graph that is a branch, a body or a function
        found = _in_forward_graphs(op, inside.group(1), call)
        # of one that is gone only the name is known; its lines are those of its gradient
        return found or SimpleNamespace(name=inside.group(1), traceback=op.traceback)
    scope = re.sub(r"^(?:.*/)?gradient_tape/", "", op.name).rpartition("/")[0]
    exact, kinds = _by_name(op.graph, scope), _gradient_functions(op)
    if exact is not None and (not kinds or exact.type in kinds):
        return exact
    seen, level = [op], [op]
    for _ in range(_NEAR):
        level = [tensor.op for item in level for tensor in item.inputs if tensor.op not in seen]
        seen += dict.fromkeys(level)
    near: Dict[Any, None] = {}  # what it and its neighbours read, and what reads the same
    for item in seen:
        near[item] = None
        near.update((user, None) for tensor in item.inputs for user in tensor.consumers())
    candidates = [
        item
        for item in near
        if "gradient" not in item.name and (scope + "/").startswith(_scope(item) or "/")
    ]
    return next((item for kind in kinds for item in candidates if item.type == kind), None)


def _in_forward_graphs(op: Any, name: str, call: Any) -> Any:
    """The operator of this name in the graphs whose gradients ``op``'s graph computes, and in
    functions that these call."""
    graphs, graph = [], op.graph
    while graph is not None:
        graphs += [getattr(graph, "_forward_graph", None), graph]
        graph = getattr(graph, "outer_graph", None)
    if call is not None:
        graphs.append(private.traced_graph(call.get_attr("f").name, call.graph))
    for item in graphs[-1].get_operations() if graphs[-1] is not None else ():
        # a loop inside the function: its body has graphs of its own
        called = [value.func.name for value in item.node_def.attr.values() if value.func.name]
        graphs += [private.traced_graph(inner, item.graph) for inner in called]
    found = (_by_name(graph, name) for graph in graphs if graph is not None)
    return next((item for item in found if item is not None), None)


def _by_name(graph: Any, name: str) -> Any:
    try:
        return graph.get_operation_by_name(name)
    except (KeyError, ValueError):
        return None


def _gradient_functions(op: Any) -> List[str]:
    """Operator types whose gradient functions are on the stack that made ``op``, the innermost
    first."""
    import tensorflow as tf

    kinds: List[str] = []
    for frame in reversed(list(op.traceback or ())):
        name = re.sub(r"^_|(Grad|Gradient)?(Helper)?$", "", frame.name)
        if frame.filename.endswith("_grad.py"):
            kinds += [name, name + "V2", "Batch" + name, "_" + name]
    return [kind for kind in kinds if hasattr(tf.raw_ops, kind.lstrip("_"))]
