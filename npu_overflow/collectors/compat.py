"""The only file that knows private names of TensorFlow and Keras.

Each name is looked up when the host collector attaches. ``probe`` says which were found and what is lost without the others;
``npu-overflow doctor`` shows it. Found to hold in TensorFlow 2.6.5, 2.15.1 and 2.21.
"""
from __future__ import annotations

import functools
import importlib
import re
import sys
import threading
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

from npu_overflow import living

__all__ = ["Internals", "Probe", "internals", "iter_optimizer_classes", "probe"]


class Probe(NamedTuple):
    """One private name: whether it was found, whether collecting is impossible without it, and the code of what is lost."""

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
    _Wanted("fast_path", ("tensorflow.python.pywrap_tfe:TFE_Py_FastPathExecute",), True, "compat.no_observation"),
    _Wanted("run_op", ("tensorflow.python.pywrap_tfe:TFE_Py_Execute",), True, "compat.no_observation"),
    _Wanted("fallback", ("tensorflow.python.eager.core:_FallbackException",), True, "compat.no_observation"),
    _Wanted("execute", ("tensorflow.python.eager.execute:execute",), True, "compat.no_observation"),
    _Wanted("context", ("tensorflow.python.eager.context:context",), True, "compat.no_observation"),
    _Wanted("eager_tensor", ("tensorflow.python.framework.ops:EagerTensor",), True, "compat.no_observation"),
    _Wanted(
        "function_class",
        (
            "tensorflow.python.eager.polymorphic_function.polymorphic_function:Function",
            "tensorflow.python.eager.def_function:Function",
        ),
        True,
        "compat.no_functions",
    ),
    _Wanted("name_scope", ("tensorflow.python.framework.ops:get_name_scope",), False, "compat.no_names"),
    _Wanted("open_scope", ("tensorflow.python.framework.ops:name_scope",), False, "compat.no_scopes"),
    _Wanted("scope_class", ("tensorflow.python.framework.ops:name_scope_v2",), False, "compat.no_scopes"),
    _Wanted("match_arguments", ("tensorflow.python.eager.execute:args_to_matching_eager",), False, "compat.no_scopes"),
    _Wanted(
        "case_branches",
        (
            "tensorflow.python.ops.control_flow_switch_case:_indexed_case_verify_and_canonicalize_args",
            "tensorflow.python.ops.control_flow_ops:_indexed_case_verify_and_canonicalize_args",
        ),
        False,
        "compat.no_scopes",
    ),
    _Wanted("record_gradient", ("tensorflow.python.eager.execute:record_gradient",), False, "compat.no_links"),
    _Wanted("tell_tape", ("tensorflow.python.pywrap_tfe:TFE_Py_RecordGradient",), False, "compat.no_links"),
    _Wanted("tape_records", ("tensorflow.python.eager.execute:must_record_gradient",), False, "compat.no_phase"),
    _Wanted("gradient_function", ("tensorflow.python.eager.backprop:_gradient_function",), False, "compat.no_links"),
    _Wanted("register_gradient", ("tensorflow.python.pywrap_tfe:TFE_Py_RegisterGradientFunction",), False, "compat.no_links"),
    _Wanted(
        "record_operation",
        ("tensorflow.python.eager.record:record_operation", "tensorflow.python.eager.tape:record_operation"),
        False,
        "compat.no_custom_links",
    ),
    _Wanted("python_function", ("tensorflow.python.ops.script_ops:py_func_common",), False, "compat.no_python"),
    _Wanted("source_maps", ("tensorflow.python.util.tf_stack:_source_mapper_stacks",), False, "compat.no_generated_lines"),
    _Wanted("rewritten", ("tensorflow.python.autograph.impl.api:convert",), False, "compat.no_rewriting"),
    _Wanted("unwrap", ("tensorflow.python.util.tf_decorator:unwrap",), False, "compat.no_rewriting"),
    _Wanted("add_callback", ("tensorflow.python.framework.op_callbacks:add_op_callback",), False, "compat.no_graph_replay"),
    _Wanted("remove_callback", ("tensorflow.python.framework.op_callbacks:remove_op_callback",), False, "compat.no_graph_replay"),
    _Wanted("from_variant", ("tensorflow.python.data.ops.dataset_ops:from_variant",), False, "compat.slow_batches"),
    _Wanted("to_variant", ("tensorflow.python.data.ops.dataset_ops:to_variant",), False, "compat.slow_batches"),
)


class Internals:
    """The private names that were found, by key, and the modules they live in (to replace and put back)."""

    def __init__(self) -> None:
        self._found: Dict[str, Tuple[Any, str, Any]] = {}
        for wanted in _WANTED:
            for place in wanted.places:
                module_name, _, attribute = place.partition(":")
                try:
                    module = importlib.import_module(module_name)
                    value = getattr(module, attribute)
                except (ImportError, AttributeError):
                    continue
                self._found[wanted.key] = (module, attribute, value)
                break

    def has(self, key: str) -> bool:
        """Whether the name was found."""
        return key in self._found

    def get(self, key: str) -> Any:
        """The value of a name when it was looked up; AttributeError where it was not found."""
        if key not in self._found:
            raise AttributeError("TensorFlow internal %r was not found" % key)
        return self._found[key][2]

    def replace(self, key: str, value: Any) -> Callable[[], None]:
        """Put ``value`` in the place of a name; returns what undoes it (only while the place still holds ``value``)."""
        module, attribute, _ = self._found[key]
        before = getattr(module, attribute)
        setattr(module, attribute, value)

        def undo() -> None:
            if getattr(module, attribute, None) is value:
                setattr(module, attribute, before)

        return undo

    def random_state(self) -> Any:
        """The Python generator from which eager random operators draw their seeds, or None."""
        return getattr(self.get("context")(), "_rng", None)

    def set_random_state(self, generator: Any) -> None:
        """Put a generator (or None) back as the source of eager seeds."""
        context = self.get("context")()
        if hasattr(context, "_rng"):
            context._rng = generator


    def keep_global_seed(self, instead: Callable[[Any], None]) -> Callable[[], None]:
        """Let ``tf.random.set_seed`` of this thread call ``instead(seed)``: the real one drops the state of all random kernels. Returns what undoes it."""
        kind, thread = type(self.get("context")()), threading.get_ident()
        real = getattr(kind, "_set_global_seed", None)
        if real is None:
            return lambda: None

        def set_global_seed(context: Any, seed: Any) -> Any:
            return instead(seed) if threading.get_ident() == thread else real(context, seed)

        return patch(kind, "_set_global_seed", set_global_seed)


_internals: List[Internals] = []


def internals() -> Internals:
    """The names of the TensorFlow of this process, looked up once. Imports TensorFlow."""
    if not _internals:
        _internals.append(Internals())
    return _internals[0]


def probe() -> List[Probe]:
    """What was found of every private name, in the order of their use."""
    found = internals()
    return [Probe(wanted.key, found.has(wanted.key), wanted.needed, wanted.lost) for wanted in _WANTED]


def missing() -> List[Probe]:
    """The private names that were not found."""
    return [item for item in probe() if not item.found]


def tensor_id(tensor: Any) -> int:
    """An eager tensor's number, never used again in the process (``id()`` is)."""
    return int(tensor._id)


def host_view(tensor: Any) -> Optional[Any]:
    """A numpy view of an eager tensor's own memory on the CPU, without a copy, or None where it lies on another device."""
    device = tensor.backing_device if hasattr(tensor, "backing_device") else tensor.device
    if device and "CPU" not in device.upper():
        return None
    internal = getattr(tensor, "_numpy_internal", None)
    return None if internal is None else internal()


def handles_of(variable: Any) -> List[Any]:
    """The resource handles behind a variable: one, or one for each replica. Keras 3 wraps the variable that has them."""
    inner = _attribute(variable, "_value")
    if inner is not None and not hasattr(type(variable), "handle"):
        variable = inner
    parts = _attribute(variable, "values")
    handles = [_attribute(part, "handle") for part in (parts if isinstance(parts, (tuple, list)) else (variable,))]
    return [handle for handle in handles if handle is not None and hasattr(handle, "_id")]


def _attribute(item: Any, name: str) -> Any:
    """An attribute, or None: variables of several replicas, and those of Keras around them, raise what they like for what they lack."""
    try:
        return getattr(item, name, None)
    except Exception:
        return None


def read_variable(handle: Any) -> Optional[Any]:
    """The value of the variable behind a resource handle, unseen by hooks and tapes; None where there is none (no variable, never initialised)."""
    dtype = handle_type(handle)
    if dtype is None:
        return None
    found = internals()
    context = found.get("context")()
    try:
        return found.get("run_op")(context._handle, context.device_name, "ReadVariableOp", [handle], ("dtype", dtype), 1)[0]
    except Exception:  # never initialised
        return None


def write_variable(handle: Any, value: Any) -> None:
    """Write the variable behind a resource handle, unseen by hooks and tapes."""
    found = internals()
    context = found.get("context")()
    found.get("run_op")(context._handle, context.device_name, "AssignVariableOp", [handle, value], ("dtype", handle_type(handle)), 0)


def run_again(op_type: str, inputs: List[Any], attrs: Any, outputs: int) -> List[Any]:
    """Run an operator once more, unseen by hooks and tapes."""
    found = internals()
    context = found.get("context")()
    return list(found.get("run_op")(context._handle, context.device_name, op_type, inputs, attrs, outputs))


def original_line(file: str, line: int) -> Optional[Tuple[str, int]]:
    """File and line that a line of AutoGraph's code was made from, which this thread is running; None where that can't be told."""
    stacks = internals().get("source_maps") if internals().has("source_maps") else {}
    mappers = stacks.get(threading.get_ident())
    origin = mappers[-1].get_effective_source_map().get((file, line)) if mappers else None
    return (origin[0], origin[1]) if origin else None


def rewritten(function: Callable[..., Any], asked_for: bool) -> Callable[..., Any]:
    """A Python function as AutoGraph rewrites it when it is traced: loops and branches on tensors are TensorFlow's.

    Args:
        asked_for: by a tf.function of its own, so that it is rewritten wherever it comes from.
    """
    return internals().get("rewritten")(recursive=True, user_requested=asked_for)(internals().get("unwrap")(function)[1])  # type: ignore[no-any-return]


def rewritten_layers() -> List[type]:
    """Classes of layers and models whose ``call`` Keras 2 lets AutoGraph rewrite when it is traced: those of users (Keras 3 rewrites none)."""
    bases = [getattr(getattr(sys.modules.get(name), "layers", None), "Layer", None) for name in ("keras", "tf_keras")]
    kinds = living.derived([base for base in bases if isinstance(base, type) and hasattr(base, "_autographed_call")])
    return [kind for kind in kinds if "call" in vars(kind) and kind.__module__.split(".")[0] not in ("keras", "tf_keras", "tensorflow")]


def tensor_questions() -> List[Tuple[type, str]]:
    """Where Python asks an eager tensor for its truth, and for its rows: class and name of the method."""
    kinds = internals().get("eager_tensor").__mro__
    return [(next(kind for kind in kinds if name in vars(kind)), name) for name in ("__bool__", "__iter__")]


def handle_type(handle: Any) -> Optional[Any]:
    """The dtype (as an enum number) of the variable behind a resource handle, or None where the handle is no variable."""
    data = getattr(handle, "_handle_data", None)
    if data is None or not data.is_set or len(data.shape_and_type) != 1:
        return None
    return data.shape_and_type[0].dtype


def patch(place: Any, name: str, value: Any) -> Callable[[], None]:
    """Put ``value`` in the place of an attribute of a class or module; returns what undoes it (only while the place still holds ``value``)."""
    real = vars(place)[name] if name in vars(place) else getattr(place, name)
    setattr(place, name, value)

    def undo() -> None:
        if vars(place).get(name) is value:
            setattr(place, name, real)

    return undo


@functools.lru_cache(maxsize=1)  # looking through all modules takes as long as a small step
def loop_places() -> Tuple[Any, ...]:
    """Where ``while_loop`` is looked up by those who call it: TensorFlow's own operators, users and Keras."""
    names = re.compile(r"tensorflow((\._api\.v\d)?(\.compat\.v[12])*|\.python\.ops\.(while_loop|control_flow_ops))$")
    modules = [module for name, module in sorted(sys.modules.items()) if names.match(name)]
    return tuple(module for module in modules if callable(vars(module).get("while_loop")))


def opens_layer_scope(frame: Any) -> bool:
    """Whether the scope that a frame opens is that of a layer of Keras: of ``Layer.__call__`` in Keras 2, of any in Keras 3, which has one
    class for all of its scopes. An ExitStack in between does not count.
    """
    while frame.f_back is not None and frame.f_globals.get("__name__") == "contextlib":
        frame = frame.f_back
    package, _, module = str(frame.f_globals.get("__name__", "")).partition(".")
    opener = frame.f_code.co_name
    return package in ("keras", "tf_keras") and (opener == "__enter__" or (opener == "__call__" and module.endswith("base_layer")))


def steps_per_execution(model: Any) -> int:
    """Training steps of one call of a Keras model's train function."""
    steps: Any = getattr(model, "steps_per_execution", None)
    if not isinstance(steps, int):
        steps = getattr(model, "_steps_per_execution", None)
    try:
        return int(steps.numpy()) if hasattr(steps, "numpy") else int(steps or 1)
    except (TypeError, ValueError):
        return 1


def iter_optimizer_classes() -> Iterator[type]:
    """Every loaded class that can be an optimizer's: the base classes of the Keras flavours that are loaded, and what derives from them."""
    roots = []
    for module_name in ("keras", "tf_keras", "tensorflow.keras", "tensorflow"):
        module = sys.modules.get(module_name)
        space = getattr(module, "keras", module) if module_name == "tensorflow" else module
        optimizers = getattr(space, "optimizers", None)
        precision = getattr(space, "mixed_precision", None)
        roots += [getattr(optimizers, "Optimizer", None), getattr(getattr(optimizers, "legacy", None), "Optimizer", None)]
        roots += [getattr(precision, "LossScaleOptimizer", None)]
    seen: Set[type] = set()
    waiting = [root for root in roots if isinstance(root, type)]
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += type.__subclasses__(kind)
    for kind in list(seen):
        seen.update(kind.__mro__)
    return iter(seen)


def is_keras_seed(kind: type) -> bool:
    """Whether objects of this class count the seeds of a layer of tf.keras that draws where it runs eagerly; the count is ``_seed``."""
    return kind.__name__ == "RandomGenerator" and kind.__module__.split(".")[0] in ("keras", "tf_keras")


def keras_seed_sources() -> List[Any]:
    """Python's generators from which the loaded tf.keras takes seeds for its layers on this thread."""
    modules = [sys.modules.get(name) for name in ("keras.backend", "keras.src.backend", "tf_keras.backend", "tf_keras.src.backend")]
    sources = [getattr(module, "_SEED_GENERATOR", None) for module in modules]
    return [source.generator for source in sources if source is not None and hasattr(source, "generator")]


def living_variables() -> List[Any]:
    """All variables of this process, TensorFlow's first, then Keras 3's (whose paths are the better names). Takes some 50 ms."""
    import tensorflow as tf

    kinds = [tf.Variable, getattr(sys.modules.get("keras"), "Variable", None)]
    return [item for kind in kinds if isinstance(kind, type) for item in living.instances(living.derived([kind]))]
