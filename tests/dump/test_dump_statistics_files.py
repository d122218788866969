"""Statistics files (.csv) in the forms that writers give them."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest

from npu_overflow.dump.names import dump_name
from npu_overflow.dump.reader import open_dump
from npu_overflow.errors import DumpFormatError

NAME = dump_name("Mul", "a", 7, 3, 1715938212345678) + ".csv"
OLD = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count\n"
NEW = "Input/Output,Index,Data Size,Data Type,Format,Shape,Count,Max Value,Min Value,l2norm\n"


def opened(tmp_path: Path, text: str) -> Any:
    (tmp_path / NAME).write_bytes(text.encode("utf-8"))
    return open_dump(str(tmp_path / NAME))


def test_the_old_form(tmp_path: Path) -> None:
    dump = opened(tmp_path, OLD + "Input,0,4096,DT_FLOAT16,ND,100x20x40,330,-381.5,-0.812,80000,0,0,0\nOutput,0,8,DT_FLOAT,NCHW,2,inf,-inf,nan,2,1,0,1\n")
    assert (dump.problem, dump.op_name, dump.dump_time) == (None, "", 1715938212345678)
    (one,), (two,) = dump.inputs, dump.outputs
    assert (one.dtype, one.format, one.shape, one.bytes, one.note) == ("float16", "ND", (100, 20, 40), 4096, None)
    assert one.statistics == {"max": 330, "min": -381.5, "mean": -0.812, "count": 80000, "nan": 0, "neg_inf": 0, "pos_inf": 0, "l2norm": None}
    assert two.dtype == "float32" and two.statistics["max"] == float("inf") and two.statistics["mean"] != two.statistics["mean"]
    assert list(one.chunks()) == [] and one.count == 0 and not one.same_bytes(one)


def test_the_new_form_leaves_columns_out_and_puts_count_first(tmp_path: Path) -> None:
    (one,) = opened(tmp_path, "\ufeff" + NEW.replace("\n", "\r\n") + "Output,1,4096,DT_BF16,ND,64x32,2048,5,-1,77.5\r\n").outputs
    assert (one.index, one.dtype) == (1, "bfloat16")
    expected: Dict[str, Any] = {"count": 2048, "max": 5, "min": -1, "l2norm": 77.5, "mean": None, "nan": None, "pos_inf": None, "neg_inf": None}
    assert one.statistics == expected


@pytest.mark.parametrize(
    ("row", "dtype", "shape", "maximum"),
    [
        ("Output,0,-,UNKNOW,-,-,NA,NA,NA,0,0,0,0", "undefined", (), None),
        ("Output,0,8,DT_INT64,ND,1,,,,", "int64", (1,), None),
        ("Output,0,8,DT_BOOL,ND,1,true,false", "bool", (1,), 1),
        ("output,0,8,DT_DOUBLE,ND", "float64", (), None),
        ("OUTPUT,0,8,DT_HIFLOAT8,ND,3x0,9", "hifloat8", (3, 0), 9),
        ("Output,0,8,DT_FLOAT16,ND,3xy,not a number", "float16", (), None),
        ("Output,0", "undefined", (), None),
    ],
)
def test_rows_with_things_missing(tmp_path: Path, row: str, dtype: str, shape: Any, maximum: Any) -> None:
    dump = opened(tmp_path, OLD + row + "\n")
    (one,) = dump.outputs
    assert dump.problem is None
    assert (one.dtype, one.shape, one.statistics["max"]) == (dtype, shape, maximum)


def test_rows_that_name_no_tensor_are_counted(tmp_path: Path) -> None:
    dump = opened(tmp_path, OLD + "\n\nInput,x,1\nSideways,0\nInput,-1\n,,\nInput,3,8,DT_INT8,ND,8,1,0,0.5,8,0,0,0\n")
    assert dump.problem.code == "statistics.rows_skipped" and dump.problem.values == {"count": 3}
    assert [one.index for one in dump.inputs] == [3]


@pytest.mark.parametrize("text", ["", "no,header\n1,2\n", "\0\0\0", '"' + "x" * 200000, "Index,Input\n"])
def test_what_is_no_statistics_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(DumpFormatError):
        opened(tmp_path, text)


def test_very_many_rows_end(tmp_path: Path) -> None:
    dump = opened(tmp_path, OLD + "Input,0\n" * 20000)
    assert len(dump.inputs) < 10000 and dump.problem is not None


@pytest.mark.parametrize("shape", ["4x-4", "-1", "2x%s" % ("9" * 30), "4xtwo"])
def test_sizes_that_are_none(tmp_path: Path, shape: str) -> None:
    dump = opened(tmp_path, OLD + "Output,0,-8,DT_FLOAT,ND,%s,1,0,0.5,4,0,0,0\n" % shape)
    (one,) = dump.outputs
    assert (one.shape, one.bytes, one.size) == ((), 0, 0) and dump.problem is None
    assert one.statistics["max"] == 1


@pytest.mark.parametrize("index", ["-1", "9" * 30, "1.5", ""])
def test_rows_of_no_place_are_left_out(tmp_path: Path, index: str) -> None:
    dump = opened(tmp_path, OLD + "Output,%s,8,DT_FLOAT,ND,2,1,0,0.5,2,0,0,0\n" % index)
    assert dump.outputs == [] and dump.problem is not None and dump.problem.values == {"count": 1}
