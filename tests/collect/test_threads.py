"""What other threads run while a step is collected: pipelines in Python, operators of the user's own, evaluation. It runs through untouched."""
from __future__ import annotations

import os
import random
import threading
import time
from typing import Any, Callable, List, Optional, Set, Tuple

import numpy as np
import pytest
import training
from records import SOON

import npu_overflow
from npu_overflow.collect.replay.recorder import Recorder

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS = 24
HOT = list(range(12, STEPS))


class Beside:
    """Something that another thread does: what it computed, and the numbers of its tensors."""

    def __init__(self) -> None:
        self.results: Set[Any] = set()
        self.tensors: Set[int] = set()
        self.threads: Set[int] = set()

    def inf(self, values: Any) -> Any:
        """A result full of Inf and NaN, by an operator that the trained model has none of."""
        import tensorflow as tf

        self.threads.add(threading.get_ident())
        given = tf.constant(values)
        with tf.GradientTape() as tape:
            tape.watch(given)
            made = tf.math.rsqrt(given - given)
        gradient = tape.gradient(made, given)
        self.tensors.update(int(tensor._id) for tensor in (given, made, gradient))
        self.results.add((made.numpy().tobytes(), gradient.numpy().tobytes()))
        return made


def generator(beside: Beside, x: Any, y: Any) -> Any:
    import tensorflow as tf

    def batches() -> Any:
        for i in range(0, len(x), training.BATCH):
            made = beside.inf(x[:2, 0]).numpy()
            yield x[i : i + training.BATCH] + np.float32(np.isfinite(made).sum()), y[i : i + training.BATCH]

    spec = (tf.TensorSpec((None, training.FEATURES), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    return tf.data.Dataset.from_generator(batches, output_signature=spec).prefetch(2)


def sequence(beside: Beside, x: Any, y: Any) -> Any:
    import tensorflow as tf

    class Batches(tf.keras.utils.Sequence):  # type: ignore[misc, name-defined]
        def __len__(self) -> int:
            return STEPS

        def __getitem__(self, i: int) -> Any:
            made = beside.inf(x[:2, 0]).numpy()
            part = slice(i * training.BATCH, (i + 1) * training.BATCH)
            return x[part] + np.float32(np.isfinite(made).sum()), y[part]

    if hasattr(tf.keras, "ops"):  # Keras 3
        batches = Batches(workers=2, use_multiprocessing=False)
        return batches
    return Batches()


def fit(watch: Optional[Any], beside: Beside, data_of: Optional[Callable[..., Any]] = None) -> Any:
    import tensorflow as tf

    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(STEPS, HOT)
    callbacks = [watch] if watch else []
    if data_of is None:
        model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=callbacks)
    else:
        workers = {"workers": 2} if data_of is sequence and not hasattr(tf.keras, "ops") else {}
        model.fit(data_of(beside, x, y), shuffle=False, verbose=0, callbacks=callbacks, **workers)
    return training.state(model)


class Seen:
    """The numbers of all tensors that were recorded, and the threads on which they were."""

    def __init__(self, monkeypatch: Any) -> None:
        self.recorded: Set[int] = set()
        self.threads: Set[int] = set()
        add = Recorder._add

        def added(recorder: Any, op_type: Any, inputs: Any, attrs: Any, outputs: Any, frame: Any) -> Any:
            self.threads.add(threading.get_ident())
            self.recorded.update(int(tensor._id) for tensor in [*inputs, *outputs])
            return add(recorder, op_type, inputs, attrs, outputs, frame)

        monkeypatch.setattr(Recorder, "_add", added)


def check_report(watch: Any, foreign: str) -> None:
    """The layer is to blame, and nothing of the other threads' lies in report or dump tree."""
    assert {training.named(report.first) for report in watch.reports} == {"net/hot/MatMul"}
    report = watch.reports[0]
    assert not [operator for operator in report.operators if foreign in operator.op_type or foreign in operator.op_name]
    files = [name for _, _, names in os.walk(report.path) for name in names]
    assert files and not [name for name in files if foreign in name]


@pytest.mark.parametrize("data_of", [generator, sequence], ids=["from_generator", "sequence"])
def test_a_pipeline_in_python_runs_operators_in_its_own_threads(data_of: Any, monkeypatch: Any) -> None:
    plain_beside, beside = Beside(), Beside()
    plain = fit(None, plain_beside, data_of)
    seen, watch = Seen(monkeypatch), npu_overflow.OverflowWatch(**SOON)
    watched = fit(watch, beside, data_of)
    assert training.same(plain, watched)
    assert beside.results == plain_beside.results and len(beside.results) == 1
    assert beside.threads - {threading.get_ident()}  # (Keras looks at the first batch of a Sequence on the thread that calls fit)
    assert seen.threads == {threading.get_ident()} and seen.recorded
    assert not beside.tensors & seen.recorded
    check_report(watch, "Rsqrt")


class Running:
    """``work(beside)`` again and again on a thread of its own; it is in the middle of it whenever a step is observed."""

    def __init__(self, beside: Beside, work: Callable[[Beside], None]) -> None:
        self.rounds = 0
        self.errors: List[BaseException] = []
        self._stop = threading.Event()
        self._began = threading.Event()

        def run() -> None:
            try:
                while not self._stop.is_set():
                    work(beside)
                    self.rounds += 1
                    self._began.set()
            except BaseException as error:
                self.errors.append(error)
                self._began.set()

        self._thread = threading.Thread(target=run)

    def __enter__(self) -> Running:
        self._thread.start()
        assert self._began.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        assert not self.errors, self.errors


def operators(keras: Any) -> Callable[[Beside], None]:
    def work(beside: Beside) -> None:
        beside.inf(np.float32([1.0, 2.0]))

    return work


def clone(keras: Any) -> Any:
    """A model like the trained one, under names of its own, that overflows from its "served" layer on."""
    import tensorflow as tf

    class Served(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            return tf.math.rsqrt(x - x)

    inputs = keras.Input((training.FEATURES,))
    h = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    h = Served(name="served")(keras.layers.Dense(6, name="hot")(h))
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="served_net")
    model.compile("sgd", "mse")
    training.weights(model)
    return model


def evaluate(keras: Any) -> Callable[[Beside], None]:
    model = clone(keras)
    x, y = training.data(4, [1])
    return lambda beside: beside.results.add(str(model.evaluate(x, y, batch_size=8, verbose=0)))


def second_function(keras: Any) -> Callable[[Beside], None]:
    import tensorflow as tf

    model = clone(keras)
    x, _ = training.data(1, [0])
    serve = tf.function(lambda given: model(given, training=False))

    def work(beside: Beside) -> None:
        given = tf.constant(x)
        compiled, eager = serve(given), model(given, training=False)
        beside.tensors.update(int(tensor._id) for tensor in (given, compiled, eager))
        beside.results.add((compiled.numpy().tobytes(), eager.numpy().tobytes()))

    return work


class Loader:
    """Makes batches on a thread of TensorFlow's: it counts them and draws noise. The model knows it, as an attribute."""

    def __init__(self) -> None:
        self.position, self.noise = 0, np.random.RandomState(5)
        self.made: List[Tuple[int, float]] = []

    def batches(self) -> Any:
        x, y = training.data(STEPS, HOT)
        while True:
            self.position += 1
            time.sleep(0.002)
            part = slice(self.position % STEPS * training.BATCH, (self.position % STEPS + 1) * training.BATCH)
            self.made.append((self.position, self.noise.rand()))
            yield x[part], y[part]


def test_a_loader_that_the_model_knows_makes_each_batch_once() -> None:
    import tensorflow as tf

    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    model.loader = loader = Loader()
    spec = (tf.TensorSpec((None, training.FEATURES), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    data = tf.data.Dataset.from_generator(loader.batches, output_signature=spec).prefetch(10 * STEPS)  # it is never waited for
    watch = npu_overflow.OverflowWatch(**SOON)
    model.fit(data, steps_per_epoch=STEPS - 1, verbose=0, callbacks=[watch])
    assert watch.reports
    noise = np.random.RandomState(5)
    assert len(loader.made) > STEPS and loader.made == [(i + 1, noise.rand()) for i in range(len(loader.made))]


class Draws:
    """Draws from the generators that the process shares, as the functions of a pipeline do."""

    def __init__(self) -> None:
        self.drawn: List[Tuple[float, float]] = []
        random.seed(31)
        np.random.seed(31)

    def __call__(self, beside: Beside) -> None:
        self.drawn.append((random.random(), np.random.rand()))

    def as_seeded(self) -> List[Tuple[float, float]]:
        one, other = random.Random(31), np.random.RandomState(31)
        return [(one.random(), other.rand()) for _ in self.drawn]


def test_draws_on_another_thread_are_neither_repeated_nor_left_out() -> None:
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(STEPS, HOT)
    watch, draws = npu_overflow.OverflowWatch(**SOON), Draws()
    with Running(Beside(), draws):
        model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch])
    assert watch.reports and len(draws.drawn) > 100
    assert draws.drawn == draws.as_seeded()


@pytest.mark.parametrize("kind", [operators, evaluate, second_function], ids=lambda kind: kind.__name__)
def test_work_on_another_thread_is_untouched_and_not_reported(kind: Any, monkeypatch: Any) -> None:
    def trained(watch: Optional[Any], beside: Beside) -> Any:
        work = kind(training.set_up())
        with Running(beside, work) as running:
            result = fit(watch, Beside())
        assert running.rounds > 2
        return result

    plain_beside, beside = Beside(), Beside()
    plain = trained(None, plain_beside)
    seen, watch = Seen(monkeypatch), npu_overflow.OverflowWatch(**SOON)
    watched = trained(watch, beside)
    assert training.same(plain, watched)
    assert beside.results == plain_beside.results and len(beside.results) == 1
    assert seen.threads == {threading.get_ident()} and seen.recorded
    assert not beside.tensors & seen.recorded
    check_report(watch, "Rsqrt")
    assert not [operator for operator in watch.reports[0].operators if "served" in operator.op_name]


def test_a_loop_under_the_context_manager_with_evaluation_beside_it() -> None:
    import test_loops

    def trained(watched: bool, beside: Beside) -> Any:
        keras = training.set_up()
        work = second_function(keras)
        loop = test_loops.Loop(keras)
        with Running(beside, work):
            if not watched:
                test_loops.one_function(loop, None)
                return loop.weights(), None
            with npu_overflow.overflow_dump(**SOON) as watch:
                test_loops.one_function(loop, watch)
        return loop.weights(), watch

    plain_beside, beside = Beside(), Beside()
    plain, _ = trained(False, plain_beside)
    weights, watch = trained(True, beside)
    assert training.same(plain, weights)
    assert beside.results == plain_beside.results and len(beside.results) == 1
    check_report(watch, "Rsqrt")


def two_fits() -> List[Any]:
    keras = training.set_up()
    watches, failed = [], []

    def fit_one(model: Any, watch: Any, both: threading.Barrier) -> None:
        x, y = training.data(STEPS, HOT)
        try:
            both.wait(60)
            model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch])
        except BaseException as error:
            failed.append(error)

    both, threads = threading.Barrier(2), []
    for number in range(2):
        model = training.compiled(training.functional(keras), keras)
        training.weights(model)
        watches.append(npu_overflow.OverflowWatch(**SOON, dump_path="dump%d" % number))
        threads.append(threading.Thread(target=fit_one, args=(model, watches[-1], both)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    return watches


def test_two_fits_in_two_threads_each_have_their_report() -> None:
    for watch in two_fits():
        check_report(watch, "Rsqrt")
