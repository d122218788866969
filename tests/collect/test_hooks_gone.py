"""What a watch replaces in TensorFlow and Keras is the very same object again afterwards."""

from __future__ import annotations

import contextlib
from typing import Any, Callable, Dict, List

import pytest
import test_loops
import training
from records import SOON, nothing_is_hooked

import npu_overflow
from npu_overflow.collect.replay import tensorflow as private

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS, HOT = 20, list(range(10, 20))


def places() -> Dict[str, Any]:
    """Everything that can be replaced, as it is now."""
    import tensorflow as tf

    call_flat = private.found("concrete_function")._call_flat
    found: Dict[str, Any] = {"tape": vars(tf.GradientTape)["gradient"], "concrete": call_flat}
    found["function"] = vars(private.found("function_class"))["__call__"]
    scaling = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.Adam())
    inner = getattr(scaling, "inner_optimizer", scaling)
    for kind in {*type(scaling).__mro__, *type(inner).__mro__} - {object}:
        for name in ("apply", "apply_gradients", "__init__"):
            found["%s.%s.%s" % (kind.__module__, kind.__qualname__, name)] = vars(kind).get(name)
    return found


def changed(before: Dict[str, Any]) -> List[str]:
    """Places that hold another object than before."""
    now = places()
    return [name for name, value in before.items() if now[name] is not value]


def fit(watches: List[Any], fails: Callable[[], None]) -> None:
    import tensorflow as tf

    class Ends(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == HOT[0] + 6:
                fails()

    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(STEPS, HOT)
    model.fit(
        x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=watches + [Ends()]
    )


def loop(fails: Callable[[], None]) -> None:
    custom = test_loops.Loop(training.set_up())
    step = custom.tf.function(custom.step)
    x, y = training.data(STEPS, HOT)
    for number in range(STEPS):
        part = slice(number * training.BATCH, (number + 1) * training.BATCH)
        step(custom.tf.constant(x[part]), custom.tf.constant(y[part]))
        if number == HOT[0] + 6:
            fails()


def fit_in_dump(fails: Callable[[], None]) -> List[Any]:
    watch = npu_overflow.OverflowWatch(**SOON)
    with npu_overflow.overflow_dump(**SOON) as outer:
        try:
            fit([watch], fails)
        finally:
            watch._session.end(failed=True)  # the end of the process would
    return [outer, watch]


def dump_in_fit(fails: Callable[[], None]) -> List[Any]:
    import tensorflow as tf

    inner: List[Any] = []

    class Loops(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                with npu_overflow.overflow_dump(**SOON) as watch:
                    inner.append(watch)
                    loop(lambda: None)

    watch = npu_overflow.OverflowWatch(**SOON)
    try:
        fit([watch, Loops()], fails)
    finally:
        watch._session.end(failed=True)
    return [*inner, watch]


def dump_in_dump(fails: Callable[[], None]) -> List[Any]:
    with npu_overflow.overflow_dump(**SOON) as outer, npu_overflow.overflow_dump(**SOON) as inner:
        loop(fails)
    return [outer, inner]


def outer_ends_first(fails: Callable[[], None]) -> List[Any]:
    outer, inner = npu_overflow.overflow_dump(**SOON), npu_overflow.overflow_dump(**SOON)
    watches = [outer.__enter__(), inner.__enter__()]
    try:
        loop(fails)
    finally:
        outer.__exit__(None, None, None)
        inner.__exit__(None, None, None)
    return watches


def two_watches(fails: Callable[[], None]) -> List[Any]:
    watches = [npu_overflow.OverflowWatch(**SOON), npu_overflow.OverflowWatch(**SOON)]
    try:
        fit(watches, fails)
    finally:
        for watch in watches:
            watch._session.end(failed=True)
    return watches


class Mine(Exception):
    """The user's own."""


def raises(error: BaseException) -> Callable[[], None]:
    def fails() -> None:
        raise error

    return fails


KINDS = [fit_in_dump, dump_in_fit, dump_in_dump, outer_ends_first, two_watches]
INTERRUPTED = (dump_in_fit, outer_ends_first)
ENDS = {"normal": None, "error": Mine("x"), "interrupt": KeyboardInterrupt()}


@pytest.fixture(scope="module")
def loaded() -> None:
    """Every class that will be replaced is loaded, and TensorFlow has set itself up."""
    loop(lambda: None)
    training.tear_down(__import__("tensorflow").keras)


@pytest.mark.parametrize(
    ("kind", "end"),
    [(kind, end) for kind in KINDS for end in ENDS if end != "interrupt" or kind in INTERRUPTED],
    ids=lambda item: getattr(item, "__name__", item),
)
def test_nested_watches_leave_nothing_behind(kind: Any, end: str, loaded: None) -> None:
    error = ENDS[end]
    before = places()
    watches: List[Any] = []
    with pytest.raises(type(error)) if error is not None else contextlib.nullcontext():
        watches = kind(raises(error) if error is not None else lambda: None)
    assert changed(before) == [] and nothing_is_hooked()
    assert npu_overflow.training.session.active() == []
    if error is None:
        assert len(watches) == 2
        assert [training.named(watch.reports[0].first) for watch in watches] == [
            "net/hot/MatMul"
        ] * 2
