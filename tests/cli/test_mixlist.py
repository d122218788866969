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


HOSTILE = [
    b"not json", b"[]", b"null", b"3", b'"text"', b'{"black-list": []}', b'{"black-list": null}', b'{"black-list": {"to-add": "Mul"}}',
    b'{"black-list": {"to-add": [1]}}', b'{"black-list": {"to-add": {"Mul": 1}}}', b'{"white-list": 7}',
    b'{"a": 1, "a": 2}', b'{"a": NaN}', b'{"black-list": {}} // mine', b"{", b"[" * 100000,
    b"\xff\xfe{\x00}\x00", b'{"a": "\xff"}', b"\x00" * 64,
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE, ids=lambda content: repr(content[:24]))
def test_a_hostile_file_loses_nothing(tree: Path, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ops_info.json").write_bytes(content)
    assert main(["mixlist", str(tree)]) == 1
    out, err = capsys.readouterr()
    assert Path("ops_info.json").read_bytes() == content
    assert out == "" and err.startswith("npu-overflow: ") and "Traceback" not in err and "internal" not in err
    assert sorted(os.listdir(".")) == ["ops_info.json", "tree"]


def test_what_is_no_file_is_left_alone(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkdir("folder")
    os.mkfifo("fifo")
    for name in ("folder", "fifo", "missing/ops_info.json"):
        assert main(["mixlist", str(tree), "--output", name]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("npu-overflow: ") and "internal" not in err
    assert sorted(os.listdir(".")) == ["fifo", "folder", "tree"] and os.listdir("folder") == []


def test_a_full_disk_leaves_the_old_file(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ops_info.json").write_text('{"mine": 1}', encoding="utf-8")

    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert main(["mixlist", str(tree)]) == 1
    assert "npu-overflow: ops_info.json can't be written: the disk is full." in capsys.readouterr().err
    assert Path("ops_info.json").read_text(encoding="utf-8") == '{"mine": 1}' and sorted(os.listdir(".")) == ["ops_info.json", "tree"]


def test_everything_else_in_the_file_is_kept_and_types_are_sorted(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    existing = {
        "note": {"by": "我", "numbers": [1, 2.5, None, True]}, "gray-list": {"to-add": ["Tanh"], "x": []},
        "black-list": {"to-remove": ["Add"], "to-add": ["Zeta", "Abs", "Abs"], "y": "z"}, "white-list": {"to-add": ["MatMul"]},
    }  # fmt: skip
    Path("ops_info.json").write_text("\ufeff" + json.dumps(existing, indent=7), encoding="utf-8")
    assert main(["mixlist", str(tree)]) == 0
    merged = json.loads(Path("ops_info.json").read_text(encoding="utf-8"))
    assert merged == dict(existing, **{"black-list": {"to-remove": ["Add"], "to-add": ["Abs", "Mul", "Zeta"], "y": "z"}})
    before = Path("ops_info.json").read_bytes()
    assert main(["mixlist", str(tree)]) == 0
    assert Path("ops_info.json").read_bytes() == before


def test_by_name_is_merged_into_what_is_there(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    existing = b"# mine\r\nOpType::Relu:InputDtype:float32\r\nnet/fc/mul::InputDtype:float16\r\n"
    Path("customize_dtypes.txt").write_bytes(existing)
    assert main(["mixlist", str(tree), "--by-name"]) == 0
    assert Path("customize_dtypes.txt").read_bytes() == existing
    assert "net/fc/mul" in capsys.readouterr().err
    Path("customize_dtypes.txt").write_bytes(b"# mine\r\n")
    assert main(["mixlist", str(tree), "--by-name"]) == 0
    assert Path("customize_dtypes.txt").read_bytes() == b"# mine\r\nnet/fc/mul::InputDtype:float32,OutputDtype:float32\r\n"
    Path("customize_dtypes.txt").write_bytes(b"\xff\xfe")
    assert main(["mixlist", str(tree), "--by-name"]) == 1
    assert Path("customize_dtypes.txt").read_bytes() == b"\xff\xfe"


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
    for more in ([], ["--by-name"], ["--output", "other.json"]):
        assert main(["mixlist", str(tmp_path / "host"), "--language", language, *more]) == 1
        out, err = capsys.readouterr()
        assert 'keras.layers.Dense(..., dtype="float32")' in out and word in err and "Traceback" not in err
        assert "npu.global_options" not in out
    assert os.listdir(".") == ["host"]


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
