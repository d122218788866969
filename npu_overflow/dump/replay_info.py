"""What a replay writes into an operator's dump beside its tensors.

These are facts that only the training process knew. The file can come from anywhere: a value of
another kind than expected counts as absent.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Optional, Tuple

from npu_overflow.jsonform import Form, Number, accepts, one_of

__all__ = [
    *("FirstOverflow", "OriginDetail", "ReplayInfo", "TensorStatistics", "TrialInfo"),
    *("read_replay_info", "read_statistics"),
]

_FORM = Form(text=4096, whole=(-(2**63), 2**64 - 1), forgiving=True)
_FILLED = accepts(bool)
_NATURAL = accepts(lambda value: 0 <= value < 2**63)
_INDEX = accepts(lambda index: len(index) <= 64 and all(0 <= axis < 2**63 for axis in index))


@dataclass(frozen=True)
class FirstOverflow:
    """The first overflow value of a tensor, and where it stands in the original shape."""

    index: List[int] = field(metadata=_INDEX)
    value: Optional[Number] = None


@dataclass(frozen=True)
class TensorStatistics:
    """Statistics of a tensor whose values are not in the file; see the fields of ``TensorSummary``.

    Args:
        count: of elements.
    """

    min: Optional[Number] = None
    max: Optional[Number] = None
    mean: Optional[Number] = None
    count: Optional[Number] = None
    nan: Optional[Number] = None
    pos_inf: Optional[Number] = None
    neg_inf: Optional[Number] = None
    first_overflow: Optional[FirstOverflow] = None


@dataclass(frozen=True)
class OriginDetail:
    """The variable, batch or literal that overflow came from, and its first bad element."""

    name: Optional[str] = field(default=None, metadata=_FILLED)
    element: Optional[List[int]] = field(default=None, metadata=_INDEX)
    value: Optional[Number] = None


@dataclass(frozen=True)
class TrialInfo:
    """What one change of the step showed; see ``Trial`` of the report for its fields."""

    change: Optional[str] = field(
        default=None, metadata=one_of("float32", "loss_scale", "constant", "epsilon")
    )
    layers: Tuple[str, ...] = ()
    value: Optional[Number] = None
    finite: bool = False
    next: Optional[str] = None
    largest: Optional[Number] = None
    code: Tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplayInfo:
    """What only the training process knew of an operator; see the same fields of ``Operator``.

    Args:
        core: "CPU" or "GPU".
        role: "culprit", "origin", "inherited", "absorbed", or None.
        tensors: "output.0" -> statistics of a tensor that was cut.
        variables: "input.0" -> name of the variable that it was read from.
        trials: what was tried against it, of a culprit.
    """

    core: str = field(default="CPU", metadata=one_of("CPU", "GPU"))
    op_type: Optional[str] = field(default=None, metadata=_FILLED)
    op_name: Optional[str] = field(default=None, metadata=_FILLED)
    phase: Optional[str] = field(default=None, metadata=one_of("forward", "backward"))
    location: Optional[str] = field(default=None, metadata=_FILLED)
    location_kind: Optional[str] = field(default=None, metadata=one_of("call", "created", "fit"))
    source_line: Optional[str] = field(default=None, metadata=_FILLED)
    called_from: List[str] = field(default_factory=list)
    layer: Optional[str] = field(default=None, metadata=_FILLED)
    forward_op: Optional[str] = field(default=None, metadata=_FILLED)
    origin: str = field(
        default="operator", metadata=one_of("operator", "variable", "data", "constant")
    )
    origin_detail: Optional[OriginDetail] = None
    role: Optional[str] = field(
        default=None, metadata=one_of("culprit", "origin", "inherited", "absorbed")
    )
    train_step: Optional[int] = field(default=None, metadata=_NATURAL)
    cured_by_scale: Optional[bool] = None
    tensors: Mapping[str, TensorStatistics] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    trials: List[TrialInfo] = field(default_factory=list)


def read_replay_info(given: Mapping[str, Any]) -> ReplayInfo:
    """The facts in ``given``, the JSON object that lies in a dump."""
    return _FORM.read(ReplayInfo, given)


def read_statistics(given: Mapping[str, Any]) -> TensorStatistics:
    """The statistics in ``given``, such as a row of a .csv dump."""
    return _FORM.read(TensorStatistics, given)
