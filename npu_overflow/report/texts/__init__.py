"""Every sentence that a person reads, by code, in English and Chinese.

A catalogue is one module of this package with a dict ``TEXTS``: code -> (English, Chinese). Sentences use ``{name}`` for values
(``str.format`` with names only). ``say`` never raises because of a value: a report with a clumsy sentence beats none.
"""
from __future__ import annotations

import importlib
import locale
import os
from typing import Any, Dict, Tuple

__all__ = ["LANGUAGES", "known", "language_of_user", "say"]

LANGUAGES = ("en", "zh")
CATALOGUES = ("errors", "problems", "report", "advice", "watch", "commands")

_texts: Dict[str, Tuple[str, str]] = {}


def _all() -> Dict[str, Tuple[str, str]]:
    if not _texts:
        for name in CATALOGUES:
            _texts.update(importlib.import_module("%s.%s" % (__name__, name)).TEXTS)
    return _texts


def known(code: str) -> bool:
    """Whether a sentence with this code exists."""
    return code in _all()


def say(code: str, language: str = "en", **values: Any) -> str:
    """The sentence ``code`` in ``language`` with ``values`` filled in; an unknown code is returned as it is."""
    pair = _all().get(code)
    if pair is None:
        return code
    sentence = pair[1] if language == "zh" else pair[0]
    try:
        return sentence.format(**values)
    except (KeyError, IndexError, ValueError):
        return sentence


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
