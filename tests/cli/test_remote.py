"""``analyze`` and ``merge`` at URLs, with the file systems of fsspec that need no network."""
from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from cli_helpers import FOLDER, RECORD, make_tree

from npu_overflow.cli import _remote as remote
from npu_overflow.cli import main
from npu_overflow.errors import MissingExtra, PathError, UsageError
from npu_overflow.report.model import Report

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory() -> Iterator[Any]:
    """fsspec's file system in memory, empty."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of this test alone, to see what is left in it."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def upload(system: Any, source: Path, target: str) -> None:
    for path in sorted(source.rglob("*")):
        if path.is_file():
            system.pipe_file("%s/%s" % (target, path.relative_to(source).as_posix()), path.read_bytes())


def printed(capsys: pytest.CaptureFixture[str]) -> Any:
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def same_but_path(one: Any, other: Any) -> bool:
    return dict(one, path="") == dict(other, path="")


@pytest.mark.parametrize("below", ["", "/20240517093010", "/" + FOLDER, "/" + RECORD])
@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_tree_at_a_url_is_the_tree(below: str, scheme: str, tree: Path, memory: Any, temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    upload(memory, tree, "/bucket/dump")
    url = {"memory": "memory://bucket/dump", "file": "file://%s" % tree}[scheme] + below
    assert main(["analyze", "--json", str(tree) + below]) == 0
    here = printed(capsys)
    assert main(["analyze", "--json", url]) == 0
    there = printed(capsys)
    assert there["path"] == url and same_but_path(here, there) and there["operators"][0]["op_name"] == "net/fc/mul"
    assert list(temporary.iterdir()) == []


def test_only_dumps_that_are_opened_are_brought(tmp_path: Path, memory: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tree = make_tree(tmp_path / "tree")
    unneeded = tree / "20240517093010/0/ge_default_1/11/0/Add.net_other.99.3.1715938212000300"
    unneeded.write_bytes(b"x" * 1000)
    upload(memory, tree, "/bucket/dump")
    opened: List[str] = []
    real = type(memory)._open

    def watched(self: Any, path: str, *more: Any, **named: Any) -> Any:
        opened.append(path.rsplit("/", 1)[-1])
        return real(self, path, *more, **named)

    monkeypatch.setattr(type(memory), "_open", watched)
    assert main(["analyze", "memory://bucket/dump"]) == 0
    assert "net/fc/mul" in capsys.readouterr().out
    assert any(name.startswith("Mul.") for name in opened) and not any(name.startswith("Add.") for name in opened)


def test_several_roots_one_of_them_bad(tree: Path, memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    upload(memory, tree, "/a")
    assert main(["analyze", "--json", str(tree), "memory://nowhere", "memory://a"]) == 1
    out, err = capsys.readouterr()
    assert [item["path"] for item in json.loads(out)] == [str(tree), "memory://a"]
    assert err.startswith("npu-overflow: There is no memory://nowhere.\n")


def test_no_more_is_brought_than_allowed(tmp_path: Path, memory: Any, temporary: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = make_tree(tmp_path / "tree")
    upload(memory, tree, "/dump")
    sizes = {path.name.split(".")[0]: path.stat().st_size for path in tree.rglob("*") if path.is_file()}
    assert main(["analyze", "--json", "--max-download", str(sizes["Opdebug"]), "memory://dump"]) == 0
    report = printed(capsys)
    assert [problem["code"] for problem in report["problems"]] == ["remote.left_out"] and report["records"] == 1
    assert main(["analyze", "--max-download", str(sizes["Opdebug"] - 1), "memory://dump"]) == 1
    assert "The records at memory://dump have more than" in capsys.readouterr().err
    assert main(["analyze", "--max-download", "much", "memory://dump"]) == 2
    assert list(temporary.iterdir()) == []


def test_a_saved_report_at_a_url(memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    memory.pipe_file("/report.json", Report(path="/there", version="0").to_json().encode())
    assert main(["analyze", "--json", "memory://report.json"]) == 0
    assert printed(capsys)["path"] == "/there"


HOSTILE = [
    *("/base/../../escape", "/base/..", "/base/.", "/base/a/../b", "/etc/passwd", "escape", "/basement/x", "/base//", "/base/a\0b", "/base/x/y"),
    *("/base/" + "n" * 300, "/base/\udc80\ud800", "../escape", "/base/../base2/x", "C:\\x", ""),
]


class Listing:
    """A file system whose listing says what it likes."""

    def __init__(self, entries: List[Dict[str, Any]], contents: bytes = b"x" * 10) -> None:
        self.entries, self.contents = entries, contents

    def isfile(self, path: str) -> bool:
        return False

    def isdir(self, path: str) -> bool:
        return True

    def ls(self, path: str, detail: bool) -> List[Dict[str, Any]]:
        return self.entries

    def open(self, path: str, mode: str) -> Any:
        import io

        return io.BytesIO(self.contents)

    def cat_ranges(self, paths: List[str], starts: List[int], ends: List[int], on_error: str) -> List[bytes]:
        return [self.contents for _ in paths]


def fetched(system: Listing, folder: Path, monkeypatch: pytest.MonkeyPatch, most: int = 1000) -> Any:
    monkeypatch.setattr(remote, "_open", lambda url: (system, "/base"))
    folder.mkdir(exist_ok=True)
    return remote.fetch_tree("x://base", str(folder), most, lambda name: True)


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["file", "directory"])
def test_a_hostile_listing_writes_nothing_outside(name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Listing([{"name": name, "type": kind, "size": 10}, {"name": "/base/good", "type": "file", "size": 10}])
    # a folder that lists itself again and again is no endless way
    monkeypatch.setattr(remote, "_MOST_FILES", 200)
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    try:
        tree = fetched(system, tmp_path / "inside", monkeypatch)
    except PathError as error:
        assert error.code == "remote.many" and kind == "directory"
    else:
        assert [path.name for path in Path(tree.path).rglob("*") if path.is_file()] == ["good"]
        assert tree.refused == ([] if name in ("/base//", "") and name else [name[:200]])
    made = [path for path in tmp_path.rglob("*") if str(path) not in before]
    assert all((tmp_path / "inside") in [path, *path.parents] for path in made)


@pytest.mark.parametrize("more", [{"type": "link"}, {"type": "other"}, {"islink": True}, {}])
def test_links_and_special_files_are_left_out(more: Dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = dict({"name": "/base/x", "size": 1}, **({"type": "file", **more} if more else {}))
    tree = fetched(Listing([entry]), tmp_path / "inside", monkeypatch)
    assert tree.refused == ["/base/x"] and list(Path(tree.path).iterdir()) == []


def test_a_name_that_is_listed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = fetched(Listing([{"name": "/base/x", "type": "file", "size": 10}] * 2), tmp_path / "inside", monkeypatch)
    assert tree.refused == ["/base/x"] and [path.name for path in Path(tree.path).iterdir()] == ["x"]


@pytest.mark.parametrize("size", [10, 1 << 62, None, -5, "ten"])
def test_more_bytes_come_than_the_listing_says(size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = Listing([{"name": "/base/x", "type": "file", "size": size}], b"x" * 5000)
    with pytest.raises(PathError) as caught:
        fetched(system, tmp_path / "inside", monkeypatch)
    assert caught.value.code == "remote.large"
    assert sum(path.stat().st_size for path in (tmp_path / "inside").rglob("*") if path.is_file()) == 0


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Listing):
        def open(self, path: str, mode: str) -> Any:
            raise ConnectionError("reset")

        def cat_ranges(self, *given: Any, **named: Any) -> Any:
            raise ConnectionError("reset")

    tree = fetched(Broken([{"name": "/base/x", "type": "file", "size": 3}]), tmp_path / "inside", monkeypatch)
    assert tree.refused == ["/base/x"] and [path.stat().st_size for path in Path(tree.path).iterdir()] == [0]


def test_a_listing_that_fails_is_one_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Broken(Listing):
        def ls(self, path: str, detail: bool) -> Any:
            raise RuntimeError("403 Forbidden.")

    with pytest.raises(PathError, match=r"x://base can't be read: 403 Forbidden\. Check the URL"):
        fetched(Broken([]), tmp_path / "inside", monkeypatch)


def test_local_links_are_not_followed(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "Opdebug.Node_OpDebug.1.5.1715938212000999").write_bytes(b"secret")
    os.symlink(str(secret), str(tree / "20240517093010" / "link"))
    os.symlink(str(secret / "Opdebug.Node_OpDebug.1.5.1715938212000999"), str(tree / "20240517093010" / "Opdebug.Node_OpDebug.1.5.1715938212000999"))
    assert main(["analyze", "--json", "file://%s" % tree]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["records"] == 1 and err.count("left out") == 2


# -- what is not installed or not known


def test_without_fsspec_the_install_command_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    for command in ("analyze", "merge"):
        assert main([command, "s3://bucket/x"]) == 1
        assert capsys.readouterr().err.splitlines() == [
            "npu-overflow: s3://bucket/x is a URL; reading it takes the package fsspec, which is not installed.",
            "  Install it: pip install 'npu_overflow[fsspec]'",
        ]
    with pytest.raises(MissingExtra):
        remote.read("s3://bucket/x", 1)


def test_the_install_command_names_an_extra_that_exists() -> None:
    from importlib import import_module

    metadata = import_module("importlib.metadata" if sys.version_info >= (3, 8) else "importlib_metadata")
    try:
        extras = metadata.metadata("npu_overflow").get_all("Provides-Extra")
    except metadata.PackageNotFoundError:
        pytest.skip("the package is not installed")
    if "fsspec" not in extras:
        pytest.skip("another version of the package is installed")
    assert remote.INSTALL == "pip install 'npu_overflow[fsspec]'"


def test_an_unknown_scheme(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", "nowhere://x"]) == 2
    assert "nowhere://x has the unknown scheme nowhere. Known: " in capsys.readouterr().err
    with pytest.raises(UsageError):
        remote.read("nowhere://x", 1)


def test_a_scheme_whose_package_is_missing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def missing(url: str) -> Any:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    assert main(["merge", "s3://bucket/x"]) == 1
    assert "the package for s3 is not installed (Install s3fs to access S3)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://b/k", True), ("zip::file:///a.zip", True), ("simplecache::s3://b", True),
        ("C:\\x", False), ("C://x", False), ("/a//b", False), ("a:b", False),
    ],
)  # fmt: skip
def test_what_is_a_url(text: str, expected: bool) -> None:
    assert remote.is_url(text) == expected


# -- merge


@pytest.fixture
def reports(memory: Any) -> List[str]:
    """Reports of four ranks in an object store."""
    for rank in range(4):
        report = Report(path="/dump/rank_%d" % rank, version="0", rank=rank, world_size=4, records=1)
        memory.pipe_file("/run/rank_%d/report-%d.json" % (rank, rank), report.to_json().encode())
        memory.pipe_file("/run/rank_%d/other.json" % rank, b"{}")
    return ["memory://run/rank_%d/report-%d.json" % (rank, rank) for rank in range(4)]


@pytest.mark.parametrize("given", [["memory://run"], ["memory://run/*/report-*.json"], ["memory://run/rank_0", "memory://run/rank_[123]/report*"], None])
def test_reports_at_urls_folders_and_globs(given: Any, reports: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", "--json", *(reports if given is None else given)]) == 0
    merged = printed(capsys)
    assert (merged["records"], merged["world_size"]) == (4, 4)
    assert [remark["text"] for remark in merged["remarks"]] == ["ranks without a finding (4): 0, 1, 2, 3."]


def test_reports_in_local_files_by_url(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        (tmp_path / ("report-%d.json" % rank)).write_text(Report(path="/d", version="0", rank=rank, records=1).to_json())
    for given in ("file://%s" % tmp_path, "file://%s/report-*.json" % tmp_path, "%s/report-*.json" % tmp_path):
        assert main(["merge", "--json", given]) == 0
        assert printed(capsys)["records"] == 2


def test_one_that_is_no_report_does_not_stop_the_others(reports: List[str], memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    memory.pipe_file("/run/rank_2/report-2.json", b'{"schema": 1, "cut')
    assert main(["merge", "--json", "memory://run"]) == 1
    out, err = capsys.readouterr()
    merged = json.loads(out)
    assert merged["records"] == 3 and err.startswith("npu-overflow: memory:///run/rank_2/report-2.json is no saved report: ")
    assert [(problem["file"], problem["code"]) for problem in merged["problems"]] == [("memory:///run/rank_2/report-2.json", "merge.no_report")]


def test_a_report_is_read_up_to_a_bound(reports: List[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from npu_overflow.cli import _shell

    monkeypatch.setattr(_shell, "MOST_REPORT_BYTES", 50)
    assert main(["merge", reports[0]]) == 1
    assert capsys.readouterr().err == "npu-overflow: %s has more than 50 bytes; it was not read.\n" % reports[0]


@pytest.mark.parametrize("url", ["memory://none/report.json", "memory://none/*/report.json"])
def test_nothing_there(url: str, memory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    memory.pipe_file("/some", b"")
    assert main(["merge", url]) == 1
    assert url in capsys.readouterr().err
