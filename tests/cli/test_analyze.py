"""``npu-overflow analyze``: output, exit statuses, bad input."""
from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import List

import pytest
from cli_helpers import CORPUS, DUMP, FOLDER, RECORD, make_tree

from npu_overflow.cli import main
from npu_overflow.report.model import Report


def test_the_report_is_printed_plain(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tree)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("First overflowing AI Core operator\n  Mul\n  net/fc/mul\n")
    assert "first overflow [3, 5] = 65504" in out
    assert "\x1b" not in out
    assert out.endswith("  Next command:\n    npu-overflow show %s/%s\n" % (tree, DUMP))
    assert err == ""


@pytest.mark.parametrize("path", ["", "20240517093010", "20240517093010/0", FOLDER, DUMP, RECORD])
def test_a_path_can_lie_anywhere_in_the_tree(tree: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ac", str(tree / path), "--json"]) == 0
    report = Report.from_json(capsys.readouterr().out)
    assert report.first is not None
    assert (report.first.op_name, report.first.step, report.first.device) == ("net/fc/mul", 0, 0)


def test_the_default_path(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(str(tree), "precision_data/overflow/dump")
    assert main(["analyze"]) == 0
    assert "net/fc/mul" in capsys.readouterr().out


def test_language(tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["analyze", str(tree), "--language", "zh"]) == 0
    assert capsys.readouterr().out.startswith("首个溢出的 AI Core 算子\n")
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert main(["analyze", str(tree)]) == 0
    assert capsys.readouterr().out.startswith("首个溢出的 AI Core 算子\n")
    assert main(["analyze", str(tree), "--language", "en"]) == 0
    assert capsys.readouterr().out.startswith("First overflowing AI Core operator\n")


def test_exit_code(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tree), "--exit-code"]) == 3
    assert main(["analyze", str(tree), "--exit-code", "--json"]) == 3
    assert main(["analyze", str(CORPUS / "no_overflow" / "dump"), "--exit-code"]) == 0


def test_quiet_prints_nothing_but_json(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tree), "--quiet", "--exit-code"]) == 3
    assert capsys.readouterr() == ("", "")
    assert main(["analyze", str(tree), "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema"] == 1


def test_limit_opens_three_in_the_terminal_and_all_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(CORPUS / "many_ops_two_steps" / "dump")
    assert main(["analyze", path]) == 0
    assert "… and 1 more: MatMulV2" in capsys.readouterr().out
    assert main(["analyze", path, "--limit", "4"]) == 0
    assert "more: MatMulV2" not in capsys.readouterr().out
    assert main(["analyze", path, "--json"]) == 0
    assert [item["inputs"] is not None for item in json.loads(capsys.readouterr().out)["operators"]] == [True] * 4
    assert main(["analyze", path, "--json", "--limit", "1"]) == 0
    assert [item["inputs"] is not None for item in json.loads(capsys.readouterr().out)["operators"]] == [True, False, False, False]


def test_run_and_mode(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = str(CORPUS / "two_runs" / "dump")
    runs = sorted(os.listdir(path))
    assert main(["analyze", path, "--json", "--run", runs[0]]) == 0
    assert json.loads(capsys.readouterr().out)["run"] == runs[0]
    assert main(["analyze", path, "--json", "--run", "all"]) == 0
    everything = json.loads(capsys.readouterr().out)["operators"]
    assert main(["analyze", path, "--json"]) == 0
    assert len(everything) > len(json.loads(capsys.readouterr().out)["operators"])
    assert main(["analyze", str(make_tree(tmp_path / "t")), "--json", "--mode", "inf_nan"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["mode"], report["operators"][0]["verdict"]) == ("inf_nan", "internal")


def test_several_paths(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_tree(tmp_path / "other")
    assert main(["analyze", str(tree), str(other)]) == 0
    out = capsys.readouterr().out
    assert out.count("First overflowing") == 2
    assert "== %s\n" % other in out
    assert main(["analyze", str(tree), str(tmp_path / "none"), str(other), "--json"]) == 1
    out, err = capsys.readouterr()
    assert [Report.from_dict(item).path for item in json.loads(out)] == [str(tree), str(other)]
    assert err.startswith("npu-overflow: There is no %s" % (tmp_path / "none"))


def test_no_records_is_said_and_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(CORPUS / "no_overflow" / "dump")]) == 0
    assert capsys.readouterr().out.startswith("No overflow records\n")


def test_damaged_files_are_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(CORPUS / "damaged" / "dump")]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("First overflowing AI Core operator\n  Mul\n  ok/mul\n")
    assert out.count("Opdebug.Node_OpDebug") == 5
    assert "The file is empty." in out
    assert err == ""


def test_paths_that_hold_no_dump(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "README.md").write_text("hello")
    for path in (tmp_path / "missing", tmp_path / "text", tmp_path / "text" / "README.md"):
        assert main(["analyze", str(path)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("npu-overflow: ") and str(path) in err
        assert len(err.splitlines()) == 2, "a message and what to do next"
        assert "Traceback" not in err


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads everything")
def test_unreadable_folder(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree.chmod(0)
    try:
        assert main(["analyze", str(tree)]) == 1
    finally:
        tree.chmod(0o755)
    assert "permission" in capsys.readouterr().err.lower()


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--mode", "both"], "invalid choice: 'both' (choose from"),
        (["--limit", "-1"], "'-1' is not a whole number of at least 0"),
        (["--limit", "x"], "'x' is not a whole number of at least 0"),
        (["--language", "fr"], "invalid choice: 'fr'"),
        (["--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_wrong_options(arguments: List[str], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", *arguments]) == 2
    assert part in capsys.readouterr().err


def test_an_unknown_run_names_those_there_are(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tree), "--run", "20200101000000"]) == 1
    assert "20240517093010" in capsys.readouterr().err
