"""Tensors there and back through files, of every type and of random shapes."""
from __future__ import annotations

import gc
import json
import os
import tempfile
from pathlib import Path
from typing import Any, List, Tuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from npu_overflow.dump import codes, schema
from npu_overflow.dump.names import dump_name
from npu_overflow.dump.reader import open_dump
from npu_overflow.dump.scan import find
from npu_overflow.dump.writer import TensorSpec, finish, part_path, write_dump

NAME = dump_name("Mul", "net/mul", 7, 3, 1715938212345678)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6)


def items_of(dtype: str, shape: Tuple[int, ...]) -> st.SearchStrategy[np.ndarray]:
    """Any bit pattern, as storage items."""
    count = int(np.prod(shape, dtype=np.int64)) * (2 if dtype in codes.COMPLEX else 1)
    storage = np.dtype(codes.STORAGE[dtype])
    return st.binary(min_size=count * storage.itemsize, max_size=count * storage.itemsize).map(lambda data: np.frombuffer(data, storage))


@settings(deadline=None)
@given(st.data())
def test_every_decoded_type_there_and_back(data: st.DataObject) -> None:
    drawn: List[Tuple[str, Tuple[int, ...], np.ndarray, int]] = []
    for _ in range(data.draw(st.integers(1, 4))):
        dtype, shape = data.draw(st.sampled_from(sorted(codes.DECODED))), data.draw(SHAPES)
        drawn.append((dtype, shape, data.draw(items_of(dtype, shape)), data.draw(st.integers(0, 40))))
    specs = [TensorSpec(items.tobytes(), dtype, shape, size=items.nbytes + extra) for dtype, shape, items, extra in drawn]
    inputs = data.draw(st.integers(0, len(specs)))
    with tempfile.TemporaryDirectory() as folder:
        path = write_dump(os.path.join(folder, NAME), "net/mul", specs[:inputs], specs[inputs:])
        opened = open_dump(path)
        assert (opened.op_name, opened.problem, opened.host) == ("net/mul", None, None)
        assert opened.dump_time == 1715938212345678
        tensors = opened.inputs + opened.outputs
        assert [tensor.index for tensor in tensors] == [*range(inputs), *range(len(specs) - inputs)]
        for tensor, (dtype, shape, items, extra) in zip(tensors, drawn):
            assert (tensor.dtype, tensor.shape, tensor.original_shape) == (dtype, shape, shape)
            # without any byte a tensor that is not empty could as well be absent
            assert tensor.note is None
            assert tensor.raw().dtype == items.dtype and tensor.raw().tobytes() == items.tobytes()
            assert tensor.count * tensor.parts == items.size and tensor.bytes == items.nbytes + extra
            step = data.draw(st.integers(1, 7))
            pieces = [piece.copy() for piece in tensor.chunks(step)]
            assert all(0 < piece.size <= step * tensor.parts for piece in pieces)
            assert b"".join(piece.tobytes() for piece in pieces) == items.tobytes()
            start, count = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 9))
            assert tensor.read(start, count).tobytes() == items[start * tensor.parts : (start + count) * tensor.parts].tobytes()
            assert tensor.original().shape == shape


@settings(deadline=None)
@given(hnp.arrays(st.sampled_from([np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_, np.complex64, np.complex128]), SHAPES))
def test_an_array_there_and_back(array: np.ndarray) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = write_dump(os.path.join(folder, NAME), "a", [], [TensorSpec(array)])
        (tensor,) = open_dump(path).outputs
        assert tensor.dtype == array.dtype.name
        np.testing.assert_array_equal(tensor.original(), array)
        assert tensor.original().dtype == array.dtype


def test_arrays_of_another_order_in_memory(tmp_path: Path) -> None:
    array = np.arange(24, dtype=">f4").reshape(2, 3, 4).transpose(2, 0, 1)
    path = write_dump(str(tmp_path / NAME), "a", [TensorSpec(array[:, ::-1])], [])
    np.testing.assert_array_equal(open_dump(path).inputs[0].original(), array[:, ::-1])


def test_the_bytes_on_disk(tmp_path: Path) -> None:
    """Written out by hand from the format: what the vendor's parser is fed."""
    path = write_dump(str(tmp_path / NAME), "a", [TensorSpec(np.array([1, 2], np.int8))], [TensorSpec(np.array(3, np.float16), size=4)], dump_time=5)
    tensor = bytes([0x08, 3, 0x10, 2, 0x1A, 3, 0x0A, 1, 2, 0x28, 2, 0x32, 3, 0x0A, 1, 2])
    output = bytes([0x08, 2, 0x10, 2, 0x1A, 0, 0x30, 4, 0x3A, 0])
    header = b"\x0a\x032.0\x10\x05" + b"\x1a" + bytes([len(output)]) + output + b"\x22" + bytes([len(tensor)]) + tensor + b"\x32\x01a"
    assert Path(path).read_bytes() == len(header).to_bytes(8, "little") + header + b"\x01\x02" + np.float16(3).tobytes() + b"\0\0"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 600), max_size=6), st.lists(st.integers(0, 600), max_size=6))
def test_a_file_is_as_long_as_its_header_tells(inputs: List[int], outputs: List[int]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        sides = [[TensorSpec(np.zeros(size, np.uint8)) for size in side] for side in (inputs, outputs)]
        data = Path(write_dump(os.path.join(folder, NAME), "a", sides[0], sides[1])).read_bytes()
        length = int.from_bytes(data[:8], "little")
        message = schema.parse(data[8 : 8 + length])
        assert len(data) == 8 + length + sum(item.size for item in message.input) + sum(item.size for item in message.output)


@pytest.mark.parametrize("dtype", sorted(codes.UNDECODED - {"undefined"}) + [99])
def test_types_that_are_not_decoded_are_named_and_counted(tmp_path: Path, dtype: Any) -> None:
    path = write_dump(str(tmp_path / NAME), "a", [], [TensorSpec(bytes(range(32)), dtype, (4, 2), size=40)])
    dump = open_dump(path)
    (tensor,) = dump.outputs
    assert (tensor.dtype, tensor.note, tensor.bytes, dump.problem) == ("type 99" if dtype == 99 else dtype, "not_decoded", 40, None)
    assert tensor.raw().tobytes() == bytes(range(32)) + bytes(8)


def test_strings_and_numpy_names_of_other_packages(tmp_path: Path) -> None:
    path = write_dump(str(tmp_path / NAME), "a", [TensorSpec(np.array([b"ab", "c"], dtype=object))], [])
    (tensor,) = open_dump(path).inputs
    assert (tensor.dtype, tensor.shape, tensor.bytes, tensor.note) == ("string", (2,), 4, "not_decoded")


def test_the_same_bytes(tmp_path: Path) -> None:
    first = np.arange(300, dtype=np.float32)
    second = first.copy()
    second[299] = -1
    path = write_dump(str(tmp_path / NAME), "a", [TensorSpec(first), TensorSpec(second)], [TensorSpec(first), TensorSpec(first.reshape(3, 100))])
    dump = open_dump(path)
    assert dump.outputs[0].same_bytes(dump.inputs[0]) and dump.inputs[0].same_bytes(dump.outputs[0])
    assert not dump.outputs[0].same_bytes(dump.inputs[1]) and not dump.outputs[0].same_bytes(dump.outputs[1])


def test_what_the_host_knew_there_and_back(tmp_path: Path) -> None:
    facts = {"host": 1, "op_type": "MatMul", "value": float("inf"), "名": [1, None, True]}
    assert open_dump(write_dump(str(tmp_path / NAME), "a", [], [], host=facts)).host == facts


def test_a_tensor_that_the_host_cut_is_no_problem(tmp_path: Path) -> None:
    spec = TensorSpec(np.arange(4, dtype=np.float32), shape=(100,))
    cut = open_dump(write_dump(str(tmp_path / NAME), "a", [], [spec], host={"tensors": {"output.0": {"max": 1}}}))
    assert (cut.outputs[0].note, cut.outputs[0].count, cut.problem) == ("cut", 4, None)
    assert cut.outputs[0].raw().tolist() == [0, 1, 2, 3]
    other = open_dump(write_dump(str(tmp_path / NAME), "a", [], [spec], host={"tensors": []}))
    assert other.problem is not None and other.problem.code == "dump.tensor_short"


def test_a_file_is_aside_until_it_is_finished(tmp_path: Path) -> None:
    path = write_dump(str(tmp_path / NAME), "a", [], [TensorSpec(np.zeros(3))], rename=False)
    tree = find(str(tmp_path))
    assert not tree.dumps and tree.unfinished == [part_path(path)] and not tree.problems
    finish(path)
    assert [entry.path for entry in find(str(tmp_path)).dumps] == [path]


def test_a_name_too_long_for_a_file_is_a_number_and_a_row(tmp_path: Path) -> None:
    name = dump_name("Mul", "scope/" * 60 + "mul", 7, 3, 1715938212345678)
    path = write_dump(str(tmp_path / name), "long", [], [TensorSpec(np.ones(2))])
    assert os.path.basename(path).isdigit() and len(os.path.basename(path)) <= 20
    (entry,) = find(str(tmp_path)).dumps
    assert (entry.path, entry.name.op_type, entry.name.task_id) == (path, "Mul", 7)
    assert open_dump(path).name == entry.name


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec(b"1234"),
        TensorSpec(b"1234", "float32"),
        TensorSpec(b"1234", "float99", (1,)),
        TensorSpec(b"1234", "float32", (1,), format="XYZ"),
        TensorSpec(b"1234", "float32", (1,), size=3),
    ],
)
def test_what_can_not_be_written_is_refused_and_leaves_nothing(tmp_path: Path, spec: TensorSpec) -> None:
    with pytest.raises(ValueError):
        write_dump(str(tmp_path / NAME), "a", [spec], [])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        write_dump(str(tmp_path / "none" / NAME), "a", [], [])


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links here")
def test_a_link_in_the_place_of_the_file_aside_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("keep")
    os.symlink(str(target), part_path(str(tmp_path / NAME)))
    path = Path(write_dump(str(tmp_path / NAME), "a", [], [TensorSpec(np.zeros(3))]))
    assert path.is_file() and not path.is_symlink()
    assert target.read_text() == "keep"


def test_messages_outlive_the_collection_of_garbage() -> None:
    header = schema.DumpData(version=b"2.0").SerializeToString() + bytes([0x1A, 0])
    for _ in range(3):
        gc.collect()
        message = schema.parse(header)
        gc.collect()
        assert len(message.output[0].shape.dim) == 0 and len(list(message.output)) == 1


def test_the_default_pool_is_left_alone() -> None:
    """The vendor's packages register the same names there."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    other = descriptor_pb2.FileDescriptorProto(name="toolkit_other_dump.proto", package="toolkit.dumpdata", syntax="proto3")
    other.message_type.add(name="DumpData").field.add(name="mine", number=1, label=1, type=5)
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(other.SerializeToString())
    assert [field.name for field in pool.FindMessageTypeByName("toolkit.dumpdata.DumpData").fields] == ["mine"]
    assert "op_name" in [field.name for field in schema.DumpData.DESCRIPTOR.fields]


def test_other_parsers_skip_what_the_host_knew(tmp_path: Path) -> None:
    data = Path(write_dump(str(tmp_path / NAME), "a", [], [], host={"host": 1})).read_bytes()
    tag = (schema.HOST_FIELD << 3 | 2).to_bytes(3, "little")
    text = json.dumps({"host": 1}).encode()
    varint = bytes([tag[0] & 0x7F | 0x80, (schema.HOST_FIELD << 3 | 2) >> 7 & 0x7F | 0x80, (schema.HOST_FIELD << 3 | 2) >> 14])
    assert data.endswith(varint + bytes([len(text)]) + text)
