"""Whatever a watch replaces in TensorFlow and Keras is the very same object again afterwards: nested, interrupted, left by an error."""
from __future__ import annotations

import contextlib
import inspect
import threading
from typing import Any, Callable, Dict, List

import pytest
import test_loops
import training

import npu_overflow
from npu_overflow.collectors import compat
from npu_overflow.collectors.hooks import Hooks, Watcher

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS = 48


def places() -> Dict[str, Any]:
    """Everything that can be replaced, as it is now."""
    import tensorflow as tf

    internals = compat.internals()
    found: Dict[str, Any] = {"tape": vars(tf.GradientTape)["gradient"]}
    for key, (module, attribute, _) in internals._found.items():
        found[key] = getattr(module, attribute)
    found["function"] = vars(internals.get("function_class"))["__call__"]
    found["scope"] = vars(internals.get("scope_class"))["__enter__"]
    for place in compat.loop_places():
        found["loop " + place.__name__] = place.while_loop
    for kind in compat.iter_optimizer_classes():
        for name in ("apply", "apply_gradients", "__init__"):
            found["%s.%s.%s" % (kind.__module__, kind.__qualname__, name)] = vars(kind).get(name)
    return found


def changed(before: Dict[str, Any]) -> List[str]:
    """Places that hold another object than before."""
    now = places()
    return [name for name, value in before.items() if now[name] is not value] + [name for name in now if name not in before]


def gradients_are_right() -> bool:
    """The one thing that can't be looked up: the gradient function that the tape was given."""
    import tensorflow as tf

    with tf.GradientTape() as tape:
        x = tf.constant(3.0)
        tape.watch(x)
        y = x * x
    return float(tape.gradient(y, x)) == 6.0


class Failing:
    """Calls ``fails()`` once, while both watches are collecting."""

    def __init__(self, fails: Callable[[], None]) -> None:
        self.fails, self.replaced = fails, 0


def fit(watches: List[Any], fails: Callable[[], None]) -> None:
    import tensorflow as tf

    class Ends(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == training.HOT_FROM + 6:
                fails()

    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(STEPS, list(range(training.HOT_FROM, STEPS)))
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=watches + [Ends()])


def loop(fails: Callable[[], None]) -> None:
    custom = test_loops.Loop(training.set_up())
    step = custom.tf.function(custom.step)
    for number, (x, y) in enumerate(custom.batches()):
        step(x, y)
        if number == training.HOT_FROM + 6:
            fails()


def fit_in_dump(fails: Callable[[], None]) -> List[Any]:
    watch = npu_overflow.OverflowWatch(verbose=0)
    with npu_overflow.overflow_dump(verbose=0) as outer:
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
                with npu_overflow.overflow_dump(verbose=0) as watch:
                    inner.append(watch)
                    loop(lambda: None)

    watch = npu_overflow.OverflowWatch(verbose=0)
    try:
        fit([watch, Loops()], fails)
    finally:
        watch._session.end(failed=True)
    return [*inner, watch]


def dump_in_dump(fails: Callable[[], None]) -> List[Any]:
    with npu_overflow.overflow_dump(verbose=0) as outer, npu_overflow.overflow_dump(verbose=0) as inner:
        loop(fails)
    return [outer, inner]


def outer_ends_first(fails: Callable[[], None]) -> List[Any]:
    outer, inner = npu_overflow.overflow_dump(verbose=0), npu_overflow.overflow_dump(verbose=0)
    watches = [outer.__enter__(), inner.__enter__()]
    try:
        loop(fails)
    finally:
        outer.__exit__(None, None, None)
        inner.__exit__(None, None, None)
    return watches


def two_watches(fails: Callable[[], None]) -> List[Any]:
    watches = [npu_overflow.OverflowWatch(verbose=0), npu_overflow.OverflowWatch(verbose=0)]
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
ENDS = {"normal": None, "error": Mine("x"), "interrupt": KeyboardInterrupt()}


@pytest.fixture(scope="module")
def loaded() -> None:
    """Every class that will be replaced is loaded, and TensorFlow has set itself up."""
    fit([], lambda: None)
    loop(lambda: None)
    training.tear_down(__import__("tensorflow").keras)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_nested_watches_leave_nothing_behind(kind: Any, end: str, loaded: None) -> None:
    error = ENDS[end]
    before = places()
    watches: List[Any] = []
    with pytest.raises(type(error)) if error is not None else contextlib.nullcontext():
        watches = kind(raises(error) if error is not None else lambda: None)
    assert changed(before) == []
    assert gradients_are_right()
    assert npu_overflow.session.active() == []
    if error is None:
        assert len(watches) == 2
        assert [[report.first.op_name for report in watch.reports] for watch in watches] == [["net/hot/MatMul"]] * 2


def parameters(function: Any) -> Any:
    """Names that a function takes as keywords; None where it takes any, or doesn't say."""
    try:
        found = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(each.kind is each.VAR_KEYWORD for each in found):
        return None
    return {each.name for each in found if each.kind is not each.POSITIONAL_ONLY} - {"self"}


def test_what_stands_in_takes_the_keywords_of_what_it_replaces() -> None:
    training.set_up()
    before = places()
    with Hooks(Watcher()):
        during = places()
    replaced = {name: (before[name], value) for name, value in during.items() if name in before and before[name] is not value}
    assert {"execute", "record_operation", "record_gradient", "open_scope", "tape", "function"} <= set(replaced)
    wanting = {
        name: sorted((parameters(real) or set()) - parameters(stand_in))
        for name, (real, stand_in) in replaced.items()
        if parameters(stand_in) is not None and not (parameters(real) or set()) <= parameters(stand_in)
    }
    assert wanting == {}


def test_a_function_is_traced_on_another_thread_meanwhile() -> None:
    import tensorflow as tf

    training.set_up()
    variable = tf.Variable(2.0)
    results: List[Any] = []

    def trace() -> None:
        try:
            function = tf.function(lambda values: values * variable)
            with tf.GradientTape() as tape:
                product = function(tf.ones((3,)))
            results.append(float(tape.gradient(product, variable)))
        except BaseException as error:
            results.append(error)

    with Hooks(Watcher()):
        thread = threading.Thread(target=trace)
        thread.start()
        thread.join()
    assert results == [3.0]
