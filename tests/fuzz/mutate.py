"""The mutation fuzzer: sample trees, damaged, through ``analyze`` and everything that shows a report, and through every command that reads files."""
from __future__ import annotations

import contextlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from typing import Any, Dict, Iterator, List, Optional, Set, Tuple

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.cli import _shell, main
from npu_overflow.errors import PathError, UsageError
from npu_overflow.report import html
from npu_overflow.report.model import Report

from . import damage, readers, samples, structure
from .bounds import WRITES, bounded, key_of, kind_of, require

#: a process reads so many cases before the next one takes over: what one leaves behind is no part of the next
_CASES = 500
#: a case that takes longer ends its process
_SECONDS = 120
FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Case:
    """One damaged tree.

    Args:
        seed, number: which; the same two give the same damage.
        folder: empty; the tree, what lies outside it, and what is written go there.
    """

    def __init__(self, seed: int, number: int, folder: str) -> None:
        self.rng = random.Random("%d/%d" % (seed, number))
        self.folder = folder
        self.out = os.path.join(folder, "out")
        self.tree = ""
        self.done: List[str] = []

    def prepare(self) -> None:
        """Make the tree and damage it."""
        os.makedirs(self.out)
        damage.put_secret(self.folder)
        self.tree = damage.prepare(self.folder, self.rng)
        self.done = damage.damage(self.tree, self.rng)

    def check(self, every_command: bool = True) -> None:
        """Read it in every way; raises where a promise is broken."""
        with bounded(), WRITES.only_in(self.out):
            self._analyze()
        with bounded(), WRITES.only_in(self.out):
            self._saved()
        if every_command:
            with bounded(), WRITES.only_in(self.out):
                self._commands()

    def _analyze(self) -> None:
        rng = self.rng
        options: Dict[str, Any] = {
            "run": rng.choice((None, None, "all", samples.RUN, "..")),
            "limit": rng.choice((None, None, 0, 1, 3)),
            "mode": rng.choice((None, "saturation", "inf_nan")),
        }
        path = self.tree if rng.random() < 0.8 else rng.choice(damage.files_of(self.tree) or [self.tree])
        try:
            report = analyze(path, **options)
        except (PathError, UsageError):
            report = analyze(samples.corpus()[0])
        require("secret_" not in report.to_json().replace(damage.SECRET, ""), "nothing outside the tree is shown")
        for problem in report.problems:
            require(problem.code is not None and problem.reason != problem.code, "a problem has a sentence", problem)
        readers.check_report(report, os.path.join(self.out, "board"))
        with open(os.path.join(self.out, "report.json"), "w", encoding="utf-8") as file:
            file.write(report.to_json())

    def _saved(self) -> None:
        """The report that was saved, damaged too."""
        path = os.path.join(self.out, "report.json")
        if not os.path.exists(path):
            return
        with open(path, "rb") as file:
            data = file.read()
        changed = structure.change_json_bytes(data, self.rng, self.rng.choice((1, 2, 4))) if self.rng.random() < 0.8 else structure.change_bytes(data, self.rng)
        with open(os.path.join(self.out, "changed.json"), "wb") as file:
            file.write(changed)
        report = Report.from_json(changed.decode("utf-8", "replace"))
        readers.check_terminal(report)
        readers.check_html(report)
        # a report that was changed is read as long as its fields are of the right types: the schema says more
        readers.check_merge(report, Report.from_json(data.decode("utf-8")), by_schema=False)

    def _commands(self) -> None:
        reports = [os.path.join(self.out, name) for name in ("report.json", "changed.json") if os.path.exists(os.path.join(self.out, name))]
        files = damage.files_of(self.tree)
        commands = [["analyze", self.tree, "--exit-code"], ["mixlist", self.tree], ["mixlist", self.tree, "--by-name"], ["merge", self.tree]]
        commands += [["show", path, *self.rng.choice(samples.SHOWN)] for path in self.rng.sample(files, min(3, len(files)))]
        commands += [[self.rng.choice(("analyze", "show", "merge", "mixlist")), path] for path in reports]
        commands += [["merge", *reports, "--output", "merged.json"]] if reports else []
        for words in commands:
            self._command(words)

    def _command(self, words: List[str]) -> None:
        status, out, err = run_command([*words, "--language", self.rng.choice(("en", "zh"))], self.out)
        require(status in (0, 1, 2, 3), "a command has one of the exit statuses", words, status)
        require("Traceback" not in err, "a command never ends in an internal error", words[:1], err[-3000:])
        require(status == 0 or status == 3 or err.strip(), "a failed command says why", words)
        for text in (out, err):
            readers.check_screen(text.replace(self.folder, ""), "a command's output")


def run_command(words: List[str], folder: str) -> Tuple[int, str, str]:
    """A command of the command line in this process, with ``folder`` as the working folder: exit status, what it printed."""
    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()
    os.environ[_shell.TRACEBACK] = "1"
    try:
        os.chdir(folder)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words)
    finally:
        os.chdir(before)
        del os.environ[_shell.TRACEBACK]
    return status, out.getvalue(), err.getvalue()


# -- many cases


@contextlib.contextmanager
def lines_noted(seen: Set[Tuple[str, int]]) -> Iterator[None]:
    """Adds to ``seen`` the lines of the package that run (Python 3.12 and later; else nothing)."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        yield
        return
    mark = os.sep + "npu_overflow" + os.sep

    def line(code: Any, number: int) -> Any:
        if mark in code.co_filename:
            seen.add((code.co_filename[code.co_filename.index(mark) + 1 :], number))
        return monitoring.DISABLE

    monitoring.use_tool_id(monitoring.COVERAGE_ID, "npu_overflow fuzz")
    monitoring.register_callback(monitoring.COVERAGE_ID, monitoring.events.LINE, line)
    monitoring.set_events(monitoring.COVERAGE_ID, monitoring.events.LINE)
    try:
        yield
    finally:
        monitoring.set_events(monitoring.COVERAGE_ID, 0)
        monitoring.free_tool_id(monitoring.COVERAGE_ID)


def run_case(seed: int, number: int, folder: str) -> Tuple[Case, Optional[BaseException]]:
    """Prepare and check one case in a folder that is emptied before."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    case = Case(seed, number, os.path.realpath(folder))
    case.prepare()
    try:
        case.check()
    except Exception as error:
        return case, error
    return case, None


def child(seed: int, start: int, seconds: float, output: str) -> None:
    """In a process of its own: cases one after the other; a line of JSON each on standard output."""
    seen: Set[Tuple[str, int]] = set()
    told: Set[Tuple[str, int]] = set()
    before = time.monotonic()
    html._environment = readers.environment
    with lines_noted(seen):
        for number in range(start, start + _CASES):
            if time.monotonic() - before > seconds:
                break
            _say({"begun": number})
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, _SECONDS)  # nobody handles the signal: it ends the process
            case, error = run_case(seed, number, os.path.join(output, "work", "tree"))
            if hasattr(signal, "setitimer"):
                signal.setitimer(signal.ITIMER_REAL, 0)
            answer: Dict[str, Any] = {"case": number, "damage": len(case.done), "lines": sorted(seen - told)}
            told |= seen
            if error is not None:
                text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
                answer.update(kind=_kind(error), text="\n".join([*case.done, "", text]))
            _say(answer)


def _kind(error: BaseException) -> str:
    """The kind of a fault; one that a command printed is told by its last line."""
    text = str(error)
    if "Traceback" in text:
        lines = [line.strip() for line in text.replace("\\n", "\n").split("\n") if line.strip()]
        places = [line for line in lines if "npu_overflow" in line and "line" in line]
        return "command: %s %s" % (places[-1][-120:] if places else "", lines[-1][:80])
    return kind_of(error)


def _say(answer: Dict[str, Any]) -> None:
    sys.__stdout__.write(json.dumps(answer) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def run(seed: int, seconds: int, output: str) -> int:
    """Cases for a time, and the totals; the exit status."""
    faults: Dict[str, str] = {}
    lines: Set[Tuple[str, int]] = set()
    cases = damages = 0
    began = time.monotonic()
    number = 0
    while time.monotonic() - began < seconds:
        left = seconds - (time.monotonic() - began)
        command = [sys.executable, "-c", "from tests.fuzz import mutate; mutate.child(%d, %d, %f, %r)" % (seed, number, left, output)]
        with subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE, encoding="utf-8") as process:
            assert process.stdout is not None
            begun = number
            for text in process.stdout:
                answer = json.loads(text)
                if "begun" in answer:
                    begun = answer["begun"]
                    continue
                number = answer["case"] + 1
                cases += 1
                damages += answer["damage"]
                lines.update((name, line) for name, line in answer["lines"])
                if "kind" in answer and answer["kind"] not in faults:
                    faults[answer["kind"]] = _keep(output, seed, answer["case"], answer["kind"], answer["text"])
        if process.returncode != 0:
            kind = "the process ended with status %d" % process.returncode
            faults.setdefault(kind, _keep(output, seed, begun, kind, ""))
            number = begun + 1
    took = int(time.monotonic() - began)
    for kind, where in faults.items():
        sys.stdout.write("  %s: %s\n" % (kind, where))
    sys.stdout.write("%d damaged trees, %d changes, %d s, %s, %d kinds of faults\n" % (cases, damages, took, _covered(lines), len(faults)))
    return 1 if faults else 0


def _keep(output: str, seed: int, number: int, kind: str, text: str) -> str:
    """Keep what was found of a case; how to see it again."""
    again = "python -m tests.fuzz mutate --seed %d --case %d" % (seed, number)
    folder = os.path.join(output, "faults", "mutate")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, key_of(kind.encode("utf-8", "replace")) + ".txt"), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write("%s\n%s\n\n%s" % (kind, again, text))
    return again


def _covered(lines: Set[Tuple[str, int]]) -> str:
    if not lines:
        return "lines not counted on this Python"
    rooms: Dict[str, int] = {}
    for name, _ in lines:
        room = name.replace(os.sep, "/").split("/")[1].replace(".py", "")
        rooms[room] = rooms.get(room, 0) + 1
    return "%d lines of the package run (%s)" % (len(lines), ", ".join("%s %d" % item for item in sorted(rooms.items(), key=lambda item: -item[1])[:6]))


def one(seed: int, number: int, output: str) -> int:
    """One case once more, its tree left in place."""
    folder = os.path.join(output, "work", "again")
    case, error = run_case(seed, number, folder)
    sys.stdout.write("".join(text + "\n" for text in [case.tree, *case.done]))
    if error is not None:
        traceback.print_exception(type(error), error, error.__traceback__)
    return 0 if error is None else 1
