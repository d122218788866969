"""Steps that are recorded and interpreted directly, without a watch."""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.interpreter import Step
from npu_overflow.collect.replay.recorder import Recorder

#: for trainings that are to be collected soon
SOON = {"verbose": 0, "warmup": 0, "patience": 2, "keep": 2}
ROOM = 10**9


def recorder_around(run: Callable[[], Any], known: Iterable[Any] = (), room: int = ROOM) -> Any:
    """A recorder that saw ``run()``, and the record."""
    recorder = Recorder(room)
    recorder.on()
    try:
        recorder.begin_step(known)
        run()
        return recorder, recorder.record()
    finally:
        recorder.off()


def recorded(
    run: Callable[[], Any], model: Any = None, scale: Optional[Any] = None, **more: Any
) -> Step:
    """The step that ``run()`` is, with the weights of ``model`` as those that count.

    Args:
        scale: the variable that holds the loss scale.
    """
    known = [] if model is None else model.trainable_variables
    recorder, record = recorder_around(run, [*known, *([scale] if scale is not None else [])])
    for variable in known:
        for handle in private.handles_of(variable):
            record.variables[private.tensor_id(handle)] = variable
    scales = (
        frozenset(private.tensor_id(h) for h in private.handles_of(scale))
        if scale is not None
        else frozenset()
    )
    return Step(record, recorder.programs, scales=scales, **more)


def nothing_is_hooked() -> bool:
    """Whether TensorFlow has its own ``_call_flat`` and no callback looks at operators."""
    call_flat = private.found("concrete_function")._call_flat
    return "npu_overflow" not in call_flat.__code__.co_filename and not list(
        private.found("context")().op_callbacks
    )


def reports_of(watch: Any) -> Any:
    """Reports of a callback or of a context manager."""
    return getattr(watch, "_watch", watch).reports
