"""The double behaves as the vendor's adapter does with TensorFlow; each test quotes what is known of the real one."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, List

import numpy as np
import pytest
from fake_npu_device import adapter

from npu_overflow.dump.reader import open_dump
from npu_overflow.dump.record import read_record
from npu_overflow.dump.scan import find
from npu_overflow.training.loss_scale import Reading, reader_for
from npu_overflow.training.policy import Policy

pytestmark = pytest.mark.tensorflow("<2.7")


@pytest.fixture
def npu_device() -> Iterator[Any]:
    import tensorflow  # noqa: F401 (so that what as_default replaces is put back)

    with adapter.loaded() as module:
        module._device.keep_context = True
        yield module


# --- what open and as_default do to TensorFlow


def test_opening_replaces_the_context(tmp_path: Path) -> None:
    # "open() replaces TensorFlow's eager context: variables … made before it are dead"
    script = (
        "import sys; sys.path.insert(0, %r)\n"
        "import tensorflow as tf, npu_device\n"
        "from tensorflow.python.eager import context\n"
        "before = context.context()\n"
        "npu_device.open()\n"
        "print('SAME', context.context() is before, float(tf.Variable(2.0) + 1.0))\n"
    ) % adapter.FOLDER
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=str(tmp_path), timeout=200)
    assert "SAME False 3.0" in done.stdout, done.stderr


def test_as_default_assigns_what_it_patches(npu_device: Any) -> None:
    # "as_default() assigns Function.__call__: a wrapper put there before is lost", "tf.device (a no-op from then on)"
    import tensorflow as tf
    from tensorflow.python.eager import def_function

    calls: List[str] = []
    original = def_function.Function.__call__

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append("wrapper")
        return original(self, *args, **kwargs)

    npu_device.open()
    doubled = tf.function(lambda x: x * 2)
    def_function.Function.__call__ = wrapper
    doubled(tf.constant(1.0))
    assert npu_device.npu_device.global_npu_ctx() is None
    handle = npu_device.open().as_default()
    assert npu_device.npu_device.global_npu_ctx() is handle
    assert float(doubled(tf.constant(2.0))) == 4.0
    assert calls == ["wrapper"]
    with tf.device("/device:NOSUCH:7"):
        assert float(tf.constant(1.0)) == 1.0


def test_jit_compile_is_forced_off(npu_device: Any) -> None:
    import tensorflow as tf

    npu_device.open().as_default()
    made = [tf.function(lambda x: x + 1, jit_compile=True), tf.function(jit_compile=True)(lambda x: x + 1), tf.function(lambda x: x + 1)]
    for function in made:
        assert float(function(tf.constant(1.0))) == 2.0
        assert not function._jit_compile


def test_nested_functions_are_inlined_and_run_again_where_they_raise(npu_device: Any) -> None:
    # "Nested tf.functions are inlined as plain Python, and run a second time if they raise"
    import tensorflow as tf

    npu_device.open().as_default()
    runs: List[str] = []

    @tf.function  # type: ignore[untyped-decorator]
    def inner(x: Any) -> Any:
        runs.append("inner")
        if len(runs) == 1:
            raise ValueError("first time")
        return x + 1

    @tf.function  # type: ignore[untyped-decorator]
    def outer(x: Any) -> Any:
        return inner(x) * 2

    assert float(outer(tf.constant(1.0))) == 4.0
    assert runs == ["inner", "inner"]


def test_as_default_twice_breaks_dropout(npu_device: Any) -> None:
    # "Calling it twice breaks dropout": that of a graph which leaves something to the replaced one
    import tensorflow as tf

    handle = npu_device.open()
    handle.as_default()
    with tf.Graph().as_default():
        assert tf.nn.dropout(tf.ones([4, 3]), 0.5, noise_shape=[4, 1]).shape == (4, 3)
        handle.as_default()
        with pytest.raises(RecursionError):
            tf.nn.dropout(tf.ones([4, 3]), 0.5, noise_shape=[4, 1])
    assert tf.nn.dropout(tf.ones([4, 3]), 0.5, noise_shape=[4, 1]).shape == (4, 3)


def test_the_optimizer_is_an_attribute_and_can_not_be_imported(npu_device: Any) -> None:
    # npu_device.train, the attribute, is another module than the one which "import npu_device.train" finds
    assert npu_device.train.optimizer.NpuLossScaleOptimizer.__name__ == "NpuLossScaleOptimizer"
    with pytest.raises(ImportError, match="NpuLossScaleOptimizer"):
        from npu_device.train.optimizer import NpuLossScaleOptimizer  # noqa: F401
    assert not hasattr(npu_device, "close") and not hasattr(npu_device, "__version__")


def test_where_no_device_is_the_default_the_optimizer_is_the_stock_one(npu_device: Any) -> None:
    npu_device.open()
    steps = Steps(npu_device, initial_scale=4.0)
    npu_device._device._register = True
    assert [steps.step() for _ in range(2)] == [Reading(4.0, 1, 1, 2000, None), Reading(4.0, 2, 2, 2000, None)]
    assert npu_device._device.read_register() == 1 and not bool(steps.optimizer.last_step_finite.numpy())


def test_as_default_replaces_python_functions(npu_device: Any) -> None:
    # "handle.as_default() patches tf.function, Function.__call__, tf.device (a no-op from then on), EagerFunc, tf.py_function and dropout."
    import tensorflow as tf
    from tensorflow.python.eager import def_function
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import script_ops

    places = [(tf, "function"), (def_function.Function, "__call__"), (ops, "device"), (script_ops, "EagerFunc"), (tf, "py_function"), (tf.nn, "dropout")]
    before = [getattr(place, name) for place, name in places]
    npu_device.open()
    assert [getattr(place, name) for place, name in places] == before
    npu_device.open().as_default()
    assert [name for (place, name), was in zip(places, before) if getattr(place, name) is was] == []
    assert float(tf.py_function(lambda x: x + 1, [1.0], tf.float32)) == 2.0


#: what spec and package agree on; the real one has much more, and the double's own helpers are none of it. It tells no version: one is asked for in case
KNOWN = {
    *("npu_device.global_options", "npu_device.open", "npu_device.npu_device", "npu_device.is_inf_nan_enabled", "npu_device.__version__"),
    *("npu_device.npu_device.open", "npu_device.npu_device._npu_device_instances", "npu_device.npu_device.global_npu_ctx"),
}

ASKED = """
import sys, types
sys.path.insert(0, %r)
import npu_device, npu_overflow
import npu_device.npu_device
asked = set()

class Recording(types.ModuleType):
    def __getattribute__(self, name):
        frame = sys._getframe(1)
        if "npu_overflow" in frame.f_globals.get("__name__", "").split(".")[0]:
            asked.add(object.__getattribute__(self, "__name__") + "." + name)
        return super().__getattribute__(name)

for module in (npu_device, npu_device.npu_device):
    module.__class__ = Recording
npu_overflow.npu_device_dump_config(npu_device)
npu_device.open().as_default()
import numpy as np, tensorflow as tf
layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= 10)
model = tf.keras.Sequential([layer])
model.compile(npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**8), "mse")
with npu_overflow.overflow_dump(warmup=0, check_every=1, verbose=0) as watch:
    model.fit(np.ones((200, 4), "float32"), np.ones((200, 1), "float32"), batch_size=5, verbose=0)
print("REPORTS", len(watch.reports))
print("ASKED", *sorted(name for name in asked if not name.endswith(("__dict__", "__name__", "__class__", "__spec__", "__loader__", "__path__", "__file__"))))
"""


def test_nothing_is_asked_that_only_the_double_has(tmp_path: Path) -> None:
    # "The real package's Python layer will be run against this library afterwards."
    done = subprocess.run([sys.executable, "-c", ASKED % adapter.FOLDER], capture_output=True, text=True, cwd=str(tmp_path), timeout=200)
    assert "REPORTS 1" in done.stdout, done.stderr
    asked = set(done.stdout.split("ASKED ")[1].split())
    assert asked <= KNOWN and "npu_device.npu_device._npu_device_instances" in asked


def test_a_bad_dump_path_shows_at_the_first_graph(npu_device: Any, tmp_path: Path) -> None:
    # "dump_path is not checked in Python …; a bad one shows only when the first graph runs"
    import tensorflow as tf

    dump = npu_device.global_options().dump_config
    dump.enable_dump_debug, dump.dump_path = True, str(tmp_path / "missing")
    npu_device.open().as_default()
    with pytest.raises(RuntimeError, match="does not exist"):
        tf.function(lambda x: x)(tf.constant(1.0))


# --- the optimizer


class Steps:
    """Training steps on the double whose overflow is planted in the device's register, or in the gradient in INF/NaN mode."""

    def __init__(self, npu_device: Any, **options: Any) -> None:
        import tensorflow as tf

        self.device = npu_device._device
        self.optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1.0), **options)
        self.variable = tf.Variable(1.0)
        self.reader = reader_for(self.optimizer)
        optimizer, variable = self.optimizer, self.variable

        def step(gradient: Any) -> None:
            optimizer.apply_gradients([(gradient, variable)])

        self.function = tf.function(step)

    def step(self, overflow: bool = False) -> Reading:
        import tensorflow as tf

        if overflow:
            self.device.overflow("MatMul", "a/MatMul", [], [])
        self.function(tf.constant(float("inf") if overflow and self.device.inf_nan else 0.25))
        reading = self.reader.read()
        assert reading is not None
        return reading


def test_saturation_mode_asks_the_register_and_clears_it(npu_device: Any) -> None:
    # "it reads and clears the device's overflow register each step, skips the update and halves the scale, never below 1; iterations still advances"
    npu_device.open().as_default()
    steps = Steps(npu_device, initial_scale=4.0)
    assert steps.reader.family == "npu"
    assert steps.reader.read() == Reading(4.0, 0, 0, 2000, False)
    assert steps.step() == Reading(4.0, 1, 1, 2000, True)
    assert [steps.step(overflow=True) for _ in range(3)] == [Reading(scale, 0, step, 2000, False) for scale, step in ((2.0, 2), (1.0, 3), (1.0, 4))]
    assert npu_device._device.read_register() == 0  # "Reading the register after the step gives 0"
    assert float(steps.variable.numpy()) == 0.75


def test_inf_nan_mode_is_the_stock_optimizer(npu_device: Any) -> None:
    # "INF/NaN mode: it is the stock optimizer, and last_step_finite stays False or stale: don't read it"
    npu_device.set_device_sat_mode(1)
    npu_device.open().as_default()
    steps = Steps(npu_device, initial_scale=4.0)
    assert steps.step() == Reading(4.0, 1, 1, 2000, None)
    assert steps.step(overflow=True) == Reading(2.0, 0, 2, 2000, None)
    assert not bool(steps.optimizer.last_step_finite.numpy())


def test_the_mode_is_baked_in_when_the_step_is_traced(npu_device: Any) -> None:
    npu_device.open().as_default()
    steps = Steps(npu_device, initial_scale=4.0)
    steps.step()
    npu_device.set_device_sat_mode(1)
    assert steps.step(overflow=False).last_step_finite is True
    npu_device._device.overflow("MatMul", "a/MatMul", [], [])
    assert steps.step().last_step_finite is False


def test_a_fixed_scale_in_saturation_mode_skips_too(npu_device: Any) -> None:
    npu_device.open().as_default()
    steps = Steps(npu_device, dynamic=False, initial_scale=8.0)
    assert [steps.step(overflow) for overflow in (False, True)] == [Reading(8.0, None, 1, None, True), Reading(8.0, None, 2, None, False)]
    assert float(steps.variable.numpy()) == 0.75


def test_a_fixed_scale_in_inf_nan_mode_never_skips(npu_device: Any) -> None:
    # "In INF/NaN mode with a fixed scale the stock optimizer never skips."
    import tensorflow as tf

    npu_device.set_device_sat_mode(1)
    npu_device.open().as_default()
    steps = Steps(npu_device, dynamic=False, initial_scale=8.0)
    stock = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0), dynamic=False, initial_scale=8.0)
    variable = tf.Variable(1.0)
    tf.function(lambda: stock.apply_gradients([(tf.constant(float("inf")), variable)]) and None)()
    assert (steps.reader.guarded, reader_for(stock).guarded, float(variable.numpy())) == (False, False, float("-inf"))


def test_the_stock_optimizer_sees_no_overflow_in_saturation_mode(npu_device: Any) -> None:
    # "In saturation mode the stock one never sees an overflow (saturated values are finite): the scale does not fall, every check looks healthy"
    import tensorflow as tf

    npu_device.open().as_default()
    stock = tf.keras.mixed_precision.LossScaleOptimizer(tf.keras.optimizers.SGD(1.0), initial_scale=8.0)
    variable = tf.Variable(1.0)
    step = tf.function(lambda: stock.apply_gradients([(tf.constant(0.25), variable)]) and None)
    step()
    npu_device._device.overflow("MatMul", "a/MatMul", [], [])
    step()
    assert (float(stock.loss_scale), float(variable.numpy()), reader_for(stock).blind) == (8.0, 0.5, True)


@pytest.mark.parametrize("mode", [0, 1])
def test_one_step_overflowed_where_the_counter_is_zero_and_the_scale_did_not_grow(npu_device: Any, mode: int) -> None:
    # "one step overflowed if and only if dynamic_counter == 0 and loss_scale <= previous, at the floor too"
    npu_device.set_device_sat_mode(mode)
    npu_device.open().as_default()
    steps = Steps(npu_device, initial_scale=4.0, dynamic_growth_steps=3)
    policy = Policy(warmup=0, patience=1000)
    policy.check_scale(-1, 0, steps.reader.read())
    planted = np.random.RandomState(mode).rand(60) < 0.4
    previous = 4.0
    for step, overflow in enumerate(planted):
        reading = steps.step(bool(overflow))
        assert bool(overflow) == (reading.counter == 0 and reading.scale <= previous)
        assert policy.check_scale(step, 1, reading).overflows == int(overflow)
        previous = reading.scale


def test_an_overflow_of_another_rank_halves_every_scale(npu_device: Any, tmp_path: Path) -> None:
    # "the register is summed over all: one rank's overflow halves every rank's scale, and only that rank has a dump"
    dump = npu_device.global_options().dump_config
    dump.enable_dump_debug, dump.dump_path = True, str(tmp_path)
    npu_device._device.others_overflow = lambda step: step == 1
    npu_device.open().as_default()
    steps = Steps(npu_device, initial_scale=4.0)
    assert [steps.step().scale for _ in range(3)] == [4.0, 2.0, 2.0]
    assert list(tmp_path.iterdir()) == []


# --- the dump


def test_overflowing_steps_are_dumped_in_the_vendors_format(npu_device: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    dump = npu_device.global_options().dump_config
    dump.enable_dump_debug, dump.dump_path = True, str(tmp_path)
    npu_device.open(3).as_default()
    layer = npu_device.testing.dense(2, "net/fc/MatMul", lambda step: step in (1, 3))
    function = tf.function(lambda x: layer(x))
    for _ in range(5):
        result = function(tf.ones([4, 8]))
        assert float(tf.reduce_max(result)) <= 65504.0
    npu_device.testing.flush()
    tree = find(str(tmp_path))
    assert sorted((entry.place.device, entry.place.data_index) for entry in tree.records) == [(3, 1), (3, 3)]
    (part,) = read_record(tree.records[0].path).parts
    assert (part.core, part.status) == ("AI Core", 0x20)
    operator = open_dump(tree.dumps_of(tree.records[0], part.task_id, part.stream_id)[0].path)
    assert (operator.op_name, [item.shape for item in operator.inputs]) == ("net/fc/MatMul", [(4, 8), (8, 2)])
    assert float(operator.outputs[0].raw().max()) == 65504.0


def test_nothing_is_dumped_without_a_graph_or_after_close(npu_device: Any, tmp_path: Path) -> None:
    import tensorflow as tf

    dump = npu_device.global_options().dump_config
    dump.enable_dump_debug, dump.dump_path = True, str(tmp_path)
    npu_device.open()
    layer = npu_device.testing.dense(2, "net/fc/MatMul", lambda step: True)
    layer(tf.ones([4, 8]))  # not the default device
    npu_device.open().as_default()
    npu_device.npu_device.close()
    tf.function(lambda x: layer(x))(tf.ones([4, 8]))
    npu_device.testing.flush()
    assert list(tmp_path.iterdir()) == []
