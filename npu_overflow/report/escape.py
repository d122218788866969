"""Names from a dump as harmless text. A name is written by whoever wrote the dump: it may hold
control sequences or turn text around."""
from __future__ import annotations

import unicodedata

__all__ = ["LONGEST_NAME", "clean"]

#: characters of one name that are shown
LONGEST_NAME = 1000

#: control, format (bidi overrides, zero width), surrogate, private use, unassigned, line and
#: paragraph separators
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def clean(text: object, longest: int = LONGEST_NAME) -> str:
    """``text`` on one line, with every character that could steer a terminal or hide shown as an
    escape such as ``\\x1b`` or ``\\u202e``.

    Args:
        text: anything; ``str()`` of it is taken.
        longest: characters kept; what is longer ends in "…(N characters)".
    """
    whole = str(text)
    kept = whole if len(whole) <= longest else whole[:longest]
    if not kept.isprintable():
        kept = "".join(_visible(char) for char in kept)
    return kept if len(whole) <= longest else "%s…(%d characters)" % (kept, len(whole))


def _visible(char: str) -> str:
    if " " <= char <= "~":
        return char
    if unicodedata.category(char) not in _HIDDEN:
        return " " if char.isspace() else char
    code = ord(char)
    if code < 0x100:
        return "\\x%02x" % code
    return "\\u%04x" % code if code < 0x10000 else "\\U%08x" % code
