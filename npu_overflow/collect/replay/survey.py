"""How near a step comes to float16's limits, layer by layer.

The record is run once more with everything in float32, so that what float16 would make Inf of, or
flush to zero, still has its magnitude.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Dict, List, Optional, Set, Tuple

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.blame import attempt
from npu_overflow.collect.replay.changed import Change, ChangedRun
from npu_overflow.collect.replay.interpreter import Marks, Results, Step, Values
from npu_overflow.collect.replay.names import Names
from npu_overflow.collect.replay.program import Node
from npu_overflow.collect.replay.taint import OpRef, Path

__all__ = ["survey"]

MOST_PLACES = 2000  # that are told
_FLUSHED = 2.0**-25  # up to here float16 rounds to zero: half of its smallest number
_NARROW = ("float16", "bfloat16")
_CHUNK = 1 << 15  # elements a pass: the temporaries stay in the cache


@dataclass
class _Range:
    """The magnitudes of one layer in one pass; names are those of the report's ``LayerRange``."""

    layer: str
    phase: str
    largest: float = 0.0
    smallest: Optional[float] = None
    nonzero: int = 0
    flushed: int = 0
    op_type: str = ""
    op_name: str = ""

    def add(self, tensor: Any, op_type: str, op_name: str) -> None:
        """What an operator made."""
        largest = 0.0
        for low, high, nonzero, flushed in _magnitudes(tensor):
            largest = max(largest, high)
            self.smallest = low if self.smallest is None else min(self.smallest, low)
            self.nonzero, self.flushed = self.nonzero + nonzero, self.flushed + flushed
        if largest > self.largest:
            self.largest, self.op_type, self.op_name = largest, op_type, op_name


def _magnitudes(tensor: Any) -> Any:
    """Smallest and largest of the finite magnitudes above zero, how many they are, and how many of
    them float16 has no number for; a part of the tensor at a time."""
    import numpy as np

    view = private.host_view(tensor)
    flat = (tensor.numpy() if view is None else view).reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        part = np.abs(flat[start : start + _CHUNK].astype(np.float32))
        part = part[(part > 0) & (part < np.inf)]
        if part.size:
            flushed = int((part <= _FLUSHED).sum())
            yield float(part.min()), float(part.max()), part.size, flushed


class _Survey(ChangedRun):
    """A run in float32 that measures what operators make.

    Attributes:
        ranges: by the type that the operators make in the training, then by layer and pass.
        layers: those that are known to be layers.
    """

    def __init__(self, step: Step, names: Names, **more: Any) -> None:
        super().__init__(step, Change(wide=lambda name: True), names, **more)
        self.ranges: Dict[str, Dict[Tuple[str, str], _Range]] = {}
        self.layers: Set[str] = set()
        self._places: Dict[Any, Tuple[str, str, str]] = {}

    def _plain(self, node: Node, path: Path, ins: Values, inm: Marks) -> Results:
        out, outm = super()._plain(node, path, ins, inm)
        for i in node.floats:
            kind = node.made[i].name
            if kind in (*_NARROW, "float32"):
                layer, phase, name = self._place_of(node, path)
                if phase != "update" or kind in _NARROW:
                    own = self.ranges.setdefault(kind, {})
                    own.setdefault((layer, phase), _Range(layer, phase)).add(
                        out[i], node.type, name
                    )
        return out, outm

    def _place_of(self, node: Node, path: Path) -> Tuple[str, str, str]:
        """Layer (outside of layers the operator), phase and name; "update": what becomes of the
        gradients."""
        key = (path.key, node.number)
        if key not in self._places:
            ref, names = OpRef(node, path, (), self.count), self._names
            name = names.name(ref)
            forward = names.source(ref)[1] or name
            path_of_layers = names.layers_in(forward)
            layer = "/".join(path_of_layers)
            if layer and names.layers_named(path_of_layers[-1]):
                self.layers.add(layer)
            gradient = names.is_gradient(ref)
            after = not gradient and names.works_on_gradients(ref)
            phase = "backward" if gradient else "update" if after else "forward"
            self._places[key] = layer or names.without_gradient(forward), phase, name
        return self._places[key]


def survey(step: Step, names: Names) -> Optional[Dict[str, Any]]:
    """The magnitudes of a step, as the JSON of the report's ``Headroom``; None where it has no
    floats, or takes too long.

    Args:
        step: that was examined.
        names: of its operators.

    Raises:
        CannotCollect: it can't be run in float32.
    """
    run = attempt(partial(_Survey, step, names))
    if not isinstance(run, _Survey) or not run.ranges:
        return None
    dtype = next(kind for kind in (*_NARROW, "float32") if kind in run.ranges)
    ranges = [item for item in run.ranges[dtype].values() if item.nonzero]
    if dtype not in _NARROW and run.layers:  # a policy changes layers only
        ranges = [item for item in ranges if item.layer in run.layers]
    begin = step.record.begin
    scales = [float(begin[number][1].numpy()) for number in step.scales if number in begin]
    tightest = sorted(ranges, key=lambda item: -item.largest)[:MOST_PLACES]
    kept = {id(item) for item in tightest}
    layers: List[Dict[str, Any]] = [asdict(item) for item in ranges if id(item) in kept]
    return {"dtype": dtype, "loss_scale": max(scales, default=None), "layers": layers}
