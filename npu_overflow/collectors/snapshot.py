"""Values of variables at the beginning of a call, for a replay that begins where the call began.

Weights do not move in a step that is skipped; but states do, counters and moving averages, and between several steps of one call everything.
Values are read and written through the handles of the variables themselves: a variable of several replicas would hand out, and take, a mean.
"""
from __future__ import annotations

from typing import Any, Dict, Iterable, List

from npu_overflow.collectors import compat

__all__ = ["Snapshot", "states"]

#: keeping the value of a variable that is written costs a copy. Large trainable ones are weights, which a skipped step leaves as they are.
_TRAINABLE_BYTES, _OTHER_BYTES = 1 << 16, 1 << 22


class Snapshot:
    """Variables and their values at one moment. Values share memory with the variables until these are written (copy on write)."""

    def __init__(self, values: Dict[int, Any]) -> None:
        #: by the number of the variable's handle
        self.values = values

    @classmethod
    def take(cls, variables: Iterable[Any]) -> Snapshot:
        """Read every variable once."""
        handles = {compat.tensor_id(handle): handle for variable in variables for handle in compat.handles_of(variable)}
        read = {number: compat.read_variable(handle) for number, handle in handles.items()}
        return cls({number: value for number, value in read.items() if value is not None})

    def without(self, variables: Iterable[Any]) -> Snapshot:
        """The same but for these variables."""
        left_out = {compat.tensor_id(handle) for variable in variables for handle in compat.handles_of(variable)}
        return Snapshot({number: value for number, value in self.values.items() if number not in left_out})


def states(variables: Iterable[Any], optimizers: Iterable[Any]) -> List[Any]:
    """Those of the variables that a skipped step can change: counters, states of layers, moving averages; no large weights, nothing of the
    optimizers."""
    slots = {id(slot) for optimizer in optimizers for slot in _slots(optimizer)}
    return [variable for variable in variables if id(variable) not in slots and _is_state(variable)]


def _is_state(variable: Any) -> bool:
    try:
        count = 4
        for n in variable.shape:
            count *= int(n or 1)
        return count <= (_TRAINABLE_BYTES if getattr(variable, "trainable", False) else _OTHER_BYTES)
    except (TypeError, ValueError):  # a shape that is not known
        return False


def _slots(optimizer: Any) -> List[Any]:
    """The variables of an optimizer, and those behind Keras 3's."""
    try:
        found = optimizer.variables
        found = list(found() if callable(found) else found)
    except Exception:  # an optimizer of the user's own, not built
        return []
    return found + [variable._value for variable in found if hasattr(variable, "_value")]
