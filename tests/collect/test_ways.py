"""Ways of running fit: several steps a call, eagerly, compiled by XLA, forced steps, without a loss scale, on several replicas."""
from __future__ import annotations

import os
import subprocess
import sys
from typing import Any, Optional

import pytest
import training

import npu_overflow

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS = 64
HOT = list(range(training.HOT_FROM, STEPS))


def fit(watch: Optional[Any], hot: Any = HOT, policy: str = "mixed_float16", scaled: bool = True, **compile_options: Any) -> Any:
    keras = training.set_up(policy)
    model = training.functional(keras)
    if scaled:
        training.compiled(model, keras, **compile_options)
    else:
        model.compile(keras.optimizers.Adam(1e-4), "mse", **compile_options)
    training.weights(model)
    x, y = training.data(STEPS, hot)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch] if watch else [])
    return training.state(model)


@pytest.mark.parametrize("options", [{"steps_per_execution": 4}, {"run_eagerly": True}, {"jit_compile": True}, {"jit_compile": False}], ids=str)
def test_finds_the_layer_and_changes_nothing(options: Any) -> None:
    import tensorflow as tf

    if "jit_compile" in options and tf.__version__.startswith("2.6."):
        pytest.skip("this Keras has no jit_compile")
    watch = npu_overflow.OverflowWatch(verbose=0)
    assert training.same(fit(None, **options), fit(watch, **options))
    assert [training.named(report.first) for report in watch.reports] == ["net/hot/MatMul"]


def test_many_steps_a_call_are_refused_with_what_to_lower(monkeypatch: Any) -> None:
    from npu_overflow.collect.replay import collector

    monkeypatch.setattr(collector, "_MOST_BATCHES", 8)
    watch = npu_overflow.OverflowWatch(verbose=0)
    assert training.same(fit(None, steps_per_execution=16), fit(watch, steps_per_execution=16))
    assert watch.reports[0].first is None and watch.reports[0].reason == "replay.many_steps"
    assert "Lower steps_per_execution" in watch.reports[0].remarks[0].text


def test_a_forced_healthy_step_has_nothing_to_blame() -> None:
    watch = npu_overflow.OverflowWatch(verbose=0, at_steps=[10, 20])
    assert training.same(fit(None, hot=[]), fit(watch, hot=[]))
    assert [(report.first, report.headroom.step) for report in watch.reports] == [
        (None, 10),
        (None, 20),
    ]
    assert watch.state == "watching"


def test_a_forced_step_is_collected_before_patience_runs_out() -> None:
    watch = npu_overflow.OverflowWatch(verbose=0, at_steps=[31])
    assert training.same(fit(None), fit(watch))
    assert (training.named(watch.reports[0].first), watch.reports[0].first.train_step) == ("net/hot/MatMul", 31)


def test_without_a_loss_scale_the_weights_are_lost_and_the_report_says_since_when(capsys: Any) -> None:
    watch = npu_overflow.OverflowWatch(language="en")
    assert training.same(fit(None, policy="float16", scaled=False), fit(watch, policy="float16", scaled=False))
    first = watch.reports[0].first
    assert first.origin == "variable" and first.origin_detail["name"].endswith("kernel") and first.verdict == "inherited"
    assert any("at the latest since training step %d" % training.HOT_FROM in remark.text for remark in watch.reports[0].remarks)
    assert "has no loss scaling" in capsys.readouterr().err


def test_without_a_loss_scale_a_forced_step_names_the_operator() -> None:
    watch = npu_overflow.OverflowWatch(verbose=0, at_steps=[training.HOT_FROM])
    assert training.same(fit(None, policy="float16", scaled=False), fit(watch, policy="float16", scaled=False))
    assert (training.named(watch.reports[0].first), watch.reports[0].first.origin) == ("net/hot/MatMul", "operator")


def test_collecting_ends_after_max_collect_steps() -> None:
    sporadic = [step for step in range(training.HOT_FROM, STEPS) if step < training.HOT_FROM + 6]  # frequent, and then nothing more
    watch = npu_overflow.OverflowWatch(verbose=0, max_collect_steps=4, window=20)
    fit(watch, hot=sporadic)
    assert [training.named(report.first) for report in watch.reports] == ["net/hot/MatMul"]  # one of the three wanted steps
    assert len({operator.step for operator in watch.reports[0].operators}) == 1


def test_collecting_ends_after_max_collect_seconds(capsys: Any) -> None:
    watch = npu_overflow.OverflowWatch(language="en", max_collect_seconds=1e-9)  # over before the first step is collected
    fit(watch, hot=range(training.HOT_FROM, training.HOT_FROM + 8))
    assert watch.reports == []
    assert capsys.readouterr().err.count("no further step overflowed while collecting") == 1


MIRRORED = """
import logging, os, sys
sys.path[:0] = [%r]
import training
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
import npu_overflow

def fit(watch):
    keras = training.set_up()
    with strategy.scope():
        model = training.compiled(training.functional(keras), keras)
        training.weights(model)
    x, y = training.data(40, [])
    x.reshape(40, 8, 4)[30:, 4:] *= 300
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[watch] if watch else [])
    return training.state(model)

filters = list(logging.getLogger("tensorflow").filters)
watch = npu_overflow.OverflowWatch(verbose=0)
same = training.same(fit(None), fit(watch))
report = watch.reports[0]
assert logging.getLogger("tensorflow").filters == filters
codes = [remark.code for remark in report.remarks]
print("FOUND", same, training.named(report.first), report.first.origin, report.first.device, codes)
"""


def test_one_of_two_replicas_overflows(tmp_path: Any) -> None:
    """The second one; of the first one and of the names, see ``faults.ways``."""
    import tensorflow as tf

    script = tmp_path / "mirrored.py"
    script.write_text(MIRRORED % os.path.dirname(__file__))
    done = subprocess.run([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    found = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert "eagerly has significant overhead" not in done.stdout  # that is the replay's doing, not the user's
    if not hasattr(tf.keras, "ops"):  # Keras 2
        assert found == ["FOUND True replica/net/hot/MatMul operator 1 []"], done.stdout[-3000:]
    else:  # this Keras asks only the first replica: the other one's gradients have reached the weights
        assert found == ["FOUND True net/first/Cast/Cast variable 0 ['host.weights_lost']"], done.stdout[-3000:]
