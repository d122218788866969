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


def private_dump(folder: Path, name: str = "Conv2D.net_conv.5.2.1715938212000000") -> Any:
    """A dump whose output stands in the device's own layout (NC1HWC0), and the array as the user knows it."""
    from npu_overflow.dump.writer import TensorSpec, write_dump

    original = np.arange(2 * 20 * 3 * 3, dtype=np.float16).reshape(2, 20, 3, 3)  # NCHW
    padded = np.zeros((2, 32, 3, 3), np.float16)
    padded[:, :20] = original
    stored = np.ascontiguousarray(padded.reshape(2, 2, 16, 3, 3).transpose(0, 1, 3, 4, 2))  # N C1 H W C0
    path = folder / name
    write_dump(str(path), "net/conv", [TensorSpec(np.ones((2, 2), np.float16))], [TensorSpec(stored, format="NC1HWC0", original_shape=(2, 20, 3, 3))])
    return path, original


@pytest.mark.parametrize(
    ("index", "lines"),
    [
        ("1,19,2,2", ["  359"]),
        ("1,:,2,0", ["  [1, :, 2, 0]  186  195  204"]),
        ("0,3,:,2", ["  [0, 3, :, 2]  29  32  35"]),
        ("-1,19", ["  [1, 19, 0, :]  351  352  353", "  [1, 19, 1, :]  354  355  356", "  [1, 19, 2, :]  357  358  359"]),
        ("0,18:,0,::2", ["  [0, 18, 0, :]  162  164", "  [0, 19, 0, :]  171  173"]),
    ],
)
def test_slices_of_a_private_format_are_those_of_the_model(tmp_path: Path, index: str, lines: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = private_dump(tmp_path)
    assert main(["show", str(path), "--tensor", "output.0", "--index=" + index]) == 0
    out = capsys.readouterr().out.split("\n")
    start = next(number for number, line in enumerate(out) if line.startswith("output.0["))
    assert [line[: len(wanted)] for line, wanted in zip(out[start + 1 :], lines)] == lines


def test_a_private_format_is_saved_in_the_original_layout(tmp_path: Path) -> None:
    path, original = private_dump(tmp_path)
    for kind in ("npy", "txt"):
        assert main(["show", str(path), "--tensor", "output.0", "--save", kind]) == 0
    stem = path.name + ".output.0"
    assert (np.load(stem + ".npy", allow_pickle=False) == original).all()
    text = Path(stem + ".txt").read_text(encoding="utf-8")
    assert text.split("\n")[0] == "# shape: [2, 20, 3, 3]  dtype: float16  tensor: output.0  file: %s" % path.name
    assert (np.loadtxt(stem + ".txt").reshape(2, 20, 3, 3) == original).all()


def test_a_slice_of_an_array_is_shown_and_saved(capsys: pytest.CaptureFixture[str]) -> None:
    values = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    np.save("x.npy", values)
    for kind in ("npy", "txt"):
        assert main(["pt", "x.npy", "--index", "2,:,1", "--save", kind]) == 0
    assert "41  46  51  56" in capsys.readouterr().out
    assert np.load("x.array.slice.npy", allow_pickle=False).tolist() == values[2, :, 1].tolist()
    assert Path("x.array.slice.txt").read_text(encoding="utf-8").startswith("# shape: [4]  dtype: float32  tensor: array[2,:,1]  file: x.npy\n41")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "uint64", "bool", "complex64"])
def test_other_types_are_saved_too(tmp_path: Path, dtype: str) -> None:
    from npu_overflow.dump.writer import TensorSpec, write_dump

    values = {
        "bfloat16": TensorSpec(np.array([0x3F80, 0xC000, 0x7F80], np.uint16).tobytes(), "bfloat16", (3,)), "int8": np.array([-128, 0, 127], np.int8),
        "uint64": np.array([0, 2**64 - 1], np.uint64), "bool": np.array([True, False]), "complex64": np.array([1 + 2j, -1j], np.complex64),
    }[dtype]  # fmt: skip
    path = tmp_path / "Cast.net_cast.5.2.1715938212000000"
    write_dump(str(path), "net/cast", [], [values if isinstance(values, TensorSpec) else TensorSpec(values)])
    for kind in ("npy", "txt"):
        assert main(["show", str(path), "--save", kind]) == 0
    saved = np.load(path.name + ".output.0.npy", allow_pickle=False)
    if dtype == "bfloat16":
        assert saved.tolist() == [1.0, -2.0, float("inf")]
    else:
        assert saved.tolist() == values.tolist()
    text = Path(path.name + ".output.0.txt").read_text(encoding="utf-8").split("\n")
    assert text[0].startswith("# shape: [%d]  dtype: " % len(saved)) and text[1]


@pytest.mark.parametrize("name", ["..%2f..%2fx", "x\x1b[31m", "a b;rm -rf ~", "$(touch owned)", "-rf", "名字", "\u202egnp"])
def test_files_are_saved_here_and_nowhere_else(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the dump's file is called."""
    (tmp_path / "dumps").mkdir()
    path, original = private_dump(tmp_path / "dumps", "Conv2D.%s.5.2.1715938212000000" % name)
    (tmp_path / "here").mkdir()
    os.chdir(str(tmp_path / "here"))
    assert main(["show", str(path), "--tensor", "output.0", "--save", "npy"]) == 0
    (saved,) = os.listdir(".")
    assert set(saved) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._+-") and not saved.startswith((".", "-"))
    assert saved.endswith(".5.2.1715938212000000.output.0.npy") and (np.load(saved, allow_pickle=False) == original).all()
    assert sorted(os.listdir(str(tmp_path))) == ["dumps", "here"] and os.listdir(str(tmp_path / "dumps")) == [path.name]
    assert "\x1b" not in capsys.readouterr().out


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
