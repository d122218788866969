"""A disk that refuses, at every moment of writing, for every file that is written: one clear message, and nothing half written under its name."""
from __future__ import annotations

import builtins
import contextlib
import errno
import os
import re
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import pytest

from npu_overflow.cli import main
from npu_overflow.dump.record import Part
from npu_overflow.dump.writer import TensorSpec, write_dump, write_record
from npu_overflow.errors import CannotWrite
from npu_overflow.report.model import Operator, Report, TensorSummary
from npu_overflow.report.tensorboard import Board
from npu_overflow.training import reports_io
from npu_overflow.training.manifest import Manifest

np = pytest.importorskip("numpy")

#: what a disk says -> how the messages end, in English and in Chinese
REASONS: Dict[str, Tuple[str, str]] = {
    "ENOSPC": ("the disk is full.", "磁盘已满。"),
    "EDQUOT": ("your disk quota is used up.", "磁盘配额已用尽。"),
    "EROFS": ("the file system is read-only.", "文件系统为只读。"),
    "EACCES": ("permission denied.", "没有权限。"),
    "ENAMETOOLONG": ("the path is too long.", "路径过长。"),
    "EIO": ("%s." % os.strerror(errno.EIO), "%s。" % os.strerror(errno.EIO)),
}

#: moments of writing at which a disk says it
MOMENTS = ("open", "write", "close", "rename")

TENSORS = (TensorSummary(0, "float16", "ND", (2,)),)
REPORT = Report(
    path="x",
    version="0",
    first_index=0,
    operators=(Operator(op_type="Mul", op_name="net/mul", core="AIV", verdict="computed_here", advice=("keep_float32",), inputs=TENSORS, outputs=TENSORS),),
)


class Disk:
    """Stands before the functions that write; from ``refuse`` on, one of them raises."""

    def __init__(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.error, self.moment = os.path.realpath(root), None, ""  # type: str, Any, str
        self.refused = 0
        for module, name in ((os, "open"), (os, "replace"), (os, "rename"), (os, "fdopen"), (builtins, "open")):
            monkeypatch.setattr(module, name, getattr(self, "_" + name if module is os else "_built_in")(getattr(module, name)))

    def refuse(self, error: str, moment: str) -> None:
        self.error, self.moment = error, moment

    def raise_at(self, moment: str, path: Any) -> None:
        if self.error and moment == self.moment:
            self.refused += 1
            number = getattr(errno, self.error)
            raise OSError(number, os.strerror(number), path if isinstance(path, str) else None)

    def _is_ours(self, path: Any) -> bool:
        return isinstance(path, str) and os.path.realpath(os.path.dirname(path) or ".").startswith(self.root)

    def _open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, flags: int, *more: Any, **named: Any) -> Any:
            if self._is_ours(path) and flags & (os.O_WRONLY | os.O_RDWR):
                self.raise_at("open", path)
            return real(path, flags, *more, **named)

        return opened

    def _replace(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def replaced(source: Any, target: Any, **named: Any) -> Any:
            if self._is_ours(target):
                self.raise_at("rename", source)
            return real(source, target, **named)

        return replaced

    _rename = _replace

    def _fdopen(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda handle, mode="r", *more, **named: self.watched(real(handle, mode, *more, **named), mode)

    def _built_in(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def opened(path: Any, mode: str = "r", *more: Any, **named: Any) -> Any:
            ours = self._is_ours(path) and any(letter in mode for letter in "wax+")
            if ours:
                self.raise_at("open", path)
            file = real(path, mode, *more, **named)
            return self.watched(file, mode) if ours else file

        return opened

    def watched(self, file: Any, mode: str) -> Any:
        return _File(self, file) if any(letter in mode for letter in "wax+") else file


class _File:
    """A file that writes half of what it is given before the disk refuses, and tells at the end what it could not write."""

    def __init__(self, disk: Disk, file: Any) -> None:
        self._disk, self._file = disk, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> Any:
        if self._disk.moment == "write" and self._disk.error:
            self._file.write(data[: len(data) // 2])
            self._file.flush()
        self._disk.raise_at("write", None)
        return self._file.write(data)

    def close(self) -> None:
        closed = self._file.closed
        self._file.close()
        if not closed:
            self._disk.raise_at("close", None)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is None:
            self.close()
        else:
            self._file.close()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path / "out")
    yield Disk(str(tmp_path / "out"), monkeypatch)
    monkeypatch.undo()


def _saved(*words: str) -> Callable[[Path], int]:
    """A command that reads a saved report beside the folder that it writes to."""

    def run(out: Path) -> int:
        (out.parent / "given.json").write_bytes(REPORT.to_json().encode())
        return main([word.replace("GIVEN", str(out.parent / "given.json")) for word in words])

    return run


def _exported(kind: str) -> Callable[[Path], int]:
    def run(out: Path) -> int:
        array = np.arange(4000, dtype=np.float32)
        path = out.parent / "values.npy"
        if not path.exists():
            array.tofile(str(path))
            np.save(str(path), array)
        return main(["show", str(path), "--save", kind])

    return run


#: output -> (how it is written: a command, or a call that raises; the file that is there afterwards)
COMMANDS: Dict[str, Tuple[Callable[[Path], int], str]] = {
    "analyze --html": (_saved("analyze", "GIVEN", "--html", "page.html"), "page.html"),
    "mixlist": (_saved("mixlist", "GIVEN", "--output", "ops.json"), "ops.json"),
    "mixlist --by-name": (_saved("mixlist", "GIVEN", "--by-name", "--output", "types.txt"), "types.txt"),
    "merge --output": (_saved("merge", "GIVEN", "--output", "all.json"), "all.json"),
    "show --save npy": (_exported("npy"), "values.array.npy"),
    "show --save txt": (_exported("txt"), "values.array.txt"),
}
DUMP = "Mul.net_mul.1.2.1715938212000000"
RECORD = "Opdebug.Node_OpDebug.1.2.1715938212000000"
CALLS: Dict[str, Tuple[Callable[[Path], Any], str]] = {
    "report": (lambda out: reports_io.save(REPORT, str(out), Manifest(), "en"), "report.json"),
    "manifest": (lambda out: Manifest().write(str(out)), "session-0.json"),
    "dump": (lambda out: write_dump(str(out / DUMP), "net/mul", [TensorSpec(np.ones(300, np.float16))], []), DUMP),
    "record": (lambda out: write_record(str(out / RECORD), [Part("AIV", 1, 1, 2, 1)]), RECORD),
    "Report.to_html": (lambda out: REPORT.to_html(str(out / "page.html")), "page.html"),
}


OUTPUTS = {**COMMANDS, **CALLS}


def expected(name: str, error: str, language: str) -> str:
    """The first line of what a command says."""
    head = {"en": "npu-overflow: %s can't be written: %s", "zh": "npu-overflow: 无法写入 %s：%s"}[language]
    return head % (name, REASONS[error][language == "zh"])


@pytest.mark.parametrize("output", COMMANDS)
def test_a_command_says_it_once(
    output: str, disk: Disk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, name = COMMANDS[output]
    disk.refuse("ENOSPC", "write")
    assert run(tmp_path / "out") == 1
    assert disk.refused == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == expected(name, "ENOSPC", "en") and len(said) == 2 and said[1].startswith("  ")
    assert os.listdir(str(tmp_path / "out")) == []


@pytest.mark.parametrize("output", CALLS)
def test_a_call_raises_it(output: str, disk: Disk, tmp_path: Path) -> None:
    write, name = CALLS[output]
    disk.refuse("ENOSPC", "write")
    with pytest.raises(CannotWrite) as caught:
        write(tmp_path / "out")
    message = caught.value.message("en")
    assert message == "%s can't be written: the disk is full." % (tmp_path / "out" / name)
    assert caught.value.hint("en") and caught.value.hint("zh")
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(str(tmp_path / "out")) == []


@pytest.mark.parametrize("error", REASONS)
def test_each_reason_in_both_languages(
    error: str,
    disk: Disk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run, name = COMMANDS["analyze --html"]
    disk.refuse(error, "open")
    for language, locale in (("en", "en_US.UTF-8"), ("zh", "zh_CN.UTF-8")):
        monkeypatch.setenv("LANG", locale)
        assert run(tmp_path / "out") == 1
        assert capsys.readouterr().err.splitlines()[0] == expected(name, error, language)
    with pytest.raises(CannotWrite) as caught:
        CALLS["report"][0](tmp_path / "out")
    assert caught.value.errno == getattr(errno, error)
    assert os.listdir(str(tmp_path / "out")) == []


@pytest.mark.parametrize("moment", MOMENTS)
def test_each_moment_of_writing(moment: str, disk: Disk, tmp_path: Path) -> None:
    write, name = CALLS["report"]
    disk.refuse("EIO", moment)
    with pytest.raises(CannotWrite, match=re.escape("%s can't be written: " % name)):
        write(tmp_path / "out")
    assert disk.refused == 1 and os.listdir(str(tmp_path / "out")) == []


@pytest.mark.parametrize("output", [name for name in OUTPUTS if "show" not in name])
def test_what_was_there_before_is_unchanged(output: str, disk: Disk, tmp_path: Path) -> None:
    """``show --save`` replaces nothing anyway."""
    write, name = OUTPUTS[output]
    write(tmp_path / "out")
    before = {item.name: item.read_bytes() for item in (tmp_path / "out").iterdir()}
    assert name in before
    disk.refuse("ENOSPC", "rename")
    with contextlib.suppress(CannotWrite):
        assert write(tmp_path / "out") == 1
    assert disk.refused == 1
    assert {item.name: item.read_bytes() for item in (tmp_path / "out").iterdir()} == before


@pytest.mark.parametrize("moment", ["open", "write"])
def test_events_for_tensorboard_end_with_a_whole_record(
    moment: str, disk: Disk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out"
    board = Board(str(out))
    if moment == "write":
        board.drop((10, 4.0, 2.0))
    before = [path.read_bytes() for path in out.iterdir()]
    disk.refuse("ENOSPC", moment)
    board.drop((20, 2.0, 1.0))
    board.drop((30, 1.0, 0.5))
    board.close()
    assert [path.read_bytes() for path in out.iterdir()] == before
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 1 and "can't be written: the disk is full." in said[0]
    assert said[0].endswith("Nothing more is written for TensorBoard.")


def test_the_first_event_is_all_or_nothing(disk: Disk, tmp_path: Path) -> None:
    disk.refuse("ENOSPC", "write")
    Board(str(tmp_path / "out")).drop((10, 4.0, 2.0))
    assert disk.refused == 1 and os.listdir(str(tmp_path / "out")) == []


def test_a_long_name_gets_no_row_in_mapping_csv_where_the_disk_refuses(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "out" / ("Mul.%s.1.2.1715938212000000" % ("x" * 300))
    disk.refuse("ENOSPC", "open")
    with pytest.raises(CannotWrite, match=r"mapping\.csv can't be written: the disk is full\."):
        write_dump(str(path), "net/mul", [], [])
    assert os.listdir(str(tmp_path / "out")) == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("none/x.html", "its folder does not exist."),
        ("file/x.html", "its folder does not exist."),
        (".", "it is a folder."),
        ("%s.html" % ("x" * 300), "the path is too long."),
    ],
)
def test_paths_that_no_file_can_have(path: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "given.json").write_text(REPORT.to_json())
    assert main(["analyze", "given.json", "--html", path]) == 1
    assert capsys.readouterr().err.splitlines()[0] == "npu-overflow: %s can't be written: %s" % (path, reason)
    assert sorted(os.listdir(str(tmp_path))) == ["file", "given.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_standard_output_on_a_full_disk(tmp_path: Path) -> None:
    import subprocess
    import sys

    (tmp_path / "given.json").write_text(REPORT.to_json())
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "npu_overflow", "analyze", "--json", "given.json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode != 0
    assert done.stderr.splitlines()[0] == "npu-overflow: standard output can't be written: the disk is full." and "Traceback" not in done.stderr
