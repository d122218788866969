"""Unedited training scripts on the CPU under ``npu-overflow run``: the culprit is printed, the status is theirs, and each training is watched once."""
from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any, List

import launching
import pytest

pytestmark = pytest.mark.tensorflow

WATCHING = (
    "npu_overflow: watching the loss scale; after repeated overflows the host collector (TensorFlow on CPU or GPU) replays the overflowing steps "
    "(no Ascend NPU in use).\n"
)


def reports(folder: Path, where: str = "precision_data/overflow/dump") -> List[Any]:
    found = sorted((folder / where).glob("*/report.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def culprits(folder: Path, *where: str) -> List[str]:
    first = [report["operators"][report["first"]] for report in reports(folder, *where)]
    return [launching.unnumbered(operator["op_name"]) for operator in first]


@pytest.mark.parametrize("name", ["keras_fit.py", "custom_loop.py"])
def test_examples_run_unedited(tmp_path: Path, name: str) -> None:
    text = (launching.EXAMPLES / name).read_text(encoding="utf-8")
    assert not [line for line in text.split('"""', 2)[2].splitlines() if "overflow" in line]
    got = launching.run([launching.EXAMPLES / name])
    assert got.returncode == 0, got.stderr
    assert "First overflowing operator\n  MatMul\n  net/hot/MatMul\n" in launching.unnumbered(got.stdout)
    assert "trained 60 steps\n" in got.stdout
    assert got.stderr.count(WATCHING) == 1
    assert culprits(tmp_path) == ["net/hot/MatMul"]
    assert reports(tmp_path)[0]["operators"][0]["location"].startswith(name + ":")


def test_a_module_is_watched_too_and_options_reach_the_watch(tmp_path: Path) -> None:
    words = ["--dump-path", "here", "--language", "zh", "--limit", "1", "--patience", "3"]
    module = ["-m", "keras_fit", "--steps", "50"]
    surroundings = {"PYTHONPATH": str(launching.EXAMPLES), "PYTHONIOENCODING": "utf-8"}
    got = launching.run(words + module, **surroundings)
    assert got.returncode == 0 and "trained 50 steps\n" in got.stdout, got.stderr
    assert "首个溢出" in got.stdout
    assert "\n  MatMul\n  net/hot/MatMul\n" in launching.unnumbered(got.stdout)
    (path,) = (tmp_path / "here").glob("*/session-0.json")
    options = json.loads(path.read_text(encoding="utf-8"))["options"]
    assert (options["patience"], options["limit"], options["dump_path"]) == (3, 1, "here")
    assert culprits(tmp_path, "here") == ["net/hot/MatMul"]


def test_the_report_does_not_stand_in_the_progress_bar(tmp_path: Path) -> None:
    # "printed once, not through the progress bar, saved beside the manifest"
    text = (launching.EXAMPLES / "keras_fit.py").read_text(encoding="utf-8")
    (tmp_path / "train.py").write_text(text.replace("verbose=2", "verbose=1"))
    got = launching.run(["train.py"])
    assert re.search(r"\d+/60", got.stdout) and got.stdout.count("First overflowing operator\n") == 1
    before, after = got.stdout.split("First overflowing operator\n")
    report = after[: after.index("    npu-overflow analyze ") + 80]
    assert before.endswith("\n")
    assert not re.search(r"[\r\b]|\d+/60|ETA", report.split("    npu-overflow analyze ")[0])
    (tree,) = tmp_path.glob("precision_data/overflow/dump/2*")
    assert {"report.json", "report.txt", "session-0.json"} <= {path.name for path in tree.iterdir()}


#: runs an example's ``main`` and then ends in a way of its own
ENDS = """
import sys
sys.path.insert(0, {examples!r})
import {example} as example
{ending}
"""


def script(tmp_path: Path, example: str, ending: str) -> Path:
    path = tmp_path / "script.py"
    path.write_text(ENDS.format(examples=str(launching.EXAMPLES), example=example, ending=ending))
    return path


FIT_RAISES = """
sys.argv[1:] = []
import tensorflow as tf
make = example.make_model

class Boom(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 36:
            raise ValueError("the script's own")

def make_model():
    model = make()
    fit = model.fit
    model.fit = lambda *args, **kwargs: fit(*args, callbacks=[Boom()], **kwargs)
    return model

example.make_model = make_model
example.main()
"""

LOOP_RAISES = """
import numpy
from types import SimpleNamespace

class Random(numpy.random.RandomState):
    drawn = 0

    def uniform(self, *args):
        self.drawn += 1
        if self.drawn == 38:
            raise ValueError("the script's own")
        return super().uniform(*args)

example.np = SimpleNamespace(random=SimpleNamespace(RandomState=Random), float32=numpy.float32)
example.main()
"""


@pytest.mark.parametrize(("example", "ending"), [("keras_fit", FIT_RAISES), ("custom_loop", LOOP_RAISES)])
def test_a_script_that_raises_while_collecting(tmp_path: Path, example: str, ending: str) -> None:
    path = script(tmp_path, example, ending)
    got = subprocess.run([*launching.RUN, str(path)], env=launching.environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    assert got.returncode == 1
    report, trace = got.stdout.index("/MatMul"), got.stdout.index("Traceback (most recent call last):")
    assert report < trace  # "the analysis of what was collected, short, above its traceback"
    assert got.stdout.rstrip().endswith("ValueError: the script's own")
    assert "npu_overflow" not in got.stdout[trace:].replace(str(launching.ROOT), "")
    assert re.search(r"\nOther operators, in order of time[^\n]*\n  … and ", got.stdout[:trace])  # the culprit only
    assert culprits(tmp_path) == ["net/hot/MatMul"]


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_sigterm_flushes(tmp_path: Path) -> None:
    waits = LOOP_RAISES.replace('raise ValueError("the script\'s own")', "print('ready', flush=True); __import__('time').sleep(60)")
    process = subprocess.Popen([*launching.RUN, str(script(tmp_path, "custom_loop", waits))], env=launching.environment(), **launching.PIPES)
    assert process.stdout is not None
    for line in process.stdout:
        if line == "ready\n":
            break
    process.send_signal(signal.SIGTERM)
    out, _errors = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGTERM
    assert "net/hot/MatMul" in launching.unnumbered(out)
    assert culprits(tmp_path) == ["net/hot/MatMul"]


OWN = """
sys.argv[1:] = []
import npu_overflow
watch = npu_overflow.OverflowWatch(patience=6)
import tensorflow as tf
make = example.make_model

def make_model():
    model = make()
    fit = model.fit
    model.fit = lambda *args, **kwargs: fit(*args, callbacks=WHERE, **kwargs)
    return model

example.make_model = make_model
example.main()
print("WATCHED", len(watch.reports), len(watch.drops) > 5)
"""


@pytest.mark.parametrize("where", ["[watch]", "watch", "[[watch]]"])
def test_a_watch_of_the_scripts_own_is_the_only_one(tmp_path: Path, where: str) -> None:
    import tensorflow as tf

    if where == "[[watch]]" and not tf.__version__.startswith("2.6"):
        pytest.skip("this Keras takes no nested callbacks")
    got = launching.run([script(tmp_path, "keras_fit", OWN.replace("WHERE", where))])
    assert got.returncode == 0, got.stderr
    assert "WATCHED 1 True" in got.stdout
    assert got.stderr.count(WATCHING) == 1 and len(reports(tmp_path)) == 1


def test_a_loop_in_a_script_that_calls_sys_exit(tmp_path: Path) -> None:
    ending = "sys.argv[1:] = []\nexample.main()\nsys.exit(7)"
    got = launching.run([script(tmp_path, "custom_loop", ending)])
    assert got.returncode == 7, got.stderr
    assert culprits(tmp_path) == ["net/hot/MatMul"]


def test_an_overflow_dump_of_the_scripts_own_is_the_only_one(tmp_path: Path) -> None:
    own = (
        "import npu_overflow\n"
        "with npu_overflow.overflow_dump() as watch:\n    example.main()\n"
        "print('WATCHED', len(watch.reports))\n"
    )
    got = launching.run([script(tmp_path, "custom_loop", own)])
    assert got.returncode == 0, got.stderr
    assert "WATCHED 1" in got.stdout
    assert got.stderr.count(WATCHING) == 1 and len(reports(tmp_path)) == 1


def test_positional_callbacks_stay_and_a_dropped_model_is_not_kept(tmp_path: Path) -> None:
    ending = (
        "import gc, weakref, tensorflow as tf\n"
        "tf.keras.mixed_precision.set_global_policy('mixed_float16')\n"
        "seen = []\n"
        "class Mine(tf.keras.callbacks.Callback):\n"
        "    def on_epoch_end(self, epoch, logs=None):\n        seen.append(epoch)\n"
        "def train(*arguments, **named):\n"
        "    model = example.make_model()\n    model.compile(optimizer='sgd', loss='mse')\n"
        "    history = model.fit(*example.make_data(4), *arguments, **named)\n"
        "    return weakref.ref(model), type(history).__name__\n"
        "mine = [Mine()]\n"
        "_, made = train(16, 2, 0, mine)\n"
        "print('SEEN', seen, len(mine), made, tf.keras.Model.fit.__name__)\n"
        "kept, _ = train(batch_size=16, verbose=0)\n"
        "tf.keras.backend.clear_session()\ngc.collect()\nprint('KEPT', kept() is not None)\n"
    )
    got = launching.run([script(tmp_path, "keras_fit", ending)])
    assert "SEEN [0, 1] 1 History fit" in got.stdout, got.stderr
    assert "KEPT False" in got.stdout
    assert got.stderr.count(WATCHING) == 1


def test_fit_then_a_loop_then_fit(tmp_path: Path) -> None:
    ending = "sys.argv[1:] = []\nexample.main()\nimport custom_loop\ncustom_loop.main()\nexample.main()\n"
    got = launching.run(["--max-reports", "1", script(tmp_path, "keras_fit", ending)])
    assert got.returncode == 0, got.stderr
    assert got.stderr.count(WATCHING) == 1
    assert culprits(tmp_path) == ["net/hot/MatMul"] * 3
    # three trainings, each with a report of its own; the same operator is shown once and named in one line afterwards
    assert launching.unnumbered(got.stdout).count("First overflowing operator\n  MatMul\n  net/hot/MatMul\n") == 1
    assert len(re.findall(r"npu_overflow: step \d+: the same operator overflows first again: net/hot/MatMul\n", launching.unnumbered(got.stderr))) == 2


def test_many_short_fits_of_one_model_are_one_training(tmp_path: Path) -> None:
    """Six steps each, fewer than the warm-up: what is known of the loss scale, the count of steps and the report go on from one to the next."""
    ending = (
        "import tensorflow as tf\n"
        "tf.keras.mixed_precision.set_global_policy('mixed_float16')\n"
        "model = example.make_model()\nmodel.compile(optimizer=tf.keras.optimizers.Adam(1e-5), loss='mse')\n"
        "x, y = example.make_data(60)\n"
        "for part in range(0, 60 * 16, 6 * 16):\n"
        "    model.fit(x[part:part + 96], y[part:part + 96], batch_size=16, shuffle=False, verbose=0)\n"
    )
    got = launching.run([script(tmp_path, "keras_fit", ending)])
    assert got.returncode == 0, got.stderr
    assert got.stderr.count(WATCHING) == 1
    assert launching.unnumbered(got.stdout).count("First overflowing operator\n  MatMul\n  net/hot/MatMul\n") == 1
    assert got.stderr.count("npu_overflow: 30 of 60 steps overflowed.\n") == 1
    assert reports(tmp_path)[0]["operators"][0]["train_step"] in range(30, 60)


def test_a_script_that_only_predicts_is_left_in_peace(tmp_path: Path) -> None:
    ending = "import numpy as np\nmodel = example.make_model()\nprint(model.predict(np.ones((4, 8), 'float32'), verbose=0).shape)\n"
    got = launching.run([script(tmp_path, "keras_fit", ending)])
    assert (got.returncode, got.stdout) == (0, "(4, 1)\n")
    assert "npu_overflow" not in got.stderr
    assert not (tmp_path / "precision_data").exists()


def test_weights_and_exit_status_are_what_they_would_have_been(tmp_path: Path) -> None:
    ending = (
        "import hashlib, tensorflow as tf\n"
        "tf.random.set_seed(1)\nsys.argv[1:] = ['--steps', '50']\n"
        "made = []\nmake = example.make_model\n"
        "example.make_model = lambda: made.append(make()) or made[0]\nexample.main()\n"
        "weights = b''.join(w.tobytes() for w in made[0].get_weights())\n"
        "print('HASH', hashlib.sha256(weights).hexdigest())\nsys.exit(7)\n"
    )
    path = script(tmp_path, "keras_fit", ending)
    plain, watched = launching.plain([path]), launching.run([path])
    assert plain.returncode == watched.returncode == 7, watched.stderr
    hashes = [re.findall("HASH (.*)", done.stdout) for done in (plain, watched)]
    assert hashes[0] == hashes[1] and hashes[0]
    assert culprits(tmp_path) == ["net/hot/MatMul"]


@pytest.mark.tensorflow(">=2.16")
@pytest.mark.parametrize("flavour", ["keras", "tf_keras"])
def test_other_keras_packages(tmp_path: Path, flavour: str) -> None:
    text = (launching.EXAMPLES / "keras_fit.py").read_text(encoding="utf-8")
    path = tmp_path / "train.py"
    path.write_text(text.replace("import tensorflow as tf\n", "import tensorflow as tf\nimport %s as K\n" % flavour).replace("tf.keras", "K"))
    got = launching.run([path])
    assert got.returncode == 0, got.stderr
    assert culprits(tmp_path) == ["net/hot/MatMul"]
    assert got.stderr.count(WATCHING) == 1
