"""``npu-overflow doctor``."""
from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Dict, Optional

import pytest

from npu_overflow import messages
from npu_overflow.cli import _packages, doctor, main
from npu_overflow.version import __version__


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sentences on one line."""
    monkeypatch.setenv("COLUMNS", "160")


@pytest.fixture
def without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where TensorFlow and npu_device are not installed."""
    monkeypatch.setattr(_packages, "importable", lambda name: False)
    versions = _packages.version
    monkeypatch.setattr(_packages, "version", lambda name: None if name in ("tensorflow", "keras", "tf_keras", "npu_device") else versions(name))


def test_a_machine_for_analysis_only_is_healthy(without_tensorflow: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "npu_overflow  " + __version__ in out
    assert "none: TensorFlow is not installed here" in out
    assert out.endswith("Nothing is wrong.\n")
    assert os.listdir(".") == [], "nothing is left behind"
    assert "\x1b" not in out


def test_chinese(without_tensorflow: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--language", "zh"]) == 0
    assert "未发现问题。" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({"RANK_ID": "x"}, "RANK_ID: x is no number"),
        ({"RANK_ID": "8", "RANK_SIZE": "8"}, "8 is not below the number of ranks, 8"),
        ({"RANK_SIZE": "8", "CM_WORKER_SIZE": "8"}, "accepts only one of them"),
    ],
)
def test_wrong_environment(
    without_tensorflow: None, environment: Dict[str, str], part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert main(["doctor"]) == 1
    assert part in capsys.readouterr().out.split("What is wrong")[1]


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({"RANK_SIZE": "2", "RANK_ID": "0"}, "neither this nor CM_CHIEF_IP is set"),
        ({"RANK_SIZE": "2", "RANK_ID": "0", "RANK_TABLE_FILE": "t", "CM_CHIEF_IP": "1.2.3.4"}, "set together with CM_CHIEF_IP"),
        ({"RANK_SIZE": "2", "RANK_TABLE_FILE": "t"}, "RANK_ID: not set; the adapter needs it beside RANK_TABLE_FILE"),
        ({"CM_WORKER_SIZE": "2", "CM_CHIEF_IP": "1.2.3.4", "CM_CHIEF_PORT": "6000"}, "CM_CHIEF_DEVICE: not set; the adapter needs it beside CM_CHIEF_IP"),
        ({"RANK_SIZE": "2", "RANK_ID": "0", "RANK_TABLE_FILE": "t"}, None),
        ({"CM_WORKER_SIZE": "2", "CM_CHIEF_IP": "1.2.3.4", "CM_CHIEF_PORT": "6000", "CM_CHIEF_DEVICE": "0", "CM_WORKER_IP": "1.2.3.4"}, None),
    ],
)
def test_how_the_ranks_of_an_ascend_job_find_each_other(environment: Dict[str, str], part: Optional[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(_packages, "importable", lambda name: name == "npu_device")
    findings = doctor._environment(lambda code, **values: messages.say("cli.doctor." + code, "en", **values))
    wrong = ["%s: %s" % (item.label, item.text) for item in findings if item.state == doctor.WRONG]
    assert (part in wrong[0] if part is not None else not wrong), wrong
    monkeypatch.setattr(_packages, "importable", lambda name: False)
    assert not [item for item in doctor._environment(lambda code, **values: code) if item.state == doctor.WRONG]


def test_a_dump_path_that_is_a_file(without_tensorflow: None, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("")
    assert main(["doctor", "--dump-path", "file"]) == 1
    assert "no file can be made in" in capsys.readouterr().out.split("What is wrong")[1]


def test_little_space(without_tensorflow: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(doctor, "_free_bytes", lambda folder: 10**9)
    assert main(["doctor"]) == 0
    assert "1 GB; dumps may need 2 GB" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "_free_bytes", lambda folder: 10**6)
    assert main(["doctor"]) == 1


def test_a_missing_or_old_package(without_tensorflow: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def version(name: str) -> Optional[str]:
        return {"numpy": "1.16.4", "protobuf": None, "rich": "13.0", "jinja2": "3.1"}.get(name)

    monkeypatch.setattr(_packages, "version", version)
    assert main(["doctor"]) == 1
    wrong = capsys.readouterr().out.split("What is wrong")[1]
    assert "numpy: 1.16.4, but >=1.19.2 is needed" in wrong
    assert "protobuf: not installed, and needed: pip install protobuf" in wrong
    assert "rich" not in wrong


def test_an_npu_machine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], without_tensorflow: None) -> None:
    monkeypatch.setattr(_packages, "importable", lambda name: name == "npu_device")
    versions = {"tensorflow": "2.15.1", "numpy": "1.26", "protobuf": "4.25", "rich": "13.0", "jinja2": "3.1"}
    monkeypatch.setattr(_packages, "version", versions.get)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "ascend, in scripts that import npu_device" in out
    assert "TensorFlow 2.15.1 is installed; npu_device is made for TensorFlow 2.6.5" in out
    assert "npu_device    installed, version unknown" in out


def test_another_keras_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_packages, "importable", lambda name: name == "tensorflow")
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    findings = doctor._collector(lambda code, **values: "%s %s" % (code, values))
    assert [(item.text, item.state) for item in findings] == [("backend {'backend': 'jax'}", doctor.NOTE)]


@pytest.mark.tensorflow
def test_tensorflow_internals_are_probed(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out, err = capfd.readouterr()
    assert "host, because npu_device is not installed here" in out
    assert "found  " in out.split("TensorFlow internals")[1]
    assert err == ""


def test_a_broken_tensorflow(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from npu_overflow.collect.replay import tensorflow as private

    def probe() -> None:
        raise ImportError("libcudart.so.11.0: cannot open shared object file")

    monkeypatch.setattr(_packages, "importable", lambda name: name == "tensorflow")
    monkeypatch.setattr(private, "probe", probe)
    assert main(["doctor"]) == 1
    assert "TensorFlow can't be imported: ImportError: libcudart.so.11.0" in capsys.readouterr().out


def test_versions_of_what_is_installed() -> None:
    assert _packages.version("numpy") is not None
    assert _packages.version("no-such-package-anywhere") is None
    assert _packages.importable("numpy") and not _packages.importable("no_such_package_anywhere")
    assert importlib.util.find_spec("numpy") is not None
    assert _packages.within("1.19.5", "1.19.2", "") and not _packages.within("1.9", "1.19.2", "")
    assert _packages.within("12.0.1", "10.16.2", "12.2") and not _packages.within("12.2.0", "10.16.2", "12.2")
    assert _packages.within("2.0.0rc1", "1.19.2", "")


def test_what_is_needed_is_what_the_metadata_says(package_folder: Path) -> None:
    setup = package_folder.parent / "setup.cfg"
    if not setup.exists():
        pytest.skip("needs the source tree")
    text = setup.read_text(encoding="utf-8")
    for name, least, _ in _packages.needed():
        assert "%s>=%s" % (name, least) in text
