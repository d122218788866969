"""A function's graph as a list of nodes that can be run one by one."""
from __future__ import annotations

from typing import Any, Dict, FrozenSet, Iterator, List, Optional, Sequence, Set, Tuple

from npu_overflow.collect.replay import tensorflow as private

__all__ = ["KINDS", "Node", "Program", "Programs", "node_of_call"]

# What the interpreter does with a node: its kind, by the operator's type or by how that begins.
_TYPES = {
    "plain": "RandomDataset RandomDatasetV2",
    "constant": "Const",
    "call": "PartitionedCall StatefulPartitionedCall",
    "branch": "If StatelessIf Case StatelessCase",
    "loop": "While StatelessWhile",
    "read": "ReadVariableOp",
    "python": "PyFunc EagerPyFunc PyFuncStateless",
    # seen by people or files, and without a result: the training has done them already
    "left_out": "NoOp Assert PrintV2 ControlTrigger WriteSummary WriteScalarSummary WriteFile "
    "WriteHistogramSummary WriteImageSummary WriteAudioSummary WriteGraphSummary ImportEvent "
    "WriteRawProtoSummary FlushSummaryWriter DeleteIterator DeleteMemoryCache "
    "DeleteMultiDeviceIterator DestroyResourceOp",
}
_BEGINNINGS = {
    "draw": "IteratorGetNext MultiDeviceIteratorGetNext",
    "write": "Assign ResourceApply ResourceSparseApply ResourceScatter ResourceStridedSliceAssign "
    "ResourceAccumulator StatefulUniform StatefulStandardNormal StatefulTruncatedNormal "
    "StatefulRandomBinomial RngSkip RngReadAndSkip",
    "collective": "Collective Nccl Horovod Hcom XlaAllReduce CrossReplicaSum",
    # change what lies outside the training, or wait for another device or process
    "refused": "LookupTableInsert LookupTableRemove LookupTableImport Queue Barrier MutexLock "
    "SaveV2 SaveSlices Switch Merge Enter Exit NextIteration RefSwitch RefMerge _Send _Recv "
    "Send Recv StackPush StackPop ReduceDataset RemoteCall",
    "random": "Random TruncatedNormal ParameterizedTruncatedNormal Multinomial",
}
KINDS = ("alias", *_TYPES, *_BEGINNINGS)
WITH_FUNCTIONS = ("call", "branch", "loop")
_BY_TYPE = {op_type: kind for kind, types in _TYPES.items() for op_type in types.split()}
_BY_BEGINNING = tuple((kind, tuple(words.split())) for kind, words in _BEGINNINGS.items())

_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def _kind_of(op_type: str, inputs: Sequence[Any]) -> str:
    if op_type in _BY_TYPE:
        return _BY_TYPE[op_type]
    if op_type in ("Identity", "IdentityN") and all(
        tensor.dtype.name in ("resource", "variant") for tensor in inputs
    ):
        return "alias"
    return next((kind for kind, words in _BY_BEGINNING if op_type.startswith(words)), "plain")


class Node:
    """One operator, ready to run.

    Attributes:
        kind: what the interpreter does with it.
        type, name, device: as in the graph.
        number: its place in the order of execution.
        attrs: names and values in turn, as TensorFlow's eager runtime takes them.
        inputs, outputs: places of its tensors in the frame.
        taken, made: types of its inputs and of its outputs.
        floats: its outputs that can be non-finite.
        last: places of tensors that nobody needs after it.
        functions: names of the functions that it calls, by attribute.
        constant: the value of a Const.
        op: TensorFlow's operator, with the lines of code that made it; None of an eager one.
    """

    __slots__ = (
        "attrs", "constant", "device", "floats", "functions", "inputs", "kind", "last", "made",
        "name", "number", "op", "outputs", "taken", "type",
    )  # fmt: skip

    def __init__(
        self, op_type: str, name: str, number: int, inputs: Sequence[Any], outputs: Sequence[Any]
    ) -> None:
        self.type, self.name, self.number = op_type, name, number
        self.kind = _kind_of(op_type, inputs)
        self.attrs: Tuple[Any, ...] = ()
        self.inputs: Tuple[int, ...] = ()
        self.outputs = tuple(range(len(outputs)))
        self.taken = tuple(tensor.dtype for tensor in inputs)
        self.made = tuple(tensor.dtype for tensor in outputs)
        self.floats = tuple(i for i, kind in enumerate(self.made) if kind.name in _FLOATS)
        self.last: Tuple[int, ...] = ()
        self.functions: Dict[str, List[str]] = {}
        self.constant: Any = None
        self.device: Optional[str] = None
        self.op: Any = None


def node_of_call(
    op_type: str, inputs: Sequence[Any], attrs: Sequence[Any], outputs: Sequence[Any]
) -> Node:
    """The node of an operator that ran eagerly; its tensors have no places."""
    node = Node(op_type, op_type, 0, inputs, outputs)
    given = zip(attrs[::2], attrs[1::2])  # TensorFlow 2.6 tells None of those that have defaults
    node.attrs = tuple(part for pair in given if pair[1] is not None for part in pair)
    return node


class Program:
    """The nodes of a graph that its results and effects need, in an order in which they can run.

    Args:
        graph: a ``FuncGraph``.
        traced: where ``graph`` comes from a definition, the graph that it defines a part of: it has
            the lines of code.
    """

    def __init__(self, graph: Any, traced: Any = None) -> None:
        self.graph = graph
        self._lines = {} if traced is None else {op.name: op for op in traced.get_operations()}
        self._places: Dict[int, int] = {}
        self.inputs = self._places_of(graph.inputs)
        ops = [op for op in _in_order(graph) if op.type != "Placeholder"]
        self.nodes = [self._node(op, i) for i, op in enumerate(ops)]
        self.outputs = self._places_of(graph.outputs)
        self.size = len(self._places)
        #: place of a resource -> its position among the inputs
        self.handles = {
            place: i
            for i, (place, tensor) in enumerate(zip(self.inputs, graph.inputs))
            if tensor.dtype.name == "resource"
        }
        for node in self.nodes:
            if node.kind == "alias" and node.inputs[0] in self.handles:
                self.handles[node.outputs[0]] = self.handles[node.inputs[0]]
        self._note_last_uses()

    def _places_of(self, tensors: Any) -> Tuple[int, ...]:
        return tuple(self._places.setdefault(id(t), len(self._places)) for t in tensors)

    def _node(self, op: Any, number: int) -> Node:
        definition = op.node_def
        node = Node(op.type, op.name, number, list(op.inputs), op.outputs)
        node.op, node.device = self._lines.get(op.name, op), op.device or None
        node.inputs, node.outputs = self._places_of(op.inputs), self._places_of(op.outputs)
        if node.kind == "constant":
            node.constant = _constant(definition)
        elif node.kind in WITH_FUNCTIONS:
            for key, value in definition.attr.items():
                if value.func.name or value.list.func:
                    node.functions[key] = [f.name for f in value.list.func] or [value.func.name]
        else:
            node.attrs = tuple(
                part
                for item in op.op_def.attr
                if item.name in definition.attr
                for part in (item.name, _attribute(item.type, definition.attr[item.name]))
            )
        return node

    def _note_last_uses(self) -> None:
        last = {place: node for node in self.nodes for place in (*node.inputs, *node.outputs)}
        for place in set(last).difference(self.inputs, self.outputs):
            last[place].last += (place,)


class Programs:
    """The programs of functions, each made once, and what follows from their nodes alone."""

    def __init__(self) -> None:
        self._by_graph: Dict[Tuple[int, int], Program] = {}
        self._by_name: Dict[str, Program] = {}
        self._written: Dict[Tuple[int, FrozenSet[int]], Dict[int, bool]] = {}

    def of_graph(self, graph: Any) -> Program:
        """The program of a graph. A tape that differentiates a function gives its graph more
        results, once."""
        key = (id(graph), len(graph.outputs))
        if key not in self._by_graph:
            self._by_graph[key] = Program(graph)  # it holds the graph, so the id stays its own
        return self._by_graph[key]

    def called(
        self, name: str, caller: Optional[Program] = None, traced: Any = None
    ) -> Optional[Program]:
        """The program of a function by its name; None where TensorFlow has no such function (any
        more).

        Args:
            caller: the program that calls it, or None.
            traced: its graph, where that is known.
        """
        if name not in self._by_name:
            if traced is None and caller is not None:
                traced = private.traced_graph(name, caller.graph)
            results = private.output_count(name)
            if traced is not None and (results is None or results <= len(traced.outputs)):
                self._by_name[name] = self.of_graph(traced)
            else:
                graph = private.graph_of_definition(name)
                if graph is None:
                    return None
                self._by_name[name] = Program(graph, traced)
        return self._by_name[name]

    def _called_by(self, node: Node, program: Program) -> Iterator[Program]:
        for names in node.functions.values():
            for name in names:
                inner = self.called(name, program)
                if inner is not None:
                    yield inner

    def written(self, program: Program, weights: FrozenSet[int] = frozenset()) -> Dict[int, bool]:
        """Resource inputs of a program, by position, that it writes, and whether only in branches
        that write weights too: a step that is skipped leaves those as they were.

        Args:
            weights: positions of weights.
        """
        key = (id(program), weights)
        if key in self._written:
            return self._written[key]
        found = self._written[key] = {}
        position = program.handles
        for node in program.nodes:
            if node.kind == "write":
                found.update((position[place], False) for place in node.inputs if place in position)
            elif node.kind in WITH_FUNCTIONS:
                taken = node.inputs[1:] if node.kind == "branch" else node.inputs
                own = frozenset(i for i, p in enumerate(taken) if position.get(p) in weights)
                for inner in self._called_by(node, program):
                    inside = self.written(inner, own)
                    applies = node.kind == "branch" and not own.isdisjoint(inside)
                    for i, only in inside.items():
                        if i < len(taken) and taken[i] in position:
                            at = position[taken[i]]
                            found[at] = found.get(at, True) and (only or applies)
        return found


def _in_order(graph: Any) -> List[Any]:
    """The operators that results and effects depend on, producers first. The order of creation is
    that of execution, but a FunctionDef promises none, and the gradient of a loop gives the loop
    inputs that are made later."""
    created = {op: i for i, op in enumerate(graph.get_operations())}
    done: Set[Any] = set()
    ordered: List[Any] = []
    needed, stack = set(), [*(t.op for t in graph.outputs), *graph.control_outputs]
    while stack:
        op = stack.pop()
        if op not in needed:
            needed.add(op)
            stack += [*(t.op for t in op.inputs), *op.control_inputs]
    stack = sorted(needed, key=created.__getitem__, reverse=True)
    while stack:
        op = stack[-1]
        before = {*(t.op for t in op.inputs), *op.control_inputs} - done if op not in done else ()
        if before:
            stack += sorted(before, key=created.__getitem__, reverse=True)
            continue
        stack.pop()
        if op not in done:
            done.add(op)
            ordered.append(op)
    return ordered


def _constant(definition: Any) -> Any:
    import tensorflow as tf

    values = tf.make_ndarray(definition.attr["value"].tensor)
    dtype = tf.as_dtype(definition.attr["dtype"].type)
    with tf.device("/CPU:0" if dtype in (tf.string, tf.int32) else None):
        return tf.constant(values, dtype)


def _shape(proto: Any) -> Optional[List[Optional[int]]]:
    return None if proto.unknown_rank else [None if d.size < 0 else d.size for d in proto.dim]


#: where an AttrValue keeps an attribute of each kind (attr_value.proto)
_FIELDS = {"type": "type", "int": "i", "float": "f", "bool": "b", "string": "s"}


def _attribute(kind: str, value: Any) -> Any:
    """An attribute as TensorFlow's eager runtime takes it."""
    listed = kind.startswith("list(")
    kind, value = (kind[5:-1], value.list) if listed else (kind, value)
    if kind == "shape":
        return [_shape(item) for item in value.shape] if listed else _shape(value.shape)
    if kind == "func":
        return [item.name for item in value.func] if listed else value.func.name
    found = getattr(value, _FIELDS[kind]) if kind in _FIELDS else None
    return list(found or ()) if listed else found
