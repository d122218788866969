"""Streams that are missing, closed, full or broken, and places that can't be written: the training goes on, and what can be saved is."""
from __future__ import annotations

import errno
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import training

import npu_overflow
from npu_overflow.training import console, session

pytestmark = [pytest.mark.tensorflow, pytest.mark.usefixtures("own_folder")]

SCRIPT = """
import logging, os, sys
logging.getLogger("tensorflow").disabled = True  # Keras 2 tells of slow callbacks, and raises where it can't
sys.path.insert(0, {tests!r})
import training, npu_overflow
kept = os.dup(1), os.dup(2)
for how, broken in {broken!r}.items():
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(48, list(range(30, 48)))
    watch = npu_overflow.OverflowWatch(dump_path=how)
    exec(broken)
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch])
    saved = [name for _, _, names in os.walk(how) for name in names if name == "report.json"]
    os.write(kept[0], ("DONE %s %s %d %d\\n" % (how, watch.state, len(watch.reports), len(saved))).encode())
    os.dup2(kept[0], 1), os.dup2(kept[1], 2)
    sys.stdout, sys.stderr = (open(n, "w", closefd=False) for n in (1, 2))
os._exit(0)
"""

BROKEN = {
    "none": "sys.stdout = sys.stderr = None",
    "out_closed": "sys.stdout.close()",
    "err_closed": "sys.stderr.close()",
    "nobody_reads": "r, w = os.pipe(); os.close(r); os.dup2(w, 1); os.dup2(w, 2)",
    "full": "full = os.open('/dev/full', os.O_WRONLY); os.dup2(full, 1); os.dup2(full, 2)",
}


def test_a_training_without_streams_is_watched_all_the_same(tmp_path: Path) -> None:
    folder = str(Path(training.__file__).parent)
    (tmp_path / "script.py").write_text(SCRIPT.format(tests=folder, broken=BROKEN))
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, timeout=300)
    for how in BROKEN:
        assert "DONE %s reported 1 1" % how in done.stdout, done.stdout + done.stderr


def test_a_failure_of_the_watch_is_not_raised_where_it_can_not_be_logged(monkeypatch: Any) -> None:
    """The handler's stream is closed."""
    import logging

    closed = io.StringIO()
    handler = logging.StreamHandler(closed)
    logger = logging.getLogger("npu_overflow")
    logger.addHandler(handler)
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    monkeypatch.setattr(session.Session, "after_steps", session.never_raises(lambda *args: 1 / 0))
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    watch = npu_overflow.OverflowWatch()
    x, y = training.data(4, [])
    try:
        model.fit(x, y, batch_size=training.BATCH, verbose=0, callbacks=[watch])
    finally:
        logger.removeHandler(handler)
    assert watch.state == "off"


def test_an_error_that_is_not_of_the_stream_is_one(monkeypatch: Any) -> None:
    with pytest.raises(ValueError), console.ignore_closed_stream("stderr"):
        raise ValueError
    monkeypatch.setattr(sys, "stderr", None)
    with console.ignore_closed_stream("stderr"):
        raise ValueError
    console.say("lost")


def test_on_a_terminal_a_line_begins_apart_from_a_progress_bar(monkeypatch: Any) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, lead in ((Terminal(), "\n"), (io.StringIO(), "")):
        monkeypatch.setattr(sys, "stderr", stream)
        console.say("line", apart=True)
        console.say("another")
        assert stream.getvalue() == lead + "line\nanother\n"


def fit(watch: Any) -> None:
    keras = training.set_up()
    model = training.compiled(training.functional(keras), keras)
    training.weights(model)
    x, y = training.data(48, list(range(training.HOT_FROM, 48)))
    model.fit(x, y, batch_size=training.BATCH, shuffle=False, verbose=0, callbacks=[watch])


def test_where_the_dump_path_can_not_be_written_a_temporary_folder_is_taken(monkeypatch: Any, capsys: Any, tmp_path: Path) -> None:
    real, made = os.makedirs, tmp_path / "made"
    made.mkdir()

    def refused(path: Any, *args: Any, **kwargs: Any) -> None:
        if os.path.basename(os.path.abspath(path)) == "never":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        real(path, *args, **kwargs)

    monkeypatch.setattr(os, "makedirs", refused)
    monkeypatch.setattr(tempfile, "tempdir", str(made))
    watch = npu_overflow.OverflowWatch(dump_path="never")
    fit(watch)
    (report,) = watch.reports
    assert report.first is not None and training.named(report.first) == "net/hot/MatMul"
    assert report.path is not None and report.path.startswith(str(made))
    said = capsys.readouterr().err
    assert said.count("never can't be written: Read-only file system. What is collected goes to %s" % made) == 1


@pytest.mark.parametrize("tell", [False, True], ids=["marked", "told"])
def test_a_step_outside_of_a_training_says_what_to_do(tell: bool, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(console, "_said", set())
    watch = npu_overflow.OverflowWatch()
    for _ in range(3):
        with watch.step(loss_scale=8.0, finite=False) if tell else watch.step():
            pass
    said = capsys.readouterr().err
    assert said.count("npu_overflow:") == 1 and "with npu_overflow.overflow_dump() as watch:" in said
    assert watch.state == "watching" and not watch.reports
