"""Random generators of Python's own: a step that runs eagerly draws from them, and its replay must neither move them on nor see other draws."""
from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import threading
from typing import Any, Dict, List, Optional

import numpy as np
import pytest
import training

import npu_overflow
from npu_overflow.collectors.own_draws import OwnSeeds
from npu_overflow.collectors.python_state import PythonState, Reached
from npu_overflow.collectors.undo import UndoLog

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS = 56
of_module = np.random.default_rng(4)


def noisy(keras: Any, draws: Any) -> Any:
    """A model whose call draws what decides whether the layer "hot" overflows; its dropout draws, too."""
    import tensorflow as tf

    class Noisy(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="net")
            self.first = keras.layers.Dense(8, activation="relu", name="first")
            self.drop = keras.layers.Dropout(0.3, seed=5)
            self.hot = keras.layers.Dense(6, name="hot")
            self.out = keras.layers.Dense(1, dtype="float32", name="out")
            self.held = {"generators": [np.random.default_rng(1)]}
            self.legacy = np.random.RandomState(2)
            self.own = random.Random(3)

        def call(self, x: Any, training: bool = False) -> Any:
            factor = 1.0
            if tf.executing_eagerly() and training:
                factor = draws(self)
            return self.out(self.hot(self.drop(self.first(x) * tf.cast(factor, tf.float16), training=training)))

    return Noisy()


def helper() -> float:
    return float(of_module.random())


GENERATORS: Dict[str, Any] = {
    "held_by_the_model": lambda model: model.held["generators"][0].random(),
    "legacy_held_by_the_model": lambda model: model.legacy.rand(),
    "pythons_own_held_by_the_model": lambda model: model.own.random(),
    "numpys_global": lambda model: np.random.rand(),
    "pythons_global": lambda model: random.random(),
    "of_the_module": lambda model: of_module.random(),
    "by_a_helper": lambda model: helper(),
}


def noise(draw: Any, seen: List[float], model: Any) -> Any:
    """The fault itself depends on the draw: a replay that draws something else would not show it."""
    drawn = draw(model)
    seen.append(drawn)
    return 300.0 if drawn < 0.4 else 1.0 + drawn / 10


def fit(watch: Optional[Any], draw: Any) -> Any:
    global of_module
    of_module = np.random.default_rng(4)
    random.seed(11)
    keras = training.set_up()
    model = noisy(keras, functools.partial(noise, draw, []))
    model(np.zeros((1, training.FEATURES), np.float32))
    training.compiled(model, keras, run_eagerly=True)
    training.weights(model)
    x, y = training.data(STEPS, [])
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch] if watch else [])
    ends = [float(model.held["generators"][0].random()), model.legacy.rand(), model.own.random(), np.random.rand(), random.random(), of_module.random()]
    return training.state(model), ends


@pytest.fixture(scope="module")
def loaded() -> None:
    """What is set up by the first training of a process may draw, too."""
    fit(None, GENERATORS["numpys_global"])
    training.tear_down(__import__("tensorflow").keras)


@pytest.mark.parametrize("name", GENERATORS)
def test_an_eager_step_that_draws_is_replayed_without_a_trace(name: str, loaded: None) -> None:
    plain, ends = fit(None, GENERATORS[name])
    watch = npu_overflow.OverflowWatch(verbose=0, warmup=0, patience=3)
    watched, ends_too = fit(watch, GENERATORS[name])
    assert training.same(plain, watched)
    assert ends == ends_too
    assert watch.reports and all(report.first is not None and report.first.op_name == "net/hot/MatMul" for report in watch.reports)


def test_the_search_is_bounded_and_finds_what_functions_name() -> None:
    inner = np.random.default_rng(5)
    chain: Any = inner
    for _ in range(6):
        chain = [chain]
    loop: List[Any] = []
    loop += [loop, {"x": loop}]

    def by_closure() -> Any:
        return inner.random()

    def by_global() -> Any:
        return helper()

    found = Reached()
    before = len(found.all())
    found.search(loop, loop, list(range(10**5)))
    assert len(found.all()) == before
    for root in (chain, by_closure, functools.partial(by_closure)):
        found = Reached()
        found.search(root, root)
        assert any(item is inner for item, _ in found.all())
    found = Reached()
    found.search(by_global, by_global)
    assert any(item is of_module for item, _ in found.all())


def test_a_generator_without_a_state_is_left_alone() -> None:
    system = random.SystemRandom()
    found = Reached()
    found.search(system, [system])
    state = PythonState(found)
    np.random.seed(1)
    first = np.random.rand()
    with state.in_place():
        np.random.rand()
    np.random.seed(1)
    assert np.random.rand() == first


def on_a_thread(work: Any) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_other_threads_draw_from_the_shared_generators_as_always() -> None:
    """They make batches meanwhile: no draw comes twice, and none is left out."""

    def draw() -> List[float]:
        return [random.random(), random.uniform(0, 9), random.choice(range(10**6)), np.random.rand(), np.random.sample(), np.random.randint(10**6)]

    def seeded() -> None:
        random.seed(4)
        np.random.seed(4)

    seeded()
    whole = [draw() for _ in range(6)]
    seeded()
    drawn: List[List[float]] = []
    state = PythonState(Reached())
    on_a_thread(lambda: drawn.append(draw()))
    with state.in_place():
        assert draw() == whole[0]  # as when the step began
        on_a_thread(lambda: drawn.append(draw()))
        assert draw() == whole[1]
        with state.in_place():
            assert draw() == whole[0]
            on_a_thread(lambda: drawn.append(draw()))
        assert draw() == whole[2]
        on_a_thread(lambda: drawn.append(draw()))
    assert drawn == whole[:4]
    assert draw() == whole[4]
    assert random.random.__self__ is random._inst and not hasattr(np.random.rand, "__wrapped__")  # type: ignore[attr-defined]


def test_a_shared_generator_is_found_behind_a_name_of_its_method() -> None:
    taken, numpys = random.random, np.random.rand

    def draws() -> Any:
        return taken() + numpys()

    found = Reached()
    found.search(draws, draws)
    assert {type(item) for item, _ in found.all()} >= {random.Random, np.random.RandomState}
    random.seed(5)
    np.random.seed(5)
    state = PythonState(found)
    first = draws()
    with state.in_place():
        assert draws() != first
    assert state.learned
    with state.in_place():
        assert draws() == first
    second = draws()
    random.seed(5)
    np.random.seed(5)
    assert [draws(), draws()] == [first, second]


def test_other_threads_draw_seeds_of_operators_as_always() -> None:
    before = random.Random(9)
    whole = [random.Random(9).randint(0, 10**6)]
    own, drawn = OwnSeeds(3, before), []  # type: ignore[var-annotated]
    first = own.randint(0, 10**6)
    on_a_thread(lambda: drawn.append(own.randint(0, 10**6)))
    assert drawn == whole and first == random.Random(3).randint(0, 10**6)
    assert OwnSeeds(3, None).randint(0, 10**6) == first


def loop(watched: bool) -> Any:
    import tensorflow as tf
    import test_loops

    custom = test_loops.Loop(training.set_up())
    held = np.random.default_rng(6)

    def step(x: Any, y: Any) -> None:
        custom.step(x * (300.0 if held.random() < 0.4 else 1.0), y)

    function = tf.function(step)
    x, y = training.data(STEPS, [])
    tf.config.run_functions_eagerly(True)
    try:
        with npu_overflow.overflow_dump(verbose=0, warmup=0, patience=3) if watched else contextlib.nullcontext() as watch:
            for i in range(0, len(x), training.BATCH):
                function(tf.constant(x[i : i + training.BATCH]), tf.constant(y[i : i + training.BATCH]))
    finally:
        tf.config.run_functions_eagerly(False)
    return custom.weights(), float(held.random()), watch


def test_functions_that_run_eagerly_draw_what_they_would_have_drawn(loaded: None) -> None:
    weights, end, _ = loop(False)
    watched, end_too, watch = loop(True)
    assert training.same(weights, watched) and end == end_too
    assert watch.reports and all(report.first is not None and report.first.op_name == "net/hot/MatMul" for report in watch.reports)


counted = 0


class Counter:
    """Counts where a training can: an attribute, a global, a variable around a function, a flag that comes and goes."""

    def __init__(self) -> None:
        self.calls = 0
        around = 0

        def tick() -> int:
            nonlocal around
            around += 1
            return around

        self.tick = tick

    def count(self) -> List[Any]:
        global counted
        counted += 1
        self.calls += 1
        self.odd = self.calls % 2 == 1
        return [counted, self.calls, self.odd, self.tick()]


def test_plain_values_begin_as_the_step_did_and_end_as_it_did() -> None:
    global counted
    counted = 0
    counter = Counter()
    places = Reached()
    places.search(counter, counter.count)
    state = PythonState(places)
    step = counter.count()
    with state.in_place():  # the first run shows what the step writes
        assert counter.count() == [2, 2, False, 2]
    assert state.learned
    for _ in range(3):  # runs of a replay
        with state.in_place():
            assert counter.count() == step == [1, 1, True, 1]
            assert counter.count() == [2, 2, False, 2]
        assert not state.learned
    assert counter.count() == [2, 2, False, 2]
    assert "__setattr__" not in vars(Counter)


def test_what_other_threads_write_meanwhile_stays() -> None:
    counter = Counter()
    places = Reached()
    places.search(counter, counter.count)
    state = PythonState(places)
    with contextlib.suppress(KeyError), state.in_place():
        on_a_thread(lambda: setattr(counter, "stop", True))
        counter.own, counter.calls = "of the replay", 7  # type: ignore[attr-defined]
        raise KeyError
    assert counter.stop is True and counter.calls == 0 and not hasattr(counter, "own")  # type: ignore[attr-defined]


stopped = False


class Job(Counter):
    """It ends when it is asked to by a signal."""

    ended = False

    def end(self, number: int, frame: Any) -> None:
        self.ended = True


def stop(number: int, frame: Any) -> None:
    global stopped
    stopped = True


def test_what_a_handler_of_a_signal_writes_stays() -> None:
    global stopped
    stopped = False
    job = Job()
    places = Reached()
    places.search(job, job.count, stop)
    for handler in (job.end, stop):
        before = signal.signal(signal.SIGUSR1, handler)
        try:
            with PythonState(places).in_place():
                os.kill(os.getpid(), signal.SIGUSR1)
                job.count()
        finally:
            signal.signal(signal.SIGUSR1, before)
    assert job.ended and stopped and job.calls == 0


class Closed(type):
    """A metaclass whose classes can't be changed."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise TypeError(name)


class Sealed(Counter, metaclass=Closed):
    pass


def test_classes_that_allow_no_change_are_left_alone() -> None:
    sealed = Sealed()
    places = Reached()
    places.search(sealed, sealed)
    with PythonState(places).in_place():
        sealed.calls = 5
    assert sealed.calls == 5 and "__setattr__" not in vars(Sealed)


class Loader:
    """Makes batches on a thread of its own; the model knows it."""

    def __init__(self) -> None:
        global made
        made = 0
        self.position, self.rng, self.shapes = 0, np.random.RandomState(8), (0, 0)

    def __call__(self) -> Any:
        global made
        made += 1
        self.position += 1
        self.shapes = (self.position, 8)
        return made, self.position, self.shapes, self.rng.rand()


made = 0


def test_what_the_step_only_reaches_goes_on_on_the_thread_that_uses_it() -> None:
    """Before a replay, in the middle of it, and after: no batch comes twice."""
    expected = made_by(Loader())
    loader = Loader()
    places = Reached()
    places.search(loader, loader)
    state = PythonState(places)
    batches: List[Any] = []
    on_a_thread(lambda: batches.append(loader()))
    for _ in range(2):
        with state.in_place():
            on_a_thread(lambda: batches.append(loader()))
        assert not state.learned
    on_a_thread(lambda: batches.append(loader()))
    assert batches == expected


def made_by(loader: Loader) -> Any:
    return [loader() for _ in range(4)]


def test_a_seed_that_the_step_sets_is_the_replays_own() -> None:
    import tensorflow as tf

    tf.random.set_seed(3)
    whole = [float(tf.random.uniform(())) for _ in range(2)]
    tf.random.set_seed(3)
    first = float(tf.random.uniform(()))
    with UndoLog():
        tf.random.set_seed(9)
    assert [first, float(tf.random.uniform(()))] == whole


def test_what_is_no_plain_value_is_left_alone() -> None:
    counter = Counter()
    counter.odd = np.ones(2)
    places = Reached()
    places.search(counter, counter)
    state = PythonState(places)
    with state.in_place():
        counter.odd, counter.calls = 3, np.zeros(2)
    assert counter.odd == 3 and isinstance(counter.calls, np.ndarray)


@pytest.mark.parametrize("eager", [True, False], ids=["eager", "compiled"])
def test_a_step_that_counts_in_python_counts_on(eager: bool, loaded: None) -> None:
    """Every fourth step is one of accumulated gradients: counted once too often, it would be another."""
    import tensorflow as tf

    def train(watch: Optional[Any]) -> Any:
        keras = training.set_up()

        class Counting(keras.Model):  # type: ignore[misc, name-defined]
            def train_step(self, data: Any) -> Any:
                x, y = data
                self.count += 1
                if tf.executing_eagerly() and self.count % 4:
                    x = x * 0.5
                return super().train_step((x, y))

        inputs = keras.Input((training.FEATURES,))
        h = keras.layers.Dense(6, name="hot")(keras.layers.Dense(8, activation="relu", name="first")(inputs))
        model = Counting(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h), name="net")
        model.count = 0
        training.compiled(model, keras, run_eagerly=eager)
        training.weights(model)
        x, y = training.data(STEPS, list(range(training.HOT_FROM, STEPS)))
        model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch] if watch else [])
        return training.state(model), model.count

    plain, count = train(None)
    watch = npu_overflow.OverflowWatch(verbose=0)
    watched, count_too = train(watch)
    assert count == count_too == (STEPS if eager else count)
    assert training.same(plain, watched)
    assert watch.reports and watch.reports[0].first is not None and watch.reports[0].first.op_name == "net/hot/MatMul"
