"""Files made to harm: each is an error with a sentence, or is read for what it is. None crashes, hangs or takes memory by its word."""
from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Callable, Dict, List

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_overflow import messages
from npu_overflow.dump import schema
from npu_overflow.dump.names import dump_name
from npu_overflow.dump.reader import OperatorDump, open_dump
from npu_overflow.dump.record import read_record
from npu_overflow.errors import DumpFormatError

NAME = dump_name("Mul", "a", 7, 3, 1715938212345678)


def varint(value: int) -> bytes:
    result = bytearray()
    while value > 0x7F:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes(result + bytes([value]))


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def whole(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def tensor(dims: List[int], size: int, dtype: int = 2) -> bytes:
    shape = b"".join(varint(dim) for dim in dims)
    return field(3, bytes([0x08]) + varint(dtype) + bytes([0x10, 2]) + field(3, field(1, shape)) + bytes([0x30]) + varint(size))


HOSTILE: Dict[str, bytes] = {
    "empty": b"",
    "too short for a length": b"\1\0\0",
    "length only": struct.pack("<Q", 1),
    "largest length": struct.pack("<Q", 2**64 - 1) + b"x" * 100,
    "length just past the end": struct.pack("<Q", 101) + b"\x0a" * 100,
    "garbage": bytes(range(256)) * 20,
    "header of garbage": whole(b"\xff" * 200),
    "field past the end": whole(b"\x1a\xff\xff\xff\xff\x0f"),
    "varint without end": whole(b"\x1a" + b"\x80" * 60),
    "groups in groups": whole(b"\x0b" * 100000),
    "messages in messages": whole(b"\x1a\x7f" * 60000),
    "a million tensors": whole(b"\x1a\0" * 1000000),
    "ten thousand tensors": whole(b"\x1a\0" * 9000),
    "a million unknown fields": whole(b"\xf8\x7f\1" * 1000000),
    "a shape of a million axes": whole(field(3, field(3, field(1, b"\1" * 1000000)))),
    "a shape of a million axes, not packed": whole(field(3, field(3, b"\x08\1" * 1000000))),
    "a shape of 40 axes": whole(tensor([1] * 40, 2), b"xx"),
    "text": b"Input/Output,Index\n",
    "a whole message that is none": b"\x0a" + b"\xff" * 500,
    "an empty first version": b"\x0a\x031.0" + b"\x12\0" * 30,
}


@pytest.mark.parametrize("content", list(HOSTILE.values()), ids=list(HOSTILE))
@pytest.mark.parametrize("read", [open_dump, read_record])
def test_a_hostile_file_is_an_error_with_a_sentence(tmp_path: Path, content: bytes, read: Callable[[str], object]) -> None:
    (tmp_path / NAME).write_bytes(content)
    with pytest.raises(DumpFormatError) as caught:
        read(str(tmp_path / NAME))
    for language in messages.LANGUAGES:
        message = caught.value.message(language)
        assert message != caught.value.code and "{" not in message


FORGED: Dict[str, List[int]] = {
    "axes that multiply past 64 bits": [2**63, 2**63, 2**63],
    "unknown axes": [2**64 - 1, 4],
    "more than there is": [10**9],
}


@pytest.mark.parametrize("dims", list(FORGED.values()), ids=list(FORGED))
@pytest.mark.parametrize("size", [0, 32, 2**40, 2**64 - 1])
def test_a_forged_shape_takes_no_memory(tmp_path: Path, dims: List[int], size: int) -> None:
    (tmp_path / NAME).write_bytes(whole(tensor(dims, size), b"\0" * 32))
    dump = open_dump(str(tmp_path / NAME))
    (one,) = dump.outputs
    assert one.note in ("cut", "no_data") and dump.problem is not None
    assert one.count * 2 == one.bytes <= 32 and sum(piece.nbytes for piece in one.chunks()) == one.bytes
    assert one.original().size == one.count and one.valid().mask(0, one.count) is None


def test_many_promises_of_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(whole(tensor([2**61], 2**62) * 1000, b"\0" * 32))
    dump = open_dump(str(tmp_path / NAME))
    assert [one.note for one in dump.outputs[:3]] == ["cut", "missing", "missing"] and sum(one.bytes for one in dump.outputs) == 32


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 200000,
        b'{"a":' * 100000,
        b'{"threadMode": true, "input_tensor_slice": ' + b"[" * 200000,
        b'{"threadMode": ' + b"9" * 1000000 + b"}",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{",
    ],
    ids=range(8),
)
def test_json_that_is_none_is_no_json(tmp_path: Path, text: bytes) -> None:
    message = schema.DumpData(version=b"2.0", op_name=b"a", host=text)
    message.attr.add(value=b"threadMode" + text)
    message.output.add(data_type=2, size=4).shape.dim.append(2)
    name = dump_name("Mul", "a", 7, 3, 1715938212345678, 4, 0, 0, 0)
    (tmp_path / name).write_bytes(whole(message.SerializeToString(), b"1234"))
    dump = open_dump(str(tmp_path / name))
    assert dump.host is None and dump.outputs[0].note is None


def test_a_sparse_file_with_a_huge_header(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(struct.pack("<Q", 2**33))
    os.truncate(str(path), 2**33 + 8)
    with pytest.raises(DumpFormatError) as caught:
        open_dump(str(path))
    assert caught.value.code == "dump.header_large"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_files_that_are_none_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(str(tmp_path / NAME))
    os.symlink("/dev/zero", str(tmp_path / "link"))
    (tmp_path / "folder").mkdir()
    for name, code in ((NAME, "file.special"), ("link", "file.unreadable"), ("folder", "file.special"), ("none", "file.gone"), ("a\0b", "file.unreadable")):
        with pytest.raises(DumpFormatError) as caught:
            open_dump(str(tmp_path / name))
        assert caught.value.code == code


@settings(deadline=None)
@given(st.data())
def test_a_good_file_with_bytes_changed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever changed, the answer is a dump or a DumpFormatError, and reading every tensor ends."""
    good = whole(field(1, b"2.0") + tensor([4, 4], 32) + tensor([3], 12, 1) + field(6, b"a") + field(15000, b'{"host": 1}'), bytes(range(44)))
    spoiled = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        spoiled[data.draw(st.integers(0, len(spoiled) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / NAME
    path.write_bytes(bytes(spoiled[: data.draw(st.integers(0, len(spoiled)))]))
    try:
        dump = open_dump(str(path))
    except DumpFormatError as error:
        assert messages.known(error.code)
        return
    assert isinstance(dump, OperatorDump)
    for one in dump.inputs + dump.outputs + dump.others:
        assert sum(piece.size for piece in one.chunks()) == one.count * one.parts
        assert one.original().size <= one.count and one.valid().mask(0, 5) is not False


def test_json_of_the_host_is_no_deeper_than_can_be_shown(tmp_path: Path) -> None:
    """Python reads what lies a thousand deep, and then can't print it."""
    for depth, read in ((20, True), (40, False), (900, False)):
        message = schema.DumpData(version=b"2.0", op_name=b"a", host=b'{"host": 1, "x": ' + b"[" * depth + b"]" * depth + b"}")
        message.output.add(data_type=2, size=4).shape.dim.append(2)
        (tmp_path / NAME).write_bytes(whole(message.SerializeToString(), b"1234"))
        dump = open_dump(str(tmp_path / NAME))
        assert (dump.host is not None, dump.problem is None) == (read, read)
        assert read or (dump.problem is not None and dump.problem.code == "dump.host")


def test_a_very_long_name_is_cut(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(whole(field(1, b"2.0") + tensor([2], 4) + field(6, b"n" * (1 << 20)), b"1234"))
    dump = open_dump(str(tmp_path / NAME))
    assert dump.op_name == "n" * 16384 and dump.problem is not None
    assert (dump.problem.code, dump.problem.values) == ("dump.name_long", {"bytes": 1 << 20, "most": 16384})
