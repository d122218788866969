"""Trees and manifests made to harm, one case each, through the command line in a process with little memory.

Each ends as a named problem or is shown for what it is: never a traceback, a hang, memory over the bound, or a file outside the working folder.
"""
from __future__ import annotations

import json
import os
import re
import stat
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

import numpy as np
import pytest

from npu_overflow.dump import schema
from npu_overflow.dump.names import dump_name, record_name
from npu_overflow.dump.record import Part
from npu_overflow.dump.writer import TensorSpec, write_dump, write_record
from npu_overflow.training.manifest import Manifest

RUN = "20240517093010"
TIME = 1715938212000000
INF = np.array([[1.0, np.inf], [0.5, 4.0]], np.float16)
CLEAN = np.array([[1.0, -2.0], [0.5, 4.0]], np.float16)
DUMP = dump_name("Mul", "net/mul", 21, 3, TIME + 5)
RECORD = record_name(1, 5, TIME)

#: what ``show --save`` adds to the name of the good operator's dump
WRITTEN = (".input.0.npy", ".output.0.npy", ".input.0.txt", ".output.0.txt")

#: what no output may hold: the content of files outside, terminal control, elements of a page
SECRET = "secret-of-another"

#: bytes above what the process has when everything is imported
MEMORY = 256 << 20
SECONDS = 120

RUNNER = '''
import contextlib, io, json, os, sys
from npu_overflow.analysis import analyzer, growing
from npu_overflow import cli
from npu_overflow.report import html, json_text, merge, model, terminal
import jinja2
given = json.load(sys.stdin)
sys.path.insert(0, given["tests"])
from fuzz.bounds import WRITES
exec(given["hook"])
growing._PAUSE = 0  # nobody writes to these files: waiting for more shows nothing
try:
    import resource
    pages = int(open("/proc/self/statm").read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + given["memory"],) * 2)
except (ImportError, OSError):
    pass
answers = []
for words in given["commands"]:
    out, err = io.StringIO(), io.StringIO()
    here = WRITES.only_in(os.getcwd()) if not given["hook"] else contextlib.suppress()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), here:
        status = cli.main(words)
    answers.append([status, out.getvalue(), err.getvalue()])
json.dump(answers, sys.stdout)
'''


class Case(NamedTuple):
    """One hostile input.

    Args:
        make: writes it into the folder of the step of a tree that has one good operator; returns what to analyze, or None for the whole tree.
        codes: problems that the report names.
        names: operators that it names, in order; None where the command fails with ``error``.
        error: code of the error where there is nothing to analyze.
        remarks: codes of remarks.
        hook: Python that runs in the process before the commands.
    """

    make: Callable[[Path], Optional[Path]]
    codes: Tuple[str, ...] = ()
    names: Optional[Tuple[str, ...]] = ("net/mul",)
    error: str = ""
    remarks: Tuple[str, ...] = ()
    hook: str = ""


def header(content: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(content)) + content + data


def message(data: bytes = b"\0" * 32, **more: Any) -> bytes:
    """A dump with one output of 32 bytes; ``dims`` and ``size`` replace what is said of it."""
    made = schema.DumpData(version=b"2.0", op_name=more.pop("op_name", b"net/mul"), host=more.pop("host", b""))
    one = made.output.add(data_type=2, format=2, size=more.pop("size", len(data)))
    one.shape.dim.extend(more.pop("dims", [4, 4]))
    return header(made.SerializeToString(), data)


def replaced(content: bytes) -> Callable[[Path], None]:
    """The good operator's dump replaced by ``content``."""

    def make(folder: Path) -> None:
        (folder / DUMP).write_bytes(content)

    return make


def named(op_type: str, op_name: str, inside: Optional[bytes] = None) -> Callable[[Path], None]:
    """The good operator under another name in its file name, and inside."""

    def make(folder: Path) -> None:
        (folder / DUMP).unlink()
        path = os.fsencode(str(folder)) + b"/" + os.fsencode("%s.%s.21.3.%d" % (op_type, op_name, TIME + 5))
        made = schema.DumpData(version=b"2.0", op_name=op_name.encode("utf-8", "surrogateescape") if inside is None else inside)
        for side, array in ((made.input, CLEAN), (made.output, INF)):
            one = side.add(data_type=2, format=2, size=array.nbytes)
            one.shape.dim.extend(array.shape)
        with open(path, "wb") as file:
            file.write(header(made.SerializeToString(), CLEAN.tobytes() + INF.tobytes()))

    return make


def manifest(text: Any) -> Callable[[Path], None]:
    """A manifest beside the tree: its text, or fields to change in a good one."""

    def make(folder: Path) -> None:
        where = folder.parents[3]
        if isinstance(text, dict):
            path = Path(Manifest(run_id="job", mode="inf_nan").write(str(where)))
            path.write_text(json.dumps(dict(json.loads(path.read_text()), **text)))
        else:
            (where / "session-0.json").write_bytes(text)

    return make


def added(name: str, make: Callable[[str], Any], into: int = -1) -> Callable[[Path], None]:
    """Something else beside the good operator, or in a folder above."""

    def made(folder: Path) -> None:
        make(str((folder if into < 0 else folder.parents[into]) / name))

    return made


def special(kind: int) -> Callable[[str], None]:
    return lambda path: os.mknod(path, kind | 0o600, os.makedev(1, 3))


def outside(folder: Path) -> Path:
    """A file that is not of the tree."""
    path = folder.parents[5] / "outside"
    path.write_bytes(message(op_name=SECRET.encode()))
    return path


def link_out(folder: Path) -> None:
    os.symlink(str(outside(folder)), str(folder / dump_name("Add", "x", 22, 3, TIME)))
    os.symlink(str(folder.parents[5]), str(folder / "7"))


def link_in_its_place(folder: Path) -> None:
    (folder / DUMP).unlink()
    os.symlink(str(outside(folder)), str(folder / DUMP))


def loops(folder: Path) -> None:
    os.symlink(".", str(folder / "1"))
    os.symlink("../..", str(folder / "2"))
    os.symlink("3", str(folder / "3"))
    os.symlink("no such file", str(folder / dump_name("Add", "x", 22, 3, TIME)))


def deep_folders(folder: Path) -> None:
    (folder.joinpath(*["1"] * 60)).mkdir(parents=True)


def unreadable(folder: Path) -> None:
    (folder / "7").mkdir()
    (folder / "7").chmod(0)


def mapping(folder: Path) -> None:
    (folder / DUMP).rename(folder / "108172736190")
    good = b"108172736190,Mul.%s.21.3.%d\n" % (b"n" * 5000, TIME + 5)
    rows = [b"108172736190,../../../../evil.x.1.2.3\n", b"\xff\xfe,\0\n", b"9" * 3000000 + b"\n", good, b"half"]
    (folder / "mapping.csv").write_bytes(b"".join(rows))


def statistics(folder: Path) -> None:
    rows = ["Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count"]
    rows.append("Output,0,-5,DT_FLOAT16,\x1b[31m,4x-4,%s,1e999,nan,-1,1e400,%s,inf" % ("9" * 60, "9" * 5000))
    rows += ["Output,-1,0", "Output,%s,0" % ("9" * 60), '"' + "x" * 200000]
    (folder / DUMP).rename(folder / (DUMP + ".csv"))
    (folder / (DUMP + ".csv")).write_bytes("\n".join(rows).encode())


def sparse(folder: Path) -> None:
    (folder / DUMP).write_bytes(struct.pack("<Q", 2**33))
    os.truncate(str(folder / DUMP), 2**33 + 8)


def many_names(folder: Path) -> None:
    for number in range(3000):
        (folder / ("no dump %d" % number)).touch()


def single_fifo(folder: Path) -> Path:
    os.mkfifo(str(folder / "pipe"))
    return folder / "pipe"


def manifest_link(folder: Path) -> None:
    path = folder.parents[5] / "outside.json"
    path.write_text(json.dumps({"run_id": SECRET, "reason": SECRET}))
    os.symlink(str(path), str(folder.parents[3] / "session-0.json"))


def manifest_fifo(folder: Path) -> None:
    os.mkfifo(str(folder.parents[3] / "session-0.json"))


def nothing(folder: Path) -> None:
    """The good operator alone."""


def when_read(change: str) -> str:
    """A hook that does ``change`` to the dump between its header and its data; ``path`` is the file."""
    return (
        "from npu_overflow.dump import envelope\n"
        "def opened(self, original=envelope.Source.open):\n"
        "    path = self.path\n    %s\n    return original(self)\n"
        "envelope.Source.open = opened\n" % change
    )


#: open files keep their numbers, which the system would give to the next file
ANOTHER = "opened.kept = [*getattr(opened, 'kept', []), open(path)]; open(path + 'x', 'w').close(); os.rename(path + 'x', path)"
MARKUP = "[bold]a[/bold][link=http://x]y[/link][/]"
HTML = "<script>alert(1)</script><img src=x onerror=alert(1)>"
BAD_MANIFEST = ("manifest.unreadable",)
DEEP = {"a": json.loads("[" * 200 + "]" * 200)}

CASES: Dict[str, Case] = {
    "nothing hostile": Case(nothing),
    # lengths, counts, shapes
    "forged header length": Case(replaced(struct.pack("<Q", 2**40) + b"\x1a" * 100), ("dump.header_length",), ("net_mul",)),
    "largest header length": Case(replaced(struct.pack("<Q", 2**64 - 1) + b"\x1a" * 100), ("dump.header_length",), ("net_mul",)),
    "a sparse file of 8 GB with a header as large": Case(sparse, ("dump.header_large",), ("net_mul",)),
    "2^63 dimensions": Case(replaced(message(dims=[2**63] * 30)), ("dump.tensor_short",)),
    "a million dimensions": Case(replaced(message(dims=[1] * 1000000)), ("dump.header",), ("net_mul",)),
    "negative sizes": Case(replaced(message(dims=[2**64 - 1, 4], size=2**64 - 32)), ("dump.cut",)),
    "more bytes than there are": Case(replaced(message(size=2**62)), ("dump.cut",)),
    "nothing times everything": Case(replaced(message(b"", dims=[0, 2**63, 2**64 - 1])), ()),
    # nesting, counts of messages
    "messages in messages": Case(replaced(header(b"\x1a\x7f" * 60000)), ("dump.header",), ("net_mul",)),
    "groups in groups": Case(replaced(header(b"\x0b" * 100000)), ("dump.header",), ("net_mul",)),
    "a million empty messages": Case(replaced(header(b"\x1a\0" * 1000000)), ("dump.header",), ("net_mul",)),
    "JSON in JSON": Case(replaced(message(host=b'{"tensors":' + b"[" * 100000)), ("dump.host",)),
    "JSON in JSON, closed": Case(replaced(message(host=b'{"host": 1, "x": ' + b"[" * 900 + b"]" * 900 + b"}")), ("dump.host",)),
    "JSON with a number of a million digits": Case(replaced(message(host=b'{"train_step": ' + b"9" * 900000 + b"}")), ("dump.host",)),
    "JSON of other types": Case(
        replaced(message(host=b'{"host": [], "core": {}, "role": 7, "origin": [], "tensors": {"output.0": [], "x": {"min": {}}}, "train_step": "x"}'))
    ),
    # names
    "a name of a megabyte": Case(replaced(message(op_name=b"n" * 2**20)), ("dump.name_long",), ("n" * 16384,)),
    "invalid UTF-8 inside": Case(replaced(message(op_name=b"\xff\xfe\xed\xa0\x80/mul")), names=("\ufffd" * 5 + "/mul",)),
    "invalid UTF-8 in a file name": Case(named("Mul", "a\udcff\udcfe"), names=("a\ufffd\ufffd",)),
    "control characters": Case(named("Mul\x07", "a\nb\r\x1b[2Jc", b"a\nb\r\x1b]0;x\x07\x1b[2J\0c"), names=("a\nb\r\x1b]0;x\x07\x1b[2J\0c",)),
    "terminal markup": Case(named("[red]Mul[blink]", "[bold]a", MARKUP.encode()), names=(MARKUP,)),
    "HTML": Case(named("<b>", "<b>x", HTML.encode()), names=(HTML,)),
    "text that turns around": Case(named("Mul", "\u202ecod_exe\u200b"), names=("\u202ecod_exe\u200b",)),
    "path separators": Case(named("\\x\\Mul", "C:\\x", b"../../../../x"), names=("../../../../x",)),
    "dots only": Case(named("Mul", "x", b".."), names=("..",)),
    "a format string": Case(named("{0}", "%n%s", b"{x!r:>1000000000}{0.__class__}%n%s"), names=("{x!r:>1000000000}{0.__class__}%n%s",)),
    "mapping.csv with tricks": Case(mapping, (), ("net/mul",)),
    "3000 files of other names": Case(many_names, ("name.unreadable",)),
    "a statistics file of lies": Case(statistics, ("statistics.rows",), ("net_mul",)),
    # what is no file
    "a device file": Case(added(dump_name("Add", "x", 22, 3, TIME), special(stat.S_IFCHR)), ("file.special",)),
    "a FIFO": Case(added(record_name(2, 5, TIME), os.mkfifo), ("file.special",)),
    "a FIFO asked for": Case(single_fifo, names=None, error="path.special"),
    "a folder in a file's place": Case(added(dump_name("Add", "x", 22, 3, TIME), os.mkdir)),
    "links out of the tree": Case(link_out, ("file.link",)),
    "a link out of the tree in a dump's place": Case(link_in_its_place, ("file.link", "problem.no_dump"), ("",)),
    "links in circles": Case(loops, ("file.link_nowhere",)),
    "very deep folders": Case(deep_folders, ("tree.deep",)),
    "an unreadable folder": Case(unreadable, ("tree.unlisted",)),
    # while it is read
    "a file that shrinks": Case(nothing, ("file.shrank",), hook=when_read("os.truncate(path, os.path.getsize(path) - 1)")),
    "a file that vanishes": Case(nothing, ("file.gone",), hook=when_read("os.path.exists(path) and os.unlink(path)")),
    "a file that becomes another": Case(nothing, ("file.replaced",), hook=when_read(ANOTHER)),
    # manifests
    "a manifest of garbage": Case(manifest(bytes(range(256)) * 10), BAD_MANIFEST),
    "a manifest in another encoding": Case(manifest('{"run_id": "x"}'.encode("utf-16")), BAD_MANIFEST),
    "a manifest of lists in lists": Case(manifest(b"[" * 1000000), BAD_MANIFEST),
    "a manifest with deep facts": Case(manifest({"options": DEEP}), BAD_MANIFEST),
    "a manifest of millions of values": Case(manifest(b'{"drops": [' + b"[]," * 4000000 + b"[]]}"), BAD_MANIFEST),
    "an enormous manifest": Case(manifest(b'{"run_id": "' + b"x" * (17 << 20) + b'"}'), BAD_MANIFEST),
    "a manifest with a number of a million digits": Case(manifest(b'{"pid": ' + b"9" * 1000000 + b"}"), BAD_MANIFEST),
    "a manifest with huge numbers": Case(manifest({"rank": 2**70}), BAD_MANIFEST),
    "a manifest with NaN": Case(manifest(b'{"drops": [[NaN, 1, 2]]}'), BAD_MANIFEST),
    "a manifest with infinities": Case(manifest(b'{"drops": [[1, Infinity, -Infinity]], "rate": NaN, "started": 1e999}')),
    "a manifest of other types": Case(manifest({"drops": {"a": 1}, "optimizers": 7}), BAD_MANIFEST),
    "a manifest that is a list": Case(manifest(b"[]"), BAD_MANIFEST),
    "a manifest whose reports lie elsewhere": Case(manifest({"reports": ["../../../etc/passwd"]}), BAD_MANIFEST),
    "a manifest that keeps folders elsewhere": Case(manifest({"kept_folders": ["..", "../..", "/", "\0", "a/../b"]}), names=(), remarks=("remark.sporadic",)),
    "a manifest with remarks of any words": Case(
        manifest({"remarks": [["remark.unfinished", {"_code": 1, "code": 2, "language": 3, "self": 4, "step": {"a": []}}], ["<b>", {"": HTML}], ["{x}", {}]]}),
        remarks=("remark.unfinished", "<b>", "{x}"),
    ),
    "a manifest of twenty thousand remarks": Case(
        manifest({"remarks": [["remark %d" % number, {}] for number in range(20000)]}), remarks=("remark 0", "remark 19999")
    ),
    "a manifest of a hundred thousand optimizers": Case(manifest({"optimizers": [{"name": "o%d" % number} for number in range(100000)]})),
    "a manifest that asks for a restart": Case(manifest({"request": {"why": "x", "command": ["touch", "evil"]}, "argv": ["`touch evil`", "; touch evil"]})),
    "a manifest that is a link": Case(manifest_link, (*BAD_MANIFEST, "file.link")),
    "a manifest that is a FIFO": Case(manifest_fifo, (*BAD_MANIFEST, "file.special")),
}


def test_what_the_cases_build_on(tmp_path: Path) -> None:
    """No code that a case names is one that the package does not have."""
    from npu_overflow import messages

    assert [code for case in CASES.values() for code in (*case.codes, *[case.error] * bool(case.error)) if not messages.known(code)] == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="made of what POSIX has")
@pytest.mark.parametrize("name", list(CASES))
def test_hostile(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if os.geteuid() == 0 and case.make is unreadable:
        pytest.skip("root reads everything")
    if os.geteuid() != 0 and name == "a device file":
        pytest.skip("only root makes device files")
    root, work = tmp_path / "box" / "tree", tmp_path / "work"
    folder = root / RUN / "0" / "graph" / "11" / "0"
    folder.mkdir(parents=True)
    work.mkdir()
    write_dump(str(folder / DUMP), "net/mul", [TensorSpec(CLEAN)], [TensorSpec(INF)])
    write_record(str(folder / RECORD), [Part("AIC", 1, 11, 3, 21)])
    path = str(case.make(folder) or root)
    before = listing(tmp_path / "box")

    (json_status, json_out, json_err), *others = commands(path, case.hook, work)
    for status, out, err in [(json_status, "", json_err), *others]:
        assert status in (0, 1, 2) and "Traceback" not in err and "internal error" not in err.lower(), err
        assert all(char == "\n" or char.isprintable() for char in (out + err).replace(str(tmp_path), ""))
        assert SECRET not in out + err
    if case.error:
        from npu_overflow import messages

        assert json_status == 1 and json_out == "" and messages.say(case.error, path=path) in json_err
        return
    assert (json_status, json_err) == (0, "")
    report = json.loads(json_out, parse_constant=lambda word: pytest.fail(word))
    assert SECRET not in json_out
    assert set(case.codes) == {problem["code"] for problem in report["problems"]}, report["problems"][:3]
    assert set(case.remarks) <= {remark["code"] for remark in report["remarks"]}
    assert [operator["op_name"] or "" for operator in report["operators"]] == list(case.names or ())
    page = (work / "page.html").read_text(encoding="utf-8")
    assert page.count("<script") == 1 and "<img" not in page and len(page) < 1000000
    if not case.hook:
        assert listing(tmp_path / "box") == before
    made = {item.name for item in work.iterdir()}
    assert made <= {"page.html", "report.json", "ops_info.json", "customize_dtypes.txt"} | {item for item in made if item.endswith((".npy", ".txt"))}
    assert all(item.is_file() for item in work.iterdir()) and {item.name for item in tmp_path.iterdir()} == {"box", "work"}
    if "ops_info.json" in made:
        black = json.loads((work / "ops_info.json").read_text())["black-list"]["to-add"]
        assert black == ["Mul"]
    if "customize_dtypes.txt" in made:
        assert re.fullmatch(r"(net/mul|\.\.)::(InputDtype:float32,)?OutputDtype:float32\n", (work / "customize_dtypes.txt").read_text())
    if name == "nothing hostile":
        assert made == {"page.html", "ops_info.json", "customize_dtypes.txt", *(DUMP + end for end in WRITTEN)}


def commands(path: str, hook: str, work: Path) -> List[Any]:
    """The commands that read a tree, in one process with bounded memory: (exit status, output, errors) of each."""
    words = [["analyze", path, "--json"], ["analyze", path], ["analyze", path, "--language", "zh"], ["analyze", path, "--html", "page.html"]]
    words += [["mixlist", path], ["mixlist", path, "--by-name"]]
    if os.path.isdir(path):
        files = sorted(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)
        # a link that somebody names is followed
        words += [["show", file, *more] for file in files[:6] if not os.path.islink(file) for more in ([], ["--save", "npy"], ["--save", "txt"])]
    given = json.dumps({"hook": hook, "commands": words, "memory": MEMORY, "tests": str(Path(__file__).resolve().parent)})
    settings = dict(os.environ, OPENBLAS_NUM_THREADS="1", NPU_OVERFLOW_TRACEBACK="1")
    ran = subprocess.run([sys.executable, "-c", RUNNER], input=given.encode(), capture_output=True, cwd=str(work), env=settings, timeout=SECONDS)
    assert ran.returncode == 0, ran.stderr.decode()[-3000:]
    answers: List[Any] = json.loads(ran.stdout.decode())
    return answers


def listing(folder: Path) -> Set[Tuple[str, int, int]]:
    """Every file with its kind and size."""
    found = set()
    for above, folders, names in os.walk(str(folder)):
        for name in folders + names:
            state = os.lstat(os.path.join(above, name))
            found.add((os.path.join(above, name), stat.S_IFMT(state.st_mode), state.st_size if stat.S_ISREG(state.st_mode) else 0))
    return found
