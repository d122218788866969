"""Reading the loss scale: one small reader for each family of optimizers, the only place that knows
their attributes.

| family     | optimizers                                     | scale lives in                     |
| ---------- | ---------------------------------------------- | -----------------------------------|
| tf_keras_2 | ``LossScaleOptimizer`` of tf.keras 2, tf_keras | ``_loss_scale._current_loss_scale``|
| npu        | npu_device's ``NpuLossScaleOptimizer``         | the same, ``last_step_finite``     |
| keras_3    | ``LossScaleOptimizer`` of Keras 3              | ``dynamic_scale``, ``step_counter``|
| none       | any other: nothing skips a step                | no scale, ``iterations`` only      |

The scalars are read by their variables: a property that converts, casts or creates something costs
more and can change the training. Optimizers are told apart by attributes and class names, so this
module imports neither TensorFlow nor Keras.
"""
from __future__ import annotations

import dataclasses
import functools
import gc
import math
import struct
import sys
import threading
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Set

from npu_overflow.training import objects

__all__ = [
    "Reader",
    "Reading",
    "find_in_model",
    "find_optimizers",
    "npu_mode",
    "reader_for",
    "watch_new_optimizers",
]

#: attributes under which optimizers keep the one they wrap, likeliest first
_INSIDE = (
    *("_optimizer", "inner_optimizer", "_inner_optimizer", "optimizer", "base_optimizer"),
    *("opt", "_opt"),
)
_MOST_WRAPPERS = 8


@dataclass(frozen=True)
class Reading:
    """The loss scale at one look.

    Args:
        scale: the loss scale (1.0 where there is none).
        counter: good steps since the scale last changed, None where the scale is fixed.
        iterations: the optimizer's own step count, None where it has none.
        growth_steps: good steps after which the scale doubles, None where it is fixed.
        last_step_finite: how the last step went, where the NPU's optimizer may be asked (saturation
            mode only), else None.
    """

    scale: float
    counter: Optional[int] = None
    iterations: Optional[int] = None
    growth_steps: Optional[int] = None
    last_step_finite: Optional[bool] = None

    def halvings(self, later: Reading) -> int:
        """How often the scale was halved until ``later``, at least; 0 where it did not fall."""
        if not (0 < later.scale < self.scale and math.isfinite(self.scale)):
            return 0
        return max(1, round(math.log2(self.scale / later.scale)))


class Reader:
    """Reads one optimizer; also the base of the families, and itself the family "none": no loss
    scaling, nothing is skipped.

    Attributes:
        optimizer: the loss-scale optimizer that was found, or the plain one.
        name: its class name, for people.
        family: "tf_keras_2", "keras_3", "npu" or "none".
        dynamic: the scale moves by itself.
        guarded: a non-finite gradient makes the optimizer skip the step.
        floor: the scale never falls below it; None where there is no such limit.
        counts_skipped_steps: ``iterations`` advances on skipped steps too.
    """

    family = "none"
    dynamic = False
    guarded = False
    floor: Optional[float] = None
    counts_skipped_steps = True

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.name = type(optimizer).__name__

    @property
    def blind(self) -> bool:
        """A stock loss-scale optimizer on an NPU in saturation mode: overflowed values are finite
        there, so it sees no overflow."""
        return self.family in ("tf_keras_2", "keras_3") and _saturates()

    @property
    def asks_device(self) -> bool:
        """It takes the NPU's overflow register for the sign of an overflow."""
        return False

    def read(self) -> Optional[Reading]:
        """The state now, or None while the optimizer is not built and can't be read."""
        return Reading(scale=self._fixed_scale(), iterations=self._iterations())

    def scale_variable(self) -> Any:
        """The TensorFlow variable of the scale, or None (fixed scale, none, not built)."""
        return None

    def counter_variable(self) -> Any:
        """The TensorFlow variable of the growth counter, or None."""
        return None

    def set_scale(self, value: float) -> None:
        """Set the scale; does nothing where it is no variable."""
        variable = self.scale_variable()
        if variable is not None:
            variable.assign(value)

    def state_variables(self) -> List[Any]:
        """The TensorFlow variables that hold the state of loss scaling: what has to be put back to
        undo a step's effect on it."""
        both = (self.scale_variable(), self.counter_variable())
        return [item for item in both if item is not None]

    def _fixed_scale(self) -> float:
        # Keras 3: a fixed factor of any optimizer
        factor = _attribute(self.optimizer, "loss_scale_factor")
        return _float32(factor) if isinstance(factor, (int, float)) and factor else 1.0

    def _iterations(self) -> Optional[int]:
        found = False
        for optimizer in _chain(self.optimizer):
            own = _own(optimizer)
            if "_iterations" not in own:
                continue
            found = True
            # None: tf.keras 2.6 makes the variable at the first step, and its property would make
            # it now
            if own["_iterations"] is not None:
                return int(_number(own["_iterations"]))
        return 0 if found else None


class _TfKeras2Reader(Reader):
    """tf.keras 2.x and tf_keras: the same attributes from 2.4 to 2.19, whatever the class is
    called."""

    family = "tf_keras_2"

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self.dynamic = self.scale_variable() is not None
        self.guarded = self.dynamic  # with a fixed scale the stock optimizer applies everything
        self.floor = 1.0 if self.dynamic else None

    def _state(self) -> Any:
        return _own(self.optimizer).get("_loss_scale")

    def read(self) -> Optional[Reading]:
        state = self._state()
        scale = _own(state).get("_current_loss_scale")
        if scale is None:
            fixed = _float32(state) if isinstance(state, (int, float)) else 1.0
            return Reading(scale=fixed, iterations=self._iterations())
        return Reading(
            scale=float(_number(scale)),
            counter=int(_number(_own(state)["_counter"])),
            iterations=self._iterations(),
            growth_steps=int(_own(state)["_growth_steps"]),
        )

    def scale_variable(self) -> Any:
        return _own(self._state()).get("_current_loss_scale")

    def counter_variable(self) -> Any:
        return _own(self._state()).get("_counter")


class _NpuReader(_TfKeras2Reader):
    """npu_device's optimizer: in saturation mode it asks the device's overflow register instead of
    the gradients."""

    family = "npu"

    def __init__(self, optimizer: Any) -> None:
        super().__init__(optimizer)
        self._first_iterations: Optional[int] = None
        self._saturation: Optional[bool] = None
        self.guarded = self.dynamic or _saturates()

    def read(self) -> Optional[Reading]:
        reading = super().read()
        if reading is None:
            return None
        if self._first_iterations is None:
            self._first_iterations = reading.iterations
        if self._saturation is None or reading.iterations == self._first_iterations:
            # the mode is baked into the train function at its first step: from then on the answer
            # of the device says nothing
            self._saturation = _saturates()
            self.guarded = self.dynamic or self._saturation
        finite = self._finite_variable() if self._saturation else None
        if finite is None:
            return reading
        return dataclasses.replace(reading, last_step_finite=bool(_number(finite)))

    @property
    def asks_device(self) -> bool:
        return bool(self._saturation)

    def state_variables(self) -> List[Any]:
        finite = self._finite_variable()
        return super().state_variables() + ([] if finite is None else [finite])

    def _finite_variable(self) -> Any:
        for name in ("last_step_finite", "_last_step_finite"):
            variable = _attribute(self.optimizer, name)
            if variable is not None and not callable(variable):
                return variable
        return None


class _Keras3Reader(Reader):
    """Keras 3: the variables come with ``build``, at the first step; there is no floor, no ceiling
    and no fixed form."""

    family = "keras_3"
    dynamic = True
    guarded = True
    counts_skipped_steps = False

    def read(self) -> Optional[Reading]:
        growth = _attribute(self.optimizer, "dynamic_growth_steps")
        growth = None if growth is None else int(growth)
        scale, counter = self.scale_variable(), self.counter_variable()
        if scale is None or counter is None:
            initial = _attribute(self.optimizer, "initial_scale")
            if initial is None:
                return None
            return Reading(_float32(initial), 0, self._iterations(), growth)
        return Reading(float(_number(scale)), int(_number(counter)), self._iterations(), growth)

    def scale_variable(self) -> Any:
        return _backend_variable(_attribute(self.optimizer, "dynamic_scale"))

    def counter_variable(self) -> Any:
        return _backend_variable(_attribute(self.optimizer, "step_counter"))

    def _iterations(self) -> Optional[int]:
        # a loss-scale optimizer of Keras 3 has an unused counter of its own: the inner one counts
        inner = _attribute(self.optimizer, "inner_optimizer")
        return None if inner is None else Reader(inner)._iterations()


def reader_for(optimizer: Any) -> Reader:
    """The reader of an optimizer: of the loss-scale optimizer it is, wraps or is wrapped in (as far
    as it shows), else of itself."""
    for item in _chain(optimizer):
        if _is_scaling(item):
            return _reader_class(item)(item)
    return Reader(optimizer)


def npu_mode() -> Optional[str]:
    """"saturation" or "inf_nan", as the NPU of this process is set; None where npu_device is not
    loaded or has opened no device.

    An adapter that can't be asked is of the time when devices knew saturation only. It is never
    imported to look.
    """
    npu_device = sys.modules.get("npu_device")
    inside = getattr(npu_device, "npu_device", None)
    if npu_device is None or getattr(inside, "_npu_device_instances", True) == {}:
        return None
    asks = getattr(npu_device, "is_inf_nan_enabled", None)
    if not callable(asks):
        return "saturation"
    return "inf_nan" if asks() else "saturation"


def _saturates() -> bool:
    """Whether optimizers train on an NPU in saturation mode. Where no device is the default they
    don't, and the NPU's own is the stock one."""
    inside = getattr(sys.modules.get("npu_device"), "npu_device", None)
    default = getattr(inside, "global_npu_ctx", None)
    return npu_mode() == "saturation" and not (callable(default) and default() is None)


def find_in_model(model: Any) -> List[Any]:
    """The optimizers of a Keras model: the one it was compiled with, and those among its attributes
    (a GAN has several). Beside those, one without loss scaling that ``compile`` made by itself
    says nothing."""
    compiled = _attribute(model, "optimizer")
    chains = [
        list(_chain(item)) for item in (compiled, *_own(model).values()) if _is_optimizer(item)
    ]
    inside = {id(part) for chain in chains for part in chain[1:]}
    outer = {id(chain[0]): chain for chain in chains if id(chain[0]) not in inside}
    scaling = {key: next(filter(_is_scaling, chain), None) for key, chain in outer.items()}
    found = {id(item): item for key, item in scaling.items() if item is not None}
    plain = [chain[0] for key, chain in outer.items() if scaling[key] is None]
    if len(plain) + len(found) > 1:
        plain = [item for item in plain if item is not compiled]
    return [*found.values(), *plain]


def find_optimizers() -> List[Any]:
    """The loss-scale optimizers that are alive in this process, oldest first as far as the garbage
    collector keeps order."""
    gc.collect()  # models of an earlier training in circular references would count as living
    kinds = objects.subclasses_of([object])
    roots = [kind for kind in kinds if "LossScaleOptimizer" in kind.__name__]
    found = objects.objects_of_type(objects.subclasses_of(roots))
    return [item for item in found if _is_scaling(item)]


def watch_new_optimizers(callback: Callable[[Any], None]) -> Callable[[], None]:
    """Call ``callback(optimizer)`` for each loss-scale optimizer made from now on.

    The public class can dispatch by metaclass to another, so ``__init__`` of every class named
    ``*LossScaleOptimizer*`` in the modules loaded by now is wrapped, subclasses included.

    Returns:
        a function that undoes it; it may be called twice, and leaves alone what somebody else has
        put there since.
    """
    active = [True]
    making = threading.local()
    wrapped: Dict[type, Any] = {}

    def wrap(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            inside: Set[int] = making.__dict__.setdefault("ids", set())
            # inside: __init__ of a base class, called by a subclass's
            if not active[0] or id(self) in inside:
                original(self, *args, **kwargs)
                return
            inside.add(id(self))
            try:
                original(self, *args, **kwargs)
            finally:
                inside.discard(id(self))
            callback(self)

        init._ended = lambda: not active[0]  # type: ignore[attr-defined]
        return init

    for cls in _scaling_classes():
        if "__init__" in vars(cls):
            wrapped[cls] = (vars(cls)["__init__"], wrap(vars(cls)["__init__"]))
            setattr(cls, "__init__", wrapped[cls][1])  # noqa: B010 (mypy forbids the plain assignment)

    def undo() -> None:
        active[0] = False
        for cls, (original, ours) in wrapped.items():
            if vars(cls).get("__init__") is ours:
                # a watch that began before this one and has ended before it
                while getattr(original, "_ended", bool)():
                    original = original.__wrapped__
                setattr(cls, "__init__", original)  # noqa: B010

    return undo


def _scaling_classes() -> List[type]:
    """Classes of loss-scale optimizers in the loaded modules, with all their subclasses."""
    found: List[type] = []

    def add(cls: type) -> None:
        if cls not in found:
            found.append(cls)
            children: List[type] = type.__subclasses__(cls)
            for child in children:
                add(child)

    for name, module in list(sys.modules.items()):
        if "loss_scale_optimizer" in name or name.startswith("npu_device"):
            for item in list(vars(module).values()) if module is not None else ():
                if isinstance(item, type) and _is_scaling_class(item):
                    add(item)
    return found


def _is_scaling_class(cls: type) -> bool:
    if cls is type:
        return False
    return any("LossScaleOptimizer" in base.__name__ for base in type.mro(cls))


def _is_optimizer(item: Any) -> bool:
    return callable(_attribute(item, "apply_gradients"))


def _is_scaling(optimizer: Any) -> bool:
    """Whether it is a loss-scale optimizer, fully made."""
    # the class of a metaclass is no optimizer
    if isinstance(optimizer, type) or not _is_scaling_class(type(optimizer)):
        return False
    return "_loss_scale" in _own(optimizer) or _attribute(optimizer, "initial_scale") is not None


def _reader_class(optimizer: Any) -> Callable[[Any], Reader]:
    if "_loss_scale" in _own(optimizer):
        npu = any(base.__name__.startswith("Npu") for base in type.mro(type(optimizer)))
        asks = npu and _attribute(optimizer, "last_step_finite") is not None
        return _NpuReader if asks else _TfKeras2Reader
    return _Keras3Reader


def _chain(optimizer: Any) -> Iterator[Any]:
    """The optimizer, then those inside it, outermost first; bounded, each once."""
    waiting: List[Any] = [optimizer]
    seen: Set[int] = set()
    while waiting and len(seen) < _MOST_WRAPPERS:
        item = waiting.pop(0)
        is_plain = item is None or isinstance(item, (str, int, float, list, tuple, dict))
        if is_plain or id(item) in seen:
            continue
        seen.add(id(item))
        yield item
        own = _own(item)
        waiting.extend(own[name] for name in _INSIDE if name in own)


def _own(item: Any) -> Dict[str, Any]:
    """Instance attributes, without running a property or a ``__getattr__`` of the optimizer."""
    found = getattr(item, "__dict__", None)
    return found if isinstance(found, dict) else {}


def _attribute(item: Any, name: str) -> Any:
    """An attribute or None. Optimizers of tf.keras 2.x answer for hyperparameters in
    ``__getattribute__``: any error means no."""
    own = _own(item)
    if name in own:
        return own[name]
    try:
        return getattr(item, name, None)
    except Exception:  # a property that can't answer yet
        return None


def _backend_variable(variable: Any) -> Any:
    """The TensorFlow variable inside a Keras 3 variable; its ``value`` would cast under
    autocast."""
    if variable is None:
        return None
    inner = _own(variable).get("_value")
    return variable if inner is None else inner


def _number(variable: Any) -> Any:
    value = _backend_variable(variable)
    read = getattr(value, "value", None)
    if callable(read):  # half the time of the variable's own ``numpy``, which makes a copy
        value = read()
    return value.numpy() if hasattr(value, "numpy") else value


def _float32(value: Any) -> float:
    """``value`` as the float32 variable will hold it, so that the first look sees no change."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])
    except OverflowError:
        return float("inf") if float(value) > 0 else float("-inf")
