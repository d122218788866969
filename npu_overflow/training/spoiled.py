"""State beside the weights that a skipped step has spoiled all the same: moving statistics, running
averages, accumulators. Nothing takes that back."""
from __future__ import annotations

import contextlib
import re
import weakref
from typing import Any, Dict, Iterable, List, NamedTuple, Optional

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.finite import Asked
from npu_overflow.collect.replay.names import variable_name

__all__ = ["Spoiled", "StateVariables", "non_finite"]

#: a tf.function has made all its variables, and traced for them, by its third call
_TRACED = 3
_OF_NORMALIZATION = re.compile(r"moving_(mean|variance)$")
#: never meant to hold Inf; other state, such as the best loss so far, may begin with it
_STATISTICS = re.compile(r"moving_|averag|accum|exponential|(^|[/_])ema([/_]|$)")


class Spoiled(NamedTuple):
    """Variables that are not finite: the name of the first, how many, and whether it is a moving
    statistic of a normalization."""

    name: str
    number: int
    of_normalization: bool

    @property
    def code(self) -> str:
        """Of the sentence that says so, and what to do."""
        return "watch.spoiled" + (".normalization" if self.of_normalization else "")

    @property
    def values(self) -> Dict[str, Any]:
        """What that sentence mentions."""
        return {"name": self.name, "count": self.number}


class StateVariables:
    """The variables that a training writes besides its weights, as far as they are known: those of
    the model in ``fit``, and those that the tf.functions of a loop use."""

    def __init__(self) -> None:
        self._calls: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._known: Dict[int, Optional[weakref.ReferenceType[Any]]] = {}  # None: began non-finite

    def of_model(self, model: Any) -> None:
        """Take the state of a Keras model; what is not finite now is nobody's fault."""
        with contextlib.suppress(Exception):  # not built yet, or no model of Keras'
            self._take(model.non_trainable_weights if model is not None else ())

    def of_call(self, call: Any) -> None:
        """A tf.function of a loop was called: take the state that it uses, once."""
        count = self._calls[call.function] = self._calls.get(call.function, 0) + 1
        if count == _TRACED:
            # of arguments that only a call converts it has none; less is known then
            with contextlib.suppress(Exception):
                concrete = call.function.get_concrete_function(*call.args, **call.kwargs)
                variables = concrete.graph.variables
                self._take(item for item in variables if not getattr(item, "trainable", True))

    def _take(self, variables: Iterable[Any]) -> None:
        new = {private.tensor_id(h): v for v in variables for h in private.handles_of(v)}
        new = {number: item for number, item in new.items() if number not in self._known}
        bad = {id(item) for item in non_finite(new.values())}
        for number, item in new.items():
            began_bad = id(item) in bad and not _STATISTICS.search(variable_name(item))
            self._known[number] = None if began_bad else weakref.ref(item)

    def spoiled(self, model: Any) -> Optional[Spoiled]:
        """What of it is not finite now; ``model``: that in ``fit``, or None."""
        self.of_model(model)
        found = (ref() for ref in self._known.values() if ref is not None)
        bad = non_finite(item for item in found if item is not None)
        if not bad:
            return None
        names = sorted(map(variable_name, bad))
        return Spoiled(names[0], len(names), bool(_OF_NORMALIZATION.search(names[0])))


def non_finite(variables: Iterable[Any]) -> List[Any]:
    """Those of some variables that hold Inf or NaN; on an accelerator in one read."""
    asked, answers = Asked(), []
    for item in variables:
        for number, handle in private.handles_by_number([item]).items():
            value = private.read_variable(handle)
            if value is not None:
                answers.append((item, value, number, asked(value, number)))
    known = asked.answers()
    return [item for item, value, number, ok in answers if not (ok and known(value, number))]
