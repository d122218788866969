"""Sample trees, damaged: bytes, lengths, fields, names, places of files, links, things that are no files. All chosen by one random generator."""
from __future__ import annotations

import os
import random
import shutil
import stat
from pathlib import Path
from typing import Callable, List

from npu_overflow.dump.names import parse_name

from . import samples, structure

#: what lies beside the tree: nothing of it may ever be shown
SECRET = "secret_outside_the_tree"


def files_of(tree: str) -> List[str]:
    """Regular files below ``tree``, in order; no link is followed."""
    found = []
    for folder, folders, names in os.walk(tree):
        folders.sort()
        found += [os.path.join(folder, name) for name in sorted(names) if stat.S_ISREG(os.lstat(os.path.join(folder, name)).st_mode)]
    return found


def prepare(folder: str, rng: random.Random) -> str:
    """A fresh copy of some sample tree in ``folder``; its path."""
    tree = os.path.join(folder, "dump")
    chosen = rng.randrange(len(samples.corpus()) + 6)
    if chosen < len(samples.corpus()):
        shutil.copytree(samples.corpus()[chosen], tree)
        if rng.random() < 0.3:
            run = next((name for name in sorted(os.listdir(tree)) if name.isdigit()), "")
            samples.manifest(kept_folders=None, collector="ascend").write(os.path.join(tree, run))
    else:
        (samples.host_tree if chosen % 2 else samples.csv_tree)(tree)
    return tree


def damage(tree: str, rng: random.Random) -> List[str]:
    """Damage a tree once or more often; what was done."""
    done = []
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 5, 8))):
        files = files_of(tree)
        if not files:
            break
        way = rng.choice(WAYS)
        path = rng.choice(files)
        try:
            way(tree, path, rng)
        except (OSError, ValueError, UnicodeError) as error:  # a name that the file system refuses
            done.append("%s failed: %s" % (way.__name__, type(error).__name__))
        else:
            done.append("%s of %s" % (way.__name__, os.path.relpath(path, tree)))
    return done


def _read(path: str) -> bytes:
    """What a file holds; of one that was grown the beginning."""
    with open(path, "rb") as file:
        return file.read(1 << 20)


def _write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)


# -- what is in a file


def bytes_changed(tree: str, path: str, rng: random.Random) -> None:
    _write(path, structure.change_bytes(_read(path), rng))


def form_kept(tree: str, path: str, rng: random.Random) -> None:
    """Changed so that what reads it gets past the first check."""
    if path.endswith(".json"):
        _write(path, structure.change_json_bytes(_read(path), rng, rng.choice((1, 2, 4))))
    elif path.endswith(".csv"):
        _write(path, _table(_read(path), rng))
    else:
        _write(path, structure.change_dump(_read(path), rng))


def _table(data: bytes, rng: random.Random) -> bytes:
    rows = [row.split(",") for row in data.decode("utf-8", "replace").split("\n")]
    row = rng.choice(rows)
    row[rng.randrange(len(row))] = rng.choice([str(value) for value in structure.VALUES] + ["9" * 60, "1e400", "4x-4", "0x0", "x".join("9" * 40), '"'])
    if rng.random() < 0.2:
        rng.shuffle(rows)
    return "\n".join(",".join(row) for row in rows).encode("utf-8", "surrogatepass")


def manifest_changed(tree: str, path: str, rng: random.Random) -> None:
    manifests = [item for item in files_of(tree) if item.endswith(".json")]
    if manifests:
        form_kept(tree, rng.choice(manifests), rng)
    else:
        samples.manifest(kept_folders=[rng.choice(structure.TEXTS)], train_steps={0: rng.choice((0, 2**63))}).write(tree)


def length_forged(tree: str, path: str, rng: random.Random) -> None:
    data = _read(path)
    length = int.from_bytes(data[:8], "little")
    _write(path, (rng.choice((length + 1, max(0, length - 1), *structure.NUMBERS)) % 2**64).to_bytes(8, "little") + data[8:])


def cut(tree: str, path: str, rng: random.Random) -> None:
    os.truncate(path, rng.randrange(os.path.getsize(path) + 1))


def grown(tree: str, path: str, rng: random.Random) -> None:
    os.truncate(path, os.path.getsize(path) + rng.choice((1, 100, 1 << 20, 1 << 33)))


def spliced(tree: str, path: str, rng: random.Random) -> None:
    first, second = _read(path), _read(rng.choice(files_of(tree)))
    _write(path, first[: rng.randrange(len(first) + 1)] + second[rng.randrange(len(second) + 1) :])


# -- where a file lies


def deleted(tree: str, path: str, rng: random.Random) -> None:
    os.unlink(path)


def swapped(tree: str, path: str, rng: random.Random) -> None:
    other = rng.choice(files_of(tree))
    first, second = _read(path), _read(other)
    _write(path, second)
    _write(other, first)


def copied(tree: str, path: str, rng: random.Random) -> None:
    _write(_renamed(path, rng), _read(path))


def renamed(tree: str, path: str, rng: random.Random) -> None:
    os.rename(path, _renamed(path, rng))


def _renamed(path: str, rng: random.Random) -> str:
    folder, name = os.path.split(path)
    parsed = parse_name(name)
    parts = name.split(".")
    chosen = rng.randrange(5)
    if chosen == 0 and parsed is not None:
        parts[rng.randrange(2, len(parts))] = str(rng.choice([abs(number) for number in structure.NUMBERS]))
    elif chosen == 1:
        parts[rng.randrange(len(parts))] = rng.choice(structure.TEXTS).replace("/", "_").replace("\0", "_")[:80]
    elif chosen == 2:
        parts[rng.randrange(min(2, len(parts)))] += rng.choice(structure.TEXTS).replace("/", "_").replace("\0", "_")[:80]
    elif chosen == 3:
        others = ("108172736190", "0", "9" * 20, "session-0.json", "session-1.json", "report.json", "mapping.csv", "x.npy", ".%s.part" % name, name + ".csv")
        return os.path.join(folder, rng.choice(others))
    else:
        parts[rng.randrange(len(parts))] += rng.choice((".1", ".0.0.0.0", ".csv", ".", "..1", ".x"))
    return os.path.join(folder, ".".join(parts) or "x")


_LEVELS = (
    *(["x"], ["7"], ["20240517093011", "1", "graph", "2", "3"], ["99999999999999"]),
    *(["2" * 40], ["0"] * 50, ["20240517093010", "1", "1", "1", str(2**64)]),
)


def moved(tree: str, path: str, rng: random.Random) -> None:
    """A folder of its own, above, below or far down."""
    levels = rng.choice(_LEVELS)
    folder = os.path.join(tree if rng.random() < 0.5 else os.path.dirname(path), *levels)
    os.makedirs(folder, exist_ok=True)
    os.rename(path, os.path.join(folder, os.path.basename(path)))


def folder_renamed(tree: str, path: str, rng: random.Random) -> None:
    folder = os.path.dirname(path)
    for _ in range(rng.randrange(5)):
        folder = os.path.dirname(folder) if len(os.path.dirname(folder)) > len(tree) else folder
    if len(folder) > len(tree):
        new = rng.choice([*structure.TEXTS, "0", "1", "20240517093011", "99999999999999", str(2**64), "\xb2\u0663" * 7, "\u0663" * 14])
        os.rename(folder, os.path.join(os.path.dirname(folder), new.replace("/", "_").replace("\0", "_")[:80] or "x"))


# -- what is no file


def linked(tree: str, path: str, rng: random.Random) -> None:
    """In a file's place a link: outside, to itself, to nothing, inside, to a device."""
    outside = os.path.join(os.path.dirname(tree), SECRET)
    other = rng.choice(files_of(tree))
    target = rng.choice((os.path.join(outside, SECRET), path, "nothing", other, "/dev/zero", "/proc/self/mem", os.path.dirname(path), outside))
    os.unlink(path)
    os.symlink(target, path)


def link_added(tree: str, path: str, rng: random.Random) -> None:
    target = rng.choice((tree, "..", ".", os.path.join(os.path.dirname(tree), SECRET), "/", "/proc"))
    os.symlink(target, os.path.join(os.path.dirname(path), rng.choice(("0", "loop", "20240517093012", os.path.basename(path) + "1"))))


def piped(tree: str, path: str, rng: random.Random) -> None:
    os.unlink(path)
    if rng.random() < 0.5 and hasattr(os, "mkfifo"):
        os.mkfifo(path)
    else:
        os.mkdir(path)


WAYS: List[Callable[[str, str, random.Random], None]] = [
    *[bytes_changed] * 3, *[form_kept] * 8, *[manifest_changed] * 3, length_forged, cut, grown, spliced,
    deleted, swapped, copied, copied, renamed, renamed, moved, folder_renamed, linked, link_added, piped,
]


def put_secret(folder: str) -> None:
    """A good dump outside the tree."""
    outside = Path(folder) / SECRET
    outside.mkdir()
    tree = samples.small_tree(str(outside / "tree"))
    dump = next(path for path in files_of(tree) if os.path.basename(path).startswith("Mul."))
    data = _read(dump).replace(b"net/mul", SECRET[:7].encode())
    _write(str(outside / SECRET), data)
    shutil.rmtree(tree)
