"""The fuzzers' targets and damaged trees, a few hundred of each, the same every time. ``python -m tests.fuzz`` runs them for longer."""
from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from fuzz import damage, mutate, readers, structure, targets
from npu_overflow.analysis import growing
from npu_overflow.report import html

#: changes of good inputs for each target, and damaged trees
CHANGES = {"records": 400, "dumps": 300, "names": 400, "manifests": 60, "reports": 25}
TREES, TREES_A_TEST = 48, 8


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's template is read once, and nothing waits for files that nobody writes to."""
    monkeypatch.setattr(html, "_environment", readers.environment)
    monkeypatch.setattr(growing, "_PAUSE", 0)


@pytest.mark.parametrize("name", list(targets.TARGETS))
def test_target(name: str, tmp_path: Path) -> None:
    """Good inputs, changed once to three times, keep every promise; so do inputs of no form."""
    target = targets.TARGETS[name](str(tmp_path / "work"))
    seeds = target.seeds()
    assert seeds
    for seed in seeds:
        target.run(seed)
    rng = random.Random(name)
    for number in range(CHANGES[name]):
        data = rng.choice(seeds)
        for _ in range(rng.choice((1, 1, 2, 3))):
            data = target.changed(data, rng) if rng.random() < 0.7 else structure.change_bytes(data, rng)
        try:
            target.run(data)
        except Exception as error:
            path = Path(os.environ.get("NPU_OVERFLOW_KEEP", str(tmp_path))) / name
            path.write_bytes(data)
            raise AssertionError("input %d is kept in %s" % (number, path)) from error
    target.run(b"")
    target.run(bytes(rng.randrange(256) for _ in range(3000)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="trees are damaged with what POSIX has")
@pytest.mark.parametrize("part", range(TREES // TREES_A_TEST))
def test_damaged_trees(part: int, tmp_path: Path) -> None:
    """Every reporter and every command on damaged trees; ``python -m tests.fuzz mutate --seed 0 --case N`` shows one alone."""
    changes = 0
    for number in range(part * TREES_A_TEST, (part + 1) * TREES_A_TEST):
        case, error = mutate.run_case(0, number, str(tmp_path / "case"))
        changes += len(case.done)
        if error is not None:
            raise AssertionError("case %d: %s" % (number, "; ".join(case.done))) from error
    assert changes >= TREES_A_TEST


def test_the_same_seed_damages_the_same(tmp_path: Path) -> None:
    def of(folder: str) -> object:
        case = mutate.Case(7, 3, str(tmp_path / folder))
        case.prepare()
        return case.done, [(os.path.relpath(path, case.tree), os.path.getsize(path)) for path in damage.files_of(case.tree)]

    assert of("one") == of("two")


def test_what_is_written_outside_is_noticed(tmp_path: Path) -> None:
    from fuzz.bounds import WRITES, Broken

    if not hasattr(__import__("sys"), "addaudithook"):
        pytest.skip("Python 3.8 and later can notice it")
    (tmp_path / "in").mkdir()
    with WRITES.only_in(str(tmp_path / "in")):
        (tmp_path / "in" / "file").write_bytes(b"x")
    for act in (lambda: (tmp_path / "out").write_bytes(b"x"), lambda: os.mkdir(str(tmp_path / "folder")), lambda: os.unlink(str(tmp_path / "out"))):
        with pytest.raises(Broken), WRITES.only_in(str(tmp_path / "in")):
            act()
