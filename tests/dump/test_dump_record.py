"""Overflow records, both layouts, both directions."""
from __future__ import annotations

import struct
from pathlib import Path
from typing import Dict, Tuple, Union

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow import messages
from npu_overflow.dump.record import Part, make_record, parse_record, read_record
from npu_overflow.dump.writer import write_record
from npu_overflow.errors import DumpFormatError

WORD = st.integers(0, 2**64 - 1)
ID = st.none() | st.integers(0, 65534)
OLD_NAMES = ("task_type", "pc_start", "para_base")
MAGIC_NAMES: Dict[str, Tuple[str, ...]] = {
    "AIC": ("task_type", "pc_start", "para_base", "core_id", "block_id"),
    "AIV": ("task_type", "pc_start", "para_base", "core_id", "block_id"),
    "AICPU": ("task_type", "cpu_id"),
    "SDMA": ("task_type", "src_addr", "dst_addr", "channel_id"),
}


def old_part(core: str) -> st.SearchStrategy[Part]:
    names = OLD_NAMES + (("kernel_code", "block_idx") if core == "AI Core" else ())
    details = st.fixed_dictionaries({name: WORD for name in names})
    return st.builds(Part, st.just(core), st.integers(1, 2**64 - 1), WORD, WORD, WORD, st.none(), st.none(), details)


def magic_part(core: str, status: st.SearchStrategy[Union[int, Tuple[int, ...]]]) -> st.SearchStrategy[Part]:
    details = st.fixed_dictionaries({name: WORD for name in MAGIC_NAMES[core]})
    return st.builds(Part, st.just(core), status, WORD, WORD, WORD, ID, ID, details)


@given(st.data())
def test_an_old_record_there_and_back(data: st.DataObject) -> None:
    cores = data.draw(st.lists(st.sampled_from(["DHA Atomic Add", "L2 Atomic Add", "AI Core"]), unique=True, min_size=1))
    parts = [data.draw(old_part(core)) for core in cores]
    content = make_record(parts, "old")
    if content[:4] != b"ZZZZ":
        record = parse_record(content)
        assert len(content) == 2048 and record.layout == "old"
        assert sorted(record.parts, key=lambda part: part.core) == sorted(parts, key=lambda part: part.core)


@given(st.sampled_from(sorted(MAGIC_NAMES)).flatmap(lambda core: magic_part(core, st.integers(1, 2**64 - 1))))
def test_a_magic_record_there_and_back(part: Part) -> None:
    content = make_record([part])
    record = parse_record(content)
    assert len(content) == 2048 and (record.layout, record.version, record.valid) == ("magic", 0, 1)
    assert record.parts == (part,) and record.problems == () and record.remarks == ()


@given(st.sampled_from(["AIC", "AIV"]), st.data())
def test_records_of_other_versions_there_and_back(core: str, data: st.DataObject) -> None:
    version = data.draw(st.integers(1, 2**32 - 1))
    words = 4 if version == 1 else data.draw(st.integers(1, 200))
    state = tuple(data.draw(st.lists(WORD, min_size=words, max_size=words)))
    part = data.draw(magic_part(core, st.just(state if words > 1 else state[0])))
    record = parse_record(make_record([part], version=version))
    assert record.version == version
    assert record.parts == ((part,) if any(state) else ())


def test_the_layout_on_disk_of_an_old_record() -> None:
    content = make_record([Part("AI Core", 0x110, 11, 3, 57, details={"kernel_code": 1, "block_idx": 2}), Part("L2 Atomic Add", 1 << 16, 9, 8, 7)])
    assert struct.unpack_from("<3Q", content, 256) == (11, 3, 57)
    assert struct.unpack_from("<3Q", content, 128) == (9, 8, 7)
    assert struct.unpack_from("<3Q", content, 1024) == (1, 2, 0x110)
    assert struct.unpack_from("<Q", content, 768) == (1 << 16,)


def test_the_layout_on_disk_of_a_magic_record() -> None:
    content = make_record([Part("AIV", 5, 1, 2, 3, context_id=7, details={"core_id": 9})], version=2)
    assert struct.unpack_from("<6I", content) == (0x5A5A5A5A, 2, 1, 1, 0, 88)
    assert struct.unpack_from("<11Q", content, 24) == (1, 2, 3, 0, 7, 65535, 0, 0, 9, 0, 5)


def test_an_unknown_type_is_listed_with_a_problem() -> None:
    content = bytearray(2048)
    struct.pack_into("<6I8Q", content, 0, 0x5A5A5A5A, 0, 1, 9, 0, 64, 1, 2, 3, 0, 65535, 0, 0, 77)
    record = parse_record(bytes(content))
    assert [(part.core, part.status, part.task_id) for part in record.parts] == [("type 9", 77, 3)]
    assert [code for code, _ in record.problems] == ["record.acc_type"]


def test_a_record_that_is_not_valid_is_listed_with_a_remark() -> None:
    record = parse_record(make_record([Part("AIC", 1)], valid=0))
    assert len(record.parts) == 1 and [code for code, _ in record.remarks] == ["record.not_valid"]


@pytest.mark.parametrize("content", [bytes(2048), make_record([Part("AIC", 0)])])
def test_a_record_without_status_reports_nothing(content: bytes) -> None:
    record = parse_record(content)
    assert record.parts == () and ("record.nothing", {}) in record.remarks


@pytest.mark.parametrize("data_len", [0, 8, 80, 0xFFFFFFFF])
@pytest.mark.parametrize("acc_type", [0, 1, 9])
def test_a_forged_length_is_a_problem_and_no_crash(data_len: int, acc_type: int) -> None:
    content = bytearray(make_record([Part("AIC", 3)], version=7))
    struct.pack_into("<I", content, 12, acc_type)
    struct.pack_into("<I", content, 20, data_len)
    record = parse_record(bytes(content))
    assert record.problems and len(record.parts) <= 1


@pytest.mark.parametrize(("first", "length"), [(b"ZZZZ", 0), (b"ZZZZ", 3), (b"ZZZZ", 23), (b"ZZZZ", 111), (b"\0\0\0\0", 24), (b"\0\0\0\0", 1047)])
def test_a_short_record_is_an_error(first: bytes, length: int) -> None:
    with pytest.raises(DumpFormatError):
        parse_record((first + bytes(2048))[:length])


@given(st.binary(min_size=2048, max_size=2048), st.booleans())
def test_any_2048_bytes_are_a_record(content: bytes, magic: bool) -> None:
    record = parse_record((b"ZZZZ" if magic else content[:4]) + content[4:])
    assert all(isinstance(bit, str) for part in record.parts for bit in part.status_bits)
    assert all(messages.known(code) for part in record.parts for code in part.status_codes)


@pytest.mark.parametrize(
    ("core", "status", "bits", "codes"),
    [
        ("AI Core", 272, ("0x10", "0x100"), ("status.ai_core.0x10", "status.ai_core.0x100")),
        ("AI Core", 0x420, ("0x20", "0x400"), ("status.ai_core.0x20", "status.ai_core.0x400")),
        ("AI Core", 0x2, ("0x2",), ("status.ai_core.unknown",)),
        ("AIC", 0x20, ("0x20",), ("status.not_documented",)),
        ("AIC", (0, 0x21, 0, 1 << 63), ("1:0x1", "1:0x20", "3:0x8000000000000000"), ("status.not_documented",)),
        ("DHA Atomic Add", 0xB00, ("0x100", "0x200", "0x800"), ("status.dha.0xb",)),
        ("DHA Atomic Add", 1, ("0x1",), ("status.atomic.unknown",)),
        ("L2 Atomic Add", 0x50000, ("0x10000", "0x40000"), ("status.l2.5",)),
        ("L2 Atomic Add", 0x70000, ("0x10000", "0x20000", "0x40000"), ("status.atomic.unknown",)),
    ],
)
def test_bits_and_their_meaning(core: str, status: Union[int, Tuple[int, ...]], bits: Tuple[str, ...], codes: Tuple[str, ...]) -> None:
    part = Part(core, status)
    assert part.status_bits == bits and part.status_codes == codes
    assert all("{" not in messages.say(code, language, **values) for code, values in part.status_meanings for language in messages.LANGUAGES)


@pytest.mark.parametrize(
    ("parts", "layout", "version"),
    [
        ([Part("AI Core", 1), Part("AI Core", 2)], "old", None),
        ([Part("AIC", 1)], "old", None),
        ([Part("AIC", 1), Part("AIV", 1)], "magic", None),
        ([Part("nothing", 1)], "magic", None),
        ([Part("AIC", 1)], "magic", 1),
        ([Part("AIC", (1, 2, 3))], "magic", 0),
        ([Part("AIC", 2**64)], "magic", 0),
        ([Part("AI Core", -1)], "old", None),
        ([], "magic", None),
    ],
)
def test_what_is_no_record_is_refused(parts: list, layout: str, version: int) -> None:
    with pytest.raises(ValueError):
        make_record(parts, layout, version)


def test_a_record_file_there_and_back(tmp_path: Path) -> None:
    path = str(tmp_path / "Opdebug.Node_OpDebug.1.5.1715938212000080")
    part = Part("AIC", (0, 32, 0, 1), 1, 2, 70001)
    assert write_record(path, [part]) == path
    assert read_record(path).parts[0].status == part.status
    # the vendor's own records are of this size: 8 + 49 bytes of header + 2048
    assert (tmp_path / "Opdebug.Node_OpDebug.1.5.1715938212000080").stat().st_size == 2105
