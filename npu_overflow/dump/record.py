"""The overflow record: 2048 bytes, in the layout of Atlas training products or of Atlas A2, A3 and later."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence, Tuple, Union

__all__ = ["Part", "Record", "make_record", "parse_record", "read_record"]


@dataclass(frozen=True)
class Part:
    """One reporting part of a record.

    Args:
        core: "AI Core", "DHA Atomic Add", "L2 Atomic Add" (old layout), "AIC", "AIV", "AICPU", "SDMA" or "type N".
        status: a number, or the words of records of version 1 (four) and of other versions with more than one word.
        model_id, stream_id, task_id: of the operator.
        context_id, thread_id: FFTS+ only; None where the record has none (65535). A 0 can also mean none.
        details: other words by name: task_type, pc_start, para_base, core_id, block_id, kernel_code, block_idx, cpu_id, src_addr,
            dst_addr, channel_id.
    """

    core: str
    status: Union[int, Tuple[int, ...]]
    model_id: int = 0
    stream_id: int = 0
    task_id: int = 0
    context_id: Optional[int] = None
    thread_id: Optional[int] = None
    details: Mapping[str, int] = field(default_factory=dict)

    @property
    def status_bits(self) -> Tuple[str, ...]:
        """Set bits, lowest first: "0x20", or "1:0x20" (word:bit) where status has several words."""
        raise NotImplementedError

    @property
    def status_codes(self) -> Tuple[str, ...]:
        """Keys of sentences in ``report.texts``: for "AI Core" one a set bit ("status.0x20", "status.unknown_bit"), for atomics one
        ("status.atomic.overflow", ".underflow", ".source_nan", ".destination_nan", ".both_nan", ".unknown"), else
        ("status.undocumented",)."""
        raise NotImplementedError


@dataclass(frozen=True)
class Record:
    """The content of a record.

    Args:
        layout: "old" or "magic".
        parts: those that report something (status not 0; a part of an unknown type always).
        problems: (code, values) of what could not be understood, e.g. ("record.acc_type", {"number": 9}).
        remarks: (code, values) worth saying, e.g. ("record.not_valid", {"valid": 0}), ("record.nothing", {}).
        version, valid, acc_type: of the magic layout, else None.
    """

    layout: str
    parts: Tuple[Part, ...] = ()
    problems: Tuple[Tuple[str, Mapping[str, Any]], ...] = ()
    remarks: Tuple[Tuple[str, Mapping[str, Any]], ...] = ()
    version: Optional[int] = None
    valid: Optional[int] = None
    acc_type: Optional[int] = None


def read_record(path: str) -> Record:
    """Read a record file.

    Raises:
        DumpFormatError: not a whole record.
    """
    raise NotImplementedError


def parse_record(content: bytes) -> Record:
    """The record in the 2048 bytes of output 0.

    Raises:
        DumpFormatError: too few bytes.
    """
    raise NotImplementedError


def make_record(parts: Sequence[Part], layout: Optional[str] = None, version: Optional[int] = None, valid: int = 1) -> bytes:
    """The 2048 bytes of a record.

    Args:
        parts: one for the magic layout; up to three (one a core) for the old one.
        layout: "old" or "magic"; None takes the one that has the first part's core.
        version: of the magic layout: 0 has one status word, 1 four, others any number; None takes 0 or 1 by the status.
        valid: of the magic layout.
    """
    raise NotImplementedError
