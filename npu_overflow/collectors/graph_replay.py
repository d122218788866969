"""The other way to replay a step: as a graph, for steps that are not legal eagerly (``tf.gradients``) or do not overflow there.

The step is traced once more, each float output with a flag beside it that says whether it is finite; one run returns all flags, and blame follows
the graph's own edges. A second trace returns the tensors of the operators to show. Names are the graph's own. tf.functions that the step calls become
part of its graph; operators inside loops and branches, and inside functions that can't, stay inside: these are named as a whole then.
"""
from __future__ import annotations

import threading
from typing import Any, Callable, Dict, List, Optional, Set, Tuple

from npu_overflow.collectors import compat
from npu_overflow.collectors.blame import Flow, Op, Origin
from npu_overflow.collectors.naming import install_plain_layers
from npu_overflow.collectors.observe import MAX_HELD, MAX_PASSED_ON, Held, HeldTensor
from npu_overflow.collectors.optimizers import intercept
from npu_overflow.collectors.replay import Scales, StepFindings, scaled
from npu_overflow.collectors.snapshot import Snapshot
from npu_overflow.collectors.undo import UndoLog
from npu_overflow.errors import CannotCollect

__all__ = ["findings_by_graph"]

MAX_OPERATORS = 20_000
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_REFUSED = {"IteratorGetNext": "replay.draws", "PyFunc": "replay.python", "EagerPyFunc": "replay.python", "Collective": "replay.collective",
            "Nccl": "replay.collective", "Horovod": "replay.collective", "Hcom": "replay.collective"}


#: scope of the operators that are added; absolute, wherever the step's own scopes stand
_OURS = "npu_overflow/"


def findings_by_graph(
    run: Callable[..., Any],
    arguments: Any,
    label: str,
    variable_name: Callable[[Any], str],
    rewind: Optional[Snapshot] = None,
    scales: Scales = (),
) -> StepFindings:
    """Replay a step as a graph, without effect.

    Args:
        run: the step, called with ``arguments`` (tensors become the graph's inputs).
        label: how an input is called in the report.
        variable_name: names the variable behind a resource handle.
        rewind: variables as they were when the step began.
        scales: (set_scale, value at this step, value now) of each loss-scale optimizer.

    Raises:
        CannotCollect: it can't be traced or run either.
    """
    try:
        first = _Traced(run, arguments, rewind=rewind)
        with scaled(scales):
            flags = first.run()
        found, wanted = first.blame(flags, label, variable_name)
        if not found.reached:
            return found
        if scales:
            with scaled(scales, low=True):
                found.cured_by_scale = not first.blame(first.run(), label, variable_name)[0].reached
        second = _Traced(run, arguments, {held.op.name for held in wanted}, rewind)
        with scaled(scales):
            tensors = second.run()
        for held in wanted:
            held.inputs, held.outputs = second.tensors_of(held.op.name, tensors)
        found.held = wanted
        return found
    except CannotCollect:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise CannotCollect("replay.graph_raised", error="%s: %s" % (type(error).__name__, text)) from error


class _Node:
    """One operator of the traced graph."""

    def __init__(self, op_type: str, name: str, inputs: List[str], outputs: List[str], handle: Any) -> None:
        self.type, self.name, self.inputs, self.outputs, self.handle = op_type, name, inputs, outputs, handle


class _Traced:
    """A copy of the step with extra results.

    Args:
        wanted: names of operators whose tensors are returned; None: a flag for every float output is returned.
        rewind: variables as they were when the step began.
    """

    def __init__(self, run: Callable[..., Any], arguments: Any, wanted: Optional[Set[str]] = None, rewind: Optional[Snapshot] = None) -> None:
        import tensorflow as tf

        self.nodes: List[_Node] = []
        self.gradients: List[str] = []
        self._results: Dict[str, int] = {}  # tensor name -> index among the results
        self._extra: List[Any] = []
        self._wanted, self._rewind = wanted, rewind
        self._graph: Any = None
        self._thread = threading.get_ident()

        def step(given: Any) -> Any:
            self._graph = tf.compat.v1.get_default_graph()
            self.nodes, self.gradients, self._results, self._extra = [], [], {}, []
            for tensor in tf.nest.flatten(given):
                if tf.is_tensor(tensor):
                    self._seen("Placeholder", [], [tensor], tensor.op.name)
            run(given)
            self._unseen()
            return list(self._extra)

        self._function, self._arguments = tf.function(step), arguments
        undo = intercept(self._mine, self._given) + install_plain_layers(self._mine) + _install_inlining(self._mine)
        try:
            with UndoLog(), _callbacks(self._callback):
                self._concrete = self._function.get_concrete_function(arguments)
        finally:
            for put_back in reversed(undo):
                put_back()
        self._refuse()

    def _mine(self) -> bool:
        return threading.get_ident() == self._thread

    def run(self) -> List[Any]:
        """Run the copy once; variables are put back."""
        with UndoLog(rewind=self._rewind) as undo:
            for handle in self._concrete.captured_inputs:
                if getattr(getattr(handle, "dtype", None), "name", "") == "resource":
                    undo.before("AssignVariableOp", [handle])
            return list(self._function(self._arguments))

    def _refuse(self) -> None:
        definition = self._concrete.graph.as_graph_def()
        nodes = list(definition.node) + [node for function in definition.library.function for node in function.node_def]
        for node in nodes:
            refused = next((code for start, code in _REFUSED.items() if node.op.startswith(start)), None)
            if refused is not None:
                raise CannotCollect(refused, op=node.op)
        if len(nodes) > MAX_OPERATORS:
            raise CannotCollect("replay.graph_large", count=len(nodes), most=MAX_OPERATORS)

    # --- tracing ----------------------------------------------------------------------------------------------------------------

    def _callback(self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        if graph is not None and graph is self._graph and self._mine():
            name = op_name.decode() if isinstance(op_name, bytes) else op_name
            self._seen(op_type.decode() if isinstance(op_type, bytes) else op_type, inputs, outputs, name)

    def _unseen(self) -> None:
        """Operators that no callback told of: calls of functions, and what TensorFlow puts into the graph by itself."""
        known = {node.name for node in self.nodes}
        for op in list(self._graph.get_operations()):
            if op.name not in known and not op.name.startswith(_OURS) and op.type not in ("Placeholder", "NoOp"):
                self._seen(op.type, list(op.inputs), list(op.outputs), op.name)
        order = {op.name: number for number, op in enumerate(self._graph.get_operations())}
        self.nodes.sort(key=lambda node: order.get(node.name, -1))

    def _seen(self, op_type: str, inputs: Any, outputs: Any, name: Any) -> None:
        import tensorflow as tf

        handle = inputs[0] if op_type == "ReadVariableOp" else None
        node = _Node(op_type, str(name), [tensor.name for tensor in inputs], [tensor.name for tensor in outputs], handle)
        self.nodes.append(node)
        if self._wanted is None:
            for tensor in outputs:
                if tensor.dtype.name in _FLOATS:
                    with tf.name_scope(_OURS):
                        self._result(tensor.name, tf.reduce_all(tf.math.is_finite(tensor)))
        elif node.name in self._wanted:
            for tensor in list(inputs) + list(outputs):
                if tensor.dtype.name not in ("resource", "variant") and tensor.name not in self._results:
                    with tf.name_scope(_OURS):
                        self._result(tensor.name, tf.identity(tensor))

    def _result(self, name: str, value: Any) -> None:
        self._results[name] = len(self._extra)
        self._extra.append(value)

    def _given(self, optimizer: Any, gradients: List[Any]) -> bool:
        """An optimizer was given gradients: it applies none."""
        for gradient in gradients:
            tensor = getattr(gradient, "values", gradient) if hasattr(gradient, "dense_shape") else gradient
            if tensor is not None and getattr(tensor, "graph", None) is self._graph:
                self.gradients.append(tensor.name)
        return False

    # --- blame ------------------------------------------------------------------------------------------------------------------

    def blame(self, flags: List[Any], label: str, variable_name: Callable[[Any], str]) -> Tuple[StepFindings, List[Held]]:
        """Findings by flow, and the operators to show."""
        flow, numbers, held = Flow(), _Numbers(), []
        for position, node in enumerate(self.nodes):
            inputs, outputs = [numbers[name] for name in node.inputs], [numbers[name] for name in node.outputs]
            finite = [bool(flags[self._results[name]]) if name in self._results else True for name in node.outputs]
            if node.type == "ReadVariableOp":
                flow.variable_read(outputs[0], inputs[0] + 1, variable_name(self._outside(node.handle)), None, all(finite))
            elif node.type in ("Placeholder", "Const"):
                kind = "data" if node.type == "Placeholder" else "constant"
                for number, good in zip(outputs, finite):
                    flow.label(number, kind, label if kind == "data" else node.name, None)
                    flow.outside(number, good, None)
            else:
                phase = "backward" if node.name.startswith(("gradient_tape/", "gradients")) or "/gradients/" in node.name else "forward"
                op = Op(position, node.type, node.name, phase=phase)
                waiting = [origin for origin in flow.origins if origin.op is None]
                bits, origin = flow.ran(op, inputs, outputs, [number for number, good in zip(outputs, finite) if not good])
                consumed = next((item for item in waiting if item.op is op), None)
                if not all(finite) or consumed is not None:
                    held.append(Held(op, bits, origin or consumed))
        candidates = flow.of_bits(flow.reached([numbers[name] for name in self.gradients]))
        keys = tuple(origin.key for origin in candidates)
        found = StepFindings(keys[0] if keys else None, keys, [], flow.origins, bool(keys), operators=len(self.nodes))
        return found, _shown(held, flow.origins, found)

    def _outside(self, handle: Any) -> Any:
        """The real handle behind the graph's placeholder for it."""
        for inside, outside in zip(self._concrete.graph.internal_captures, self._concrete.graph.external_captures):
            if inside is handle:
                return outside
        return handle

    def tensors_of(self, name: str, results: List[Any]) -> Tuple[List[HeldTensor], List[HeldTensor]]:
        """Inputs and outputs of an operator, from the results of the second trace."""
        node = next((node for node in self.nodes if node.name == name), None)
        if node is None:
            return [], []
        return ([self._held(item, results) for item in node.inputs], [self._held(item, results) for item in node.outputs])

    def _held(self, name: str, results: List[Any]) -> HeldTensor:
        if name not in self._results:
            return HeldTensor(None, "resource", ())
        tensor = results[self._results[name]]
        return HeldTensor(tensor, tensor.dtype.name, tuple(int(n) for n in tensor.shape))


class _Numbers(Dict[str, int]):
    """A number for each tensor's name."""

    def __missing__(self, name: str) -> int:
        self[name] = len(self)
        return self[name]


def _shown(held: List[Held], origins: List[Origin], found: StepFindings) -> List[Held]:
    """Origins first, then some of the operators that passed on what they made; in the order of the graph."""
    guilty = sum(origin.bit for origin in origins if origin.key in found.guilty)
    kept = [item for item in held if item.origin is not None][:MAX_HELD]
    kept += [item for item in held if item.origin is None and item.bits & guilty][:MAX_PASSED_ON]
    return sorted(kept, key=lambda item: item.op.number)


def _install_inlining(mine: Callable[[], bool]) -> List[Callable[[], None]]:
    """Let tf.functions that are called while a graph is traced become part of it. Returns what undoes it."""
    import tensorflow as tf

    kind = compat.internals().get("function_class")
    real, converted = kind.__call__, {}

    def call(function: Any, *args: Any, **kwargs: Any) -> Any:
        if not mine() or tf.executing_eagerly():
            return real(function, *args, **kwargs)
        if id(function) not in converted:
            converted[id(function)] = (function, _as_graph_code(function))
        body = converted[id(function)][1]
        return real(function, *args, **kwargs) if body is None else body(*args, **kwargs)

    return [compat.patch(kind, "__call__", call)]


def _as_graph_code(function: Any) -> Any:
    """The Python function of a tf.function with its loops and branches made fit for a graph, or None where that can't be done."""
    import tensorflow as tf

    try:
        body = function.python_function
        return tf.autograph.to_graph(body) if getattr(function, "_autograph", True) else body
    except Exception:
        return None


class _callbacks:
    """TensorFlow's operator callbacks, for this thread."""

    def __init__(self, callback: Callable[..., Any]) -> None:
        self._callback = callback

    def __enter__(self) -> None:
        internals = compat.internals()
        if not internals.has("add_callback"):
            raise CannotCollect("replay.internals", name="add_callback")
        internals.get("add_callback")(self._callback)

    def __exit__(self, *exc: object) -> None:
        compat.internals().get("remove_callback")(self._callback)
