"""The status of a record's part: its bits, and the sentences that say what they mean."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple, Union

__all__ = ["bits_of", "meanings_of"]

_AI_CORE_BITS = (0x8, 0x10, 0x20, 0x80, 0x100, 0x400)
# where the code of an atomic part stands in its status, and the codes that are known
_ATOMIC: Dict[str, Tuple[str, int, int, Tuple[int, ...]]] = {
    "DHA Atomic Add": ("status.dha.0x%x", 8, 0xFF, (0x9, 0xA, 0xB, 0xC, 0xD)),
    "L2 Atomic Add": ("status.l2.%d", 16, 0x7, (1, 2, 3, 4, 5)),
}


def bits_of(status: Union[int, Tuple[int, ...]]) -> Tuple[str, ...]:
    """Set bits, lowest first: "0x20", or "1:0x20" (word:bit) where ``status`` has several words."""
    if isinstance(status, int):
        return tuple(hex(bit) for bit in _bits(status))
    return tuple(
        "%d:%#x" % (index, bit) for index, word in enumerate(status) for bit in _bits(word)
    )


def _bits(word: int) -> List[int]:
    return [1 << place for place in range(word.bit_length()) if word >> place & 1]


def meanings_of(
    core: str, status: Union[int, Tuple[int, ...]]
) -> Tuple[Tuple[str, Mapping[str, Any]], ...]:
    """(code, values) of sentences in ``messages``. AI Core records of the old layout: one a bit;
    atomics: one code; the bits of the others are not public."""
    if core == "AI Core" and isinstance(status, int):
        return tuple(_ai_core(bit) for bit in _bits(status))
    if core in _ATOMIC and isinstance(status, int):
        sentence, shift, width, known = _ATOMIC[core]
        code = status >> shift & width
        return (
            ((sentence % code, {}),)
            if code in known
            else (("status.atomic.unknown", {"number": hex(code)}),)
        )
    return (("status.not_documented", {}),)


def _ai_core(bit: int) -> Tuple[str, Mapping[str, Any]]:
    if bit in _AI_CORE_BITS:
        return "status.ai_core.%#x" % bit, {}
    return "status.ai_core.unknown", {"bit": hex(bit)}
