"""The overflow record: 2048 bytes, in the layout of Atlas training products or of Atlas A2, A3 and
later."""
from __future__ import annotations

import os
import struct
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from npu_overflow.dump import headers, schema, status
from npu_overflow.dump.envelope import open_envelope
from npu_overflow.dump.files import read_small
from npu_overflow.errors import DumpFormatError

__all__ = ["CONTENT_BYTES", "Part", "Record", "make_record", "parse_record", "read_record"]

Status = Union[int, Tuple[int, ...]]
Note = Tuple[str, Mapping[str, Any]]

CONTENT_BYTES = 2048
_USUAL_BYTES = 4096
MAGIC = 0x5A5A5A5A
_NONE = 65535
_HEAD = struct.Struct("<6I")

# old layout: core -> offsets of its ids and of its status words, and the names of these words
_IDS = ("model_id", "stream_id", "task_id", "task_type", "pc_start", "para_base")
_OLD: Dict[str, Tuple[int, int, Tuple[str, ...]]] = {
    "DHA Atomic Add": (0, 512, ("status",)),
    "L2 Atomic Add": (128, 768, ("status",)),
    "AI Core": (256, 1024, ("kernel_code", "block_idx", "status")),
}
_OLD_BYTES = 1024 + 3 * 8

# magic layout: acc_type -> core and the words before its status
_AI_CORE = (
    "model_id",
    "stream_id",
    "task_id",
    "task_type",
    "context_id",
    "thread_id",
    "pc_start",
    "para_base",
    "core_id",
    "block_id",
)
_MAGIC: Dict[int, Tuple[str, Tuple[str, ...]]] = {
    0: ("AIC", _AI_CORE),
    1: ("AIV", _AI_CORE),
    2: (
        "AICPU",
        ("model_id", "stream_id", "task_id", "task_type", "context_id", "cpu_id", "thread_id"),
    ),
    3: (
        "SDMA",
        (
            "model_id",
            "stream_id",
            "task_id",
            "task_type",
            "context_id",
            "thread_id",
            "src_addr",
            "dst_addr",
            "channel_id",
        ),
    ),
}
_ACC_TYPES = {core: number for number, (core, _) in _MAGIC.items()}
_UNKNOWN = ("model_id", "stream_id", "task_id", "task_type", "context_id")
_OWN_FIELDS = frozenset({"model_id", "stream_id", "task_id", "context_id", "thread_id"})
_MOST_WORDS = (CONTENT_BYTES - _HEAD.size) // 8


@dataclass(frozen=True)
class Part:
    """One reporting part of a record.

    Args:
        core: "AI Core", "DHA Atomic Add", "L2 Atomic Add" (old layout), "AIC", "AIV", "AICPU",
            "SDMA" or "type N".
        status: a number, or the words of records of version 1 (four) and of other versions with
            more than one word.
        model_id, stream_id, task_id: of the operator.
        context_id, thread_id: FFTS+ only; None where the record has none (65535). A 0 can also mean
            none.
        details: other words by name: task_type, pc_start, para_base, core_id, block_id,
            kernel_code, block_idx, cpu_id, src_addr, dst_addr, channel_id.
    """

    core: str
    status: Status
    model_id: int = 0
    stream_id: int = 0
    task_id: int = 0
    context_id: Optional[int] = None
    thread_id: Optional[int] = None
    details: Mapping[str, int] = field(default_factory=dict)

    @property
    def status_bits(self) -> Tuple[str, ...]:
        """Set bits, lowest first: "0x20", or "1:0x20" (word:bit) where status has several words."""
        return status.bits_of(self.status)

    @property
    def status_meanings(self) -> Tuple[Note, ...]:
        """(code, values) of sentences in ``messages``: one a set bit for "AI Core", one in all for
        the others."""
        return status.meanings_of(self.core, self.status)

    @property
    def status_codes(self) -> Tuple[str, ...]:
        """The codes of ``status_meanings``."""
        return tuple(code for code, _ in self.status_meanings)


@dataclass(frozen=True)
class Record:
    """The content of a record.

    Args:
        layout: "old" or "magic".
        parts: those that report something (status not 0; a part of an unknown type always).
        problems: (code, values) of what could not be understood, e.g. ("record.acc_type",
            {"number": 9}).
        remarks: (code, values) worth saying, e.g. ("record.not_valid", {"valid": 0}),
            ("record.nothing", {}).
        version, valid, acc_type: of the magic layout, else None.
    """

    layout: str
    parts: Tuple[Part, ...] = ()
    problems: Tuple[Note, ...] = ()
    remarks: Tuple[Note, ...] = ()
    version: Optional[int] = None
    valid: Optional[int] = None
    acc_type: Optional[int] = None


def read_record(path: str) -> Record:
    """Read a record file.

    Raises:
        DumpFormatError: not a whole record.
    """
    usual = _usual_content(path)
    if usual is not None:
        return parse_record(usual)
    sides, _ = headers.tensors_of(open_envelope(os.path.abspath(path)), None, None)
    if not sides["output"]:
        raise DumpFormatError("record.no_output")
    content = sides["output"][0]
    if content.bytes < content.size:
        raise DumpFormatError("record.cut", bytes=content.bytes, size=content.size)
    as_bytes = replace(content, dtype="uint8", shape=(content.bytes,), note=None)
    return parse_record(as_bytes.read(0, CONTENT_BYTES).tobytes())


def _usual_content(path: str) -> Optional[bytes]:
    """The content of a record as devices write it: one output, whose bytes end the file. None for
    any other, which takes the long way."""
    whole = read_small(path, _USUAL_BYTES)
    start = 8 + int.from_bytes(whole[:8], "little")
    if not 8 < start < len(whole):
        return None
    try:
        message = schema.parse(whole[8:start])
    except ValueError:
        return None
    outputs = message.output
    if (
        len(outputs) != 1
        or outputs[0].size != len(whole) - start
        or message.input
        or message.buffer
        or message.space
    ):
        return None
    return whole[start : start + CONTENT_BYTES]


def parse_record(content: bytes) -> Record:
    """The record in the 2048 bytes of output 0.

    Raises:
        DumpFormatError: too few bytes.
    """
    if len(content) < _HEAD.size:
        raise DumpFormatError("record.short", bytes=len(content), needed=_HEAD.size)
    if struct.unpack_from("<I", content)[0] == MAGIC:
        return _parse_magic(content)
    if len(content) < _OLD_BYTES:
        raise DumpFormatError("record.short", bytes=len(content), needed=_OLD_BYTES)
    parts = []
    for core, (ids, at, names) in _OLD.items():
        words = dict(zip(names, struct.unpack_from("<%dQ" % len(names), content, at)))
        value = words.pop("status")
        if value:
            words.update(zip(_IDS, struct.unpack_from("<6Q", content, ids)))
            parts.append(_part(core, value, words))
    return Record("old", tuple(parts), remarks=() if parts else (("record.nothing", {}),))


def _parse_magic(content: bytes) -> Record:
    _, version, valid, acc_type, _, data_len = _HEAD.unpack_from(content)
    core, names = _MAGIC.get(acc_type, ("type %d" % acc_type, _UNKNOWN))
    problems: List[Note] = []
    if acc_type not in _MAGIC:
        problems.append(("record.acc_type", {"number": acc_type}))
        # the meaning of the words in between is unknown: by the custom of the known types the
        # status comes last
        words_before, words_of_status = max(data_len // 8 - 1, len(names)), 1
    else:
        words_before, words_of_status = len(names), _status_words(acc_type, version, data_len)
    if not 1 <= words_of_status <= _MOST_WORDS - words_before:
        problems.append(("record.data_len", {"data_len": data_len}))
        words_before, words_of_status = len(names), 1
    needed = _HEAD.size + 8 * (words_before + words_of_status)
    if len(content) < needed:
        raise DumpFormatError("record.short", bytes=len(content), needed=needed)
    words = struct.unpack_from("<%dQ" % (words_before + words_of_status), content, _HEAD.size)
    state = words[words_before:]
    part = _part(core, state[0] if len(state) == 1 else tuple(state), dict(zip(names, words)))
    parts = (part,) if any(state) or acc_type not in _MAGIC else ()
    remarks: List[Note] = []
    if valid != 1:
        remarks.append(("record.not_valid", {"valid": valid}))
    if not parts:
        remarks.append(("record.nothing", {}))
    return Record("magic", parts, tuple(problems), tuple(remarks), version, valid, acc_type)


def _status_words(acc_type: int, version: int, data_len: int) -> int:
    if acc_type not in (0, 1) or version == 0:
        return 1
    return 4 if version == 1 else data_len // 8 - len(_AI_CORE)


def _part(core: str, state: Status, words: Dict[str, int]) -> Part:
    own = {name: words.pop(name) for name in list(words) if name in _OWN_FIELDS}
    for name in ("context_id", "thread_id"):
        if own.get(name) == _NONE:
            del own[name]
    return Part(core, state, details=words, **own)


def make_record(
    parts: Sequence[Part],
    layout: Optional[str] = None,
    version: Optional[int] = None,
    valid: int = 1,
) -> bytes:
    """The 2048 bytes of a record.

    Args:
        parts: one for the magic layout; up to three (one a core) for the old one.
        layout: "old" or "magic"; None takes the one that has the first part's core.
        version: of the magic layout: 0 has one status word, 1 four, others any number; None takes 0
            for one word, 1 for four, else 2.
        valid: of the magic layout.

    Raises:
        ValueError: parts, layout and version don't go together, or a number doesn't fit its field.
    """
    if layout is None:
        layout = "magic" if parts and parts[0].core not in _OLD else "old"
    try:
        return _make_old(parts) if layout == "old" else _make_magic(parts, version, valid)
    except struct.error as error:
        raise ValueError("a number does not fit its field of a record: %s" % error) from error


def _make_old(parts: Sequence[Part]) -> bytes:
    content = bytearray(CONTENT_BYTES)
    if len({part.core for part in parts}) != len(parts):
        raise ValueError("a record holds one part of a core")
    for part in parts:
        if part.core not in _OLD or not isinstance(part.status, int):
            raise ValueError(
                "the old layout has no core %s with status %r" % (part.core, part.status)
            )
        ids, at, names = _OLD[part.core]
        words = _words(part)
        struct.pack_into("<6Q", content, ids, *(words.get(name, 0) for name in _IDS))
        struct.pack_into(
            "<%dQ" % len(names),
            content,
            at,
            *(part.status if name == "status" else words.get(name, 0) for name in names),
        )
    return bytes(content)


def _make_magic(parts: Sequence[Part], version: Optional[int], valid: int) -> bytes:
    if len(parts) != 1:
        raise ValueError("the magic layout holds one part, not %d" % len(parts))
    part = parts[0]
    state = (part.status,) if isinstance(part.status, int) else tuple(part.status)
    if part.core in _ACC_TYPES:
        acc_type = _ACC_TYPES[part.core]
        names = _MAGIC[acc_type][1]
    elif part.core.startswith("type "):
        acc_type, names = int(part.core[5:]), _UNKNOWN
    else:
        raise ValueError("the magic layout has no core %s" % part.core)
    if version is None:
        version = {1: 0, 4: 1}.get(len(state), 2)
    data_len = 8 * (len(names) + len(state))
    expected = _status_words(acc_type, version, data_len)
    if len(state) != expected or len(names) + len(state) > _MOST_WORDS:
        raise ValueError(
            "a record of version %d of %s has %d status words, not %d"
            % (version, part.core, expected, len(state))
        )
    words = _words(part)
    content = bytearray(CONTENT_BYTES)
    _HEAD.pack_into(content, 0, MAGIC, version, valid, acc_type, 0, data_len)
    struct.pack_into(
        "<%dQ" % (data_len // 8),
        content,
        _HEAD.size,
        *([words.get(name, 0) for name in names] + list(state)),
    )
    return bytes(content)


def _words(part: Part) -> Dict[str, int]:
    words = dict(part.details)
    words.update(model_id=part.model_id, stream_id=part.stream_id, task_id=part.task_id)
    words["context_id"] = _NONE if part.context_id is None else part.context_id
    words["thread_id"] = _NONE if part.thread_id is None else part.thread_id
    return words
