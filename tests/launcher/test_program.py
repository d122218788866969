"""A script under ``npu-overflow run`` sees and does what it would under ``python``. No TensorFlow in here."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, List

import launching
import pytest

SCRIPTS = {
    "looks": """
import os, sys
print(sys.argv, __name__, os.path.basename(__file__), os.path.realpath(sys.path[0]) == os.path.dirname(os.path.realpath(__file__)), os.getcwd())
print(sys.modules["__main__"].__dict__ is globals(), sys.modules["__main__"].x if "x" in globals() else None, __spec__, __doc__)
print(repr(sys.stdin.read()))
""",
    "exits": "import sys\nprint('before')\nsys.exit(7)\n",
    "exits_with_a_text": "import sys\nsys.exit('no more')\n",
    "raises": "def inner():\n    raise ValueError('the script\\'s own')\n\ninner()\n",
    "raises_from": "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise KeyError('x') from error\n",
    "wrong_syntax": "print('never')\ndef (:\n",
    "has_a_hook": "import sys\nsys.excepthook = lambda kind, error, trace: print('hooked', kind.__name__)\nraise ValueError()\n",
    "leaves_by_the_window": "import os\nprint('out', flush=True)\nos._exit(9)\n",
    "cleans_up": "import atexit\natexit.register(print, 'at exit')\nprint('done')\n",
    "has_a_thread": "import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\nprint('main')\n",
    "closes_its_output": "import sys\nprint('x')\nsys.stdout.close()\n",
    "dies_of_a_signal": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n",
    "pickles": "import pickle\nclass Thing: pass\nprint(type(pickle.loads(pickle.dumps(Thing()))) is Thing)\n",
}


@pytest.fixture
def script(tmp_path: Path) -> Any:
    def make(text: str) -> Path:
        path = tmp_path / "my script.py"
        path.write_text(text)
        return path

    return make


@pytest.mark.parametrize("name", SCRIPTS)
def test_output_and_status_are_those_of_python(script: Any, name: str) -> None:
    path = script(SCRIPTS[name])
    words: List[Any] = [path, "--epochs", "3", "--", "-m", "x"]
    expected, got = launching.plain(words, "typed\n"), launching.run(words, "typed\n")
    assert (got.returncode, got.stdout, got.stderr) == (expected.returncode, expected.stdout, expected.stderr)
    assert expected.returncode != 0 or expected.stdout


def test_a_relative_script_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "helper.py").write_text("WORD = 'helped'\n")
    (tmp_path / "sub" / "go.py").write_text("import sys, helper\nprint(helper.WORD, sys.argv)\n")
    expected, got = launching.plain(["sub/go.py"]), launching.run(["sub/go.py"])
    assert (got.returncode, got.stdout, got.stderr) == (0, expected.stdout, "")
    assert "helped" in got.stdout


def test_a_module(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack" / "__init__.py").write_text("")
    (tmp_path / "pack" / "train.py").write_text("import sys\nprint(sys.argv, __name__, __package__, sys.path[0])\nsys.exit(3)\n")
    expected, got = launching.plain(["-m", "pack.train", "--keep", "4"]), launching.run(["-m", "pack.train", "--keep", "4"])
    assert (got.returncode, got.stdout, got.stderr) == (3, expected.stdout, "")
    assert "pack.train" not in got.stderr and "--keep" in got.stdout


def test_a_module_that_is_not_there() -> None:
    got = launching.run(["-m", "no_such_module"])
    assert got.returncode == 1 and "No module named no_such_module" in got.stderr and "Traceback" not in got.stderr


def test_a_folder_with_a_main(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "__main__.py").write_text("import sys\nprint(sys.argv, sys.path[0])\n")
    assert launching.run(["app", "x"]).stdout == launching.plain(["app", "x"]).stdout != ""


def test_options_end_at_the_script_or_at_two_dashes(script: Any) -> None:
    path = script("import sys\nprint(sys.argv[1:])\n")
    assert launching.run(["--keep", "2", "--verbose=0", path, "--keep", "9"]).stdout == "['--keep', '9']\n"
    assert launching.run(["--keep", "2", "--", path, "--help"]).stdout == "['--help']\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "npu-overflow: No script was given.\n  npu-overflow run [OPTIONS] script.py ARGS…, or -m MODULE ARGS…\n"),
        (["nope.py"], "npu-overflow: There is no script nope.py.\n  Options stand before the script, its own arguments behind it.\n"),
        (["-m"], "npu-overflow: -m needs the name of a module.\n"),
        (["--patience", "many", "x.py"], "npu-overflow: There is no script x.py.\n  Options stand before the script, its own arguments behind it.\n"),
    ],
)
def test_wrong_usage(words: List[str], message: str) -> None:
    got = launching.run(words, PYTHONIOENCODING="utf-8")
    assert (got.returncode, got.stdout, got.stderr) == (2, "", message)


def test_a_wrong_value_is_told_before_the_script_runs(script: Any) -> None:
    got = launching.run(["--patience", "many", script("print('ran')\n")])
    assert (got.returncode, got.stdout) == (2, "")
    assert got.stderr == "npu-overflow: patience is 'many'; accepted is a whole number of at least 1.\n"


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ("1:999999999999", "--at-steps names more than 1000000 training steps; accepted are at most 1000000."),
        ("0:600000,0:600000", "--at-steps names more than 1000000 training steps; accepted are at most 1000000."),
        (
            "1,5:3",
            "--at-steps is '1,5:3'; its range 5:3 holds no step. Accepted are steps and ranges whose end is not in them, such as 40,41 or 40:50 (40 to 49).",
        ),
        ("5-9", "at_steps is '5-9'; accepted is a list of training steps, such as [119, 120]."),
    ],
)
def test_wrong_steps_are_told_before_they_are_spread_out(script: Any, steps: str, message: str) -> None:
    got = launching.run(["--at-steps", steps, script("print('ran')\n")])
    assert (got.returncode, got.stdout, got.stderr) == (2, "", "npu-overflow: " + message + "\n")


def test_every_option_of_the_watch_has_a_flag() -> None:
    import dataclasses

    from npu_overflow.training.options import WatchOptions

    text = launching.run(["--help"]).stdout
    wanted = {item.name for item in dataclasses.fields(WatchOptions)} - {"on_report", "optimizer"}
    assert [name for name in wanted if "--" + name.replace("_", "-") not in text] == []
    assert "{" not in text and "cli.run" not in text


def as_from_a_terminal() -> None:
    """A shell that starts jobs in the background lets them ignore some signals; the script is to have those of a terminal."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


#: in short turns: a signal that comes just before a long call would be handled only after it
WAITS = "import time\nprint('ready', flush=True)\nfor _ in range(600):\n    time.sleep(0.1)\n"


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("restart", [[], ["--restart"]], ids=["alone", "supervised"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_do_what_they_would_do_to_the_script(script: Any, number: int, restart: List[str]) -> None:
    command = [*launching.RUN, *restart, str(script(WAITS))]
    process = subprocess.Popen(command, env=launching.environment(), preexec_fn=as_from_a_terminal, start_new_session=True, **launching.PIPES)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _out, errors = process.communicate(timeout=60)
    interrupted_on_37 = number == signal.SIGINT and sys.version_info < (3, 8)
    assert process.returncode == (1 if interrupted_on_37 else -number)
    assert ("KeyboardInterrupt" in errors) == (number == signal.SIGINT)
    assert "npu_overflow" not in errors


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_handler_of_the_scripts_takes_over(script: Any) -> None:
    text = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n" + WAITS
    process = subprocess.Popen([*launching.RUN, str(script(text))], env=launching.environment(), **launching.PIPES)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 5


@pytest.mark.parametrize("name", ["looks", "exits", "raises", "dies_of_a_signal"])
def test_supervised_it_is_the_same(script: Any, name: str) -> None:
    path = script(SCRIPTS[name])
    expected, got = launching.plain([path, "a b", "--", "-x"], "typed\n"), launching.run(["--restart", path, "a b", "--", "-x"], "typed\n")
    assert (got.returncode, got.stdout, got.stderr) == (expected.returncode, expected.stdout, expected.stderr)


def test_nothing_of_the_supervisor_is_seen_by_the_script(script: Any) -> None:
    path = script("import os\nprint([name for name in os.environ if name.startswith('NPU_OVERFLOW') and name != 'NPU_OVERFLOW_TEST_INSTALLED'])\n")
    assert launching.run(["--restart", path]).stdout == "[]\n"


def test_a_script_that_uses_the_restart_status_for_itself_is_not_restarted(script: Any) -> None:
    from npu_overflow.training import restart

    path = script("import sys\nprint('once')\nsys.exit(%d)\n" % restart.EXIT_STATUS)
    got = launching.run(["--restart", path])
    assert (got.returncode, got.stdout, got.stderr) == (restart.EXIT_STATUS, "once\n", "")


def test_nothing_heavy_is_loaded(script: Any) -> None:
    """Nothing heavy is imported for a script that trains nothing."""
    path = script("import sys\nprint([name for name in ('tensorflow', 'keras', 'rich', 'google.protobuf') if name in sys.modules])\n")
    assert launching.run([path]).stdout == "[]\n"
