"""What the documentation says must be so: links, commands, options, exit statuses, in both languages."""
from __future__ import annotations

import ast
import dataclasses
import html
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Dict, List, Set

import pytest

from npu_overflow import errors
from npu_overflow.training.options import WatchOptions

ROOT = Path(__file__).resolve().parent.parent
READMES = ("README.md", "README_zh.md")
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _blocks(path: Path, language: str) -> List[str]:
    return re.findall(r"^```%s\n(.*?)^```" % language, path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def _ids(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_pages_are_found() -> None:
    assert {"README.md", "README_zh.md", "docs/index.md", "docs/zh/index.md"} <= {_ids(path) for path in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target.split("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")) if "://" not in target]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=_ids)
def test_python_examples_are_python(page: Path) -> None:
    for block in _blocks(page, "python"):
        assert ast.parse(block).body


def test_both_languages_have_the_same_pages() -> None:
    english = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert english == {path.name for path in (ROOT / "docs" / "zh").glob("*.md")}


PAIRS = [(ROOT / READMES[0], ROOT / READMES[1])] + [(path, ROOT / "docs" / "zh" / path.name) for path in sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("english,chinese", PAIRS, ids=_ids)
def test_both_languages_show_the_same_commands(english: Path, chinese: Path) -> None:
    def structure(path: Path) -> List[int]:
        return [len(marks) for marks in re.findall(r"^(#+) ", re.sub(r"```.*?```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL), re.MULTILINE)]

    assert _blocks(english, "bash") == _blocks(chinese, "bash")
    assert structure(english) == structure(chinese)


@pytest.mark.parametrize("name", READMES)
def test_readme_has_two_commands_for_a_fresh_machine(name: str) -> None:
    commands = [line for block in _blocks(ROOT / name, "bash") for line in block.splitlines() if line.startswith("python3 -m venv ")]
    assert [command.split()[-1] for command in commands] == ["demo", ".venv/bin/pytest"]


def _documented_options(name: str) -> Dict[str, str]:
    """Option -> its default as printed, from the table of options."""
    found: Dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| ([^|]+) \|", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE):
        found.update(zip(re.findall(r"\w+", names), re.split(r", (?![^(]*\))", defaults.strip())))
    return found


@pytest.mark.parametrize("name", READMES)
def test_readme_lists_the_options_and_their_defaults(name: str) -> None:
    known = {field.name for field in dataclasses.fields(WatchOptions)}
    documented = {option: ast.literal_eval(default.strip("`")) for option, default in _documented_options(name).items() if option in known}
    expected = {field.name: field.default for field in dataclasses.fields(WatchOptions)}
    assert set(documented) == set(expected)
    given = WatchOptions.of(**{option: value for option, value in documented.items() if value is not None})
    differing = {option for option, value in expected.items() if getattr(given, option) != value}
    assert differing == {"dump_path"}  # None stands for this default, with the rank's folder added
    assert given.dump_path == "precision_data/overflow/dump"


@pytest.mark.parametrize("name", READMES)
def test_readme_lists_the_exit_statuses(name: str) -> None:
    documented = {int(number) for number in re.findall(r"^\| (\d) \|", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE)}
    raised = {getattr(errors, error).exit_status for error in errors.__all__}
    assert documented == {0, 3} | raised


@pytest.mark.parametrize("name", READMES)
def test_readme_says_that_no_npu_was_used(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "It has not been run on an NPU." in text or "尚未在真实的 NPU 上运行过。" in text


def _commands(page: Path) -> List[str]:
    """Lines of the page's shell blocks that call the command line, without leading variables."""
    lines = [re.sub(r"^(\w+=\S+ )+", "", line) for block in _blocks(page, "bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("npu-overflow ")]


@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page)], ids=_ids)
def test_commands_are_accepted_as_printed(page: Path) -> None:
    from npu_overflow import cli

    parser = cli._parser(cli.commands(), "en")
    for line in _commands(page):
        words = shlex.split(line.replace("…", ""), comments=True)
        # what follows the script is the script's own
        assert (words[1] == "run" and words[2:]) or parser.parse_args(words[1:]).command


@pytest.mark.parametrize("language,page", [("en", "docs/troubleshooting.md"), ("zh", "docs/zh/troubleshooting.md")])
def test_troubleshooting_quotes_messages_that_are_printed(language: str, page: str) -> None:
    from npu_overflow import messages

    quoted = re.findall(r"^> (.+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    sentences = [pair[1] if language == "zh" else pair[0] for pair in messages._all().values()]
    patterns = [messages._pattern(sentence) for sentence in sentences if len(sentence) > 10]
    assert len(quoted) > 15
    assert [message for message in quoted if not any(pattern.match(message) for pattern in patterns)] == []


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="the list of what is no message is not here")
@pytest.mark.parametrize("language,page", [("en", "docs/troubleshooting.md"), ("zh", "docs/zh/troubleshooting.md")])
def test_every_message_stands_in_troubleshooting(language: str, page: str, monkeypatch: pytest.MonkeyPatch, package_folder: Path) -> None:
    """Word by word, or as a quotation with values. What is no message is listed, with the reason, in .ci/messages_page.py; the list must not be stale."""
    monkeypatch.syspath_prepend(str(ROOT / ".ci"))
    import messages_page
    import test_messages

    from npu_overflow import messages

    text = (ROOT / page).read_text(encoding="utf-8").replace("\\|", "|")
    quoted = re.findall(r"^> (.+)$", text, re.MULTILINE)
    listed = messages_page.messages()
    number = messages.LANGUAGES.index(language)
    missing = [
        code for code, pair in listed.items()
        if "`%s`" % messages_page.shown(pair[number]).replace("`", "'") not in text and not any(messages._pattern(pair[number]).match(line) for line in quoted)
    ]  # fmt: skip
    assert missing == [], "run python .ci/messages_page.py"
    known = messages._all()
    assert [start for start in messages_page.OTHER if not any(code.startswith(start) for code in known)] == []
    assert [code for code in messages_page.CLI if code not in known] == []
    raised = {use.code for use in test_messages._uses(package_folder) if use.function in errors.__all__}
    assert len(raised) > 40 and raised - set(listed) == set()


@pytest.mark.skipif(not (ROOT / ".ci").is_dir(), reason="the scripts that make the pages are not here")
@pytest.mark.parametrize("script", ["rules_page.py", "api_page.py", "messages_page.py"])
def test_pages_that_are_made_are_up_to_date(script: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / ".ci" / script), "--check"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def _drawn(svg: str) -> List[str]:
    """The words of a picture by rich, line by line."""
    rows: Dict[str, str] = {}
    for height, text in re.findall(r'<text class="report-r\d+" x="[\d.]+" y="([\d.]+)"[^>]*>([^<]*)</text>', svg):
        rows[height] = rows.get(height, "") + html.unescape(text).replace("\u00a0", " ")
    return [" ".join(line.split()) for line in rows.values()]


@pytest.mark.skipif(not (ROOT / ".ci").is_dir() or sys.version_info < (3, 8), reason="needs the script that makes the pictures, and rich 12")
@pytest.mark.parametrize("language,name", [("en", "terminal.svg"), ("zh", "terminal-zh.svg")])
def test_the_picture_of_the_terminal_is_what_is_printed(language: str, name: str, tmp_path: Path) -> None:
    script = "import sys, pictures; sys.argv[1:] = []; pictures.terminal_only(%r, %r)" % (language, str(tmp_path / name))
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / ".ci"), os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, cwd=str(tmp_path))
    assert done.returncode == 0, done.stdout
    committed = (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8")
    assert len(_drawn(committed)) > 30
    assert _drawn((tmp_path / name).read_text(encoding="utf-8")) == _drawn(committed)


@pytest.mark.parametrize("page", ["docs/api.md", "docs/zh/api.md"])
def test_every_public_name_is_documented(page: str) -> None:
    import npu_overflow

    headings = re.findall(r"^## (\w+)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    assert set(headings) == set(npu_overflow.__all__) - {"__version__"}


def _requirements(part: str) -> Set[str]:
    import configparser

    setup = configparser.ConfigParser()
    setup.read(str(ROOT / "setup.cfg"), encoding="utf-8")
    lines = setup["options"]["install_requires"] if part == "always" else setup["options.extras_require"][part]
    return {match.group() for match in (re.match(r"[\w-]+", line) for line in lines.splitlines()) if match}


@pytest.mark.parametrize("page", ["docs/dependencies.md", "docs/zh/dependencies.md"])
def test_every_dependency_is_explained(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert _requirements("always")
    assert [name for name in _requirements("always") if "| %s |" % name not in text] == []
    assert [name for part in ("tensorflow", "tf-keras", "test", "docs", "fuzz") for name in _requirements(part) if name not in text.lower()] == []
