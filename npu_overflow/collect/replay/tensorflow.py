"""The only file that knows private names of TensorFlow and Keras.

``npu-overflow doctor`` shows which were found and what is lost without the others. They hold in
TensorFlow 2.6.5, 2.15.1 and 2.21.
"""
from __future__ import annotations

import importlib
import sys
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

__all__ = ["Probe", "found", "has", "missing", "probe"]


class Probe(NamedTuple):
    """One private name: whether it was found, whether collecting is impossible without it, and
    the code of what is lost."""

    name: str
    found: bool
    needed: bool
    lost: str


class _Wanted(NamedTuple):
    key: str
    places: Tuple[str, ...]  # module:attribute, the first that exists is taken
    needed: bool
    lost: str


_WANTED = (
    _Wanted("add_callback", ("tensorflow.python.framework.op_callbacks:add_op_callback",), True, "compat.no_record"),
    _Wanted("remove_callback", ("tensorflow.python.framework.op_callbacks:remove_op_callback",), True, "compat.no_record"),
    _Wanted("context", ("tensorflow.python.eager.context:context",), True, "compat.no_record"),
    _Wanted("run_op", ("tensorflow.python.pywrap_tfe:TFE_Py_Execute",), True, "compat.no_interpreter"),
    _Wanted(
        "graph_of_definition",
        ("tensorflow.python.framework.function_def_to_graph:function_def_to_graph",),
        False,
        "compat.no_definitions",
    ),
    _Wanted(
        "concrete_function",
        (
            "tensorflow.python.eager.polymorphic_function.concrete_function:ConcreteFunction",
            "tensorflow.python.eager.function:ConcreteFunction",
        ),
        True,
        "compat.no_record",
    ),
    _Wanted(
        "function_class",
        (
            "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function",
            "tensorflow.python.eager.def_function:Function",
        ),
        True,
        "compat.no_functions",
    ),
    _Wanted("name_scope", ("tensorflow.python.framework.ops:get_name_scope",), False, "compat.no_scopes"),
    _Wanted("from_variant", ("tensorflow.python.data.ops.dataset_ops:from_variant",), False, "compat.slow_batches"),
    _Wanted("to_variant", ("tensorflow.python.data.ops.dataset_ops:to_variant",), False, "compat.slow_batches"),
)

_found: Dict[str, Any] = {}


def _look_up() -> Dict[str, Any]:
    """Every name that this process's TensorFlow has, looked up once. Imports TensorFlow."""
    if not _found:
        for wanted in _WANTED:
            for place in wanted.places:
                module, _, attribute = place.partition(":")
                try:
                    _found[wanted.key] = getattr(importlib.import_module(module), attribute)
                    break
                except (ImportError, AttributeError):
                    continue
    return _found


def has(key: str) -> bool:
    """Whether a private name was found."""
    return key in _look_up()


def found(key: str) -> Any:
    """What a private name stands for; AttributeError where it was not found."""
    names = _look_up()
    if key not in names:
        raise AttributeError("TensorFlow internal %r was not found" % key)
    return names[key]


def probe() -> List[Probe]:
    """What was found of every private name, in the order of their use."""
    return [Probe(wanted.key, has(wanted.key), wanted.needed, wanted.lost) for wanted in _WANTED]


def missing() -> List[Probe]:
    """The private names that were not found."""
    return [item for item in probe() if not item.found]


# --- tensors and variables ----------------------------------------------------------------------


def tensor_id(tensor: Any) -> int:
    """An eager tensor's number, never used again in the process (``id()`` is)."""
    return int(tensor._id)


def is_eager(item: Any) -> bool:
    """Whether it is an eager tensor."""
    return hasattr(item, "_id") and hasattr(item, "dtype") and hasattr(item, "_numpy_internal")


def host_view(tensor: Any) -> Optional[Any]:
    """A numpy view of an eager tensor's own memory on the CPU, without a copy, or None where it
    lies on another device."""
    device = tensor.backing_device if hasattr(tensor, "backing_device") else tensor.device
    if device and "CPU" not in device.upper():
        return None
    internal = getattr(tensor, "_numpy_internal", None)
    return None if internal is None else internal()


def handles_of(variable: Any) -> List[Any]:
    """The resource handles behind a variable: one, or one for each replica. Keras 3 wraps the
    variable that has them."""
    inner = _attribute(variable, "_value")
    if inner is not None and not hasattr(type(variable), "handle"):
        variable = inner
    parts = _attribute(variable, "values")
    parts = parts if isinstance(parts, (tuple, list)) else (variable,)
    handles = [_attribute(part, "handle") for part in parts]
    return [handle for handle in handles if handle is not None and hasattr(handle, "_id")]


def _attribute(item: Any, name: str) -> Any:
    """An attribute, or None: variables of several replicas, and those of Keras around them,
    raise what they like for what they lack."""
    try:
        return getattr(item, name, None)
    except Exception:
        return None


def handle_type(handle: Any) -> Optional[Any]:
    """Shape and dtype (as protocol buffers) of the variable behind a resource handle, or None
    where the handle is no variable."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return data.shape_and_type[0]


def run_op(op_type: str, inputs: List[Any], attrs: Any, outputs: int, device: Optional[str] = None) -> List[Any]:
    """Run an operator, unseen by tapes and callbacks."""
    context = found("context")()
    return found("run_op")(context._handle, device or context.device_name, op_type, inputs, attrs, outputs) or []


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
        return run_op("ReadVariableOp", [handle if copy is None else copy], ("dtype", kind.dtype), 1)[0]
    except Exception:  # never initialised
        return None


def private_copy(handle: Any, value: Any) -> Any:
    """A handle of a new variable of the same kind that holds ``value`` and nobody else knows."""
    kind = handle_type(handle)
    assert kind is not None
    context = found("context")
    module = sys.modules[context.__module__]
    nameless = getattr(module, "anonymous_name", None) or module.shared_name
    size = None if kind.shape.unknown_rank else [None if d.size < 0 else d.size for d in kind.shape.dim]
    attrs = ("container", "", "shared_name", nameless(), "dtype", kind.dtype, "shape", size)
    made = run_op("VarHandleOp", [], attrs, 1, value.device or None)[0]
    run_op("AssignVariableOp", [made, value], ("dtype", kind.dtype), 0)
    return made


def traced_graph(name: str, owner: Any) -> Any:
    """The graph of a function as it was traced, with the lines of code that made its operators; None where nobody has it.

    Args:
        name: as TensorFlow registered it.
        owner: a graph that calls it, or None.
    """
    while owner is not None and hasattr(owner, "_get_function"):
        function = owner._get_function(name) if owner._is_function(name) else None
        graph = getattr(function, "graph", None)
        if graph is not None:
            return graph
        owner = getattr(owner, "outer_graph", None)
    return None


def graph_of_definition(name: str) -> Any:
    """The graph that a function's definition describes, without lines of code; None where there is none."""
    context = found("context")()
    if not context.has_function(name) or not has("graph_of_definition"):
        return None
    return found("graph_of_definition")(context.get_function_def(name))


def output_count(name: str) -> Optional[int]:
    """How many results a function has; None where TensorFlow has no such function."""
    context = found("context")()
    return len(context.get_function_def(name).signature.output_arg) if context.has_function(name) else None


def is_function(name: str) -> bool:
    """Whether an operator that ran eagerly is the call of a function."""
    return bool(found("context")().has_function(name))


def name_scope() -> str:
    """The name scope of the present thread."""
    return str(found("name_scope")()) if has("name_scope") else ""


def patch(place: Any, name: str, value: Any) -> Callable[[], None]:
    """Put ``value`` in the place of an attribute of a class or module; returns what undoes it
    (only while the place still holds ``value``)."""
    real = vars(place)[name] if name in vars(place) else getattr(place, name)
    setattr(place, name, value)

    def undo() -> None:
        if vars(place).get(name) is value:
            setattr(place, name, real)

    return undo


# --- Keras --------------------------------------------------------------------------------------


def steps_per_execution(model: Any) -> int:
    """Training steps of one call of a Keras model's train function."""
    steps: Any = getattr(model, "steps_per_execution", None)
    if not isinstance(steps, int):
        steps = getattr(model, "_steps_per_execution", None)
    try:
        return int(steps.numpy()) if hasattr(steps, "numpy") else int(steps or 1)
    except (TypeError, ValueError):
        return 1


def layers_of(model: Any) -> Iterable[Any]:
    """All layers of a Keras model, those inside other layers included."""
    flatten = getattr(model, "_flatten_layers", None)
    try:
        return list(flatten()) if callable(flatten) else list(getattr(model, "layers", ()))
    except Exception:  # a model of the user's own that is not built
        return []
