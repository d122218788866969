"""The training is the user's: nothing that goes wrong beside it is seen in it, and nothing stays behind."""
from __future__ import annotations

import logging
import sys
import threading
from typing import Any, List, Optional

import numpy as np
import pytest
import training

import npu_overflow
from npu_overflow.collectors import compat

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS = 64
HOT = list(range(training.HOT_FROM, STEPS))


def hook_places() -> List[Any]:
    """Everything that hooks replace, as it is now."""
    import tensorflow as tf

    internals = compat.internals()
    kind = internals.get("function_class")
    found: List[Any] = [kind.__dict__["__call__"], tf.GradientTape.__dict__["gradient"]]
    for key in ("fast_path", "execute", "record_gradient", "record_operation"):
        module, attribute, _ = internals._found[key]
        found.append(getattr(module, attribute))
    for kind in compat.iter_optimizer_classes():
        found += [kind.__dict__.get(name) for name in ("apply", "apply_gradients")]
    return found


def fit(watch: Optional[Any], callbacks: Any = (), model_of: Any = training.functional, data: Any = None) -> Any:
    keras = training.set_up()
    model = training.compiled(model_of(keras), keras)
    training.weights(model)
    x, y = training.data(STEPS, HOT) if data is None else (data, None)
    given = {"batch_size": training.BATCH, "shuffle": False} if data is None else {}
    model.fit(x, y, verbose=0, callbacks=([watch] if watch else []) + list(callbacks), **given)
    return training.state(model)


def layer_that(keras: Any, does: Any) -> Any:
    """A net with a layer that calls ``does()`` whenever it runs eagerly."""

    class Does(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            import tensorflow as tf

            if tf.executing_eagerly() and does is not None:
                does()
            return x

    inputs = keras.Input((training.FEATURES,))
    h = keras.layers.Dense(8, activation="relu", name="first")(inputs)
    h = keras.layers.Dense(6, name="hot")(h)
    return keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(Does(dtype="mixed_float16")(h)), name="net")


def test_an_error_that_only_the_replay_raises_is_ours() -> None:
    import tensorflow as tf

    def out_of_memory() -> None:
        raise tf.errors.ResourceExhaustedError(None, None, "injected")

    plain = fit(None, model_of=lambda keras: layer_that(keras, None))
    before = hook_places()
    watch = npu_overflow.OverflowWatch(verbose=0)
    watched = fit(watch, model_of=lambda keras: layer_that(keras, out_of_memory))
    assert training.same(plain, watched)
    by_graph = next(remark for remark in watch.reports[0].remarks if remark.code == "replay.by_graph")
    assert "ResourceExhaustedError" in by_graph.text and "injected" in by_graph.text
    assert watch.reports[0].first.op_type == "MatMul"  # found by the replay as a graph instead
    assert hook_places() == before


def test_a_step_that_neither_replay_can_run_says_why(monkeypatch: Any) -> None:
    from npu_overflow.collectors import host
    from npu_overflow.errors import CannotCollect

    def refuse(*args: Any) -> Any:
        raise CannotCollect("replay.graph_large", count=3, most=2)

    def out_of_memory() -> None:
        raise MemoryError("injected")

    monkeypatch.setattr(host, "findings_by_graph", refuse)
    plain = fit(None, model_of=lambda keras: layer_that(keras, None))
    watch = npu_overflow.OverflowWatch(verbose=0)
    watched = fit(watch, model_of=lambda keras: layer_that(keras, out_of_memory))
    assert training.same(plain, watched)
    assert watch.reports[0].first is None and watch.reports[0].reason == "replay.raised"
    assert "MemoryError" in watch.reports[0].remarks[0].text and "injected" in watch.reports[0].remarks[0].text


@pytest.mark.parametrize("error", [ValueError("the user's"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_the_users_own_exceptions_pass_and_leave_no_hook(error: BaseException) -> None:
    import tensorflow as tf

    class Raises(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if watch.state == "collecting" and batch > training.HOT_FROM + 5:
                raise error

    fit(None)  # every class that will be replaced is loaded
    before = hook_places()
    watch = npu_overflow.OverflowWatch(verbose=0)
    with pytest.raises(type(error)) as raised:
        fit(watch, callbacks=[Raises()])
    assert raised.value is error
    assert hook_places() == before
    watch._session.end(failed=True)
    assert watch.reports[0].first.op_name == "net/hot/MatMul"


def test_an_error_of_the_pipeline_is_raised_as_it_is() -> None:
    import tensorflow as tf

    x, y = training.data(STEPS, HOT)

    def batches() -> Any:
        for i in range(STEPS):
            if i == training.HOT_FROM + 7:
                raise ValueError("the pipeline's own")
            yield x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8]

    spec = (tf.TensorSpec((None, training.FEATURES), tf.float32), tf.TensorSpec((None, 1), tf.float32))
    watch = npu_overflow.OverflowWatch(verbose=0)
    with pytest.raises((tf.errors.OpError, ValueError), match="the pipeline's own"):
        fit(watch, data=tf.data.Dataset.from_generator(batches, output_signature=spec))
    watch._session.end(failed=True)
    assert watch.reports[0].first.op_name == "net/hot/MatMul"


def test_other_threads_run_through_untouched() -> None:
    import tensorflow as tf

    def trained(watch: Optional[Any]) -> Any:
        keras = training.set_up()
        other = training.functional(keras)
        training.weights(other)
        x, _ = training.data(2, [1])
        served = tf.function(lambda v: tf.cast(other(v, training=False), tf.float32) / tf.constant(0.0))  # full of Inf
        stop, seen = threading.Event(), set()

        def serve() -> None:
            while not stop.is_set():
                with tf.GradientTape() as tape:
                    weight = tf.Variable(2.0)
                    loss = weight * tf.reduce_sum(tf.cast(other(tf.constant(x[:8])), tf.float32))
                seen.add((float(tape.gradient(loss, weight)), float(tf.reduce_sum(served(tf.constant(x[:8]))))))

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return fit(watch), seen
        finally:
            stop.set()
            thread.join()

    plain, seen = trained(None)
    watch = npu_overflow.OverflowWatch(verbose=0)
    watched, seen_too = trained(watch)
    assert training.same(plain, watched) and seen == seen_too and len(seen) == 1
    assert [report.first.op_name for report in watch.reports] == ["net/hot/MatMul"]
    assert len(watch.reports[0].operators) < 120


def test_random_generators_go_on_as_if_nothing_had_been() -> None:
    import tensorflow as tf

    def draws(watch: Optional[Any]) -> Any:
        fit(watch)
        return [float(tf.random.normal([])), float(np.random.rand()), float(tf.random.get_global_generator().normal([]))]

    tf.random.set_global_generator(tf.random.Generator.from_seed(3))
    plain = draws(None)
    tf.random.set_global_generator(tf.random.Generator.from_seed(3))
    watch = npu_overflow.OverflowWatch(verbose=0)
    assert draws(watch) == plain and len(watch.reports) == 1


def test_a_failure_of_the_watch_is_logged_once_and_turns_it_off(monkeypatch: Any, caplog: Any) -> None:
    from npu_overflow import saved

    plain = fit(None)
    watch = npu_overflow.OverflowWatch(verbose=0)
    monkeypatch.setattr(saved, "analyzed", lambda *args: 1 / 0)
    with caplog.at_level(logging.ERROR, logger="npu_overflow"):
        watched = fit(watch)
    assert training.same(plain, watched)
    assert watch.state == "off"
    assert sum("turned itself off" in record.getMessage() for record in caplog.records) == 1
    assert any(record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records)


def test_no_tensor_is_copied_before_its_operator_is_a_candidate(monkeypatch: Any) -> None:
    from npu_overflow.collectors import observe
    from npu_overflow.collectors.replay import Replay

    copied = []
    kind = compat.internals().get("eager_tensor")
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(2, [])
    model.fit(x, y, batch_size=8, verbose=0)
    real = kind.numpy
    import tensorflow as tf

    batch = (tf.constant(x[:8]), tf.constant(y[:8]))

    def counted(tensor: Any) -> Any:
        if "npu_overflow" in sys._getframe(1).f_code.co_filename:  # TensorFlow copies shapes and axes of its own
            copied.append(tensor._id)
        return real(tensor)

    monkeypatch.setattr(kind, "numpy", counted)
    found = Replay(lambda next_call: model.train_step(batch), {}, lambda handle: "v", [], 10**8).findings()
    assert found.operators > 50 and not found.reached
    assert copied == []
    monkeypatch.undo()
    assert observe.MAX_HELD == 32


ALL_NAMES = [wanted.key for wanted in compat._WANTED]


@pytest.mark.parametrize("name", ALL_NAMES)
def test_without_a_private_name_the_report_degrades_or_the_watch_turns_off(name: str, monkeypatch: Any, capsys: Any) -> None:
    plain = fit(None)
    whole = compat.internals()
    poorer = compat.Internals()
    poorer._found = {key: value for key, value in whole._found.items() if key != name}
    monkeypatch.setattr(compat, "_internals", [poorer])
    watch = npu_overflow.OverflowWatch(language="en")
    watched = fit(watch)
    assert training.same(plain, watched)
    told = capsys.readouterr()
    probe = next(item for item in compat.probe() if item.name == name)
    if probe.needed:
        assert watch.state == "off" and watch.reports == []
        assert told.err.count("npu_overflow: off:") == 1 and name in told.err
    else:
        first = watch.reports[0].first
        assert first.op_type == "MatMul" and first.phase == "forward"
        assert any(remark.code == probe.lost for remark in watch.reports[0].remarks)
