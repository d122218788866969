"""How near layers come to float16's limits: from the survey of a step, or from the tensors of the
operators in a dump."""
from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Dict, Iterable, List, Optional, Tuple

from npu_overflow import jsonform
from npu_overflow.analysis.runfacts import folders_of
from npu_overflow.analysis.state import State
from npu_overflow.dump.files import read_small
from npu_overflow.dump.names import SURVEY_FILE
from npu_overflow.report.model import Headroom, LayerRange, Operator, TensorSummary

__all__ = ["measure"]

_LARGEST = 65504.0  # of float16
_MOST_BYTES = 4 * 2**20
_FORM = jsonform.Form(text=4096, items=20_000, whole=(0, 2**63))


def measure(state: State) -> None:
    """Take the survey that lies in one of the time folders, the last one; of an NPU's dump, the
    magnitudes of its operators."""
    for _, folder in sorted(folders_of(state.tree), key=lambda pair: pair[1], reverse=True):
        state.headroom = _read(os.path.join(folder, SURVEY_FILE))
        if state.headroom is not None:
            return
    layers = () if state.is_of_host else tuple(_of_operators(state.described))
    state.headroom = Headroom(layers) if layers else None


def _read(path: str) -> Optional[Headroom]:
    """A survey's file; None where there is none, or it is no survey: it can come from anywhere."""
    try:
        found = _FORM.read(Headroom, jsonform.parse(read_small(path, _MOST_BYTES)))
    except (OSError, ValueError):
        return None
    layers = (item for item in found.layers if 0 < item.largest < math.inf)
    return replace(found, layers=tuple(map(_with_headroom, layers)))


def _with_headroom(item: LayerRange) -> LayerRange:
    return replace(item, headroom_log2=math.log2(_LARGEST / item.largest))


def _of_operators(operators: Iterable[Operator]) -> List[LayerRange]:
    """The largest magnitude that each operator takes or makes in float16."""
    found: Dict[Tuple[str, str], LayerRange] = {}
    for operator in operators:
        tensors = (*(operator.inputs or ()), *(operator.outputs or ()))
        largest = max(map(_largest, tensors), default=0.0)
        if operator.op_name and largest:
            phase = "backward" if "gradient" in operator.op_name else "forward"
            key = operator.op_name, phase
            if key not in found or found[key].largest < largest:
                name, kind = operator.op_name, operator.op_type or ""
                made = LayerRange(name, phase, largest, None, kind, name)
                found[key] = _with_headroom(made)
    return list(found.values())


def _largest(tensor: TensorSummary) -> float:
    """The largest finite magnitude of a float16 tensor, from its headroom; else 0."""
    if tensor.dtype != "float16" or tensor.headroom_log2 is None:
        return 0.0
    return float(_LARGEST / 2**tensor.headroom_log2)
