"""The training is as without the watch: no Python of the user runs twice, nothing is written."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import pytest
import test_loops
import training
from records import ROOM, SOON, nothing_is_hooked, recorded, reports_of

import npu_overflow
from npu_overflow.collect.replay import interpreter
from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.blame import examine
from npu_overflow.training.loss_scale import reader_for

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS, HOT = 18, list(range(8, 18))


class Traces:
    """What a layer leaves behind in Python and in files."""

    def __init__(self) -> None:
        import tensorflow as tf

        self.calls = 0
        self.drawn: List[float] = []
        self.numbers = np.random.default_rng(5)
        self.generator = tf.random.Generator.from_seed(9)
        self.printed = Path("printed.txt")
        if self.printed.exists():
            self.printed.unlink()
        random.seed(3)
        np.random.seed(3)
        tf.random.set_seed(3)

    def all(self) -> Dict[str, Any]:
        """Counts, draws and output, and what each generator would draw next."""
        import tensorflow as tf

        lines = self.printed.read_text().splitlines() if self.printed.exists() else []
        ends = [random.random(), np.random.rand(), self.numbers.random()]
        ends += [float(tf.random.uniform([])), *self.generator.state.numpy().tolist()]
        return {"calls": self.calls, "drawn": self.drawn, "printed": lines, "ends": ends}


def noisy_layer(keras: Any, traces: Traces) -> Any:
    """A layer with every side effect that Python allows; it hands on what it was given."""
    import tensorflow as tf

    seeds = keras.random.SeedGenerator(4) if hasattr(keras, "ops") else None

    class Noisy(keras.layers.Layer):  # type: ignore[misc, name-defined]
        __slots__ = ("hidden",)

        def call(self, x: Any) -> Any:
            traces.calls += 1
            self.hidden = traces.calls
            traces.drawn += [random.random(), np.random.rand(), traces.numbers.random()]
            print("called", traces.calls)
            drawn = [
                tf.random.normal([]),
                tf.random.uniform([], seed=2),
                traces.generator.normal([]),
            ]
            if seeds is not None:
                drawn.append(keras.random.uniform([], seed=seeds, dtype="float32"))
            tf.print("drawn", *drawn, output_stream="file://" + str(traces.printed.resolve()))
            return x + 0.001 * tf.cast(tf.tanh(tf.add_n(drawn)), x.dtype)

        def compute_output_shape(self, shape: Any) -> Any:
            return shape

    return Noisy(name="noisy")


def noisy(keras: Any, traces: Traces) -> Any:
    inputs = keras.Input((training.FEATURES,))
    h = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    h = noisy_layer(keras, traces)(keras.layers.Dropout(0.3, seed=5)(h))
    h = keras.layers.Dense(6, name="hot")(h)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")


def by_fit(model: Any, keras: Any, watch: Optional[Any], eager: bool) -> List[Any]:
    training.compiled(model, keras, run_eagerly=eager)
    training.weights(model)
    x, y = training.data(STEPS, HOT)
    callbacks = [watch] if watch is not None else []
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    return training.state(model)


def by_loop(model: Any, keras: Any, watch: Optional[Any], eager: bool) -> List[Any]:
    loop = test_loops.Loop(keras, model)
    step = loop.step if eager else loop.tf.function(loop.step)
    x, y = (loop.tf.constant(part) for part in training.data(STEPS, HOT))
    with watch or contextlib.nullcontext():
        for i in range(0, STEPS * training.BATCH, training.BATCH):
            step(x[i : i + training.BATCH], y[i : i + training.BATCH])
    return loop.weights()


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("run", [by_fit, by_loop], ids=lambda run: run.__name__)
def test_no_python_of_the_user_runs_a_second_time(run: Any, eager: bool, capsys: Any) -> None:
    seen = []
    for watched in (False, True):
        keras = training.set_up()
        made = npu_overflow.OverflowWatch if run is by_fit else npu_overflow.overflow_dump
        watch = made(**SOON) if watched else None
        traces = Traces()
        model = noisy(keras, traces)
        traces.calls = 0
        traces.drawn.clear()
        weights = run(model, keras, watch, eager)
        said = [line for line in capsys.readouterr().out.splitlines() if "called" in line]
        seen.append((traces.all(), said, weights))
    reports = reports_of(watch)
    assert [training.named(report.first).split("/")[-2:] for report in reports[:1]] == [
        ["hot", "MatMul"]
    ]
    (plain, said, weights), (traces_too, said_too, weights_too) = seen
    assert traces_too == plain and said_too == said and training.same(weights, weights_too)
    assert len(plain["printed"]) == STEPS and plain["calls"] == len(plain["drawn"]) / 3
    assert (plain["calls"] == STEPS) is eager


def test_a_step_that_prints_and_writes_summaries_is_collected_and_says_all_once() -> None:
    import tensorflow as tf

    keras = training.set_up()
    loop = test_loops.Loop(keras)
    printed = Path("printed.txt").resolve()
    writer = tf.summary.create_file_writer("board")

    @tf.function
    def step(x: Any, y: Any, number: Any) -> None:
        tf.print("step", number, output_stream="file://" + str(printed))
        tf.debugging.assert_equal(tf.shape(x)[0], training.BATCH)
        with writer.as_default(step=number):
            tf.summary.scalar("largest", tf.reduce_max(x))
        loop.step(x, y)

    x, y = training.data(STEPS, HOT)
    with npu_overflow.overflow_dump(**SOON) as watch:
        for i in range(STEPS):
            part = slice(i * training.BATCH, (i + 1) * training.BATCH)
            step(tf.constant(x[part]), tf.constant(y[part]), tf.constant(i, tf.int64))
    writer.close()
    assert [training.named(report.first) for report in watch.reports[:1]] == ["net/hot/MatMul"]
    assert printed.read_text().split() == [word for i in range(STEPS) for word in ("step", str(i))]
    events = [
        e
        for path in Path("board").iterdir()
        for e in tf.compat.v1.train.summary_iterator(str(path))
    ]
    assert [event.step for event in events if event.summary.value] == list(range(STEPS))


# --- variables


class Reading:
    """A thread that reads variables all the time and notes each that differs from what it was."""

    def __init__(self, variables: List[Any]) -> None:
        handles = [handle for variable in variables for handle in private.handles_of(variable)]
        self.begin = {private.tensor_id(handle): self._bytes(handle) for handle in handles}
        self.rounds, self.changed, self.errors = 0, [], []  # type: ignore[var-annotated]
        self._handles, self._stop = handles, threading.Event()
        self._thread = threading.Thread(target=self._read)

    @staticmethod
    def _bytes(handle: Any) -> bytes:
        value: bytes = private.read_variable(handle).numpy().tobytes()
        return value

    def _read(self) -> None:
        try:
            while not self._stop.is_set():
                for handle in self._handles:
                    if self._bytes(handle) != self.begin[private.tensor_id(handle)]:
                        self.changed.append(private.tensor_id(handle))
                self.rounds += 1
        except BaseException as error:
            self.errors.append(error)

    def __enter__(self) -> Reading:
        self._interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._interval)


def addresses(variables: List[Any]) -> List[Any]:
    """Handles of variables, values, and where their memory lies: any assignment moves it."""
    handles = [handle for variable in variables for handle in private.handles_of(variable)]
    found = []
    for handle in handles:
        view = np.asarray(private.host_view(private.read_variable(handle)))
        lies = (
            view.__array_interface__["data"][0] if view.ndim else None
        )  # NumPy copies single numbers
        found.append((id(handle), view.tobytes(), lies))
    return found


def hot_step(eager: bool) -> Any:
    """A loop, its recorded overflowing step, and all variables of it."""
    import tensorflow as tf

    loop = test_loops.Loop(training.set_up())
    generator, counter = tf.random.Generator.from_seed(1), tf.Variable(0)

    def whole(x: Any, y: Any) -> None:
        counter.assign_add(1)
        loop.step(x + 0.0 * generator.normal(x.shape), y)

    step = whole if eager else tf.function(whole)
    x, y = training.data(2, [1])
    step(tf.constant(x[:8]), tf.constant(y[:8]))
    reader = reader_for(loop.optimizer)
    found = recorded(
        lambda: step(tf.constant(x[8:]), tf.constant(y[8:])), loop.model, reader.scale_variable()
    )
    optimizers = [loop.optimizer, getattr(loop.optimizer, "inner_optimizer", loop.optimizer)]
    variables = [*loop.model.variables, *reader.state_variables(), generator.state, counter]
    for optimizer in optimizers:
        variables += optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    assert len(variables) > 12
    return loop, found, variables


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_no_variable_is_written_not_even_for_a_moment(eager: bool) -> None:
    _loop, step, variables = hot_step(eager)
    before = addresses(variables)
    with Reading(variables) as reading:
        runs = 0
        while reading.rounds < 100 or runs < 5:
            found = examine(step, ROOM)
            assert found.culprit is not None and found.culprit.op.type == "MatMul"
            runs += 1
            assert not reading.errors, reading.errors
    assert reading.changed == []
    assert addresses(variables) == before


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize(
    "error", [ValueError("injected"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
def test_a_run_that_ends_anywhere_has_written_nothing(
    error: BaseException, eager: bool, monkeypatch: Any
) -> None:
    _loop, step, variables = hot_step(eager)
    before, ends = addresses(variables), [0]
    total = examine(step, ROOM).operators
    step.most_nodes = None
    real = interpreter.Interpreter._node

    def node(run: Any, *args: Any) -> Any:
        if run.count == ends[0]:
            raise error
        return real(run, *args)

    monkeypatch.setattr(interpreter.Interpreter, "_node", node)
    for ends[0] in range(0, total, max(1, total // 40)):
        with contextlib.suppress(npu_overflow.CannotCollect, KeyboardInterrupt):
            examine(step, ROOM)
    assert addresses(variables) == before


# --- failures in the middle


class Breaks:
    """Makes the interpreter raise in the middle of each run."""

    def __init__(self, error: BaseException, monkeypatch: Any, after: int = 25) -> None:
        self.raised, real = 0, interpreter.Interpreter._node

        def node(run: Any, *args: Any) -> Any:
            if run.count >= after:  # entries that are taken as they were count without coming here
                self.raised += 1
                raise error
            return real(run, *args)

        monkeypatch.setattr(interpreter.Interpreter, "_node", node)


def in_fit(
    watch: Optional[Any], eager: bool, steps: int, began: Callable[[int], None]
) -> List[Any]:
    keras = training.set_up()

    class Began(keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            began(batch)

    model = training.compiled(training.functional(keras), keras, run_eagerly=eager)
    training.weights(model)
    x, y = training.data(STEPS, HOT)
    x, y = x[: steps * training.BATCH], y[: steps * training.BATCH]
    callbacks = [Began()] + ([watch] if watch else [])
    try:
        model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    finally:
        MODELS[:] = [model]
    return training.state(model)


def in_loop(
    watch: Optional[Any], eager: bool, steps: int, began: Callable[[int], None]
) -> List[Any]:
    keras = training.set_up()
    loop = test_loops.Loop(keras)
    MODELS[:] = [loop]
    step = loop.step if eager else loop.tf.function(loop.step)
    x, y = training.data(STEPS, HOT)
    with watch or contextlib.nullcontext():
        for i in range(steps):
            began(i)
            part = slice(i * training.BATCH, (i + 1) * training.BATCH)
            step(loop.tf.constant(x[part]), loop.tf.constant(y[part]))
    return loop.weights()


MODELS: List[Any] = []


def weights_now() -> List[Any]:
    (model,) = MODELS
    return (
        model.weights()
        if isinstance(model, test_loops.Loop)
        else [np.array(w) for w in model.get_weights()]
    )


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("run", [in_fit, in_loop], ids=lambda run: run.__name__)
def test_an_exception_in_the_middle_of_an_interpretation_is_ours(
    run: Any, eager: bool, monkeypatch: Any
) -> None:
    plain = run(None, eager, STEPS, lambda batch: None)
    broken = Breaks(MemoryError("injected"), monkeypatch)
    watch = (
        npu_overflow.OverflowWatch(**SOON) if run is in_fit else npu_overflow.overflow_dump(**SOON)
    )
    assert training.same(plain, run(watch, eager, STEPS, lambda batch: None))
    report = reports_of(watch)[0]
    assert broken.raised and report.first is None and report.reason == "replay.raised"
    assert any(
        "MemoryError" in remark.text and "injected" in remark.text for remark in report.remarks
    )
    assert nothing_is_hooked() and npu_overflow.training.session.active() == []


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("run", [in_fit, in_loop], ids=lambda run: run.__name__)
def test_an_interrupt_in_the_middle_of_an_interpretation_is_the_users(
    run: Any, eager: bool, monkeypatch: Any
) -> None:
    begun: List[int] = []
    with monkeypatch.context() as patched:
        broken = Breaks(KeyboardInterrupt(), patched)
        watch = (
            npu_overflow.OverflowWatch(**SOON)
            if run is in_fit
            else npu_overflow.overflow_dump(**SOON)
        )
        with pytest.raises(KeyboardInterrupt):
            run(watch, eager, STEPS, begun.append)
    assert broken.raised == 1 and HOT[0] < begun[-1] < STEPS - 1
    weights = weights_now()
    if run is in_fit:
        watch._session.end(failed=True)  # as at the end of the process
    assert nothing_is_hooked() and npu_overflow.training.session.active() == []
    run(None, eager, begun[-1] + 1, lambda batch: None)
    assert training.same(weights, weights_now())


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
@pytest.mark.parametrize("run", [in_fit, in_loop], ids=lambda run: run.__name__)
def test_an_error_of_the_users_own_step_passes_and_leaves_no_hook(
    run: Any, eager: bool, monkeypatch: Any
) -> None:
    import tensorflow as tf

    class Mine(Exception):
        pass

    real, hot = training.data, HOT[0] + 5

    def data(*args: Any) -> Any:
        x, y = real(*args)
        x[hot * training.BATCH :, 0] = -1.0
        return x, y

    def functional(keras: Any) -> Any:
        class Checks(keras.layers.Layer):  # type: ignore[misc, name-defined]
            def call(self, x: Any) -> Any:
                if not eager:
                    with tf.control_dependencies([tf.debugging.assert_non_negative(x)]):
                        return tf.identity(x)
                if tf.executing_eagerly() and float(x[0, 0]) < 0:
                    raise Mine("the user's own")
                return x

            def compute_output_shape(self, shape: Any) -> Any:
                return shape

        inputs = keras.Input((training.FEATURES,))
        h = keras.layers.Dense(8, name="first")(Checks(dtype="float32")(inputs))
        h = keras.layers.Dense(6, name="hot")(h)
        return keras.Model(
            inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net"
        )

    monkeypatch.setattr(training, "data", data)
    monkeypatch.setattr(training, "functional", functional)
    watch = (
        npu_overflow.OverflowWatch(**SOON, max_reports=1)
        if run is in_fit
        else npu_overflow.overflow_dump(**SOON)
    )
    begun: List[int] = []
    with pytest.raises(
        Mine if eager else tf.errors.InvalidArgumentError, match=r"not hold|the user's own"
    ):
        run(watch, eager, STEPS, begun.append)
    assert begun[-1] == hot
    if run is in_fit:
        watch._session.end(failed=True)
    assert nothing_is_hooked() and npu_overflow.training.session.active() == []
    reports = reports_of(watch)
    assert [training.named(report.first).split("/")[-2:] for report in reports[:1]] == [
        ["hot", "MatMul"]
    ]
