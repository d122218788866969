"""Laying out text in terminal cells: styled pieces, wrapping that never breaks a number, columns.

A line is a list of pieces ``(text, style)``; styles are names that ``screen`` knows. Wrapping is
our own, because a name, a number or a command must stay whole where a stock wrapper breaks
anywhere, and because Chinese text breaks between characters.
"""
from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Iterable, Iterator, List, Sequence, Tuple

__all__ = ["Line", "Piece", "cells", "indent", "join", "pad", "plain", "wrap"]

Piece = Tuple[str, str]
Line = List[Piece]

_WIDE = r"⺀-鿿ꀀ-꓏가-힣豈-﫿︰-﹏\uff00-￯"
_RUNS = re.compile(r"\S+|[ \t]+")
_NEVER_FIRST = "，。；：、！？）」』》】”’"
_NEVER_LAST = "（「『《【“‘"
_BREAK_AFTER = "/_.:,;=-\\"


@lru_cache(maxsize=None)
def _wide_atoms() -> re.Pattern[str]:
    return re.compile(r"[%s]|[^\s%s]+|[ \t]+" % (_WIDE, _WIDE))


def _atoms(text: str) -> Iterator[re.Match[str]]:
    """A wide character alone, a run of others, or blanks. The pattern of the wide ones takes 6 ms
    to compile and few need it."""
    return (_RUNS if text.isascii() else _wide_atoms()).finditer(text)


def _cells_without_rich(text: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
    )


def cells(text: str) -> int:
    """Terminal cells that ``text`` takes; a CJK character takes two."""
    if text.isprintable() and all(char < "\u0300" for char in text):
        return len(text)
    try:
        from rich.cells import cell_len
    except ImportError:
        return _cells_without_rich(text)
    return cell_len(text)


def plain(line: Iterable[Piece]) -> str:
    """A line without its styles."""
    return "".join(text for text, _ in line)


def pad(text: str, width: int, right: bool = False) -> str:
    """``text`` filled with blanks to ``width`` cells; ``right`` aligns it to the right."""
    blanks = " " * max(0, width - cells(text))
    return blanks + text if right else text + blanks


def indent(lines: Iterable[Line], first: str, rest: str = "") -> List[Line]:
    """``lines`` behind ``first``, the later ones behind ``rest`` (default: as many blanks as
    ``first`` has cells)."""
    rest = rest or " " * cells(first)
    return [[(rest if number else first, "")] + line for number, line in enumerate(lines)]


def join(items: Sequence[Line], width: int, gap: str = "   ") -> List[Line]:
    """Items side by side, ``gap`` between them, a new line where the next item does not fit. An
    item wider than a line is wrapped."""
    lines: List[Line] = []
    used = 0
    for item in items:
        size = cells(plain(item))
        if lines and used + cells(gap) + size <= width:
            lines[-1] = lines[-1] + [(gap, "")] + item
            used += cells(gap) + size
            continue
        wrapped = wrap(item, width)
        lines.extend(wrapped)
        used = cells(plain(wrapped[-1]))
    return lines


def wrap(line: Line, width: int, whole: bool = False) -> List[Line]:
    """``line`` in lines of at most ``width`` cells, broken at blanks and between wide characters.

    A word that is longer than a line is broken after one of ``/ _ . :`` where it can be, unless
    ``whole`` keeps it.
    """
    width = max(1, width)
    lines: List[Line] = [[]]
    used = 0
    for word in _words(line):
        size = cells(plain(word))
        if plain(word).isspace():
            if used and used + size <= width:
                lines[-1].extend(word)
                used += size
            elif used:
                used = width
            continue
        if used and used + size > width:
            lines.append([])
            used = 0
        if size > width and not whole:
            parts = _broken(word, width)
            lines[-1].extend(parts[0])
            lines.extend(parts[1:])
            used = cells(plain(parts[-1]))
        else:
            lines[-1].extend(word)
            used += size
    return [_trimmed(item) for item in lines]


def _words(line: Line) -> List[Line]:
    """Unbreakable words, each a list of pieces; blanks are words of their own."""
    words: List[Line] = []
    glue = False
    for text, style in line:
        for number, match in enumerate(_atoms(text)):
            atom = match.group()
            blank = atom.isspace()
            first_of_piece = number == 0
            # a word can run on from one piece to the next; punctuation stays with what it belongs
            # to
            runs_on = (
                bool(words)
                and not blank
                and (
                    glue
                    or atom in _NEVER_FIRST
                    or (first_of_piece and _narrow(atom) and _narrow(plain(words[-1])))
                )
            )
            if runs_on:
                words[-1].append((atom, style))
            else:
                words.append([(atom, style)])
            glue = atom[-1] in _NEVER_LAST
    return words


def _narrow(text: str) -> bool:
    return not text.isspace() and cells(text[-1]) == 1


def _broken(word: Line, width: int) -> List[Line]:
    """A word in pieces of at most ``width`` cells."""
    lines: List[Line] = [[]]
    used = 0
    for text, style in word:
        while text:
            taken = _fitting(text, width - used)
            if taken == len(text):
                lines[-1].append((text, style))
                used += cells(text)
                break
            cut = _break(text, taken, width)
            if cut:
                lines[-1].append((text[:cut], style))
            elif not lines[-1]:
                # not even one wide character fits: take it all the same
                lines[-1].append((text[:1], style))
                cut = 1
            text = text[cut:]
            lines.append([])
            used = 0
    return [item for item in lines if item]


def _break(text: str, taken: int, width: int) -> int:
    """Where to break a name of which ``taken`` characters fit: after a slash if that leaves the
    line half full, else after another mark."""
    slash = text.rfind("/", 0, taken) + 1
    if slash > taken // 2:
        return slash
    mark = max(text.rfind(char, 0, taken) for char in _BREAK_AFTER) + 1
    return mark if mark >= taken - max(12, width // 3) else taken


def _fitting(text: str, width: int) -> int:
    """How many characters of ``text`` fit in ``width`` cells."""
    used = 0
    for number, char in enumerate(text):
        used += cells(char)
        if used > width:
            return number
    return len(text)


def _trimmed(line: Line) -> Line:
    """Without blanks at the end."""
    result = list(line)
    while result and not result[-1][0].rstrip():
        result.pop()
    if result:
        result[-1] = (result[-1][0].rstrip(), result[-1][1])
    return result
