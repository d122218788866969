"""Readers on real optimizers, driven by real infinite gradients, on every TensorFlow and Keras that is supported."""
from __future__ import annotations

import sys
import types
from typing import Any, Iterator, List, Tuple

import pytest

from npu_overflow.training import loss_scale
from npu_overflow.training.loss_scale import (
    Reading,
    find_in_model,
    find_optimizers,
    reader_for,
    watch_new_optimizers,
)

pytestmark = pytest.mark.tensorflow


def _kits() -> List[str]:
    """Keras packages to test here: TensorFlow's own, and tf_keras where it is installed."""
    import importlib.util

    return ["tf.keras"] + (["tf_keras"] if importlib.util.find_spec("tf_keras") else [])


@pytest.fixture(params=_kits())
def keras(request: Any) -> Any:
    if request.param == "tf_keras":
        import tf_keras

        return tf_keras
    import tensorflow as tf

    return tf.keras


def is_keras_3(keras: Any) -> bool:
    version = getattr(keras, "__version__", None) or getattr(keras, "version", lambda: "2")()
    return str(version).startswith("3")


class Training:
    """One variable, and steps whose gradient is what we say."""

    def __init__(self, keras: Any, optimizer: Any, compiled: bool = True) -> None:
        import tensorflow as tf

        self.variable = tf.Variable(1.0) if not is_keras_3(keras) else keras.Variable(1.0)
        self.optimizer = optimizer

        def step(gradient: Any) -> None:
            optimizer.apply_gradients([(gradient, self.variable)])

        self._step = tf.function(step) if compiled else step

    def step(self, overflow: bool = False) -> None:
        import tensorflow as tf

        self._step(tf.constant(float("inf") if overflow else 1.0))

    @property
    def value(self) -> float:
        return float(self.variable.numpy())


def scaling(keras: Any, inner: Any = None, **options: Any) -> Any:
    return keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.0) if inner is None else inner, **options)


# --- dynamic scales


@pytest.mark.parametrize("compiled", [True, False])
def test_a_dynamic_scale_is_read_before_and_after_each_step(keras: Any, compiled: bool) -> None:
    optimizer = scaling(keras, initial_scale=1024.0, dynamic_growth_steps=3)
    reader = reader_for(optimizer)
    three = is_keras_3(keras)
    assert (reader.family, reader.dynamic, reader.guarded) == ("keras_3" if three else "tf_keras_2", True, True)
    assert (reader.floor, reader.counts_skipped_steps, reader.optimizer) == (None if three else 1.0, not three, optimizer)
    assert reader.name.startswith("LossScaleOptimizer")
    assert reader.read() == Reading(1024.0, 0, 0, 3)
    training = Training(keras, optimizer, compiled)
    seen: List[Tuple[float, Any]] = []
    for overflow in (False, True, False, False, False):
        training.step(overflow)
        reading = reader.read()
        assert reading is not None and reading.last_step_finite is None
        seen.append((reading.scale, reading.counter))
    assert seen == [(1024.0, 1), (512.0, 0), (512.0, 1), (512.0, 2), (1024.0, 0)]
    assert reader.read() == Reading(1024.0, 0, 4 if three else 5, 3)


def test_reading_creates_nothing(keras: Any) -> None:
    inner = keras.optimizers.SGD(0.0)
    optimizer = scaling(keras, inner)
    before = {name: id(value) for name, value in vars(inner).items()}
    reader_for(optimizer).read()
    assert {name: id(value) for name, value in vars(inner).items()} == before


def test_the_floor(keras: Any) -> None:
    optimizer = scaling(keras, initial_scale=2.0)
    training = Training(keras, optimizer)
    scales = []
    for _ in range(3):
        training.step(overflow=True)
        reading = reader_for(optimizer).read()
        assert reading is not None
        scales.append(reading.scale)
    assert scales == ([1.0, 0.5, 0.25] if is_keras_3(keras) else [1.0, 1.0, 1.0])


def test_the_initial_scale_is_what_the_variable_will_hold(keras: Any) -> None:
    optimizer = scaling(keras, initial_scale=12345.6789)
    reader = reader_for(optimizer)
    before = reader.read()
    Training(keras, optimizer).step()
    after = reader.read()
    assert before is not None and after is not None
    assert before.scale == after.scale


def test_the_scale_and_the_counter_can_be_put_back(keras: Any) -> None:
    optimizer = scaling(keras, initial_scale=1024.0)
    reader = reader_for(optimizer)
    if is_keras_3(keras):
        assert reader.scale_variable() is None and reader.state_variables() == []
        reader.set_scale(4.0)
    training = Training(keras, optimizer)
    training.step()
    kept = [(variable, variable.numpy()) for variable in reader.state_variables()]
    assert len(kept) == 2
    training.step(overflow=True)
    for variable, value in kept:
        variable.assign(value)
    reading = reader.read()
    assert reading is not None and (reading.scale, reading.counter) == (1024.0, 1)
    reader.set_scale(64.0)
    assert float(reader.scale_variable().numpy()) == 64.0


# --- fixed scales and none


def test_a_fixed_scale_guards_nothing(keras: Any) -> None:
    three = is_keras_3(keras)
    optimizer = keras.optimizers.SGD(0.0, loss_scale_factor=256.0) if three else scaling(keras, dynamic=False, initial_scale=256.0)
    reader = reader_for(optimizer)
    assert (reader.dynamic, reader.guarded, reader.floor, reader.scale_variable(), reader.state_variables()) == (False, False, None, None, [])
    assert reader.family == ("none" if is_keras_3(keras) else "tf_keras_2")
    reading = reader.read()
    assert reading == Reading(256.0, None, 0, None)
    training = Training(keras, optimizer)
    training.step(overflow=True)
    assert training.value != training.value  # inf * 0.0: applied, not skipped


def test_a_plain_optimizer_still_counts(keras: Any) -> None:
    optimizer = keras.optimizers.Adam()
    reader = reader_for(optimizer)
    assert (reader.family, reader.dynamic, reader.guarded, reader.name) == ("none", False, False, "Adam")
    assert reader.read() == Reading(1.0, None, 0, None)
    Training(keras, optimizer).step()
    assert reader.read() == Reading(1.0, None, 1, None)


def test_no_optimizer_at_all() -> None:
    assert reader_for(None).read() == Reading(1.0)
    assert reader_for(object()).read() == Reading(1.0)


# --- wrappers


def test_a_wrapper_around_is_seen_through(keras: Any) -> None:
    class Wrapper:
        def __init__(self, inner: Any) -> None:
            self._optimizer = inner

    optimizer = scaling(keras)
    assert reader_for(Wrapper(Wrapper(optimizer))).optimizer is optimizer


def test_a_loop_of_wrappers_ends() -> None:
    class Wrapper:
        inner_optimizer: Any = None

    one, two = Wrapper(), Wrapper()
    one.inner_optimizer, two.inner_optimizer = two, one
    assert reader_for(one).family == "none"


def test_an_optimizer_inside_a_wrapper_inside_counts_steps(keras: Any) -> None:
    if is_keras_3(keras):
        pytest.skip("Keras 3 has no optimizer that wraps another but this one")

    class Averaging(keras.optimizers.SGD):  # type: ignore[misc]
        pass

    inner = Averaging(0.0)
    training = Training(keras, scaling(keras, inner))
    training.step()
    training.step(overflow=True)
    reading = reader_for(training.optimizer).read()
    assert reading is not None and reading.iterations == 2


def test_compile_under_the_float16_policy_wraps(keras: Any) -> None:
    keras.mixed_precision.set_global_policy("mixed_float16")
    try:
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        reader = reader_for(model.optimizer)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert reader.dynamic and reader.guarded
    reading = reader.read()
    assert reading is not None and reading.scale == 2.0**15


def test_the_older_optimizers_of_keras_2(keras: Any) -> None:
    legacy = getattr(keras.optimizers, "legacy", None)
    if is_keras_3(keras) or legacy is None:
        pytest.skip("no legacy optimizers here")
    training = Training(keras, scaling(keras, legacy.SGD(0.0)))
    training.step(overflow=True)
    reader = reader_for(training.optimizer)
    assert (reader.family, reader.read()) == ("tf_keras_2", Reading(2.0**14, 0, 1, 2000))


@pytest.mark.tensorflow("<2.11")
def test_the_experimental_optimizer_of_old_keras() -> None:
    import tensorflow as tf

    optimizer = tf.keras.mixed_precision.experimental.LossScaleOptimizer(tf.keras.optimizers.SGD(0.0), "dynamic")
    assert reader_for(optimizer).read() == Reading(2.0**15, 0, 0, 2000)


def test_a_mirrored_optimizer_is_read(keras: Any) -> None:
    import tensorflow as tf

    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])
    with strategy.scope():
        optimizer = scaling(keras, initial_scale=1024.0)
        training = Training(keras, optimizer, compiled=False)
        strategy.run(tf.function(lambda: training.step(overflow=True)))
    reading = reader_for(optimizer).read()
    assert reading is not None and (reading.scale, reading.counter) == (512.0, 0)


# --- finding


def test_all_optimizers_of_a_model_are_found(keras: Any) -> None:
    class Gan(keras.Model):  # type: ignore[misc]
        pass

    model = Gan()
    model.first, model.second, model.plain = scaling(keras), scaling(keras), keras.optimizers.SGD(0.0)
    expected = [id(model.first), id(model.second), id(model.plain)]
    assert [id(item) for item in find_in_model(model)] == expected
    simple = keras.Sequential([keras.layers.Dense(1)])
    assert find_in_model(simple) == []
    simple.compile(optimizer="sgd", loss="mse")
    assert find_in_model(simple) == [simple.optimizer]


def test_living_optimizers_are_found(keras: Any) -> None:
    optimizer = scaling(keras)
    keras.optimizers.SGD(0.0)
    found = find_optimizers()
    assert sum(1 for item in found if item is optimizer) == 1
    assert all("LossScale" in type(item).__name__ for item in found)


def test_new_optimizers_are_announced_once_and_made(keras: Any) -> None:
    seen: List[Any] = []
    readings: List[Any] = []

    def callback(optimizer: Any) -> None:
        seen.append(optimizer)
        readings.append(reader_for(optimizer).read())

    scaling(keras)  # makes the modules load
    undo = watch_new_optimizers(callback)
    try:
        optimizer = scaling(keras)

        class Own(type(optimizer)):  # type: ignore[misc]
            def __init__(self, inner: Any) -> None:
                super().__init__(inner, initial_scale=8.0)

        own = Own(keras.optimizers.SGD(0.0))
    finally:
        undo()
    scaling(keras)
    assert [id(item) for item in seen] == [id(optimizer), id(own)]
    assert [reading.scale for reading in readings] == [2.0**15, 8.0]


def test_undoing_puts_back_what_was_there(keras: Any) -> None:
    kind = type(scaling(keras))
    before = vars(kind)["__init__"]
    undo = watch_new_optimizers(lambda optimizer: None)
    assert vars(kind)["__init__"] is not before
    undo()
    undo()
    assert vars(kind)["__init__"] is before


def test_undoing_leaves_alone_what_others_put_there_since(keras: Any) -> None:
    kind = type(scaling(keras))
    before = vars(kind)["__init__"]
    seen: List[Any] = []
    undo = watch_new_optimizers(seen.append)
    ours = vars(kind)["__init__"]

    def theirs(self: Any, *args: Any, **kwargs: Any) -> None:
        ours(self, *args, **kwargs)

    kind.__init__ = theirs
    try:
        undo()
        assert vars(kind)["__init__"] is theirs
        scaling(keras)
        assert seen == []
    finally:
        kind.__init__ = before


# --- the NPU's optimizer (the double's tests go further)


@pytest.fixture
def npu_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    module = types.ModuleType("npu_device")
    module.inf_nan = False  # type: ignore[attr-defined]
    module.is_inf_nan_enabled = lambda: module.inf_nan  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "npu_device", module)
    yield module


def npu_optimizer(keras: Any, **options: Any) -> Any:
    import tensorflow as tf

    kind = type(scaling(keras))
    optimizer = type("NpuLossScaleOptimizer", (kind,), {})(keras.optimizers.SGD(0.0), **options)
    object.__setattr__(optimizer, "last_step_finite", tf.Variable(False))
    return optimizer


def test_the_npu_sign_is_read_in_saturation_mode_only(keras: Any, npu_device: Any) -> None:
    if is_keras_3(keras):
        pytest.skip("the NPU's optimizer is one of Keras 2")
    optimizer = npu_optimizer(keras)
    reader = reader_for(optimizer)
    assert (reader.family, reader.guarded, reader.blind) == ("npu", True, False)
    assert reader.read() == Reading(2.0**15, 0, 0, 2000, False)
    npu_device.inf_nan = True
    assert reader.read() == Reading(2.0**15, 0, 0, 2000, None)
    Training(keras, optimizer).step()
    npu_device.inf_nan = False  # too late: the mode is baked into the step
    assert reader.read() == Reading(2.0**15, 1, 1, 2000, None)
    assert len(reader.state_variables()) == 3


@pytest.mark.parametrize("inf_nan", [False, True])
def test_a_fixed_scale_on_the_npu_is_guarded_in_saturation_mode(keras: Any, npu_device: Any, inf_nan: bool) -> None:
    if is_keras_3(keras):
        pytest.skip("the NPU's optimizer is one of Keras 2")
    npu_device.inf_nan = inf_nan
    reader = reader_for(npu_optimizer(keras, dynamic=False, initial_scale=64.0))
    assert (reader.dynamic, reader.guarded) == (False, not inf_nan)
    assert reader.read() == Reading(64.0, None, 0, None, None if inf_nan else False)


def test_the_stock_optimizer_is_blind_in_saturation_mode(keras: Any, npu_device: Any) -> None:
    reader = reader_for(scaling(keras))
    blind = [reader.blind]
    npu_device.inf_nan = True
    blind.append(reader.blind)
    assert blind == [True, False]
    del npu_device.is_inf_nan_enabled
    assert loss_scale.npu_mode() == "saturation"


def test_no_device_is_the_default_and_the_npus_optimizer_is_the_stock_one(keras: Any, npu_device: Any) -> None:
    if is_keras_3(keras):
        pytest.skip("the NPU's optimizer is one of Keras 2")
    contexts: List[Any] = [None]
    npu_device.npu_device = types.SimpleNamespace(global_npu_ctx=lambda: contexts[0])
    dynamic, fixed = reader_for(npu_optimizer(keras)), reader_for(npu_optimizer(keras, dynamic=False, initial_scale=64.0))
    assert loss_scale.npu_mode() == "saturation"
    assert (dynamic.read(), fixed.read()) == (Reading(2.0**15, 0, 0, 2000, None), Reading(64.0, None, 0, None, None))
    assert (dynamic.guarded, fixed.guarded, reader_for(scaling(keras)).blind, fixed.asks_device) == (True, False, False, False)
    contexts[0] = object()  # it becomes the default before the first step
    assert fixed.read() == Reading(64.0, None, 0, None, False) and fixed.guarded and fixed.asks_device
    assert reader_for(scaling(keras)).blind


def test_without_npu_device_there_is_no_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "npu_device", raising=False)
    assert loss_scale.npu_mode() is None
