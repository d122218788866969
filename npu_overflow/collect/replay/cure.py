"""Advice that is tried on the step's own record before it is given.

A change that leaves the step without any consequence is a cure. Nothing of the training is touched.
"""
from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Dict, List, Optional, Sequence, Tuple

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.blame import Findings, attempt
from npu_overflow.collect.replay.changed import Change, ChangedRun, half_range
from npu_overflow.collect.replay.constructors import constructor_in_float32
from npu_overflow.collect.replay.finite import all_finite
from npu_overflow.collect.replay.interpreter import Step
from npu_overflow.collect.replay.names import Names
from npu_overflow.collect.replay.taint import Held, Origin
from npu_overflow.dump.replay_info import TrialInfo
from npu_overflow.errors import CannotCollect

__all__ = ["trials_of"]

MAX_LAYERS = 4  # that are put into float32 together
MAX_LINES = 8  # of code for one of them
# operators that make Inf or NaN of a zero, and which input that is
_ZERO_HURTS: Dict[str, int] = {
    **dict.fromkeys("Reciprocal Inv Log Rsqrt Sqrt Pow".split(), 0),
    **dict.fromkeys("RealDiv Div Xlogy Xdivy".split(), 1),
}
# that are tried, by type: the smallest that is not rounded to zero first
_EPSILONS = {"float16": (6e-8, 1e-6, 1e-5, 1e-4, 1e-3)}
_OTHER_EPSILONS = (1e-30, 1e-12, 1e-7, 1e-5, 1e-3)


def trials_of(step: Step, found: Findings, names: Names) -> List[TrialInfo]:
    """Try what may help against the culprit of a step, in the order of how little it changes.

    Args:
        step: that was examined.
        found: what ``examine`` found in it.
        names: of its operators.
    """
    if found.culprit is None:
        return []
    trials: List[TrialInfo] = []
    for way in (_constant, _epsilon, _loss_scale, _float32):
        try:
            trials += way(step, found, found.culprit, names)
        except CannotCollect:  # such a change can't be run; nothing is said of it
            continue
    return trials


def _run(step: Step, change: Change, names: Names) -> Optional[ChangedRun]:
    run = attempt(partial(ChangedRun, step, change, names))
    assert run is None or isinstance(run, ChangedRun)
    return run


def _helps(step: Step, change: Change, names: Names) -> bool:
    run = _run(step, change, names)
    return run is not None and not run.consequence


# --- a constant, an epsilon, the loss scale ----------------------------------------------------


def _constant(step: Step, found: Findings, culprit: Origin, names: Names) -> List[TrialInfo]:
    """A literal that does not fit its type, such as a mask of -1e9, within half of the range."""
    if culprit.kind != "constant" or culprit.source is None:
        return []
    keys = frozenset(origin.key for origin in found.guilty if origin.kind == "constant")
    helps = _helps(step, Change(clip=keys), names)
    return [TrialInfo("constant", value=half_range(culprit.source.tensor), finite=helps)]


def _epsilon(step: Step, found: Findings, culprit: Origin, names: Names) -> List[TrialInfo]:
    """The smallest number that helps where zero is divided by, or its logarithm or root taken."""
    held = {id(item.origin): item for item in found.held if item.origin is not None}
    targets = [_hurt_by_zero(origin, held.get(id(origin)), names) for origin in found.guilty]
    op_type = getattr(targets[0], "type", "")
    if op_type not in _ZERO_HURTS:
        return []
    same = [target for target in targets if getattr(target, "type", "") == op_type]
    outputs = held[id(culprit)].outputs if id(culprit) in held else []
    ladder = _EPSILONS.get(outputs[0].dtype if outputs else "float16", _OTHER_EPSILONS)

    def helps(epsilon: float) -> bool:
        return _helps(step, Change(shift=(same, _ZERO_HURTS[op_type], epsilon)), names)

    smallest = _first(ladder, helps)
    return [TrialInfo("epsilon", value=smallest or ladder[-1], finite=smallest is not None)]


def _hurt_by_zero(origin: Origin, held: Optional[Held], names: Names) -> Any:
    """The operator that is given a zero: the origin, or that whose gradient it computes."""
    if origin.kind != "operator" or origin.op is None:
        return None
    forward = names.source(origin.op)[0]
    if forward is None and _is_given_zero(held):
        return names.made_by(origin.op)
    return forward


def _is_given_zero(held: Optional[Held]) -> bool:
    place = _ZERO_HURTS.get(held.op.type) if held is not None else None
    if held is None or place is None or place >= len(held.inputs):
        return False
    tensor = held.inputs[place].tensor
    return tensor is None or bool((tensor.numpy() == 0).any())


def _loss_scale(step: Step, found: Findings, culprit: Origin, names: Names) -> List[TrialInfo]:
    """The highest power of two that is finite."""
    begin = step.record.begin
    present = [float(begin[number][1].numpy()) for number in step.scales if number in begin]
    if not culprit.scaled or not present or not found.cured_by_scale or present[0] <= 1.0:
        return []
    highest = math.ceil(math.log2(present[0])) - 1
    powers = [2.0**power for power in range(highest, -1, -1)]
    best = _first(powers[:-1], lambda scale: _helps(step, Change(scale=scale), names))
    return [TrialInfo("loss_scale", value=best or 1.0, finite=True)]


def _first(ordered: Sequence[float], helps: Any) -> Optional[float]:
    """The first of numbers that helps, where every later one helps, too; None where none does."""
    low, high = 0, len(ordered)
    if not ordered or not helps(ordered[-1]):
        return None
    high -= 1
    while low < high:
        middle = (low + high) // 2
        if helps(ordered[middle]):
            high = middle
        else:
            low = middle + 1
    return ordered[high]


# --- float32 -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """What is put into float32 as one: a layer, else a name scope or a single operator.

    Args:
        layers: path of the layer; () where it is none.
        alone: whether the layer's own name tells it from all others, wherever it is called.
        scope: the operator's name, outside of layers.
        own: whether it is the user's to change: a layer, or an expression in the user's code.
        line: of the user's code that made the operator, with its place.
        dtype: that the operator makes.
        files: the user's, where the layer may be made.
    """

    layers: Tuple[str, ...] = ()
    alone: bool = False
    scope: str = ""
    own: bool = True
    line: str = ""
    dtype: str = ""
    files: Tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """As people read it."""
        return "/".join(self.layers) or self.scope

    def has(self, name: str, names: Names) -> bool:
        """Whether an operator of this name, or the one whose gradient it computes, lies in it."""
        if not self.layers:
            return (names.without_gradient(name) + "/").startswith(self.scope + "/")
        found = names.layers_in(name)
        whole = found[: len(self.layers)] == self.layers
        return whole or (self.alone and self.layers[-1] in found)


def _place_of(origin: Origin, names: Names) -> Optional[_Place]:
    if origin.op is None:
        return None
    forward = names.source(origin.op)[1]
    name = forward or names.name(origin.op)
    layers, facts = names.layers_in(name), names.of(origin.op)
    called = facts.get("location_kind") == "call"
    line = "%s: %s" % (facts["location"], facts["source_line"] or "…") if called else ""
    made = origin.op.node.made
    dtype = str(made[0].name) if made else ""
    if layers:
        alone, files = len(names.layers_named(layers[-1])) == 1, names.user_files(origin.op)
        return _Place(layers, alone, line=line, dtype=dtype, files=files)
    own = called and (forward is not None or facts["phase"] == "forward")
    return _Place(scope=names.without_gradient(name), own=own, line=line, dtype=dtype)


def _float32(step: Step, found: Findings, culprit: Origin, names: Names) -> List[TrialInfo]:
    """The culprit's layer in float32, then with it the next that overflows, up to four; then
    without those that are not needed."""
    if _is_lost(culprit):
        return []
    trials: List[TrialInfo] = []
    places: List[_Place] = []
    origin: Optional[Origin] = culprit
    most = 1 if found.cured_by_scale else MAX_LAYERS  # where the scale does it, not a chain
    while origin is not None and len(places) < most:
        place = _place_of(origin, names)
        if place is None or any(place.shown == known.shown for known in places):
            break
        places.append(place)
        run = _run(step, _widening(places, names), names)
        if run is None:
            break
        left = run.of_bits(run.consequence)
        origin = min(left, key=lambda item: item.op.order if item.op else 0, default=None)
        if origin is not None and run.was_rounded:
            break  # the record does not tell
        if origin is not None:
            trials.append(_failure(places, run, origin, names))
    if places and origin is None:
        needed = _without_the_needless(step, places, names)
        if all(place.own for place in needed):
            trials.append(_cure(needed, names))
    return trials


def _widening(places: Sequence[_Place], names: Names) -> Change:
    fixed = tuple(places)
    return Change(wide=lambda name: any(place.has(name, names) for place in fixed))


def _failure(
    places: Sequence[_Place], run: ChangedRun, left: Origin, names: Names
) -> TrialInfo:
    trial = TrialInfo("float32", tuple(place.shown for place in places))
    if left.op is None:
        return trial
    following = "%s %s" % (left.op.type, names.name(left.op))
    return replace(trial, next=following, largest=run.too_large.get(left.key))


def _cure(places: Sequence[_Place], names: Names) -> TrialInfo:
    shown = tuple(place.shown for place in places)
    code = [line for place in places for line in _code_of(place, names)]
    return TrialInfo("float32", shown, finite=True, code=tuple(code))


def _code_of(place: _Place, names: Names) -> List[str]:
    """How a layer is put into float32: by its constructor; what has none, or one that takes no
    type, by casts around the line."""
    if not place.layers:
        return _casts(place, "tf." + place.dtype)
    layers = names.layers_named(place.layers[-1])
    if len({type(layer) for layer in layers}) != 1:
        return ['Layer(..., dtype="float32", name="%s")' % place.layers[-1]]
    if not _takes_dtype(type(layers[0])):
        return _casts(place, "self.compute_dtype")
    return _constructors(layers[0], place.files)[:MAX_LINES]


def _takes_dtype(kind: type) -> bool:
    """Whether a layer's constructor takes the type to compute in."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(item.name == "dtype" or item.kind is item.VAR_KEYWORD for item in parameters)


def _casts(place: _Place, back: str) -> List[str]:
    if not place.line or not place.dtype:
        return []
    return [
        "# around " + (place.line if len(place.line) <= 64 else place.line[:63] + "…"),
        "x = tf.cast(x, tf.float32)  # what it takes",
        "y = tf.cast(y, %s)  # what it gives" % back,
    ]


def _constructors(layer: Any, files: Sequence[str] = ()) -> List[str]:
    """That of a layer, and of those it holds: only Keras' own hand their type on. As it stands in
    one of the files, where it does."""
    kind = type(layer)
    wrapped = getattr(layer, "layer", None) or getattr(layer, "forward_layer", None)
    stock = kind.__module__.split(".")[0] in ("keras", "tf_keras", "tensorflow")
    name = ("keras.layers." if stock else "") + kind.__name__
    own = '%s(%s..., dtype="float32", name="%s")'
    if stock and hasattr(wrapped, "name"):  # Bidirectional, TimeDistributed
        wide = _constructors(wrapped)[0].rpartition(", name=")[0] + ")"
        return [own % (name, wide + ", ", layer.name)]
    written = constructor_in_float32(files, kind.__name__, layer.name)
    held = private.layers_of(layer) if not stock else ()
    inside = [line for item in held if item is not layer for line in _constructors(item, files)]
    return [written or own % (name, "", layer.name), *inside]


def _without_the_needless(step: Step, places: List[_Place], names: Names) -> List[_Place]:
    needed = list(places)
    for place in places[:-1]:
        fewer = [item for item in needed if item is not place]
        if _helps(step, _widening(fewer, names), names):
            needed = fewer
    return needed


def _is_lost(culprit: Origin) -> bool:
    """Whether the culprit is a variable, batch or literal that holds Inf or NaN: no type helps."""
    source = culprit.source
    return source is not None and hasattr(source.tensor, "numpy") and not all_finite(source.tensor)
