"""The catalogue of sentences: complete in both languages, and complete for the code that uses it."""
from __future__ import annotations

import ast
import importlib
import re
import string
import threading
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Set, Tuple

import pytest

from npu_overflow import errors, messages

#: functions whose argument number N (from 0) is a code, and whose keywords are the sentence's values
TAKES_CODE = {"say": 0, "known": 0}
_ERRORS = {name: getattr(errors, name) for name in errors.__all__}
TAKES_CODE.update({name: 0 for name in _ERRORS})

_CJK = re.compile("[\u4e00-\u9fff]")


def _catalogues() -> Iterator[Tuple[str, Dict[str, Tuple[str, str]]]]:
    for name in messages.CATALOGUES:
        yield name, importlib.import_module("npu_overflow.messages." + name).TEXTS


def _all() -> Dict[str, Tuple[str, str]]:
    return {code: pair for _, catalogue in _catalogues() for code, pair in catalogue.items()}


def _placeholders(sentence: str) -> Set[str]:
    return {field for _, field, _, _ in string.Formatter().parse(sentence) if field is not None}


def test_no_code_stands_in_two_catalogues() -> None:
    seen: Dict[str, str] = {}
    twice: List[str] = []
    for name, catalogue in _catalogues():
        twice.extend("%s in %s and %s" % (code, seen[code], name) for code in catalogue if code in seen)
        seen.update({code: name for code in catalogue})
    assert len(seen) > 0
    assert twice == []


def test_every_catalogue_file_is_listed(package_folder: Path) -> None:
    files = {path.stem for path in (package_folder / "messages").glob("*.py")} - {"__init__"}
    assert files == set(messages.CATALOGUES)


def test_every_code_has_two_sentences() -> None:
    def whole(pair: object) -> bool:
        return isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(sentence, str) and sentence.strip() for sentence in pair)

    assert [code for code, pair in _all().items() if not whole(pair)] == []


def test_both_languages_mention_the_same_values() -> None:
    placeholders = {code: (_placeholders(en), _placeholders(zh)) for code, (en, zh) in _all().items()}
    assert {code: pair for code, pair in placeholders.items() if pair[0] != pair[1]} == {}


def test_values_are_plain_names() -> None:
    wrong = [code for code, pair in _all().items() for field in _placeholders(pair[0]) | _placeholders(pair[1]) if not field.isidentifier()]
    assert wrong == []


def test_chinese_is_chinese_and_english_is_not() -> None:
    """A sentence of several English words is translated, and no Chinese slipped into the first place."""
    wrong: List[str] = []
    for code, (en, zh) in _all().items():
        words = re.findall(r"\b[a-z]{2,}\b", re.sub(r"\{[^}]*\}|`[^`]*`|--?[\w-]+", "", en))
        if (len(words) > 2 and not _CJK.search(zh)) or _CJK.search(en):
            wrong.append(code)
    assert wrong == []


def test_every_hint_belongs_to_a_sentence() -> None:
    known = _all()
    assert [code for code in known if code.endswith(".hint") and code[: -len(".hint")] not in known] == []


@pytest.mark.parametrize("language", messages.LANGUAGES)
def test_saying_fills_the_values_in(language: str) -> None:
    said = messages.say("option.unknown", language, name="patiens", known="patience, window")
    assert "'patiens'" in said and "patience, window" in said


def test_a_clumsy_sentence_beats_none() -> None:
    assert "{known}" in messages.say("option.unknown", "en", name="patiens")
    assert messages.say("no.such.code") == "no.such.code"


class Use(NamedTuple):
    """One place in the source that names a code; ``values`` is None where they can't be told (``**values``)."""

    where: str
    code: str
    values: Optional[Set[str]]
    function: str


def _text(node: ast.AST) -> List[str]:
    """The strings that an expression may be: a constant, or either side of ``a if b else c``."""
    if isinstance(node, ast.IfExp):
        return _text(node.body) + _text(node.orelse)
    try:
        value = ast.literal_eval(node)
    except ValueError:
        return []
    return [value] if isinstance(value, str) else []


def _prefix(tree: ast.AST) -> str:
    """"cli.doctor." of a module with a ``say`` of its own that calls ``messages.say("cli.doctor." + code, …)``."""
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.name == "say":
            for node in ast.walk(function):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add) and _text(node.left):
                    return _text(node.left)[0]
    return ""


def _uses(package_folder: Path) -> Iterator[Use]:
    for path in sorted(package_folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        prefix = _prefix(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            place = TAKES_CODE.get(name)
            if place is None or len(node.args) <= place:
                continue
            values = None if any(word.arg is None for word in node.keywords) else {str(word.arg) for word in node.keywords}
            for code in _text(node.args[place]):
                if name == "say" and isinstance(node.func, ast.Name) and not messages.known(code):
                    code = prefix + code
                yield Use("%s:%d" % (path.relative_to(package_folder), node.lineno), code, values, name)


def test_every_code_that_the_source_names_exists(package_folder: Path) -> None:
    known = _all()
    uses = list(_uses(package_folder))
    assert len(uses) > 5
    assert ["%s %s" % (use.where, use.code) for use in uses if use.code not in known] == []


def test_every_code_gets_its_values(package_folder: Path) -> None:
    known = _all()
    wrong: List[str] = []
    for use in _uses(package_folder):
        if use.values is None or use.code not in known or use.function == "known":
            continue
        wanted = _placeholders(known[use.code][0])
        if use.function in _ERRORS and use.code + ".hint" in known:
            wanted |= _placeholders(known[use.code + ".hint"][0])
        missing = wanted - use.values
        if missing:
            wrong.append("%s %s needs %s" % (use.where, use.code, ", ".join(sorted(missing))))
    assert wrong == []


def test_words_that_depend_on_a_number() -> None:
    assert messages.say("ascend.unfinished", count=1) == "dumps of 1 step were still being written when they were analyzed."
    assert messages.say("ascend.unfinished", count=2) == "dumps of 2 steps were still being written when they were analyzed."
    assert messages.say("remark.record.nothing", count=1, file="f").startswith("1 record reports no overflow")
    assert messages.translate(messages.say("remark.record.nothing", count=1, file="f"), "zh") == messages.say("remark.record.nothing", "zh", count=1, file="f")


def test_a_second_thread_never_sees_a_part_of_the_catalogue(monkeypatch: Any) -> None:
    real = importlib.import_module
    waiting, go_on = threading.Event(), threading.Event()

    def slowly(name: str) -> Any:
        module = real(name)
        if threading.current_thread() is not threading.main_thread() and name.endswith(".problems"):
            waiting.set()
            assert go_on.wait(60)
        return module

    monkeypatch.setattr(messages, "_texts", {})
    monkeypatch.setattr(messages.importlib, "import_module", slowly)
    other = threading.Thread(target=messages.say, args=("watch.collector.host",))
    other.start()
    try:
        assert waiting.wait(60)
        assert messages.say("watch.collector.host", why="") != "watch.collector.host"
    finally:
        go_on.set()
        other.join()


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(13, "Permission denied"), "Permission denied"),
        (ValueError("bad"), "bad"),
        (OSError(), "OSError"),
        (AssertionError(" "), "AssertionError"),
    ],
)
def test_a_reason_is_never_empty(error: Exception, reason: str) -> None:
    assert errors.reason_of(error) == reason
