"""``npu-overflow mixlist`` from end to end."""
from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from cli_helpers import CORPUS, make_tree

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.cli import main


def test_the_list_is_written(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mixlist", str(tree)]) == 0
    assert json.loads(Path("ops_info.json").read_text(encoding="utf-8")) == {"black-list": {"to-add": ["Mul"]}}
    out, err = capsys.readouterr()
    assert "  Mul  (net/fc/mul)" in out and 'precision_mode_v2 = "mixed_float16"' in out and repr(os.path.abspath("ops_info.json")) in out and err == ""
    assert [name for name in os.listdir(".") if name.endswith(".part")] == []


def test_it_is_merged_and_conflicts_are_said(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("mine.json").write_text(json.dumps({"white-list": {"to-add": ["Mul"]}, "black-list": {"to-add": ["Zeta", "Abs"]}}), encoding="utf-8")
    assert main(["mixlist", str(tree), "--output", "mine.json"]) == 0
    assert json.loads(Path("mine.json").read_text(encoding="utf-8")) == {"white-list": {"to-add": ["Mul"]}, "black-list": {"to-add": ["Abs", "Mul", "Zeta"]}}
    out, err = capsys.readouterr()
    assert "Merged into mine.json" in out and "Mul" in err


def test_a_file_that_is_something_else_stays(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ops_info.json").write_text("not json", encoding="utf-8")
    assert main(["mixlist", str(tree)]) == 1
    assert Path("ops_info.json").read_text(encoding="utf-8") == "not json"
    assert "no mixed-precision list" in capsys.readouterr().err


def test_by_name(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mixlist", str(tree), "--by-name"]) == 0
    assert Path("customize_dtypes.txt").read_text(encoding="utf-8") == "net/fc/mul::InputDtype:float32,OutputDtype:float32\n"
    assert "customize_dtypes" in capsys.readouterr().out


def test_every_operator_counts_and_not_only_those_shown(capsys: pytest.CaptureFixture[str]) -> None:
    tree = CORPUS / "many_ops_two_steps" / "dump"
    assert main(["mixlist", str(tree), "--output", "out.json"]) == 0
    expected = sorted({operator.op_type for operator in analyze(str(tree)).operators if "keep_float32" in operator.advice})
    assert json.loads(Path("out.json").read_text(encoding="utf-8"))["black-list"]["to-add"] == expected


def test_a_saved_report_will_do(tree: Path) -> None:
    Path("report.json").write_text(analyze(str(tree)).to_json(), encoding="utf-8")
    assert main(["mixlist", "report.json"]) == 0
    assert json.loads(Path("ops_info.json").read_text(encoding="utf-8")) == {"black-list": {"to-add": ["Mul"]}}


@pytest.mark.parametrize(("language", "word"), [("en", "operator types of CANN"), ("zh", "CANN 算子类型")])
def test_a_host_tree_gets_the_keras_fix(tmp_path: Path, capsys: pytest.CaptureFixture[str], language: str, word: str) -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "analysis"))
    try:
        from dump_trees import Step, host_of
    finally:
        sys.path.pop(0)
    Step(tmp_path / "host").operator("MatMul", "model/fc/MatMul", 1, 0, host=host_of(op_type="MatMul", op_name="model/fc/MatMul"))
    assert main(["mixlist", str(tmp_path / "host"), "--language", language]) == 1
    out, err = capsys.readouterr()
    assert 'dtype="float32"' in out and word in err and "Traceback" not in err
    assert not Path("ops_info.json").exists()


def test_nothing_to_keep_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mixlist", str(CORPUS / "no_overflow" / "dump")]) == 1
    assert "nothing to keep" in capsys.readouterr().err and os.listdir(".") == []


@pytest.mark.skipif(sys.platform != "linux", reason="links")
def test_a_link_stays_a_link(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "t")
    Path("real.json").write_text("{}", encoding="utf-8")
    os.symlink("real.json", "ops_info.json")
    assert main(["mixlist", str(tree)]) == 0
    assert os.path.islink("ops_info.json") and "Mul" in Path("real.json").read_text(encoding="utf-8")
