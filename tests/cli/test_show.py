"""``npu-overflow show``: dumps, records, arrays, slices, saved files."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
from cli_helpers import CORPUS, DUMP, RECORD

from npu_overflow.cli import main


def test_a_dump(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tree / DUMP)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Operator dump\n  Mul\n  net/fc/mul\n")
    assert "  file  %s\n" % os.path.realpath(str(tree / DUMP)) in out
    assert "±MAX 1   first overflow [3, 5] = 65504" in out, "the record beside it tells the mode"
    assert "  input.0   [0, :]   0   1   2   3" in out


def test_the_histogram_of_a_dump_and_of_one_tensor(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tree / DUMP)]) == 0
    out = capsys.readouterr().out
    assert "Magnitudes" in out and "  output.0      2^0 " in out and " 2^8  ±MAX 1\n" in out
    assert main(["show", str(tree / DUMP), "--tensor", "output.0"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.split("\n")]
    assert next(line for line in lines if line[:1] == ["2^1"])[1:3] == ["…", "2^2"]
    assert next(line for line in lines if line[:3] == ["2^7", "…", "2^8"])[-1] == "128"
    assert next(line for line in lines if line[:1] == ["±MAX"])[-1] == "1"


def test_the_histogram_in_ascii(tree: Path) -> None:
    from cli_helpers import run

    done = run("show", str(tree / DUMP), PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert all(ord(char) < 128 for char in done.stdout) and "Magnitudes" in done.stdout


def test_a_record(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pt", str(tree / RECORD)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Overflow record\n")
    assert "Reported by AI Core" in out
    assert "status   32 (0x20)  a floating-point computation overflowed" in out
    assert "model 11, task 21, stream 3" in out


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_file_of_the_corpus_can_be_shown_or_is_refused_with_a_reason(language: str, capsys: pytest.CaptureFixture[str]) -> None:
    shown = 0
    for folder, _, names in os.walk(str(CORPUS)):
        for name in names:
            if name in ("expected.json", "mapping.csv", "vendor_says.txt"):
                continue
            status = main(["show", os.path.join(folder, name), "--language", language])
            out, err = capsys.readouterr()
            assert status in (0, 1)
            assert (err == "") == (status == 0) and "Traceback" not in err and "internal" not in err
            assert max([len(line) for line in out.split("\n") if "─" in line], default=80) <= 80
            shown += status == 0
    assert shown > 60


def test_mode(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tree / DUMP), "--mode", "inf_nan"]) == 0
    assert "±MAX 1" not in capsys.readouterr().out


def test_one_tensor(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tree / DUMP), "--tensor", "output.0"]) == 0
    out = capsys.readouterr().out
    assert "input.0" not in out
    assert "[15, :]  240  241" in out


@pytest.mark.parametrize(
    ("index", "lines"),
    [
        ("3,5", ["  65504"]),
        ("3,:6", ["  [3, :]  48  49  50  51  52  65504"]),
        ("2:4,4:6", ["  [2, :]  36     37", "  [3, :]  52  65504"]),
        (":3,0", ["  [:, 0]  0  16  32"]),
        ("-1,-2:", ["  [15, :]  254  255"]),
        ("...,0:1", ["  [0, :]     0", "  [1, :]    16"]),
        ("5:5", ["  (empty)"]),
    ],
)
def test_index(tree: Path, index: str, lines: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tree / DUMP), "--tensor", "output.0", "--index=" + index]) == 0
    out = capsys.readouterr().out.split("\n")
    start = next(number for number, line in enumerate(out) if line.startswith("output.0["))
    assert out[start + 1 : start + 1 + len(lines)] == lines


def test_a_padded_tensor_is_shown_as_the_user_knows_it(capsys: pytest.CaptureFixture[str]) -> None:
    folder = CORPUS / "valid_region_5hd" / "dump"
    path = next(path for path in folder.rglob("Conv2D.*"))
    assert main(["show", str(path), "--tensor", "output.0", "--index", "1,19,2,2"]) == 0
    assert "\n  65504\n" in capsys.readouterr().out


@pytest.mark.parametrize("index", ["99", "a", "1,2,3", "", "1;2", "__import__('os')", "0x1", "1:2:3:4"])
def test_a_wrong_index_is_a_usage_error(tree: Path, index: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["show", str(tree / DUMP), "--tensor", "output.0", "--index=" + index])
    err = capsys.readouterr().err
    assert status == (2 if index else 0)
    assert not index or "does not fit the shape [16, 16]" in err


def test_an_index_needs_one_tensor(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tree / DUMP), "--index", "0"]) == 2
    assert "input.0, output.0" in capsys.readouterr().err


def test_an_unknown_tensor_names_those_there_are(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tree / DUMP), "--tensor", "output.7"]) == 2
    assert "input.0, output.0" in capsys.readouterr().err


def test_a_record_has_no_tensors(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(tree / RECORD), "--save", "npy"]) == 2
    assert os.listdir(".") == ["tree"]


def test_save_npy(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkdir("out")
    os.chdir("out")
    assert main(["show", str(tree / DUMP), "--save", "npy"]) == 0
    names = ["Mul.net_fc_mul.21.3.1715938212000105.%s.0.npy" % side for side in ("input", "output")]
    assert sorted(os.listdir(".")) == names
    assert "saved  " + names[1] in capsys.readouterr().out
    output = np.load(names[1], allow_pickle=False)
    assert output.dtype == np.float16 and output.shape == (16, 16) and float(output[3, 5]) == 65504.0


def test_saving_again_replaces_nothing_and_says_so(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "Mul.net_fc_mul.21.3.1715938212000105.output.0"
    Path(name + ".npy").write_text("mine")
    os.symlink("elsewhere", name + "-1.npy")
    assert main(["show", str(tree / DUMP), "--tensor", "output.0", "--save", "npy"]) == 0
    out = capsys.readouterr().out.replace("\n  ", "")
    assert name + ".npy exists already" in out and name + "-2.npy" in out
    assert Path(name + ".npy").read_text() == "mine"
    assert not os.path.exists("elsewhere")
    assert np.load(name + "-2.npy").shape == (16, 16)


def test_save_txt(tree: Path) -> None:
    assert main(["show", str(tree / DUMP), "--tensor", "output.0", "--index", "3,4:7", "--save", "txt"]) == 0
    text = Path("Mul.net_fc_mul.21.3.1715938212000105.output.0.slice.txt").read_text()
    assert text.startswith("# shape: [3]  dtype: float16  tensor: output.0[3,4:7]")
    assert text.split("\n")[1:] == ["52 65504 54", ""]


def test_saved_text_reads_back_the_same(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((5, 7))
    for dtype in ("float16", "float32", "float64"):
        np.save("x_%s.npy" % dtype, values.astype(dtype))
        assert main(["show", "x_%s.npy" % dtype, "--save", "txt"]) == 0
        again = np.loadtxt("x_%s.array.txt" % dtype, dtype=np.float64).astype(dtype)
        assert (again == values.astype(dtype)).all()


def test_names_of_saved_files_are_safe(tmp_path: Path) -> None:
    from npu_overflow.cli._arrays import safe_name

    assert safe_name("../../etc/passwd") == "_.._etc_passwd"
    assert safe_name("a\x1b[31m b\u202e.npy") == "a__31m_b_.npy"
    assert safe_name("...") == "tensor"
    assert len(safe_name("x" * 5000 + ".57.3.1715938212345678")) == 180
    assert safe_name("x" * 5000 + ".57.3.1715938212345678").endswith(".57.3.1715938212345678")


@pytest.mark.parametrize(
    ("array", "parts"),
    [
        (np.float16(3), ["array  float16  ND  []", "array  3"]),
        (np.zeros((0, 3)), ["array  float64  ND  [0, 3]  empty"]),
        (np.array([[1, 2], [3, 4]], dtype=">i4", order="F"), ["[0, :]  1  2", "[1, :]  3  4"]),
        (np.array([1.5, np.inf, np.nan], dtype=np.float32), ["NaN 1   +Inf 1", "first overflow [1] = inf", "1.5  inf  nan"]),
        (np.array([True, False]), ["min false   max true", "true  false"]),
        (np.array([1 + 2j]), ["1+2j"]),
        (np.array(["a", "bc"]), ["not decoded"]),
    ],
)
def test_npy(array: Any, parts: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    np.save("x.npy", array)
    assert main(["show", "x.npy"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Array\n")
    for part in parts:
        assert part in out


def test_a_pickle_is_never_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return (os.mkdir, ("owned",))

    np.save("x.npy", np.array([Evil()], dtype=object), allow_pickle=True)
    assert main(["show", "x.npy"]) == 1
    assert "without pickle" in capsys.readouterr().err
    assert not os.path.exists("owned")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x01\x00\xff\xff{",
        b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (4611686018427387904, 8), }".ljust(117) + b"\n",
        b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (4,), }".ljust(117) + b"\n" + b"\0" * 8,
        b"\x93NUMPY\x01\x00\x76\x00" + b"{'descr': '<f8', 'fortran_order': False, 'shape': (-4,), }".ljust(117) + b"\n" + b"\0" * 8,
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f",
        b"not an array",
    ],
)
def test_forged_arrays_are_refused(content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    Path("x.npy").write_bytes(content)
    assert main(["show", "x.npy"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("npu-overflow: x.npy can't be shown.") and "internal" not in err


def test_a_saved_report_is_printed_again(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tree), "--json"]) == 0
    Path("report.json").write_text(capsys.readouterr().out, encoding="utf-8")
    assert main(["show", "report.json", "--language", "zh"]) == 0
    assert capsys.readouterr().out.startswith("首个溢出的 AI Core 算子\n  Mul\n")
    Path("report.json").write_text("{}")
    assert main(["show", "report.json"]) == 1
    assert "no report of npu_overflow" in capsys.readouterr().err


def test_what_can_not_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("text").write_text("hello, world, this is no dump at all")
    os.mkfifo("fifo.npy")
    for path in ("text", "missing", str(tmp_path), "fifo.npy"):
        assert main(["show", path]) == 1
        out, err = capsys.readouterr()
        assert out == "" and err.startswith("npu-overflow: ") and "Traceback" not in err
        assert len(err.splitlines()) == 2
