"""A function's graph as a list of nodes that can be run one by one."""
from __future__ import annotations

from typing import Any, Dict, FrozenSet, Iterable, List, Optional, Sequence, Set, Tuple

from npu_overflow.collect.replay import tensorflow as private

__all__ = ["Node", "Program", "Programs", "kind_of", "node_of_call"]

#: what the interpreter does with a node
(PLAIN, CONST, CALL, BRANCH, LOOP, LEFT_OUT, ALIAS, READ, WRITE, DRAW, RANDOM, COLLECTIVE, PYTHON, REFUSED) = range(14)

_CALLS = frozenset(("PartitionedCall", "StatefulPartitionedCall"))
_BRANCHES = frozenset(("If", "StatelessIf", "Case", "StatelessCase"))
_LOOPS = frozenset(("While", "StatelessWhile"))
_PYTHON = frozenset(("PyFunc", "EagerPyFunc", "PyFuncStateless"))
# seen by people or files, and without a result: the training has done them already
_LEFT_OUT = frozenset(
    "NoOp Assert PrintV2 ControlTrigger WriteSummary WriteScalarSummary WriteHistogramSummary WriteImageSummary "
    "WriteAudioSummary WriteGraphSummary WriteRawProtoSummary FlushSummaryWriter ImportEvent WriteFile "
    "DeleteIterator DeleteMemoryCache DeleteMultiDeviceIterator DestroyResourceOp".split()
)
_READS = frozenset(("ReadVariableOp",))
# take a variable, or another resource, and change nothing
_HARMLESS = frozenset(
    "ResourceGather ResourceGatherNd VariableShape VarIsInitializedOp LookupTableFindV2 LookupTableSizeV2 "
    "LookupTableExportV2 IsResourceInitialized".split()
)
_WRITES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter", "ResourceStridedSliceAssign",
           "ResourceAccumulator", "StatefulUniform", "StatefulStandardNormal", "StatefulTruncatedNormal",
           "StatefulRandomBinomial", "RngSkip", "RngReadAndSkip")
_DRAWS = ("IteratorGetNext", "MultiDeviceIteratorGetNext")
_RANDOM = ("Random", "TruncatedNormal", "ParameterizedTruncatedNormal", "Multinomial")
_COLLECTIVES = ("Collective", "Nccl", "Horovod", "Hcom", "XlaAllReduce", "CrossReplicaSum")
# change what lies outside the training, or wait for another device or process
_REFUSED = ("LookupTableInsert", "LookupTableRemove", "LookupTableImport", "Queue", "Barrier", "SaveV2", "SaveSlices",
            "MutexLock", "Switch", "Merge", "Enter", "Exit", "NextIteration", "RefSwitch", "RefMerge", "_Send", "_Recv",
            "Send", "Recv", "StackPush", "StackPop", "ReduceDataset", "RemoteCall")

_FLOATS = ("float16", "bfloat16", "float32", "float64", "complex64", "complex128")


def kind_of(op_type: str, inputs: Sequence[Any]) -> int:
    """What the interpreter does with an operator of this type.

    Args:
        inputs: tensors of any kind that have a ``dtype``.
    """
    if op_type == "Const":
        return CONST
    for kind, types in ((CALL, _CALLS), (BRANCH, _BRANCHES), (LOOP, _LOOPS), (LEFT_OUT, _LEFT_OUT), (READ, _READS), (PYTHON, _PYTHON)):
        if op_type in types:
            return kind
    if op_type in ("Identity", "IdentityN") and all(t.dtype.name in ("resource", "variant") for t in inputs):
        return ALIAS
    for kind, beginnings in ((DRAW, _DRAWS), (WRITE, _WRITES), (COLLECTIVE, _COLLECTIVES), (REFUSED, _REFUSED)):
        if op_type.startswith(beginnings):
            return kind
    if op_type.startswith(_RANDOM) and not op_type.endswith("Dataset"):
        return RANDOM
    return PLAIN


class Node:
    """One operator, ready to run.

    Attributes:
        kind: what the interpreter does with it.
        type, name, device: as in the graph.
        attrs: names and values in turn, as TensorFlow's eager runtime takes them.
        inputs, outputs: places of its tensors in the frame.
        last: places of tensors that nobody needs after it.
        floats: its outputs that can be non-finite.
        functions: names of the functions that it calls, by attribute.
        constant: the value of a Const.
        op: TensorFlow's operator, with the lines of code that made it; None of an eager one.
        number: its place in the order of execution.
    """

    __slots__ = ("attrs", "constant", "device", "floats", "functions", "inputs", "kind", "last", "name", "number", "op",
                 "outputs", "type")

    def __init__(self, op_type: str, kind: int, name: str, number: int) -> None:
        self.type, self.kind, self.name, self.number = op_type, kind, name, number
        self.attrs: Tuple[Any, ...] = ()
        self.inputs: Tuple[int, ...] = ()
        self.outputs: Tuple[int, ...] = ()
        self.last: Tuple[int, ...] = ()
        self.floats: Tuple[int, ...] = ()
        self.functions: Dict[str, List[str]] = {}
        self.constant: Any = None
        self.device: Optional[str] = None
        self.op: Any = None


def node_of_call(op_type: str, inputs: Sequence[Any], attrs: Sequence[Any], dtypes: Sequence[Any], number: int) -> Node:
    """The node of an operator that ran eagerly; its tensors have no places."""
    node = Node(op_type, kind_of(op_type, inputs), op_type, number)
    node.attrs = tuple(attrs)
    node.outputs = tuple(range(len(dtypes)))
    node.floats = tuple(i for i, dtype in enumerate(dtypes) if dtype.name in _FLOATS)
    return node


class Program:
    """The nodes of one graph that are needed for its results and effects, in an order in which they can run.

    Args:
        graph: a ``FuncGraph``.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self.places: Dict[int, int] = {}
        self.inputs = tuple(self._place(t) for t in graph.inputs)
        self.resources = frozenset(i for i, t in enumerate(graph.inputs) if t.dtype.name == "resource")
        ops = [op for op in _in_order(graph) if op.type != "Placeholder"]
        self.nodes = [self._node(op, i) for i, op in enumerate(ops)]
        self.outputs = tuple(self._place(t) for t in graph.outputs)
        self.dtypes = tuple(t.dtype for t in graph.outputs)
        self.size = len(self.places)
        self._note_last_uses()

    def _place(self, tensor: Any) -> int:
        return self.places.setdefault(id(tensor), len(self.places))

    def _node(self, op: Any, number: int) -> Node:
        definition = op.node_def
        node = Node(op.type, kind_of(op.type, op.inputs), op.name, number)
        node.op, node.device = op, op.device or None
        node.inputs = tuple(self._place(t) for t in op.inputs)
        node.outputs = tuple(self._place(t) for t in op.outputs)
        node.floats = tuple(i for i, t in enumerate(op.outputs) if t.dtype.name in _FLOATS)
        if node.kind == CONST:
            node.constant = _constant(definition)
        elif node.kind in (CALL, BRANCH, LOOP):
            for key, value in definition.attr.items():
                if value.func.name or value.list.func:
                    node.functions[key] = [value.func.name] if value.func.name else [f.name for f in value.list.func]
        else:
            attrs: List[Any] = []
            for item in op.op_def.attr:
                if item.name in definition.attr:
                    attrs += [item.name, _attribute(item.type, definition.attr[item.name])]
            node.attrs = tuple(attrs)
        return node

    def _note_last_uses(self) -> None:
        kept = {*self.inputs, *self.outputs}
        last: Dict[int, Node] = {}
        for node in self.nodes:
            for place in (*node.inputs, *node.outputs):
                last[place] = node
        ends: Dict[int, List[int]] = {}
        for place, node in last.items():
            if place not in kept:
                ends.setdefault(node.number, []).append(place)
        for node in self.nodes:
            node.last = tuple(ends.get(node.number, ()))


class Programs:
    """The programs of a process's functions, each made once, and what follows from their nodes alone."""

    def __init__(self) -> None:
        self._by_graph: Dict[int, Program] = {}
        self._by_name: Dict[Tuple[int, str], Program] = {}
        self._flows: Dict[Tuple[int, FrozenSet[int]], Set[int]] = {}
        self._written: Dict[int, Dict[int, bool]] = {}

    def of_graph(self, graph: Any) -> Program:
        """The program of a graph."""
        if id(graph) not in self._by_graph:
            self._by_graph[id(graph)] = Program(graph)  # which holds the graph, so its id stays its own
        return self._by_graph[id(graph)]

    def called(self, name: str, caller: Optional[Program] = None) -> Optional[Program]:
        """The program of a function by its name; None where TensorFlow has no such function (any more)."""
        key = (id(caller.graph) if caller is not None else 0, name)
        if key not in self._by_name:
            graph = private.graph_of_function(name, caller.graph if caller is not None else None)
            if graph is None:
                return None
            self._by_name[key] = self.of_graph(graph)
        return self._by_name[key]

    def _functions(self, node: Node, program: Program) -> List[Program]:
        names = [name for names in node.functions.values() for name in names]
        found = [self.called(name, program) for name in names]
        return [item for item in found if item is not None]

    def written(self, program: Program) -> Dict[int, bool]:
        """Resource inputs of a program, by position, that it writes, and whether it does so only under a condition."""
        if id(program) not in self._written:
            self._written[id(program)] = found = {}
            position = {place: i for i, place in enumerate(program.inputs) if i in program.resources}
            for node in program.nodes:
                if node.kind == ALIAS and node.inputs[0] in position:
                    position[node.outputs[0]] = position[node.inputs[0]]
                elif node.kind == WRITE:
                    for place in node.inputs:
                        if place in position:
                            found[position[place]] = False
                elif node.kind in (CALL, BRANCH, LOOP):
                    offset = 1 if node.kind == BRANCH else 0
                    for inner in self._functions(node, program):
                        for i, under in self.written(inner).items():
                            place = node.inputs[i + offset] if i + offset < len(node.inputs) else -1
                            if place in position:
                                at = position[place]
                                found[at] = found.get(at, True) and (under or node.kind == BRANCH)
        return self._written[id(program)]

    def flows_into(self, program: Program, sinks: FrozenSet[int]) -> Set[int]:
        """Input positions whose values reach what the program writes into the variables at positions ``sinks``;
        a variable that is read on the way counts by its handle."""
        key = (id(program), sinks)
        if key not in self._flows:
            self._flows[key] = self._flow(program, sinks)
        return self._flows[key]

    def _flow(self, program: Program, sinks: FrozenSet[int]) -> Set[int]:
        places = {program.inputs[i] for i in sinks}
        for node in program.nodes:
            if node.kind == ALIAS and node.inputs[0] in places:
                places.update(node.outputs)
        wanted: Set[int] = set()
        for node in reversed(program.nodes):
            if node.kind == WRITE and node.inputs and node.inputs[0] in places:
                wanted.update(node.inputs[1:])
            elif node.kind in (CALL, BRANCH, LOOP):
                offset = 1 if node.kind == BRANCH else 0
                inside = frozenset(i - offset for i, place in enumerate(node.inputs) if place in places and i >= offset)
                for inner in self._functions(node, program) if inside else ():
                    wanted.update(node.inputs[i + offset] for i in self.flows_into(inner, inside))
                if wanted.intersection(node.outputs):
                    wanted.update(node.inputs)
            elif wanted.intersection(node.outputs):
                wanted.update(node.inputs)
        return {i for i, place in enumerate(program.inputs) if place in wanted and i not in sinks}


def _in_order(graph: Any) -> List[Any]:
    """The operators that results and effects depend on, producers first. The order of creation is the order of execution, but a
    FunctionDef promises none, and the gradient of a loop gives the loop inputs that are made later."""
    needed, waiting = set(), [t.op for t in graph.outputs] + list(graph.control_outputs)
    while waiting:
        op = waiting.pop()
        if op not in needed:
            needed.add(op)
            waiting += [t.op for t in op.inputs] + list(op.control_inputs)
    created = {op: i for i, op in enumerate(graph.get_operations())}
    done, ordered = set(), []
    stack = sorted(needed, key=created.__getitem__, reverse=True)
    while stack:
        op = stack[-1]
        before = [] if op in done else [o for o in {*(t.op for t in op.inputs), *op.control_inputs} if o not in done]
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


def _attribute(kind: str, value: Any) -> Any:
    """An attribute as TensorFlow's eager runtime takes it."""
    if kind.startswith("list("):
        many: Dict[str, Iterable[Any]] = {
            "type": value.list.type, "int": value.list.i, "float": value.list.f, "bool": value.list.b, "string": value.list.s,
            "shape": [_shape(s) for s in value.list.shape], "func": [f.name for f in value.list.func],
        }
        return list(many.get(kind[5:-1], ()))
    if kind == "shape":
        return _shape(value.shape)
    if kind == "func":
        return value.func.name
    return {"type": value.type, "int": value.i, "float": value.f, "bool": value.b, "string": value.s}.get(kind)
