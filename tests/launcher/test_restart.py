"""``npu-overflow run --restart`` on the double of npu_device: the dump is off at first, then the script is started once more with it."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, List

import launching
import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow("<2.7")

ASCEND = launching.EXAMPLES / "ascend_fit.py"
DUMP = Path("precision_data/overflow/dump")

RESTARTS = (
    "npu_overflow: step {step}: overflow is frequent, and the device was opened without the dump: the script is ended here and started once more with it.\n"
    "npu_overflow: the script is started once more, with the dump on from its first step and from the weights saved at step {step}. Its data begins anew.\n"
)
RESTORED = "npu_overflow: weights, optimizer state and loss scale of the run before were restored: precision_data/overflow/dump/weights-0.npz\n"
REQUEST = (
    "npu_overflow: The device was opened without the overflow dump, and reads its options only when it opens: the operators that overflow can't be collected "
    "in this process. Call npu_overflow.npu_device_dump_config(npu_device) before npu_device.open() and start the training anew.\n"
)


def run(*words: Any, **changes: str) -> Any:
    return launching.run(list(words), PYTHONPATH=str(launching.DOUBLE), **changes)


def request(folder: Path) -> Any:
    return json.loads((folder / DUMP / "session-0.json").read_text(encoding="utf-8"))["request"]


def test_the_dump_is_configured_around_open(tmp_path: Path) -> None:
    # "To configure just before open in a script that can't be changed: replace npu_device.open by a wrapper that sets the options first."
    got = run(ASCEND)
    assert got.returncode == 0, got.stderr
    assert "First overflowing AI Core operator\n  MatMul\n  net/hot/MatMul\n" in got.stdout
    assert "trained 80 steps\n" in got.stdout
    assert len(list((tmp_path / DUMP).glob("*/report.json"))) == 1


def test_it_requests_restarts_collects_prints_and_keeps_the_status(tmp_path: Path) -> None:
    # "So the dump can't be switched on in a process whose device is open: it takes a new process."
    script = tmp_path / "train.py"
    text = ASCEND.read_text(encoding="utf-8").replace('print("trained', 'raise SystemExit(7 if "never" else "trained')
    script.write_text(text)
    got = run("--restart", script)
    assert got.returncode == 7, got.stderr
    assert got.stdout.count("First overflowing AI Core operator\n  MatMul\n  net/hot/MatMul\n") == 1
    assert RESTARTS.format(step=50) in got.stderr and RESTORED in got.stderr
    assert request(tmp_path)["why"] == "ascend.opened_without_dump" and request(tmp_path)["weights"] == "weights-0.npz"
    (report,) = (tmp_path / DUMP).glob("*/report.json")
    assert json.loads(report.read_text(encoding="utf-8"))["first"] == 0


COUNTS = """
import sys
with open("starts", "a") as file:
    file.write(repr(sys.argv) + "\\n")
"""


def test_it_starts_from_its_own_command_line_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(ASCEND.read_text(encoding="utf-8").replace("import argparse\n", "import argparse\n" + COUNTS))
    got = run("--restart", "--patience", "3", "train.py", "--steps", "70")
    assert got.returncode == 0, got.stderr
    assert (tmp_path / "starts").read_text().splitlines() == ["['train.py', '--steps', '70']"] * 2


def test_a_training_without_overflow_is_not_restarted(tmp_path: Path) -> None:
    got = run("--restart", ASCEND, "--steps", "30")
    assert (got.returncode, got.stdout.count("trained 30 steps")) == (0, 1)
    assert "started once more" not in got.stderr


def test_a_script_that_goes_on_regardless_is_not_restarted(tmp_path: Path) -> None:
    text = ASCEND.read_text(encoding="utf-8").replace("    main()\n", "    try:\n        main()\n    except BaseException:\n        print('went on')\n")
    (tmp_path / "train.py").write_text(text)
    got = run("--restart", "train.py")
    assert (got.returncode, got.stdout.count("went on")) == (0, 1)
    assert "is started once more, with the dump" not in got.stderr


def test_with_several_ranks_nothing_is_ended(tmp_path: Path) -> None:
    # "With several ranks, or in a notebook, nobody restarts: killing one rank stalls the others"
    got = run("--restart", ASCEND, RANK_ID="1", RANK_SIZE="2", RANK_TABLE_FILE="table.json")
    assert (got.returncode, got.stdout.count("trained 80 steps")) == (0, 1), got.stderr
    message = (
        "[rank 1] npu_overflow: with 2 ranks nothing is restarted, as ending one would stall the others. Start the whole job again with npu-overflow run "
        "(without --restart): the dump is then on from the first step.\n"
    )
    assert message in got.stderr and "[rank 1] " + REQUEST in got.stderr
    written = json.loads((tmp_path / DUMP / "rank_1" / "session-1.json").read_text(encoding="utf-8"))
    assert written["request"]["why"] == "ascend.opened_without_dump" and written["rank"] == 1


def test_ranks_that_the_devices_number_are_several_too(tmp_path: Path) -> None:
    # without a rank table there is CM_WORKER_SIZE and no RANK_ID
    chief = {"CM_CHIEF_IP": "127.0.0.1", "CM_CHIEF_PORT": "6000", "CM_CHIEF_DEVICE": "0", "CM_WORKER_IP": "127.0.0.1", "CM_WORKER_SIZE": "2"}
    got = run("--restart", ASCEND, ASCEND_DEVICE_ID="1", **chief)
    assert (got.returncode, got.stdout.count("trained 80 steps")) == (0, 1), got.stderr
    assert "[rank 1] npu_overflow: with 2 ranks nothing is restarted" in got.stderr
    written = json.loads((tmp_path / DUMP / "rank_1" / "session-1.json").read_text(encoding="utf-8"))
    assert (written["rank"], written["world_size"]) == (1, 2)


PLAIN = """
import npu_device, npu_overflow
npu_device.open().as_default()
import numpy as np, tensorflow as tf
layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= 20)
model = tf.keras.Sequential([layer])
model.compile(npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**8), "mse")
watch = npu_overflow.OverflowWatch(on_overflow="restart", warmup=0, check_every=1)
model.fit(np.ones((300, 4), "float32"), np.ones((300, 1), "float32"), batch_size=5, verbose=0, callbacks=[watch])
print("went on", watch.state)
"""


def test_without_a_supervisor_the_option_says_what_it_needs_and_the_training_goes_on(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN)
    got = launching.plain(["train.py"], PYTHONPATH=str(launching.DOUBLE))
    assert got.returncode == 0, got.stderr
    assert "went on" in got.stdout
    alone = "npu_overflow: on_overflow='restart' needs a supervisor: start the script with npu-overflow run --restart. Here only a request is recorded.\n"
    assert got.stderr.count(alone) == 1 and got.stderr.count(REQUEST) == 1
    assert request(tmp_path)["weights"] == "weights-0.npz"


def test_a_watch_of_the_scripts_own_restarts_too(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PLAIN.replace('on_overflow="restart", ', ""))
    got = run("--restart", "train.py")
    assert got.returncode == 0, got.stderr
    assert "is started once more, with the dump" in got.stderr
    assert got.stdout.count("First overflowing AI Core operator\n  MatMul\n  model/faulty/MatMul\n") == 1


# --- weights


def model(units: int = 3) -> Any:
    import tensorflow as tf

    return tf.keras.Sequential([tf.keras.layers.InputLayer((2,)), tf.keras.layers.Dense(units)])


def test_weights_come_back_as_they_were(tmp_path: Path) -> None:
    from npu_overflow.training.weights import load_weights, save_weights, weights_path

    path = weights_path(str(tmp_path), 0)
    saved, fresh = model(), model()
    save_weights(saved, path)
    load_weights(fresh, path)
    assert all(np.array_equal(a, b) for a, b in zip(saved.get_weights(), fresh.get_weights()))
    assert [item.name for item in tmp_path.iterdir()] == ["weights-0.npz"]


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06" + b"\0" * 18, b"no archive"])
def test_other_weights_are_refused_and_nothing_is_set(tmp_path: Path, content: bytes) -> None:
    from npu_overflow.training.weights import load_weights, save_weights

    fresh = model()
    before = fresh.get_weights()
    save_weights(model(4), str(tmp_path / "other.npz"))
    (tmp_path / "bad.npz").write_bytes(content)
    np.savez(str(tmp_path / "pickle.npz"), w0=np.array([{}], dtype=object), w1=before[1])
    names: List[str] = ["other.npz", "bad.npz", "pickle.npz"]
    for name in names:
        with pytest.raises(ValueError):
            load_weights(fresh, str(tmp_path / name))
    with pytest.raises(OSError):
        load_weights(fresh, str(tmp_path / "missing.npz"))
    assert all(np.array_equal(a, b) for a, b in zip(before, fresh.get_weights()))


def trained(seed: int, optimizer: Any = None) -> Any:
    import tensorflow as tf

    made = model()
    inner = optimizer or tf.keras.optimizers.Adam(0.1)
    made.compile(tf.keras.mixed_precision.LossScaleOptimizer(inner, initial_scale=2.0**seed), "mse")
    return made


def state(made: Any) -> List[Any]:
    from npu_overflow.training.loss_scale import reader_for

    scaling = reader_for(made.optimizer).state_variables()
    return [item.numpy() for item in [*made.variables, *made.optimizer.variables(), *scaling]]


def test_the_optimizer_comes_back_too(tmp_path: Path) -> None:
    # slots, count of steps and loss scale: the next step is the one that would have followed
    from npu_overflow.training.weights import load_state, load_weights, save_weights

    path = str(tmp_path / "weights-0.npz")
    saved, fresh = trained(5), trained(9)
    x, y = np.ones((40, 2), "float32"), np.ones((40, 3), "float32")
    saved.fit(x, y, batch_size=8, verbose=0)
    save_weights(saved, path)
    load_weights(fresh, path)
    load_state(fresh, path)
    assert len(state(saved)) == 2 + 1 + 4 + 2
    assert all(np.array_equal(one, other) for one, other in zip(state(saved), state(fresh)))
    saved.fit(x, y, batch_size=8, verbose=0)
    fresh.fit(x, y, batch_size=8, verbose=0)
    assert all(np.array_equal(one, other) for one, other in zip(state(saved), state(fresh)))


def test_the_state_of_another_optimizer_is_refused_and_nothing_is_set(tmp_path: Path) -> None:
    import tensorflow as tf

    from npu_overflow.training.weights import load_state, save_weights

    path = str(tmp_path / "weights-0.npz")
    save_weights(trained(5, tf.keras.optimizers.SGD(0.1)), path)
    fresh = trained(9)
    with pytest.raises(ValueError, match="arrays, the model has"):
        load_state(fresh, path)
    assert float(fresh.optimizer.loss_scale) == 2.0**9


def test_another_optimizer_gets_the_weights_and_says_so(tmp_path: Path) -> None:
    assert run("--restart", ASCEND).returncode == 0
    text = ASCEND.read_text(encoding="utf-8").replace("optimizers.Adam(1e-5)", "optimizers.SGD(1e-9)")
    (tmp_path / "other.py").write_text(text)
    got = run("--restore", "other.py", "--steps", "5")
    assert got.returncode == 0
    message = (
        "npu_overflow: weights of the run before were restored: precision_data/overflow/dump/weights-0.npz; optimizer state and loss scale were not "
        "(16 arrays, the model has 4) and start anew.\n"
    )
    assert got.stderr.count(message) == 1, got.stderr


LOOP = """
import npu_device
npu_device.open().as_default()
import tensorflow as tf
layer = npu_device.testing.dense(1, "model/faulty/MatMul", lambda step: step >= 20)
model = tf.keras.Sequential([tf.keras.layers.InputLayer((4,)), layer])
optimizer = npu_device.train.optimizer.NpuLossScaleOptimizer(tf.keras.optimizers.SGD(1e-4), initial_scale=2.0**30)

@tf.function
def step(x, y):
    with tf.GradientTape() as tape:
        loss = optimizer.get_scaled_loss(tf.reduce_mean(tf.square(tf.cast(model(x), tf.float32) - y)))
    gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, model.trainable_variables))
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

for _ in range(60):
    step(tf.ones((8, 4)), tf.ones((8, 1)))
print("trained")
"""


def test_a_loop_of_ones_own_starts_anew_and_says_so(tmp_path: Path) -> None:
    # "from weights saved at the trigger where restore can load them"
    (tmp_path / "loop.py").write_text(LOOP)
    got = run("--restart", "--warmup", "0", "--check-every", "1", "loop.py")
    assert got.returncode == 0, got.stderr
    anew = (
        "npu_overflow: the script is started once more, with the dump on from its first step (overflow was frequent at step 25). It begins anew: weights are "
        "kept for it in fit only.\n"
    )
    assert got.stderr.count(anew) == 1, got.stderr
    assert got.stdout.count("First overflowing AI Core operator\n  MatMul\n  model/faulty/MatMul\n") == 1 and got.stdout.count("trained\n") == 1
    assert request(tmp_path)["weights"] is None


def test_restore_in_a_loop_of_ones_own_says_that_it_cannot(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    got = run("--restore", "loop.py")
    message = (
        "npu_overflow: nothing of the run before was restored: that takes fit with the watch among its callbacks, or npu-overflow run; a loop of your own "
        "starts from its own beginning.\n"
    )
    assert got.stderr.count(message) == 1, got.stderr


IN_A_THREAD = """
import threading
worker = threading.Thread(target=lambda: exec(TRAINING, {}))
worker.start()
worker.join()
"""


def test_a_training_on_another_thread_is_not_ended_and_it_says_so(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("TRAINING = %r\n" % PLAIN + IN_A_THREAD)
    got = run("--restart", "train.py")
    assert got.returncode == 0 and "went on" in got.stdout, got.stderr
    message = (
        "npu_overflow: the training does not run on the main thread, so the script can't be ended for a restart; start it again with npu-overflow run.\n"
    )
    assert got.stderr.count(message) == 1, got.stderr
    assert "is started once more, with the dump" not in got.stderr


def test_restore_without_weights_starts_from_the_beginning_and_says_so(tmp_path: Path) -> None:
    got = run("--restore", ASCEND, "--steps", "5")
    assert got.returncode == 0
    message = (
        "npu_overflow: the weights of the run before were not restored (No such file or directory); the training starts from its own beginning.\n"
    )
    assert got.stderr.count(message) == 1
    assert sys.version_info[:2] < (3, 10)
