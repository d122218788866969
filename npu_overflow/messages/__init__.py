"""Every sentence that a person reads, by code, in English and Chinese.

A catalogue is one module of this package with a dict ``TEXTS``: code -> (English, Chinese). Sentences use ``{name}`` for values
(``str.format`` with names only), and ``{name:one|many}`` for words that depend on a number. ``say`` never raises because of a value: a report with a clumsy sentence beats none.
"""
from __future__ import annotations

import importlib
import locale
import os
import re
import string
from typing import Any, Dict, Pattern, Set, Tuple

__all__ = ["LANGUAGES", "known", "language_of_user", "say", "translate"]

LANGUAGES = ("en", "zh")
CATALOGUES = ("errors", "problems", "report", "advice", "watch", "commands", "launcher", "html")

_texts: Dict[str, Tuple[str, str]] = {}


class _Formatter(string.Formatter):
    """``str.format``, and "{count:step|steps}" is "step" for 1."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        one, bar, many = format_spec.partition("|")
        return (one if str(value) == "1" else many) if bar else super().format_field(value, format_spec)


_FORMATTER = _Formatter()


def _all() -> Dict[str, Tuple[str, str]]:
    global _texts
    if not _texts:
        texts: Dict[str, Tuple[str, str]] = {}  # aside: another thread never meets a part of it
        for name in CATALOGUES:
            texts.update(importlib.import_module("%s.%s" % (__name__, name)).TEXTS)
        _texts = texts
    return _texts


def known(code: str) -> bool:
    """Whether a sentence with this code exists."""
    return code in _all()


def say(_code: str, language: str = "en", **values: Any) -> str:
    """The sentence ``_code`` in ``language`` with ``values`` filled in; an unknown code is returned as it is."""
    pair = _all().get(_code)
    if pair is None:
        return _code
    sentence = pair[1] if language == "zh" else pair[0]
    try:
        return _FORMATTER.vformat(sentence, (), values)
    except (KeyError, IndexError, ValueError):
        return sentence


def translate(sentence: str, language: str) -> str:
    """An English ``sentence`` of the catalogue, values filled in, in ``language``; one that is not in the catalogue stays as it is.

    For texts that a report holds in English only.
    """
    if language != "zh":
        return sentence
    for english, chinese in _all().values():
        if english == sentence:
            return chinese
    for english, chinese in _all().values():
        if len(sentence) > 500 or "{" not in english or not sentence.startswith(english[: english.index("{")]):
            continue
        match = _pattern(english).match(sentence)
        if match is not None:
            try:
                return _FORMATTER.vformat(chinese, (), match.groupdict())
            except (KeyError, IndexError, ValueError):
                return sentence
    return sentence


def _pattern(template: str) -> Pattern[str]:
    """What a sentence made from ``template`` looks like; a value that stands twice is taken once."""
    seen: Set[str] = set()
    parts = []
    for text, name, spec, _ in string.Formatter().parse(template):
        parts.append(re.escape(text))
        if spec:
            parts.append("(?:%s)" % "|".join(map(re.escape, spec.split("|"))))
        elif name and name.isidentifier() and name not in seen:
            seen.add(name)
            parts.append("(?P<%s>.+)" % name)
        elif name is not None:
            parts.append(".+")
    return re.compile("".join(parts) + r"\Z", re.DOTALL)


def language_of_user() -> str:
    """"zh" where the user's locale is Chinese, else "en" (from LC_ALL, LC_MESSAGES, LANG, LANGUAGE, then the system)."""
    for name in ("LC_ALL", "LC_MESSAGES", "LANG", "LANGUAGE"):
        value = os.environ.get(name, "")
        if value and not value.startswith(("C", "POSIX")):
            return "zh" if value.lower().startswith("zh") else "en"
    try:
        system = locale.getlocale()[0] or ""
    except ValueError:
        system = ""
    return "zh" if system.lower().startswith(("zh", "chinese")) else "en"
