"""What real files do: skip null tensors, hold slices, keep data in the message, come in two halves, grow while they are read."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, List, Optional

import numpy as np
import pytest

from npu_overflow.dump import schema
from npu_overflow.dump.names import dump_name, record_name
from npu_overflow.dump.reader import merge, open_dump, open_operator
from npu_overflow.dump.record import Part, make_record, read_record
from npu_overflow.dump.scan import find
from npu_overflow.dump.writer import TensorSpec, write_dump
from npu_overflow.errors import DumpFormatError

NAME = dump_name("Add", "a", 7, 3, 1715938212345678)
ROW = np.arange(16, dtype=np.float16)


def file_of(tmp_path: Path, message: Any, data: bytes = b"", name: str = NAME) -> str:
    header = message.SerializeToString()
    (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header + data)
    return str(tmp_path / name)


def test_a_tensor_with_a_null_address_was_skipped(tmp_path: Path) -> None:
    null = TensorSpec(None, "float16", (16,))
    dump = open_dump(write_dump(str(tmp_path / NAME), "a", [TensorSpec(ROW), null, TensorSpec(ROW + 1)], [TensorSpec(ROW + 2)]))
    assert dump.problem is None
    assert [tensor.note for tensor in dump.inputs + dump.outputs] == [None, "no_data", None, None]
    assert [tensor.bytes for tensor in dump.inputs] == [32, 0, 32] and dump.inputs[1].size == 32
    np.testing.assert_array_equal(dump.inputs[2].original(), ROW + 1)
    np.testing.assert_array_equal(dump.outputs[0].original(), ROW + 2)
    assert dump.inputs[1].raw().size == 0 and list(dump.inputs[1].chunks()) == []


def test_addresses_that_are_all_null_say_nothing(tmp_path: Path) -> None:
    path = write_dump(str(tmp_path / NAME), "a", [TensorSpec(ROW), TensorSpec(ROW)], [])
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 32)
    dump = open_dump(path)
    assert [tensor.note for tensor in dump.inputs] == [None, "missing"]
    assert dump.problem is not None and dump.problem.code == "dump.cut"


def test_in_a_cut_file_nothing_after_a_null_tensor_is_believed(tmp_path: Path) -> None:
    specs = [TensorSpec(ROW), TensorSpec(None, "float16", (16,)), TensorSpec(ROW + 1)]
    path = write_dump(str(tmp_path / NAME), "a", specs, [])
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 4)
    dump = open_dump(path)
    assert dump.problem is not None and dump.problem.code == "dump.cut"
    assert [tensor.note for tensor in dump.inputs] == [None, "missing", "missing"]
    np.testing.assert_array_equal(dump.inputs[0].original(), ROW)


def test_a_file_still_growing_gives_its_whole_tensors(tmp_path: Path) -> None:
    whole = Path(write_dump(str(tmp_path / NAME), "a", [TensorSpec(ROW, size=64)], [TensorSpec(ROW)])).read_bytes()
    start = len(whole) - 96
    expected = {0: ["missing", "missing"], 1: ["cut", "missing"], 31: ["cut", "missing"], 32: [None, "missing"], 64: [None, "missing"], 70: [None, "cut"]}
    for there, notes in expected.items():
        (tmp_path / NAME).write_bytes(whole[: start + there])
        dump = open_dump(str(tmp_path / NAME))
        assert [tensor.note for tensor in dump.inputs + dump.outputs] == notes, there
        assert dump.op_name == "a" and dump.problem is not None and dump.problem.code == "dump.cut"


def test_bytes_past_the_end_are_a_problem(tmp_path: Path) -> None:
    path = write_dump(str(tmp_path / NAME), "a", [TensorSpec(ROW)], [])
    with open(path, "ab") as file:
        file.write(b"123")
    dump = open_dump(path)
    assert dump.problem is not None and dump.problem.code == "dump.excess"
    np.testing.assert_array_equal(dump.inputs[0].original(), ROW)


@pytest.mark.parametrize("length", [True, False])
def test_the_oldest_dumps_keep_their_data_in_the_message(tmp_path: Path, length: bool) -> None:
    message = schema.DumpData(version=b"1.0", op_name=b"a")
    for items in (message.input, message.output):
        item = items.add(data_type=2, format=2, size=32, data=ROW.tobytes())
        item.shape.dim.extend([4, 4])
    path = file_of(tmp_path, message)
    if not length:
        Path(path).write_bytes(message.SerializeToString())
    dump = open_dump(path)
    assert dump.problem is None and dump.op_name == "a"
    for tensor in dump.inputs + dump.outputs:
        assert tensor.note is None
        np.testing.assert_array_equal(tensor.original(), ROW.reshape(4, 4))
        assert [piece.size for piece in tensor.chunks(6)] == [6, 6, 4]
    assert dump.inputs[0].same_bytes(dump.outputs[0])


def test_an_oldest_record_keeps_its_content_in_the_message(tmp_path: Path) -> None:
    message = schema.DumpData(version=b"1.0", op_name=b"Node_OpDebug")
    message.output.add(data_type=4, format=2, size=2048, data=make_record([Part("AI Core", 32, task_id=9)])).shape.dim.append(2048)
    assert read_record(file_of(tmp_path, message, name=record_name(1, 5, 1715938212345678))).parts[0].task_id == 9


@pytest.mark.parametrize("packed", [True, False])
def test_shapes_packed_or_not(tmp_path: Path, packed: bool) -> None:
    dims = bytes([0x0A, 2, 4, 4]) if packed else bytes([0x08, 4, 0x08, 4])
    output = bytes([0x08, 2, 0x10, 2, 0x1A, len(dims)]) + dims + bytes([0x30, 32])
    header = bytes([0x1A, len(output)]) + output
    (tmp_path / NAME).write_bytes(len(header).to_bytes(8, "little") + header + ROW.tobytes())
    (tensor,) = open_dump(str(tmp_path / NAME)).outputs
    assert tensor.shape == (4, 4) and tensor.original_shape is None


def axes(*ranges: Any) -> List[Dict[str, int]]:
    return [{"lower": low, "higher": high} for low, high in ranges]


@pytest.mark.parametrize(
    ("thread", "facts", "shape", "code"),
    [
        (1, {"threadMode": True, "input_tensor_slice": [[axes((0, 4), (0, 8))], [axes((4, 8), (0, 8))]]}, (4, 8), None),
        (1, {"threadMode": False, "input_tensor_slice": [[axes((0, 4), (0, 8))], [axes((4, 8), (0, 8))]]}, (8, 8), "dump.tensor_short"),
        (2, {"threadMode": True, "input_tensor_slice": [[axes((0, 4), (0, 8))], [axes((4, 8), (0, 8))]]}, (8, 8), "dump.tensor_short"),
        (1, {"threadMode": True, "input_tensor_slice": [[axes((0, 4), (0, 8))], [axes((6, 10), (0, 8))]]}, (8, 8), "dump.tensor_short"),
        (1, {"threadMode": True, "input_tensor_slice": [[axes((0, 4))], [axes((4, 8))]]}, (8, 8), "dump.tensor_short"),
        (1, {"threadMode": True, "input_tensor_slice": [None, [[{"lower": 0.5, "higher": True}, 3]]]}, (8, 8), "dump.tensor_short"),
        (1, {"threadMode": True, "input_tensor_slice": {"1": []}}, (8, 8), "dump.tensor_short"),
        (1, {"threadMode": True}, (8, 8), "dump.tensor_short"),
        (None, {"threadMode": True, "input_tensor_slice": [[axes((0, 4), (0, 8))]]}, (8, 8), "dump.tensor_short"),
    ],
)
def test_a_thread_s_slice(tmp_path: Path, thread: Optional[int], facts: Dict[str, Any], shape: Any, code: Optional[str]) -> None:
    values = np.arange(32, dtype=np.float32)
    ffts = (4, 0, thread, 0) if thread is not None else ()
    name = dump_name("Add", "a", 7, 3, 1715938212345678, *ffts)
    spec = TensorSpec(values, shape=(8, 8), original_shape=(8, 8))
    dump = open_dump(write_dump(str(tmp_path / name), "a", [spec], [], attrs=[("slice", json.dumps(facts))]))
    (tensor,) = dump.inputs
    assert (tensor.shape, None if dump.problem is None else dump.problem.code) == (shape, code)
    if code is None:
        assert tensor.note is None and tensor.whole_shape == (8, 8) and tensor.slice_start == (4, 0)
        np.testing.assert_array_equal(tensor.original(), values.reshape(4, 8))
        assert tensor.valid().original_index(9) == (5, 1)
    else:
        assert tensor.note == "cut" and tensor.count == 32


def test_a_collective_lies_in_two_files(tmp_path: Path) -> None:
    for time, sides in ((100, (1, 0)), (200, (0, 1)), (300, (1, 0)), (400, (0, 1))):
        specs = [[TensorSpec(ROW + time)] * count for count in sides]
        write_dump(str(tmp_path / dump_name("HcomAllReduce", "h", 7, 3, 1715938212345000 + time)), "h", specs[0], specs[1])
    write_dump(str(tmp_path / dump_name("Other", "h", 7, 3, 1715938212345310)), "h", [], [TensorSpec(ROW)])
    (tmp_path / record_name(1, 5, 1715938212345350)).write_bytes(b"")
    tree = find(str(tmp_path))
    found = tree.dumps_of(tree.records[0], 7, 3)
    others = [entry for entry in found if entry.name.op_type != "Other"]
    dump = open_operator(others)
    assert dump.inputs[0].raw()[0] == 300 and dump.outputs[0].raw()[0] == 400
    assert dump.merged_from is not None and dump.merged_from.endswith("345400")
    alone = open_operator([entry for entry in found if entry.name.op_type == "Other"] + others)
    assert (len(alone.inputs), alone.merged_from) == (0, None)
    halves = [open_dump(entry.path) for entry in others[:2]]
    halves.sort(key=lambda half: not half.inputs)
    assert merge(halves[0], halves[1]).inputs == halves[0].inputs and merge(halves[0], halves[1]).outputs == halves[1].outputs


def test_a_file_that_shrinks_after_it_was_opened(tmp_path: Path) -> None:
    path = write_dump(str(tmp_path / NAME), "a", [TensorSpec(np.zeros(10000, np.float32))], [])
    (tensor,) = open_dump(path).inputs
    pieces = tensor.chunks(1000)
    assert next(pieces).size == 1000
    os.truncate(path, 20000)
    with pytest.raises(DumpFormatError) as caught:
        list(pieces)
    assert caught.value.code == "file.shrank"


def test_a_file_that_was_replaced_or_removed_after_it_was_opened(tmp_path: Path) -> None:
    path = write_dump(str(tmp_path / NAME), "a", [TensorSpec(ROW)], [])
    (tensor,) = open_dump(path).inputs
    write_dump(path, "a", [TensorSpec(ROW + 1)], [])
    with pytest.raises(DumpFormatError) as caught:
        tensor.raw()
    assert caught.value.code == "file.replaced"
    os.unlink(path)
    with pytest.raises(DumpFormatError) as caught:
        tensor.raw()
    assert caught.value.code == "file.gone"


def test_names_in_another_encoding_do_not_spoil_a_file(tmp_path: Path) -> None:
    message = schema.DumpData(version=b"2.0", op_name="网络".encode("gbk"))
    assert "\ufffd" in open_dump(file_of(tmp_path, message)).op_name


def test_buffers_and_spaces_come_last(tmp_path: Path) -> None:
    message = schema.DumpData(version=b"2.0", op_name=b"a")
    message.output.add(data_type=2, format=2, size=32).shape.dim.append(16)
    message.buffer.add(size=5)
    message.space.add(size=3)
    dump = open_dump(file_of(tmp_path, message, ROW.tobytes() + b"BBBBBSSS"))
    assert dump.problem is None
    assert [(tensor.side, tensor.raw().tobytes()) for tensor in dump.others] == [("buffer", b"BBBBB"), ("space", b"SSS")]
