"""Living objects are found while other threads go on undisturbed."""
from __future__ import annotations

import gc
import re
import sys
import threading
import weakref
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from npu_overflow import living


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


@pytest.fixture
def switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_objects_of_the_classes_and_of_no_other() -> None:
    mine, other, proxy = Kind(), Derived(), Proxy()
    assert [item for item in living.instances([Kind]) if item is mine or item is other] == [mine]
    both = living.instances(living.derived([Kind]))
    assert sum(item is mine for item in both) == 1 and sum(item is other for item in both) == 1
    assert any(item is proxy for item in living.instances([Proxy]))
    assert living.instances([]) == []


def test_classes_with_a_comparison_of_their_own_are_found_by_identity() -> None:
    mine = Unhashable()
    kinds = living.derived([Kind])
    assert sum(kind is Unhashable for kind in kinds) == 1
    assert [item for item in living.instances([Unhashable])] == [mine]


def test_nothing_is_kept_alive_and_collection_is_as_before() -> None:
    class Own:
        pass

    mine = Own()
    gone = weakref.ref(mine)
    gc.collect()
    gc.disable()  # a circle of references would keep it
    try:
        assert living.instances([Own]) == [mine]
        assert not gc.isenabled()
        del mine
        assert gone() is None
    finally:
        gc.enable()
    living.instances([Own])
    assert gc.isenabled()


def test_tuples_that_other_threads_are_filling_stay_theirs(switching: None) -> None:
    stop = threading.Event()
    errors: List[BaseException] = []
    rounds = [0]

    def fill() -> None:
        try:
            while not stop.is_set():
                assert tuple(number for number in range(3)) == (0, 1, 2)
                rounds[0] += 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):  # with references held for longer than one call, one or two rounds end both threads
        assert len(living.instances([Kind])) == 0
    stop.set()
    for thread in threads:
        thread.join()
    assert not errors and rounds[0] > 100


def test_nobody_else_asks_the_garbage_collector_for_objects(package_folder: Path) -> None:
    asking = [path.name for path in sorted(package_folder.rglob("*.py")) if re.search(r"\bget_(objects|referrers|referents)\b", path.read_text("utf-8"))]
    assert asking == ["living.py"]
