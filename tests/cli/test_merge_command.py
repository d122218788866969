"""``npu-overflow merge``."""
from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from cli_helpers import make_tree, run

from npu_overflow.report.model import Report


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Reports of two ranks that overflowed, as the watch saves them."""
    from npu_overflow.analysis.analyzer import analyze

    for rank in (0, 1):
        report = analyze(str(make_tree(tmp_path / "job" / ("rank_%d" % rank))))
        data = dict(report.to_dict(), rank=rank, world_size=2)
        (tmp_path / "job" / ("rank_%d" % rank) / "report.json").write_text(json.dumps(data), encoding="utf-8")
    return tmp_path / "job"


def test_it_names_the_rank(saved: Path) -> None:
    done = run("merge", str(saved))
    assert done.returncode == 0, done.stderr
    assert "net/fc/mul" in done.stdout
    assert "rank 0 overflowed first; ranks with a finding (2): 0, 1." in " ".join(done.stdout.split())
    assert done.stderr == ""


def test_a_byte_order_mark_is_no_part_of_a_report(saved: Path) -> None:
    for path in saved.rglob("report.json"):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    done = run("merge", str(saved))
    assert (done.returncode, done.stderr) == (0, "") and "net/fc/mul" in done.stdout
    one = run("analyze", str(saved / "rank_0" / "report.json"))
    assert one.returncode == 0 and "net/fc/mul" in one.stdout


def test_json_and_output(saved: Path, tmp_path: Path) -> None:
    files = [str(saved / "rank_1" / "report.json"), str(saved / "rank_0" / "report.json")]
    done = run("merge", "--json", "--output", str(tmp_path / "all.json"), *files)
    assert done.returncode == 0, done.stderr
    report = Report.from_json(done.stdout)
    assert (report.rank, report.records, len(report.operators)) == (0, 2, 2)
    assert (tmp_path / "all.json").read_text(encoding="utf-8") == done.stdout
    assert run("merge", str(tmp_path / "all.json")).returncode == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "npu-overflow: x.json does not exist.\n"),
        ("[]", "npu-overflow: x.json is no saved report: "),
        ("{", "npu-overflow: x.json is no saved report: "),
        ('{"schema": 1, "rank": %s}' % ("9" * 6000), "npu-overflow: x.json is no saved report: This is not a JSON report: a number of 6000 digits."),
        ('{"schema": 1, "version": "1", "path": "x", "rank": 1%s}' % ("0" * 400), "npu-overflow: x.json is no saved report: "),
    ],
)
def test_what_is_no_report_is_one_clear_error(tmp_path: Path, content: str, message: str) -> None:
    if content is not None:
        (tmp_path / "x.json").write_text(content)
    done = run("merge", "x.json", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(message) and "Traceback" not in done.stderr


def test_a_folder_without_reports(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("merge", "empty", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (1, "npu-overflow: There is no report.json in empty or below.\n")


def test_without_arguments_it_is_wrong_usage() -> None:
    assert run("merge").returncode == 2


def test_links_in_a_folder_are_not_followed(saved: Path, tmp_path: Path) -> None:
    """A report that lies elsewhere is none of the folder's; one that is named itself is read."""
    outside = tmp_path / "outside.json"
    (saved / "rank_1" / "report.json").rename(outside)
    (saved / "rank_1" / "report.json").symlink_to(outside)
    done = run("merge", "--json", str(saved))
    assert done.returncode == 0, done.stderr
    assert Report.from_json(done.stdout).records == 1
    assert run("merge", "--json", str(saved / "rank_1" / "report.json")).returncode == 0


@pytest.mark.parametrize("command", ["merge", "show", "analyze", "mixlist"])
def test_a_file_larger_than_any_report(tmp_path: Path, command: str) -> None:
    """Known by its size: nothing of it is read."""
    path = tmp_path / "report.json"
    path.write_bytes(b"{")
    os.truncate(str(path), 1 << 33)
    done = run(command, str(path))
    assert done.returncode == 1 and done.stdout == ""
    assert "8589934592 bytes; reports of at most 268435456 are read" in " ".join(done.stderr.split())
