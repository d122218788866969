"""How the command line ends: statuses, pipes, interrupts, errors of its own, encodings."""
from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import List

import pytest
from cli_helpers import command, run

import npu_overflow.cli
from npu_overflow.cli import _shell, analyze, commands, main
from npu_overflow.errors import UsageError
from npu_overflow.version import __version__


def test_every_file_is_a_command_with_help() -> None:
    from npu_overflow import messages

    found = commands()
    folder = Path(npu_overflow.cli.__file__).parent
    assert set(found) == {path.stem for path in folder.glob("*.py") if not path.name.startswith("_")}
    assert {"analyze", "show", "doctor"} <= set(found)
    for name, module in found.items():
        assert messages.known("cli.%s.help" % name)
        assert callable(module.run) and isinstance(module.ALIASES, tuple)


@pytest.mark.parametrize("arguments", [["--help"], ["analyze", "--help"], ["show", "-h"], ["doctor", "--help"], ["ac", "--help"]])
@pytest.mark.parametrize("language", ["en_US.UTF-8", "zh_CN.UTF-8"])
def test_help(arguments: List[str], language: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from npu_overflow.report.flow import cells

    monkeypatch.setenv("LANG", language)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert out.startswith("usage: npu-overflow") and err == ""
    assert [line for line in out.split("\n") if cells(line) > 90] == []


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "npu-overflow %s\n" % __version__


def test_no_command_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == "" and "analyze" in err


def test_the_process_has_the_status_of_main(tree: Path) -> None:
    assert run("analyze", str(tree), "--exit-code", "--quiet").returncode == 3
    assert run("analyze", str(tree / "missing")).returncode == 1
    assert run("analyze", "--nonsense").returncode == 2
    assert run("analyze", str(tree)).returncode == 0


def test_a_reader_that_leaves_is_no_error(tree: Path) -> None:
    with subprocess.Popen(command("analyze", str(tree), "--json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
    assert (process.returncode, err) == (0, b"")


def test_ctrl_c_is_a_line_and_not_a_traceback(monkeypatch: pytest.MonkeyPatch, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(arguments: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(analyze, "run", interrupted)
    assert main(["analyze", str(tree)]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == "npu-overflow: interrupted\n"


def test_an_error_of_our_own_is_short_unless_asked(monkeypatch: pytest.MonkeyPatch, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(arguments: object) -> int:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(analyze, "run", broken)
    assert main(["analyze", str(tree)]) == 1
    err = capsys.readouterr().err
    assert "internal error, ZeroDivisionError: x" in err and "Traceback" not in err
    monkeypatch.setenv(_shell.TRACEBACK, "1")
    assert main(["analyze", str(tree)]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "part"),
    [
        (UsageError("option.unknown", name="x\x1b[2J", known="y"), 2, "Unknown option 'x\\x1b[2J'"),
        (OSError(28, "No space left on device", "out.npy"), 1, "No space left on device: out.npy"),
        (MemoryError(), 1, "not enough memory"),
    ],
)
def test_errors_become_messages(
    error: BaseException, status: int, part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(arguments: object) -> int:
        raise error

    monkeypatch.setattr(analyze, "run", failing)
    assert main(["analyze"]) == status
    err = capsys.readouterr().err
    assert part in err and "Traceback" not in err and "\x1b" not in err


def test_json_is_json_in_any_encoding(tree: Path) -> None:
    expected = json.loads(run("analyze", str(tree), "--json").stdout)
    renamed = tree.parent / "树"
    tree.rename(renamed)
    expected["path"] = str(renamed)
    for encoding in ("ascii", "utf-8"):
        done = run("analyze", str(renamed), "--json", PYTHONIOENCODING=encoding)
        assert done.returncode == 0
        assert json.loads(done.stdout) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux")
def test_a_name_that_is_no_text(tree: Path) -> None:
    import os

    renamed = os.path.join(os.fsencode(str(tree.parent)), b"\xff\x1b[31m")
    os.rename(os.fsencode(str(tree)), renamed)
    done = subprocess.run([os.fsencode(item) for item in command("analyze")] + [renamed], capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"net/fc/mul" in done.stdout and b"\x1b" not in done.stdout
    done = subprocess.run([os.fsencode(item) for item in command("analyze", "--json")] + [renamed], stdout=subprocess.PIPE)
    assert json.loads(done.stdout.decode("utf-8"))["path"].endswith("\x1b[31m")


def test_no_colour_in_a_pipe_or_with_no_color(tree: Path) -> None:
    for environment in ({"FORCE_COLOR": "1", "TERM": "xterm-256color"}, {"NO_COLOR": "1"}):
        done = run("analyze", str(tree), **environment)
        assert "\x1b" not in done.stdout + done.stderr
