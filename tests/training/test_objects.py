"""Living objects are found while other threads go on undisturbed."""
from __future__ import annotations

import gc
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from npu_overflow.training import objects


class Kind:
    pass


class Derived(Kind):
    pass


class Odd(type):
    """A metaclass whose classes can't be hashed or compared."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("compared")


class Unhashable(Kind, metaclass=Odd):
    pass


class Proxy:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("asked")


def test_objects_of_the_classes_and_of_no_other() -> None:
    mine, other, proxy = Kind(), Derived(), Proxy()
    assert [item for item in objects.objects_of_type([Kind]) if item is mine or item is other] == [mine]
    both = objects.objects_of_type(objects.subclasses_of([Kind]))
    assert sum(item is mine for item in both) == 1 and sum(item is other for item in both) == 1
    assert any(item is proxy for item in objects.objects_of_type([Proxy]))
    assert objects.objects_of_type([]) == []


def test_classes_with_a_comparison_of_their_own_are_found_by_identity() -> None:
    mine = Unhashable()
    kinds = objects.subclasses_of([Kind])
    assert sum(kind is Unhashable for kind in kinds) == 1
    assert [item for item in objects.objects_of_type([Unhashable])] == [mine]


def test_nothing_is_kept_alive_and_collection_is_as_before() -> None:
    class Own:
        pass

    mine = Own()
    gone = weakref.ref(mine)
    gc.collect()
    gc.disable()  # a circle of references would keep it
    try:
        assert objects.objects_of_type([Own]) == [mine]
        assert not gc.isenabled()
        del mine
        assert gone() is None
    finally:
        gc.enable()
    objects.objects_of_type([Own])
    assert gc.isenabled()


#: with references held for longer than one call, one or two rounds of ``fill`` end both threads
FILLING = """
import sys, threading, time
from npu_overflow.training import objects

class Kind:
    pass

def fill():
    try:
        while not stop.is_set():
            assert tuple(number for number in range(3)) == (0, 1, 2)
            rounds.append(1)
    except BaseException as error:
        errors.append(error)

stop, errors, rounds, calls = threading.Event(), [], [], 0
if "hooked" in sys.argv:
    sys.addaudithook(lambda event, given: None)
sys.setswitchinterval(1e-6)  # threads take turns as often as they can
threads = [threading.Thread(target=fill) for _ in range(2)]
for thread in threads:
    thread.start()
end = time.monotonic() + 1
while time.monotonic() < end and not errors:
    assert objects.objects_of_type([Kind]) == []
    calls += 1
stop.set()
for thread in threads:
    thread.join()
print(calls, len(rounds), *map(repr, errors))
"""


@pytest.mark.parametrize("way", ["plain", "hooked"])
def test_tuples_that_other_threads_are_filling_stay_theirs(way: str) -> None:
    """In a process of its own: an audit hook stays for good, and the fewer objects there are, the more calls a second has."""
    if way == "hooked" and sys.version_info < (3, 8):
        pytest.skip("Python 3.8 and later have audit hooks")
    words = [sys.executable, "-c", FILLING, way]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    calls, rounds, *errors = done.stdout.split(" ", 2)
    assert not errors and int(calls) >= 10 and int(rounds) >= 10, done.stdout


def test_nobody_else_asks_the_garbage_collector_for_objects(package_folder: Path) -> None:
    asking = [path.name for path in sorted(package_folder.rglob("*.py")) if re.search(r"\bget_(objects|referrers|referents)\b", path.read_text("utf-8"))]
    assert asking == ["objects.py"]
