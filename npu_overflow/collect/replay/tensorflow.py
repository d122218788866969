"""The only file that knows private names of TensorFlow and Keras.

``npu-overflow doctor`` shows which were found and what is lost without the others. They hold in
TensorFlow 2.6.5, 2.15.1 and 2.21.
"""
from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence

__all__ = ["Name", "found", "missing", "probe"]

_found: Dict[str, Any] = {}


class Name(NamedTuple):
    """One private name: whether collecting is impossible without it, the code of what is lost, and
    where it may lie: "module:attribute …", the first that exists is taken."""

    name: str
    needed: bool
    lost: str
    places: str

    @property
    def found(self) -> bool:
        """Whether this process's TensorFlow has it."""
        return self.name in _found


_NAMES = (
    Name("add_callback", True, "compat.no_record", "framework.op_callbacks:add_op_callback"),
    Name("remove_callback", True, "compat.no_record", "framework.op_callbacks:remove_op_callback"),
    Name("context", True, "compat.no_record", "eager.context:context"),
    Name("run_op", True, "compat.no_interpreter", "pywrap_tfe:TFE_Py_Execute"),
    Name(
        *("graph_of_definition", False, "compat.no_definitions"),
        "framework.function_def_to_graph:function_def_to_graph",
    ),
    Name(
        *("concrete_function", True, "compat.no_record"),
        "eager.polymorphic_function.concrete_function:ConcreteFunction "
        "eager.function:ConcreteFunction",  # before 2.11
    ),
    Name(
        *("function_class", True, "compat.no_functions"),
        "eager.polymorphic_function.polymorphic_function:Function eager.def_function:Function",
    ),
)


def found(name: str) -> Any:
    """What a private name stands for; AttributeError where it was not found."""
    if not _found:
        probe()
    if name not in _found:
        raise AttributeError("TensorFlow internal %r was not found" % name)
    return _found[name]


def probe() -> Sequence[Name]:
    """Every private name, looked up once. Imports TensorFlow."""
    for item in () if _found else _NAMES:
        for place in item.places.split():
            module, _, attribute = place.partition(":")
            try:
                holder = importlib.import_module("tensorflow.python." + module)
                _found[item.name] = getattr(holder, attribute)
                break
            except (ImportError, AttributeError):
                pass
    return _NAMES


def missing() -> List[Name]:
    """The private names that were not found."""
    return [item for item in probe() if not item.found]


# --- tensors and variables ------------------------------------------------------------------------


def tensor_id(tensor: Any) -> int:
    """An eager tensor's number, never used again in the process (``id()`` is)."""
    return int(tensor._id)


def is_eager(item: Any) -> bool:
    """Whether it is an eager tensor."""
    return hasattr(item, "_numpy_internal")


def host_view(tensor: Any) -> Optional[Any]:
    """A numpy view of an eager tensor's own memory, without a copy; None where that is no CPU's."""
    device = tensor.backing_device if hasattr(tensor, "backing_device") else tensor.device
    if device and "CPU" not in device.upper():
        return None
    return tensor._numpy_internal()


def handles_of(variable: Any) -> List[Any]:
    """The resource handles behind a variable, or the one that Keras 3 wraps: one a replica."""
    inner = _attribute(variable, "_value")
    if inner is not None and not hasattr(type(variable), "handle"):
        variable = inner
    parts = _attribute(variable, "values")
    parts = parts if isinstance(parts, (tuple, list)) else (variable,)
    handles = [_attribute(part, "handle") for part in parts]
    return [handle for handle in handles if handle is not None and hasattr(handle, "_id")]


def handles_by_number(variables: Iterable[Any]) -> Dict[int, Any]:
    """The resource handles behind variables, by their numbers."""
    handles = (handle for variable in variables for handle in handles_of(variable))
    return {tensor_id(handle): handle for handle in handles}


def _attribute(item: Any, name: str) -> Any:
    """An attribute, or None: variables of several replicas raise what they like for what they
    lack."""
    try:
        return getattr(item, name, None)
    except Exception:
        return None


def handle_type(handle: Any) -> Optional[Any]:
    """Shape and dtype (protocol buffers) of the variable behind a handle; None of another."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return data.shape_and_type[0]


def run_op(
    op_type: str, inputs: List[Any], attrs: Any, outputs: int, device: Optional[str] = None
) -> List[Any]:
    """Run an operator, unseen by tapes and callbacks."""
    context, run = found("context")(), found("run_op")
    where = device or context.device_name
    return run(context._handle, where, op_type, inputs, attrs, outputs) or []


def range_of(count: int) -> Any:
    """The numbers 0 … count - 1, for operators that take axes."""
    import numpy as np
    import tensorflow as tf

    with tf.device("/CPU:0"):
        return tf.constant(np.arange(count, dtype=np.int32))


def read_variable(handle: Any, copy: Any = None) -> Optional[Any]:
    """The value of the variable behind a resource handle: its own memory, which the variable
    leaves to the reader when it is written. None where there is no value.

    Args:
        copy: the handle of a private copy, whose value is read instead.
    """
    kind = handle_type(handle)
    if kind is None:
        return None
    try:
        source = handle if copy is None else copy
        value = run_op("ReadVariableOp", [source], ("dtype", kind.dtype), 1)[0]
    except Exception:  # never initialised
        return None
    sizes = [d.size for d in kind.shape.dim]
    same = len(sizes) == len(value.shape) and all(a in (-1, b) for a, b in zip(sizes, value.shape))
    # some versions give an empty tensor for one that was never initialised
    return value if kind.shape.unknown_rank or same else None


def private_copy(handle: Any, value: Any) -> Any:
    """A handle of a new variable of the same kind that holds ``value`` and nobody else knows."""
    kind = handle_type(handle)
    assert kind is not None
    module = sys.modules[found("context").__module__]
    nameless = getattr(module, "anonymous_name", None) or module.shared_name
    sizes = [None if d.size < 0 else d.size for d in kind.shape.dim]
    size = None if kind.shape.unknown_rank else sizes
    attrs = ("container", "", "shared_name", nameless(), "dtype", kind.dtype, "shape", size)
    made = run_op("VarHandleOp", [], attrs, 1, value.device or None)[0]
    run_op("AssignVariableOp", [made, value], ("dtype", kind.dtype), 0)
    return made


def traced_graph(name: str, owner: Any) -> Any:
    """The graph of a function as it was traced, with the lines of code that made its operators, as
    the graph ``owner`` that calls it or one around that has it; else None."""
    while owner is not None and hasattr(owner, "_get_function"):
        function: Any = owner._get_function(name) if owner._is_function(name) else None
        if getattr(function, "graph", None) is not None:
            return function.graph
        owner = getattr(owner, "outer_graph", None)
    return None


def graph_of_definition(name: str) -> Any:
    """The graph that a function's definition describes, without lines of code; None where there is
    none."""
    if not is_function(name) or "graph_of_definition" not in _found:
        return None
    return found("graph_of_definition")(found("context")().get_function_def(name))


def output_count(name: str) -> Optional[int]:
    """How many results a function has; None where TensorFlow has no such function."""
    if not is_function(name):
        return None
    return len(found("context")().get_function_def(name).signature.output_arg)


def is_function(name: str) -> bool:
    """Whether an operator that ran eagerly is the call of a function."""
    return bool(found("context")().has_function(name))


def patch(place: Any, name: str, value: Any) -> Callable[[], None]:
    """Put ``value`` in the place of an attribute of a class or module; returns what undoes it
    (only while the place still holds ``value``)."""
    real = vars(place)[name] if name in vars(place) else getattr(place, name)
    setattr(place, name, value)

    def undo() -> None:
        if vars(place).get(name) is value:
            setattr(place, name, real)

    return undo


# --- Keras ----------------------------------------------------------------------------------------


def steps_per_execution(model: Any) -> int:
    """Training steps of one call of a Keras model's train function."""
    steps: Any = getattr(model, "_steps_per_execution", None)  # a variable of Keras 2
    if steps is None:
        steps = getattr(model, "steps_per_execution", None)
    return int(steps.numpy() if hasattr(steps, "numpy") else steps or 1)


def layers_of(model: Any) -> Iterable[Any]:
    """All layers of a Keras model, those inside other layers included."""
    flatten = getattr(model, "_flatten_layers", None)
    return flatten() if callable(flatten) else getattr(model, "layers", ())
