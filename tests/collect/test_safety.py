"""Nothing that goes wrong beside the training is seen in it, and nothing stays behind."""

from __future__ import annotations

import logging
from typing import Any, List, Optional

import pytest
import training
from records import SOON, nothing_is_hooked

import npu_overflow
from npu_overflow.collect.replay import tensorflow as private

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

STEPS = 20
HOT = list(range(10, STEPS))


def fit(watch: Optional[Any], callbacks: Any = (), data: Any = None) -> Any:
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(STEPS, HOT) if data is None else (data, None)
    given = {"batch_size": training.BATCH, "shuffle": False} if data is None else {}
    model.fit(x, y, verbose=0, callbacks=([watch] if watch else []) + list(callbacks), **given)
    return training.state(model)


@pytest.fixture(scope="module")
def plain() -> Any:
    """The state after a training without a watch."""
    import tensorflow as tf

    state = fit(None)
    training.tear_down(tf.keras)
    return state


@pytest.mark.parametrize(
    "error", [ValueError("the user's"), KeyboardInterrupt()], ids=["error", "interrupt"]
)
def test_the_users_own_exceptions_pass_and_leave_no_hook(error: BaseException) -> None:
    import tensorflow as tf

    class Raises(tf.keras.callbacks.Callback):  # type: ignore[misc, name-defined]
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if watch.state == "collecting" and batch > HOT[0] + 4:
                raise error

    watch = npu_overflow.OverflowWatch(**{**SOON, "keep": 5})
    with pytest.raises(type(error)) as raised:
        fit(watch, callbacks=[Raises()])
    assert raised.value is error
    watch._session.end(failed=True)
    assert training.named(watch.reports[0].first) == "net/hot/MatMul"
    assert nothing_is_hooked()


def test_an_error_of_the_pipeline_is_raised_as_it_is() -> None:
    import tensorflow as tf

    x, y = training.data(STEPS, HOT)

    def batches() -> Any:
        for i in range(STEPS):
            if i == HOT[0] + 5:
                raise ValueError("the pipeline's own")
            yield x[i * 8 : i * 8 + 8], y[i * 8 : i * 8 + 8]

    spec = (
        tf.TensorSpec((None, training.FEATURES), tf.float32),
        tf.TensorSpec((None, 1), tf.float32),
    )
    watch = npu_overflow.OverflowWatch(**{**SOON, "keep": 5})
    with pytest.raises((tf.errors.OpError, ValueError), match="the pipeline's own"):
        fit(watch, data=tf.data.Dataset.from_generator(batches, output_signature=spec))
    watch._session.end(failed=True)
    assert training.named(watch.reports[0].first) == "net/hot/MatMul"
    assert nothing_is_hooked()


def test_a_failure_of_the_watch_is_logged_once_and_turns_it_off(
    plain: Any, monkeypatch: Any, caplog: Any
) -> None:
    from npu_overflow.training import reports_io

    watch = npu_overflow.OverflowWatch(**SOON)
    monkeypatch.setattr(reports_io, "analyzed", lambda *args: 1 / 0)
    with caplog.at_level(logging.ERROR, logger="npu_overflow"):
        watched = fit(watch)
    assert training.same(plain, watched)
    assert watch.state == "off" and nothing_is_hooked()
    assert sum("turned itself off" in record.getMessage() for record in caplog.records) == 1
    assert any(
        record.exc_info and record.exc_info[0] is ZeroDivisionError for record in caplog.records
    )


@pytest.mark.parametrize("place", ["_meet_variables", "_values", "_add", "begin_step", "record"])
def test_a_failure_of_the_recorder_never_reaches_the_training(
    place: str, plain: Any, monkeypatch: Any, caplog: Any
) -> None:
    from npu_overflow.collect.replay.recorder import Recorder

    met: List[int] = []

    def fails(*args: Any) -> Any:
        met.append(1)
        raise RuntimeError("injected")

    monkeypatch.setattr(Recorder, place, fails)
    watch = npu_overflow.OverflowWatch(**SOON)
    with caplog.at_level(logging.CRITICAL, logger="npu_overflow"):
        watched = fit(watch)
    assert met and training.same(plain, watched) and nothing_is_hooked()
    # a record with holes tells nothing, least of all that the overflow is gone
    assert not any(report.reason == "not_reproduced" for report in watch.reports)


ALL_NAMES = [wanted.name for wanted in private._NAMES]


@pytest.mark.parametrize("name", ALL_NAMES)
def test_without_a_private_name_the_report_degrades_or_the_watch_turns_off(
    name: str, plain: Any, monkeypatch: Any, capsys: Any
) -> None:
    private.probe()
    poorer = {key: value for key, value in private._found.items() if key != name}
    monkeypatch.setattr(private, "_found", poorer)
    watch = npu_overflow.OverflowWatch(**{**SOON, "verbose": 1}, language="en")
    watched = fit(watch)
    assert training.same(plain, watched)
    told = capsys.readouterr()
    probe = next(item for item in private.probe() if item.name == name)
    assert not probe.found
    if probe.needed:
        assert watch.state == "off" and watch.reports == []
        assert told.err.count("npu_overflow: off:") == 1 and name in told.err
    else:
        first = watch.reports[0].first
        assert first.op_type == "MatMul" and first.phase == "forward"
        assert any(remark.code == probe.lost for remark in watch.reports[0].remarks)
