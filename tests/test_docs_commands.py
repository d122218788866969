"""Every command that README and documentation show is run as printed, in both languages, in a folder with what the page speaks of."""
from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, NamedTuple, Set

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "README_zh.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "zh").glob("*.md"))]

#: commands that are not run here: beginning of the line -> why
NOT_RUN = {
    "python3 -m venv ": "makes an environment from a package index and takes minutes: the stage readme of .ci/run runs both as printed",
    "pip install .": "needs a package index: the stages of .ci/run install the wheel with the same extras",
    "pip install '.[tensorflow]'": "needs a package index: the stages of .ci/run install the wheel with the same extras",
    "pip wheel . --wheel-dir wheels": "needs a package index: the stage offline of .ci/run runs it as printed",
    "pip install --no-index ": "would change the environment of the tests: the stage offline of .ci/run runs it as printed",
    "bash .ci/run": "is what runs these tests",
    "pip install '.[test,fuzz]'": "needs a package index, and a wheel of the fuzzer that not every Python has",
    "python -m tests.fuzz ": "takes minutes; tests/fuzz runs the short, seeded form",
    "python .ci/rules_page.py": "writes into the source; test_docs.py runs it with --check",
    "python .ci/api_page.py": "writes into the source; test_docs.py runs it with --check",
    "python .ci/messages_page.py": "writes into the source; test_docs.py runs it with --check",
    "python .ci/pictures.py": "writes into the source and needs a browser; test_docs.py compares the terminal's picture",
}

#: a training as a page means it: takes what the commands give it and overflows from step 30 on
TRAIN = """
import argparse, json, sys
sys.path.insert(0, {examples!r})
import keras_fit
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--config")
given = parser.parse_args()
assert given.config is None or json.load(open(given.config)) == {{}}
sys.argv[1:] = []
keras_fit.main()
"""


class Block(NamedTuple):
    page: Path
    number: int
    lines: List[str]


def blocks(page: Path) -> List[Block]:
    """The page's shell blocks; a prompt before a command is no part of it."""
    found = re.findall(r"^```(?:bash|sh|shell|console)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [Block(page, number, [re.sub(r"^\$ ", "", line) for line in text.splitlines() if line.strip()]) for number, text in enumerate(found)]


def not_run(line: str) -> bool:
    return any(line == start or (line.startswith(start) and (start.endswith((" ", "run")))) for start in NOT_RUN)


def trains(line: str) -> bool:
    return re.match(r"npu-overflow (run|demo)\b", line) is not None


BLOCKS = [block for page in PAGES for block in blocks(page)]
LINES = [line for block in BLOCKS for line in block.lines]


def _ids(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_commands_are_found() -> None:
    assert len(LINES) > 60 and sum(trains(line) for line in LINES) >= 6
    assert {line.split()[1] for line in LINES if line.startswith("npu-overflow ")} >= {"analyze", "ac", "show", "mixlist", "merge", "run", "demo", "doctor"}


def test_every_line_is_a_command_that_is_known_here() -> None:
    """A new kind of command must be thought about: is it run, or is it in the list?"""
    known = re.compile(r"(\w+=\S+ )*npu-overflow |python |\w+=\$\(find ")
    assert [line for line in LINES if not not_run(line) and not known.match(line)] == []


def test_the_list_of_what_is_not_run_is_not_stale() -> None:
    unused = [start for start in NOT_RUN if not any(line == start or line.startswith(start) for line in LINES)]
    assert unused == []
    assert all(len(reason) > 20 for reason in NOT_RUN.values())


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder with a dump in its usual place, the reports of two ranks in $JOB, a saved report and a training script."""
    from npu_overflow.analysis.analyzer import analyze

    sys.path.insert(0, str(ROOT / "tests" / "report"))
    try:
        import html_trees
    finally:
        sys.path.pop(0)
    os.chdir(str(tmp_path))
    dump = Path("precision_data/overflow/dump")
    dump.mkdir(parents=True)
    html_trees.culprit_tree(dump)
    report = analyze(str(dump))
    Path("report.json").write_text(report.to_json(), encoding="utf-8")
    for rank in (0, 1):
        folder = Path("job42/dump/2024051709301%d" % rank)
        folder.mkdir(parents=True)
        (folder / ("report-%d.json" % rank)).write_text(json.dumps(dict(report.to_dict(), rank=rank, world_size=2)), encoding="utf-8")
    Path("train.py").write_text(TRAIN.format(examples=str(ROOT / "examples")), encoding="utf-8")
    Path("large.json").write_text("{}", encoding="utf-8")
    for name in ("tests", "examples"):
        os.symlink(str(ROOT / name), name)
    Path("bin").mkdir()
    for name, words in {"npu-overflow": "-m npu_overflow", "python": ""}.items():
        script = Path("bin", name)
        script.write_text("#!/bin/sh\nexec %s %s \"$@\"\n" % (shlex.quote(sys.executable), words))
        script.chmod(0o755)
    yield tmp_path


def language_of(page: Path) -> str:
    return "zh" if page.parent.name == "zh" or page.stem.endswith("_zh") else "en"


def original(page: Path) -> Path:
    """The English page that a Chinese one translates."""
    return page.parent.parent / page.name if page.parent.name == "zh" else ROOT / "README.md"


TRANSLATED = [page for page in PAGES if language_of(page) == "zh"]
#: the same commands need not run twice; one page in Chinese shows that they speak Chinese
RUN = [page for page in PAGES if page not in TRANSLATED or page.name == "reading-the-report.md"]


@pytest.mark.parametrize("page", TRANSLATED, ids=_ids)
def test_both_languages_show_the_same_commands_and_programs(page: Path) -> None:
    english = original(page)
    assert [block.lines for block in blocks(page)] == [block.lines for block in blocks(english)]
    here, there = ([ast.dump(ast.parse(code)) for code in python_blocks(of)] for of in (page, english))
    assert here == there


def run(lines: List[str], place: Path, language: str) -> subprocess.CompletedProcess[str]:
    environment: Dict[str, str] = dict(
        os.environ, PATH="%s:%s" % (place / "bin", os.environ["PATH"]), JOB=str(place / "job42"), LANG="zh_CN.UTF-8" if language == "zh" else "en_US.UTF-8",
        CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", PYTHONDONTWRITEBYTECODE="1",
    )  # fmt: skip
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.run(["bash", "-euo", "pipefail", "-c", "\n".join(lines)], cwd=str(place), env=environment, timeout=600, **pipes)


def pages_with(training: bool) -> List[Path]:
    return [page for page in RUN if any(trains(line) == training and not not_run(line) for block in BLOCKS if block.page == page for line in block.lines)]


def written(place: Path) -> Set[str]:
    return {name for name in os.listdir(str(place)) if name.endswith((".html", ".npy", ".txt", ".json"))} - {"report.json", "large.json"}


#: page -> files that its commands leave, by pattern
LEFT = {
    "docs/quick-start.md": {"report.html"},
    "docs/long-jobs.md": {"all.json", "all.html"},
    "docs/precision-tool.md": {"ops_info.json"},
    "docs/reading-the-report.md": {"report.html", "ops_info.json", "customize_dtypes.txt", "FusedMulAdd.*.output.0.npy", "FusedMulAdd.*.output.0.slice.txt"},
}


@pytest.mark.parametrize("page", pages_with(training=False), ids=_ids)
def test_commands_run_as_printed(page: Path, place: Path) -> None:
    language = language_of(page)
    said = ""
    for block in blocks(page):
        lines = [line for line in block.lines if not not_run(line) and not trains(line)]
        if not lines:
            continue
        done = run(lines, place, language)
        assert done.returncode == 0, "%s\n%s" % ("\n".join(lines), done.stderr)
        assert "Traceback" not in done.stderr and done.stdout.strip(), lines
        said += done.stdout
    patterns = LEFT.get("docs/" + page.name, set()) if "docs" in page.parts else set()
    left = written(place)
    assert all(fnmatch.filter(left, pattern) for pattern in patterns), left
    assert all(any(fnmatch.fnmatch(name, pattern) for pattern in patterns) for name in left), left
    if any("analyze" in line or " ac " in line for block in blocks(page) for line in block.lines) and page.stem != "long-jobs":
        assert {"en": "First overflowing AI Core operator", "zh": "首个溢出的 AI Core 算子"}[language] in said
        assert "bert/encoder/layer_10/intermediate/dense/mul/FusedMulAdd" in said.replace("\n  ", "")


@pytest.mark.tensorflow
@pytest.mark.parametrize("page", pages_with(training=True), ids=_ids)
def test_trainings_run_as_printed(page: Path, place: Path) -> None:
    language = language_of(page)
    for line in [line for block in blocks(page) for line in block.lines if trains(line)]:
        done = run([line], place, language)
        assert done.returncode == 0, "%s\n%s" % (line, done.stderr)
        assert "Traceback" not in done.stderr
        assert {"en": "First overflowing operator\n", "zh": "首个溢出的算子\n"}[language] in done.stdout, "%s\n%s\n%s" % (line, done.stdout, done.stderr)


#: what the examples in Python take for granted
AROUND = """
import numpy as np
import tensorflow as tf
import npu_overflow

inputs = tf.keras.Input((4,))
model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(inputs))
model.compile("sgd", "mse")
data = tf.data.Dataset.from_tensors((np.ones((2, 4), np.float32), np.ones((2, 1), np.float32)))


def train():
    model.fit(data, verbose=0)


# ---- as printed
"""


def python_blocks(page: Path) -> List[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.tensorflow
@pytest.mark.parametrize("page", [page for page in RUN if python_blocks(page)], ids=_ids)
def test_examples_in_python_run_as_printed(page: Path, place: Path) -> None:
    """In order, in one process; what opens a device in one of its own, on the double of the vendor's adapter, where the model is made afterwards."""
    code = python_blocks(page)
    opening = [block for block in code if "as_default()" in block]
    programs = ["".join(block.partition("as_default()\n")[:2]) + AROUND + block.partition("as_default()\n")[2] for block in opening]
    rest = [block for block in code if block not in opening]
    if rest:
        programs.append(AROUND + "\n".join(rest))
    assert programs
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "tests" / "fake_npu_device"), os.environ.get("PYTHONPATH", "")]),
                       CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3", LANG="en_US.UTF-8")  # fmt: skip
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    for program in programs:
        Path("page.py").write_text(program, encoding="utf-8")
        done = subprocess.run([sys.executable, "page.py"], cwd=str(place), env=environment, timeout=300, **pipes)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr and "turned itself off" not in done.stderr, done.stderr
