"""What the host collector wrote into an operator's dump, checked value by value: the file can come from anywhere."""
from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Union

__all__ = ["HostFacts", "checked_number", "host_facts"]

_ORIGINS = ("operator", "variable", "data", "constant")
_ROLES = ("culprit", "origin", "inherited", "absorbed")
_KINDS = ("call", "created", "fit")
_WORDS = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_LONGEST = 4096


@dataclass(frozen=True)
class HostFacts:
    """What only the training process knew of an operator. See the fields of the same names in ``Operator``.

    Args:
        core: "CPU" or "GPU".
        role: "culprit", "origin", "inherited", "absorbed", or None.
        tensors: "output.0" -> statistics of a tensor that was cut.
        variables: "input.0" -> name of the variable that it was read from.
    """

    core: str
    op_type: Optional[str] = None
    op_name: Optional[str] = None
    phase: Optional[str] = None
    location: Optional[str] = None
    location_kind: Optional[str] = None
    forward_op: Optional[str] = None
    origin: str = "operator"
    origin_detail: Optional[Mapping[str, Any]] = None
    role: Optional[str] = None
    train_step: Optional[int] = None
    cured_by_scale: Optional[bool] = None
    tensors: Mapping[str, Dict[str, Any]] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)


def host_facts(given: Mapping[str, Any]) -> HostFacts:
    """The facts in ``given``; a value of another kind than expected counts as absent."""
    tensors, variables = given.get("tensors"), given.get("variables")
    return HostFacts(
        core="GPU" if given.get("core") == "GPU" else "CPU",
        op_type=_text(given.get("op_type")),
        op_name=_text(given.get("op_name")),
        phase=_one_of(given.get("phase"), ("forward", "backward")),
        location=_text(given.get("location")),
        location_kind=_one_of(given.get("location_kind"), _KINDS),
        forward_op=_text(given.get("forward_op")),
        origin=_one_of(given.get("origin"), _ORIGINS) or "operator",
        origin_detail=_detail(given.get("origin_detail")),
        role=_one_of(given.get("role"), _ROLES),
        train_step=_whole(given.get("train_step")),
        cured_by_scale=given.get("cured_by_scale") if isinstance(given.get("cured_by_scale"), bool) else None,
        tensors={name: _statistics(item) for name, item in tensors.items() if isinstance(item, dict)} if isinstance(tensors, dict) else {},
        variables={place: name for place, name in variables.items() if isinstance(name, str)} if isinstance(variables, dict) else {},
    )


def _text(value: Any) -> Optional[str]:
    return value[:_LONGEST] if isinstance(value, str) and value else None


def _one_of(value: Any, accepted: Any) -> Optional[str]:
    return value if isinstance(value, str) and value in accepted else None


def _whole(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def checked_number(value: Any) -> Optional[Union[bool, int, float]]:
    """A number from outside, the words "inf", "-inf" and "nan" included, or None; integers beyond 64 bits become floats."""
    if isinstance(value, str):
        return _WORDS.get(value)
    if isinstance(value, (bool, float)):
        return value
    if not isinstance(value, int):
        return None
    if -(2**63) <= value < 2**64:
        return value
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _index(value: Any) -> Optional[List[int]]:
    if isinstance(value, (list, tuple)) and len(value) <= 64 and all(_whole(item) is not None for item in value):
        return list(value)
    return None


def _detail(value: Any) -> Optional[Mapping[str, Any]]:
    """{"name", "element", "value"} of an origin that is no operator."""
    if not isinstance(value, dict):
        return None
    return {"name": _text(value.get("name")), "element": _index(value.get("element")), "value": checked_number(value.get("value"))}


def _statistics(value: Mapping[str, Any]) -> Dict[str, Any]:
    """Statistics of one tensor as ``statistics.with_statistics`` takes them."""
    result: Dict[str, Any] = {name: checked_number(value.get(name)) for name in ("min", "max")}
    result["mean"] = checked_number(value.get("mean"))
    result.update({name: _whole(value.get(name)) for name in ("count", "nan", "pos_inf", "neg_inf")})
    first = value.get("first_overflow")
    if isinstance(first, dict) and _index(first.get("index")) is not None:
        result["first_overflow"] = {"index": _index(first["index"]), "value": checked_number(first.get("value"))}
    return result
