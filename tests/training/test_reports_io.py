"""What a running training saves beside its manifest."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from npu_overflow.errors import CannotWrite
from npu_overflow.report import html
from npu_overflow.report.model import Operator, Report
from npu_overflow.training import reports_io
from npu_overflow.training.manifest import Manifest

CULPRIT = Operator(op_type="Mul", op_name="net/mul", core="AIV", verdict="computed_here", inputs=(), outputs=())
REPORT = Report(path="x", version="0", first_index=0, operators=(CULPRIT,))


@pytest.mark.parametrize(("world_size", "end"), [(1, ""), (8, "-3")])
def test_three_files(tmp_path: Path, world_size: int, end: str) -> None:
    manifest = Manifest(rank=3, world_size=world_size)
    path = reports_io.save(REPORT, str(tmp_path), manifest, "en")
    names = ["report%s.%s" % (end, kind) for kind in ("html", "json", "txt")]
    assert sorted(os.listdir(str(tmp_path))) == names == sorted(manifest.reports)
    assert path == str(tmp_path / ("report%s.txt" % end))
    assert Report.from_json((tmp_path / names[1]).read_text(encoding="utf-8")) == REPORT
    assert all("net/mul" in (tmp_path / name).read_text(encoding="utf-8") for name in names)


@pytest.mark.parametrize(("world_size", "end"), [(1, ""), (8, "-3")])
def test_all_three_are_named_to_the_user(tmp_path: Path, world_size: int, end: str) -> None:
    path = reports_io.save(REPORT, str(tmp_path), Manifest(rank=3, world_size=world_size), "en")
    assert reports_io.files_shown(path) == "%s%s (report%s.html, .json, .txt)" % (tmp_path, os.sep, end)
    (tmp_path / ("report%s.html" % end)).unlink()
    assert reports_io.files_shown(path) == "%s%s (report%s.json, .txt)" % (tmp_path, os.sep, end)


def test_without_the_page_the_others_are_still_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*given: Any) -> str:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(html, "render", broken)
    assert reports_io.save(REPORT, str(tmp_path), Manifest(), "en") is not None
    assert sorted(os.listdir(str(tmp_path))) == ["report.json", "report.txt"]
    assert "report.html was not written" in caplog.text


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    manifest = Manifest()
    with pytest.raises(CannotWrite, match=r"report\.json can't be written: its folder does not exist\."):
        reports_io.save(REPORT, str(tmp_path / "none"), manifest, "en")
    assert manifest.reports == []
