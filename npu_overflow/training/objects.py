"""The living objects of given classes, found without disturbing other threads."""
from __future__ import annotations

import gc
from itertools import chain, starmap, zip_longest
from operator import itemgetter
from typing import Any, Dict, Iterable, List

__all__ = ["objects_of_type", "subclasses_of"]


def subclasses_of(roots: Iterable[type]) -> List[type]:
    """The classes and all that derive from them, each once."""
    found: Dict[int, type] = {}  # by id: a metaclass can make its classes unhashable
    waiting = list(roots)
    while waiting:
        kind = waiting.pop()
        if id(kind) not in found:
            found[id(kind)] = kind
            waiting += type.__subclasses__(kind)
    return list(found.values())


def objects_of_type(kinds: Iterable[type]) -> List[Any]:
    """All living objects of exactly these classes, of those that the garbage collector tracks.

    ``gc.get_objects`` refers to everything, also to a tuple that another thread is filling at this
    moment: its ``tuple(iterable)`` raises SystemError where it goes on while it is referred to. So
    the references are taken and given back within one call of C functions (the last line), which no
    other thread can interrupt. Everything before it is lazy. Classes are compared by the hash that
    ``object`` gives, one for each address: comparing them can be Python code, and so can ``id``,
    where the process has an audit hook.
    """
    kept = list(kinds)  # the hash is of use as long as its class lives
    identity = object.__hash__
    wanted = frozenset(map(identity, kept)).__contains__
    # holds the list for the second of two that go through it; ``tee`` would keep it in a circle
    shared: Dict[int, List[Any]] = {}
    objects = chain.from_iterable(map(shared.setdefault, [0], starmap(gc.get_objects, [()])))
    answers = map(wanted, map(identity, map(type, chain.from_iterable(map(shared.pop, [0])))))
    collecting = gc.isenabled()
    gc.disable()  # a collection can run finalizers, and they let other threads go on
    try:
        # the longest: both ends are reached, and with them the list ends
        found = list(filter(itemgetter(1), zip_longest(objects, answers)))
    finally:
        if collecting:
            gc.enable()
    return [item for item, _ in found]
