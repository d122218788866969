"""The coverage-guided fuzzer: libFuzzer by way of atheris, one process a target. Faults are noted, each kind once, and the fuzzing goes on."""
from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import time
import traceback
from typing import Any, Dict, List, Optional

#: a process that reads one input for so long or takes so much is ended, and the input kept; inputs are no longer than so many bytes
_SECONDS, _MEGABYTES, _BYTES = 60, 2500, 60000
_LINE = re.compile(r"^#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)", re.MULTILINE)
FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def child(name: str, output: str, arguments: List[str]) -> None:
    """In a process of its own: fuzz one target until libFuzzer has had enough; never returns."""
    import atheris

    with atheris.instrument_imports(include=["npu_overflow"]):
        from . import readers, targets
    from .bounds import key_of, kind_of

    readers.html._environment = readers.environment
    target = targets.TARGETS[name](os.path.join(output, "work", name))
    seen = {}
    faults = os.path.join(output, "faults", name)
    os.makedirs(faults, exist_ok=True)

    def one(data: bytes) -> None:
        try:
            target.run(data)
        except Exception as error:
            kind = kind_of(error)
            if seen.setdefault(kind, len(data)) >= len(data):  # the shortest input of each kind is kept
                seen[kind] = len(data)
                path = os.path.join(faults, key_of(kind.encode()))
                with open(path, "wb") as file:
                    file.write(data)
                with open(path + ".txt", "w", encoding="utf-8", errors="backslashreplace") as file:
                    file.write("%s\n\n%s" % (kind, traceback.format_exc()))

    def changed(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if rng.random() < 0.5:
            return bytes(target.changed(bytes(data), rng)[:most])
        return bytes(atheris.Mutate(data, most))

    corpus = os.path.join(output, "corpus", name)
    os.makedirs(corpus, exist_ok=True)
    for seed in target.seeds():
        with open(os.path.join(corpus, key_of(seed)), "wb") as file:
            file.write(seed)
    atheris.Setup([sys.argv[0], *arguments, corpus], one, custom_mutator=changed)
    atheris.Fuzz()


def fuzz(name: str, seconds: int, output: str) -> Dict[str, Any]:
    """Fuzz one target for a time; what libFuzzer counted."""
    result: Dict[str, Any] = {"target": name, "executions": 0, "edges": 0, "features": 0, "corpus": 0, "ended": []}
    began = time.monotonic()
    while True:
        left = int(seconds - (time.monotonic() - began))
        if left < 1 or len(result["ended"]) > 20:
            break
        kept = os.path.join(output, "faults", name) + os.sep
        arguments = ["-max_total_time=%d" % left, "-timeout=%d" % _SECONDS, "-rss_limit_mb=%d" % _MEGABYTES]
        arguments += ["-max_len=%d" % _BYTES, "-len_control=0", "-artifact_prefix=" + kept]
        command = [sys.executable, "-c", "from tests.fuzz import guided; guided.child(%r, %r, %r)" % (name, output, arguments)]
        ran = subprocess.run(command, cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        said = ran.stdout.decode("utf-8", "replace")
        with open(os.path.join(output, name + ".log"), "a", encoding="utf-8") as log:
            log.write(said)
        counted = _LINE.findall(said)
        if counted:
            executions, edges, features, corpus = map(int, counted[-1])
            result["executions"] += executions
            result.update(edges=max(result["edges"], edges), features=max(result["features"], features), corpus=corpus)
        if ran.returncode != 0:
            result["ended"].append("exit status %d: %s" % (ran.returncode, said.strip().splitlines()[-1][:200] if said.strip() else "-"))
            if not counted:
                break
    result["seconds"] = int(time.monotonic() - began)
    return result


def found(name: str, output: str) -> List[str]:
    """Faults of a target: (kind, input) as lines."""
    folder = os.path.join(output, "faults", name)
    lines = []
    for item in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        if item.endswith(".txt"):
            with open(os.path.join(folder, item), encoding="utf-8") as file:
                lines.append("%s: %s" % (file.readline().strip(), os.path.join(folder, item[:-4])))
        elif not os.path.exists(os.path.join(folder, item + ".txt")):
            lines.append("process ended: %s" % os.path.join(folder, item))
    return lines


def run(names: List[str], seconds: int, output: str) -> int:
    """Fuzz each target for its share of the time and print the totals; the exit status."""
    rows = []
    for name in names:
        row = fuzz(name, max(1, seconds // len(names)), output)
        rows.append(row)
        sys.stdout.write(
            "%(target)-10s %(executions)9d executions  %(edges)5d edges  %(features)6d features  %(corpus)5d in the corpus  %(seconds)5d s\n" % row
        )
        sys.stdout.flush()
    faults = [line for name in names for line in found(name, output)]
    ended = ["%s: %s" % (row["target"], text) for row in rows for text in row["ended"]]
    for line in faults + ended:
        sys.stdout.write("  %s\n" % line)
    executions, took = (sum(row[name] for row in rows) for name in ("executions", "seconds"))
    sys.stdout.write("total: %d executions, %d s, %d kinds of faults\n" % (executions, took, len(faults)))
    return 1 if faults or ended else 0


def again(name: str, path: str, output: Optional[str] = None) -> None:
    """One kept input once more, with its traceback."""
    from . import targets

    with open(path, "rb") as file:
        data = file.read()
    targets.TARGETS[name](os.path.join(output or "", "work", name)).run(data)
