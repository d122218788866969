"""What the coverage-guided fuzzer calls: each target takes any bytes, and raises only where a promise is broken."""
from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Type

from npu_overflow.analysis.analyzer import analyze
from npu_overflow.analysis.statistics import summarize
from npu_overflow.dump.names import parse_name, sort_names, time_of_record
from npu_overflow.dump.reader import open_dump
from npu_overflow.dump.record import make_record, parse_record, read_record
from npu_overflow.dump.scan import find, name_of
from npu_overflow.report.model import Report
from npu_overflow.training.manifest import read_manifests

from . import readers, samples, structure
from .bounds import WRITES, bounded, require

#: bytes of a dump that are decoded as a whole: more only costs time
_DECODED = 1 << 20


class Target:
    """One kind of input. Files that it needs lie in ``folder``.

    Subclasses give ``seeds``, ``check`` and perhaps ``changed``.
    """

    name = ""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        os.makedirs(folder, exist_ok=True)

    def seeds(self) -> List[bytes]:
        """Good inputs."""
        raise NotImplementedError

    def check(self, data: bytes) -> None:
        """Read ``data`` and check what came of it; documented errors may come out."""
        raise NotImplementedError

    def changed(self, data: bytes, rng: random.Random) -> bytes:
        """``data`` changed so that it keeps its form."""
        return structure.change_bytes(data, rng)

    def run(self, data: bytes) -> None:
        """Check ``data`` within bounds."""
        with bounded(), WRITES.only_in(self.folder):
            self.check(data)

    def file(self, name: str, data: bytes) -> str:
        path = os.path.join(self.folder, name)
        with open(path, "wb") as file:
            file.write(data)
        return path


class Records(Target):
    """The content of a record, or a whole record file."""

    name = "records"
    _NAME = "Opdebug.Node_OpDebug.1.5.1715938212000010"

    def seeds(self) -> List[bytes]:
        files = [path.read_bytes() for tree in samples.corpus() for path in sorted(Path(tree).rglob("Opdebug*"))]
        small = [data for data in files if len(data) < 4096]
        return sorted({b"\1" + data for data in small} | {b"\0" + data[-2048:] for data in small})

    def check(self, data: bytes) -> None:
        record = read_record(self.file(self._NAME, data[1:])) if data[:1] == b"\1" else parse_record(data[1:])
        for part in record.parts:
            require(part.status_bits is not None and len(part.status_codes) == len(part.status_meanings), "a status has meanings")
            require(record.layout == "old" or part.core.startswith("type ") or part.status != 0, "a part reports something")
        if record.parts and not record.problems and (record.layout == "old" or record.version in (1, 2)):
            again = parse_record(make_record(record.parts, record.layout, record.version, 1 if record.valid is None else record.valid))
            require(again.parts == record.parts, "a record made again is the same", record, again)

    def changed(self, data: bytes, rng: random.Random) -> bytes:
        if data[:1] == b"\1":
            return b"\1" + structure.change_dump(data[1:], rng)
        return b"\0" + (structure.change_record(data[1:], rng) if len(data) > 2048 else structure.change_bytes(data[1:], rng))


class Dumps(Target):
    """An operator's dump or statistics file: every tensor summarized, decoded and placed."""

    name = "dumps"
    _NAMES = ("Mul.a_b.7.3.1715938212345678", "Mul.a_b.7.3.1715938212345678.4.5.1.0", "Mul.a_b.7.3.1715938212345678.csv")

    def seeds(self) -> List[bytes]:
        made = []
        with tempfile.TemporaryDirectory() as folder:
            trees = [*samples.corpus(), samples.host_tree(os.path.join(folder, "host")), samples.csv_tree(os.path.join(folder, "csv"))]
            for path in sorted(path for tree in trees for path in Path(tree).rglob("*.*.*.*")):
                if path.is_file() and not path.name.startswith(("Opdebug", ".")) and path.stat().st_size < 3000:
                    kind = 2 if path.name.endswith(".csv") else 1 if path.name.count(".") > 5 else 0
                    made.append(bytes([kind]) + path.read_bytes())
        return sorted(set(made))

    def check(self, data: bytes) -> None:
        dump = open_dump(self.file(self._NAMES[data[0] % 3 if data else 0], data[1:]))
        for tensor in (*dump.inputs, *dump.outputs):
            for mode in ("inf_nan", "saturation"):
                facts = summarize(tensor, mode)
                require(facts.state in ("overflow", "padding", "clean", "unknown"), "a tensor has a state", facts.state)
                found = facts.summary.first_overflow
                if found is not None and tensor.statistics is None:
                    shape = tensor.valid().shape
                    inside = len(found["index"]) == len(shape) and all(0 <= at < size for at, size in zip(found["index"], shape))
                    require(inside, "an index lies in its shape", found, shape)
            if tensor.statistics is None:
                require(0 <= tensor.bytes <= max(len(data), 1), "a tensor has no more bytes than its file", tensor.bytes)
                require(sum(piece.size for piece in tensor.chunks()) == tensor.count * tensor.parts, "pieces are the whole")
                if tensor.bytes < _DECODED:
                    tensor.original()

    def changed(self, data: bytes, rng: random.Random) -> bytes:
        return data[:1] + (structure.change_bytes if data[:1] == b"\2" else structure.change_dump)(data[1:], rng)


class Names(Target):
    """File names of one folder, a line each, and mapping.csv."""

    name = "names"

    def seeds(self) -> List[bytes]:
        made = []
        for tree in samples.corpus():
            paths = sorted(path for path in Path(tree).rglob("*") if path.is_file())
            made.append(b"\0" + "\n".join(path.name for path in paths).encode())
            made += [b"\1" + path.read_bytes()[:2000] for path in paths if path.name == "mapping.csv"]
        return sorted(set(made))

    def check(self, data: bytes) -> None:
        text = data[1:].decode("utf-8", "surrogateescape")
        if data[:1] == b"\1":
            self.mapping(data[1:], text)
            return
        names = [name for name in dict.fromkeys(text.split("\n")) if name and "\0" not in name and "/" not in name]
        records, dumps, others = sort_names(names)
        require(sorted(records + dumps + others) == sorted(names), "every name is sorted once")
        for group, kinds in ((records, ("record",)), (dumps, ("dump", "statistics")), (others, (None,))):
            for name in group:
                parsed = parse_name(name)
                require((None if parsed is None else parsed.kind) in kinds, "names are sorted as they are parsed", name)
                require(parsed is None or parsed.kind != "record" or time_of_record(name) == parsed.timestamp, "a record's time is that of its name", name)

    def mapping(self, data: bytes, text: str) -> None:
        self.file("mapping.csv", data)
        number = "".join(char for char in text[:20].partition(",")[0] if char in "0123456789") or "108172736190"
        path = self.file(number, b"x")
        name = name_of(path)
        try:
            tree = find(path)
            require(name is not None and tree.single is not None and tree.single.name == name, "a hashed name is found in its tree", number)
        finally:
            os.unlink(path)


class Manifests(Target):
    """A manifest, read alone and beside a tree."""

    name = "manifests"

    def __init__(self, folder: str) -> None:
        super().__init__(folder)
        self.tree = os.path.join(folder, "tree")
        if not os.path.isdir(self.tree):
            samples.small_tree(self.tree)

    def seeds(self) -> List[bytes]:
        made = []
        with tempfile.TemporaryDirectory() as folder:
            facts: List[Dict[str, Any]] = [{}, {"collector": "ascend", "mode": "saturation"}, {"drops": [], "rate": None, "reason": "not_reproduced"}]
            for more in facts:
                made.append(Path(samples.manifest(**more).write(folder)).read_bytes())
        return made

    def check(self, data: bytes) -> None:
        path = os.path.join(self.tree, samples.RUN, "session-0.json")
        with open(path, "wb") as file:
            file.write(data)
        found = read_manifests(os.path.dirname(path))
        require(len(found) + len(found.problems) == 1, "a manifest is read or is a problem")
        for manifest in found:
            manifest.write(self.folder)
            again = read_manifests(self.folder)
            require(len(again) == 1, "a manifest that was read can be written", again.problems)
            manifest.folder = None
            for name in os.listdir(self.folder):
                if name.startswith("session-"):
                    os.unlink(os.path.join(self.folder, name))
        report = analyze(self.tree)
        require(found or any(problem.code == "manifest.unreadable" for problem in report.problems), "a bad manifest is a problem of the report")
        readers.check_json(report)
        readers.check_terminal(report)

    def changed(self, data: bytes, rng: random.Random) -> bytes:
        return structure.change_json_bytes(data, rng, rng.choice((1, 1, 2, 5)))


class Reports(Target):
    """A saved report, shown by every reporter."""

    name = "reports"

    def seeds(self) -> List[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            return samples.report_texts(folder)

    def check(self, data: bytes) -> None:
        report = Report.from_json(data.decode("utf-8", "replace"))
        readers.check_terminal(report)
        readers.check_html(report)
        readers.check_merge(report, by_schema=False)
        readers.check_board(report, os.path.join(self.folder, "board"))
        text = report.to_json()
        require(Report.from_json(text).to_json() == text, "a report read again is the same")

    def changed(self, data: bytes, rng: random.Random) -> bytes:
        return structure.change_json_bytes(data, rng, rng.choice((1, 1, 2, 5)))


TARGETS: Dict[str, Type[Target]] = {target.name: target for target in (Records, Dumps, Names, Manifests, Reports)}
