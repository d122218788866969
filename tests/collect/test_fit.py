"""The main job on real training: fit under watch, on every supported TensorFlow."""
from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
import pytest
import training

import npu_overflow

pytestmark = pytest.mark.tensorflow

HOT = list(range(training.HOT_FROM, 60))


def fit(model: Any, hot: Any, watch: Any = None, steps: int = 60, **kwargs: Any) -> Any:
    training.weights(model)
    x, y = training.data(steps, hot)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch] if watch else [], **kwargs)
    return training.state(model)


def test_names_the_layer_that_overflows(keras: Any, capsys: Any) -> None:
    watch = npu_overflow.OverflowWatch(language="en")
    model = training.compiled(training.functional(keras), keras)
    fit(model, HOT, watch)
    assert len(watch.reports) == 1
    first = watch.reports[0].first
    assert (first.op_type, training.named(first), first.phase, first.origin) == ("MatMul", "net/hot/MatMul", "forward", "operator")
    assert first.core == "CPU" and first.verdict == "computed_here" and first.cured_by_scale is False
    assert first.train_step >= training.HOT_FROM + 5
    assert first.outputs[0].dtype == "float16" and first.outputs[0].pos_inf > 0
    assert first.op_name in capsys.readouterr().out


@pytest.mark.parametrize("optimizer", ["Adam", "RMSprop"])
def test_the_first_step_in_which_the_optimizer_makes_its_variables(keras: Any, optimizer: str) -> None:
    """Nothing skips it, so it is run again from the values with which it began."""
    model = training.functional(keras)
    model.compile(getattr(keras.optimizers, optimizer)(1e-4), "mse")
    watch = npu_overflow.OverflowWatch(verbose=0, at_steps=[0])
    fit(model, range(3), watch, steps=3)
    first = watch.reports[0].first
    assert (training.named(first), first.train_step) == ("net/hot/MatMul", 0)


def test_an_optimizer_that_spoils_the_weights_is_told_from_a_gradient(keras: Any) -> None:
    """An epsilon that is 0 in float16 and a unit without gradient: 0 / 0 in the update."""
    keras.backend.set_floatx("float16")
    try:
        training.tear_down(keras)
        keras.mixed_precision.set_global_policy("float16")
        off = keras.initializers.Constant([-9.0, 0.0, 0.0, 0.0])
        first = keras.layers.Dense(4, activation="relu", name="a", bias_initializer=off)
        layers = [keras.layers.InputLayer((4,)), first, keras.layers.Dense(1, name="out")]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(1e-3, epsilon=1e-8), "mse")
        watch = npu_overflow.OverflowWatch(verbose=0, at_steps=[0])
        x, y = np.ones((16, 4), np.float16), np.ones((16, 1), np.float16)
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[watch])
    finally:
        keras.backend.set_floatx("float32")
    found = watch.reports[0].first
    assert found.train_step == 0 and found.origin == "operator"
    assert "Adam" in found.op_type or found.op_name.lower().startswith("adam")
    assert "optimizer_float16" in found.advice


def test_the_page_marks_the_collected_steps_and_names_the_trigger_as_the_terminal_does(keras: Any, capsys: Any, tmp_path: Any) -> None:
    watch = npu_overflow.OverflowWatch()
    fit(training.compiled(training.functional(keras), keras), range(training.HOT_FROM, 60), watch)
    (report,) = watch.reports
    said = re.search(r"step (\d+): \d+ steps overflowed", capsys.readouterr().err)
    assert said is not None and report.loss_scale is not None
    assert report.loss_scale.trigger_step == int(said.group(1)) == report.loss_scale.kept_steps[0]
    assert report.loss_scale.kept_steps == tuple(sorted({operator.train_step for operator in report.operators}))
    assert len(report.loss_scale.kept_steps) == 3
    pytest.importorskip("jinja2")
    with open(report.to_html(str(tmp_path / "report.html")), encoding="utf-8") as file:
        page = file.read()
    assert "judged frequent at step %s" % said.group(1) in page
    assert page.count('class="keptmark"') == 3


def test_weights_are_those_of_a_training_without_the_watch(keras: Any) -> None:
    plain = fit(training.compiled(training.functional(keras), keras), HOT)
    training.set_up()
    watch = npu_overflow.OverflowWatch(verbose=0)
    watched = fit(training.compiled(training.functional(keras), keras), HOT, watch)
    assert len(watch.reports) == 1
    assert training.same(plain, watched)
    training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    assert max(np.abs(a - b).max() for a, b in zip(plain[:4], training.state(model)[:4])) > 1e-4  # the training did move


def test_one_overflowing_step_in_forty_is_no_case(keras: Any, capsys: Any) -> None:
    hot = [step for step in range(1, 160) if step % 40 == 0]
    plain = fit(training.compiled(training.functional(keras), keras), hot, steps=160)
    training.set_up()
    watch = npu_overflow.OverflowWatch(language="en")
    watched = fit(training.compiled(training.functional(keras), keras), hot, watch, steps=160)
    assert watch.reports == [] and watch.state == "watching"
    assert [drop[0] for drop in watch.drops] == hot
    assert training.same(plain, watched)
    told = capsys.readouterr()
    assert "overflows first" not in told.out and "3 of 160 steps overflowed.\n" in told.err


def test_a_subclassed_model_gets_the_line_of_the_user(keras: Any) -> None:
    class Net(keras.Model):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__(name="net")
            self.first = keras.layers.Dense(8, activation="relu", name="first")
            self.hot = keras.layers.Dense(6, name="hot")
            self.out = keras.layers.Dense(1, dtype="float32", name="out")

        def call(self, x: Any) -> Any:
            h = self.first(x)
            h = self.hot(h)  # the line to be named
            return self.out(h)

    model = training.compiled(Net(), keras)
    model(np.zeros((1, training.FEATURES), np.float32))
    watch = npu_overflow.OverflowWatch(verbose=0)
    fit(model, HOT, watch)
    first = watch.reports[0].first
    with open(__file__, encoding="utf-8") as file:
        line = next(number for number, text in enumerate(file, 1) if "the line to be named" in text)
    assert training.named(first) == "net/hot/MatMul"
    assert first.location == "test_fit.py:%d" % line and first.location_kind == "call"


def test_the_compiled_function_is_not_traced_again(keras: Any) -> None:
    traces = []

    class Counting(keras.layers.Layer):  # type: ignore[misc, name-defined]
        def call(self, x: Any) -> Any:
            import tensorflow as tf

            if not tf.executing_eagerly():
                traces.append(1)
            return x

    def net() -> Any:
        inputs = keras.Input((training.FEATURES,))
        h = Counting()(keras.layers.Dense(8, activation="relu", name="first")(inputs))
        h = keras.layers.Dense(6, name="hot")(h)
        return training.compiled(keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h)), keras)

    fit(net(), HOT)
    plain = len(traces)
    traces.clear()
    watch = npu_overflow.OverflowWatch(verbose=0)
    fit(net(), HOT, watch)
    assert len(watch.reports) == 1
    assert len(traces) == plain


def test_the_tree_is_in_the_vendors_format_and_is_analyzed_again(keras: Any) -> None:
    watch = npu_overflow.OverflowWatch(verbose=0)
    fit(training.compiled(training.functional(keras), keras), HOT, watch)
    report = watch.reports[0]
    assert os.path.isfile(os.path.join(report.path, report.first.dump_file))
    assert os.path.isfile(os.path.join(report.path, report.first.record_file))
    again = npu_overflow.analyze(report.path)
    assert training.named(again.first) == training.named(report.first) and again.first.outputs == report.first.outputs
    with open(os.path.join(report.path, "report.json"), encoding="utf-8") as file:
        assert npu_overflow.Report.from_json(file.read()).first == report.first


def test_dropout_batch_normalization_and_metrics_are_untouched(keras: Any) -> None:
    def net() -> Any:
        inputs = keras.Input((training.FEATURES,))
        h = keras.layers.Dense(8, activation="relu", name="first")(inputs)
        h = keras.layers.Dropout(0.3, seed=5)(h)
        h = keras.layers.Dense(6, name="hot")(h)
        h = keras.layers.BatchNormalization()(h)
        return training.compiled(keras.Model(inputs, keras.layers.Dense(1, dtype="float32", name="out")(h)), keras)

    plain = fit(net(), HOT)
    training.set_up()
    watch = npu_overflow.OverflowWatch(verbose=0)
    watched = fit(net(), HOT, watch)
    assert len(watch.reports) == 1
    assert training.named(watch.reports[0].first).endswith("hot/MatMul")
    assert training.same(plain, watched)


def test_a_watch_that_is_given_twice_counts_once(keras: Any, capsys: Any) -> None:
    watch = npu_overflow.OverflowWatch(language="en")
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(60, HOT)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch, watch])
    assert [drop[0] for drop in watch.drops[:3]] == [training.HOT_FROM, training.HOT_FROM + 1, training.HOT_FROM + 2]
    assert [training.named(report.first) for report in watch.reports] == ["net/hot/MatMul"]
    assert capsys.readouterr().err.count("watching the loss scale") == 1
