"""Folders: where files lie, which of them make one run, which dump is a record's."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow.dump import scan
from npu_overflow.dump.folder import Folder
from npu_overflow.dump.layout import Tree, place_of
from npu_overflow.dump.names import Entry, Place, dump_name, parse_name, record_name
from npu_overflow.dump.scan import find, name_of
from npu_overflow.errors import PathError

TIME = 1715938212000000
DEEP = "20240517093010/0/ge_default_1/11/3"


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"")


@pytest.mark.parametrize(
    ("folder", "place"),
    [
        ("/d/20240517093010/0/ge_default_1/11/3", Place("20240517093010", 0, "ge_default_1", 11, 3)),
        ("/d/20240517093010123/7/model/11/3", Place("20240517093010123", 7, "model", 11, 3)),
        ("/d/20240517093010/0/model/11", Place("20240517093010", 0, "model", 11)),
        ("/d/20240517093010/0/model", Place("20240517093010", 0, "model")),
        ("/d/20240517093010/0", Place("20240517093010", 0)),
        ("/d/20240517093010/0/11/3", Place("20240517093010", 0, None, 11, 3)),
        ("/d/20240517093010/0/5/11/3", Place("20240517093010", 0, "5", 11, 3)),
        ("/d/20240517093010/model/11/3", Place("20240517093010", None, "model", 11, 3)),
        ("/d/20240517093010", Place("20240517093010")),
        ("/20230101000000/d/20240517093010/2", Place("20240517093010", 2)),
        ("/moved/0/model/11/3", Place(None, 0, "model", 11, 3)),
        ("/moved/model/x", Place()),
        ("/", Place()),
        ("/d/2024051709301x/0/model/x/y", Place()),
        ("/d/20240517093010/0/model/x/y", Place("20240517093010", 0, "model")),
    ],
)
def test_the_levels_of_a_folder(folder: str, place: Place) -> None:
    assert place_of(folder) == place


@given(st.text(max_size=60))
def test_any_text_has_a_place(text: str) -> None:
    assert isinstance(place_of("/" + text), Place)


@pytest.mark.parametrize("below", ["", "20240517093010", "20240517093010/0", "20240517093010/0/ge_default_1/11", DEEP])
def test_levels_above_the_path_come_from_where_it_lies(tmp_path: Path, below: str) -> None:
    touch(tmp_path, DEEP + "/" + record_name(1, 5, TIME))
    (entry,) = find(str(tmp_path / below)).records
    assert entry.place == Place("20240517093010", 0, "ge_default_1", 11, 3) and os.path.isabs(entry.path)


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, DEEP + "/" + record_name(1, 5, TIME))
    monkeypatch.chdir(tmp_path / DEEP)
    assert find(".").records[0].place.data_index == 3


def test_one_file(tmp_path: Path) -> None:
    record, dump = record_name(1, 5, TIME), dump_name("Mul", "a", 7, 3, TIME + 5)
    touch(tmp_path, DEEP + "/" + record, DEEP + "/" + record_name(1, 5, TIME + 9), DEEP + "/" + dump)
    tree = find(str(tmp_path / DEEP / record))
    assert [os.path.basename(entry.path) for entry in tree.records] == [record] and tree.single == tree.records[0]
    assert [os.path.basename(entry.path) for entry in tree.dumps_of(tree.records[0], 7, 3)] == [dump]
    tree = find(str(tmp_path / DEEP / dump))
    assert len(tree.records) == 2 and tree.single is not None and tree.single.name.kind == "dump"
    assert tree.runs == ["20240517093010"] and tree.select().single == tree.single


def test_what_lies_beside_dumps_and_what_is_a_problem(tmp_path: Path) -> None:
    touch(tmp_path, "20240517093010/session-0.json", "20240517093010/report.json", "report.txt", "report.html", ".hidden", ".git/config", "mapping.csv")
    touch(tmp_path, DEEP + "/" + record_name(1, 5, TIME), DEEP + "/notes.txt", DEEP + "/12345", DEEP + "/Opdebug.Node_OpDebug.x.y")
    tree = find(str(tmp_path))
    found = sorted((os.path.basename(problem.path), problem.code) for problem in tree.problems)
    assert found == [("12345", "name.hashed"), ("Opdebug.Node_OpDebug.x.y", "name.unreadable"), ("notes.txt", "name.unreadable")]


@pytest.mark.parametrize("content", [[], [".gitkeep"], ["20240517093010/session-0.json"], ["Opdebug.Node_OpDebug.x.y"]])
def test_a_folder_without_overflow_is_no_error(tmp_path: Path, content: List[str]) -> None:
    touch(tmp_path, *content)
    tree = find(str(tmp_path))
    assert not tree.records and tree.runs == [] and tree.select().run is None


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("missing", "path.missing"),
        ("file.txt/below", "path.missing"),
        ("file.txt", "path.not_a_dump"),
        ("777", "path.not_a_dump"),
        (".", "path.no_dump"),
        ("a\0b", "path.unreadable"),
    ],
)
def test_paths_that_are_none(tmp_path: Path, path: str, code: str) -> None:
    touch(tmp_path, "file.txt", "777")
    with pytest.raises(PathError) as caught:
        find(os.path.join(str(tmp_path), path))
    assert caught.value.code == code and "{" not in caught.value.message("zh")
    assert caught.value.hint()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_a_fifo_is_never_opened(tmp_path: Path) -> None:
    folder = tmp_path / DEEP
    touch(tmp_path, DEEP + "/" + record_name(1, 5, TIME))
    os.mkfifo(str(folder / record_name(1, 5, TIME + 1)))
    os.mkfifo(str(folder / "mapping.csv"))
    touch(folder, "12345")
    tree = find(str(tmp_path))
    assert len(tree.records) == 1
    assert sorted(problem.code for problem in tree.problems) == ["file.special", "file.special", "name.hashed"]
    with pytest.raises(PathError) as caught:
        find(str(folder / record_name(1, 5, TIME + 1)))
    assert caught.value.code == "path.special"


def test_links_are_not_followed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    touch(inside, DEEP + "/" + record_name(1, 5, TIME))
    touch(outside, DEEP + "/" + record_name(1, 5, TIME), "secret")
    os.symlink(str(outside), str(inside / "folder"))
    os.symlink(str(outside / "secret"), str(inside / record_name(1, 5, TIME + 1)))
    os.symlink(str(inside), str(inside / "loop"))
    os.symlink("nowhere", str(inside / "dangling"))
    tree = find(str(inside))
    assert len(tree.records) == 1
    assert sorted((os.path.basename(problem.path), problem.code) for problem in tree.problems) == [
        ("Opdebug.Node_OpDebug.1.5.%d" % (TIME + 1), "file.link"),
        ("dangling", "file.link_nowhere"),
        ("folder", "file.link"),
    ]
    os.symlink(str(inside), str(tmp_path / "door"))
    assert len(find(str(tmp_path / "door")).records) == 1
    # a link that the user names is the user's
    os.symlink(str(inside / DEEP / record_name(1, 5, TIME)), str(tmp_path / "file"))
    assert find(str(tmp_path / "file")).records[0].place.data_index == 3


def test_very_deep_folders_end(tmp_path: Path) -> None:
    touch(tmp_path, "/".join(["d"] * 60) + "/" + record_name(1, 5, TIME))
    tree = find(str(tmp_path))
    assert not tree.records and [problem.code for problem in tree.problems] == ["tree.deep"]


def test_mapping_gives_hashed_files_their_names(tmp_path: Path) -> None:
    touch(tmp_path, "123", "124", "125.csv", "126", "127")
    real = dump_name("Mul", "a", 7, 3, TIME)
    rows = ["123," + real, "123," + real, "999,Mul.gone.1.2.3", "124,no name", "124," + dump_name("Add", "b", 8, 3, TIME), "125," + real, "126," + real[:-3]]
    rows += ["126," + dump_name("Sub", "never", 1, 1, TIME), "127,../../etc/passwd", "no comma", ",", "\u00e9,\u00e9"]
    (tmp_path / "mapping.csv").write_bytes("\r\n".join(rows).encode("utf-8") + b"\r\n\xff\xfe,\0\n" + b"9" * 100000)
    tree = find(str(tmp_path))
    found = {os.path.basename(entry.path): (entry.name.kind, entry.name.op_type, entry.name.task_id) for entry in tree.dumps}
    assert found == {"123": ("dump", "Mul", 7), "124": ("dump", "Add", 8), "125.csv": ("statistics", "Mul", 7), "126": ("dump", "Mul", 7)}
    assert [(os.path.basename(problem.path), problem.code) for problem in tree.problems] == [("127", "name.hashed")]
    assert name_of(str(tmp_path / "124")) == parse_name(dump_name("Add", "b", 8, 3, TIME)) and name_of(str(tmp_path / "127")) is None


def entries(*times: str, devices: Optional[Dict[str, List[Optional[int]]]] = None) -> Tree:
    name = parse_name(record_name(1, 5, TIME))
    assert name is not None
    made = [Entry("/d/%s/%s/r" % (time, device), name, Place(time, device)) for time in times for device in (devices or {}).get(time, [0])]
    return Tree("/d", {os.path.dirname(entry.path): Folder(os.path.dirname(entry.path), entry.place, entries=[entry]) for entry in made}, [], sorted(times))


@pytest.mark.parametrize(
    ("devices", "run_ids", "expected"),
    [
        ({"20240517093010": [1], "20240517093007": [0]}, {}, {"20240517093010", "20240517093007"}),
        ({"20240517093010": [0], "20240517093007": [0]}, {}, {"20240517093010"}),
        ({"20240517093010": [1], "20240517092910": [0], "20240517092909": [2]}, {}, {"20240517093010", "20240517092910"}),
        (
            {"20240517093010": [2], "20240517093009": [1], "20240517093008": [1], "20240517093007": [0]},
            {},
            {"20240517093010", "20240517093009", "20240517093007"},
        ),
        ({"20240517093010": [0], "20240516000000": [0]}, {"20240517093010": "a", "20240516000000": "a"}, {"20240517093010", "20240516000000"}),
        ({"20240517093010": [1], "20240517093009": [0]}, {"20240517093010": "a", "20240517093009": "b"}, {"20240517093010"}),
        ({"20240517093010": [1], "20240517093009": [0]}, {"20240517093009": "b"}, {"20240517093010"}),
        ({"99999999999999": [1], "20240517093010": [0]}, {}, {"99999999999999"}),
        ({"20240517093010": [None], "20240517093009": [0]}, {}, {"20240517093010", "20240517093009"}),
    ],
)
def test_which_folders_make_the_newest_run(devices: Dict[str, Any], run_ids: Dict[str, str], expected: Set[str]) -> None:
    chosen = entries(*devices, devices=devices).select(run_ids=run_ids)
    assert set(chosen.runs) == expected and chosen.run == max(expected)
    assert {entry.place.run for entry in chosen.records} == expected


def test_a_named_run_and_all() -> None:
    tree = entries("20240101000000", "20240601000000")
    assert {entry.place.run for entry in tree.select("20240101000000").records} == {"20240101000000"}
    assert len(tree.select("all").records) == 2 and tree.select("all").run == "20240601000000"
    with pytest.raises(PathError) as caught:
        tree.select("20250101000000")
    assert "20240601000000" in str(caught.value)


def tree_of(*names: str, record: str = record_name(1, 5, TIME), folder: str = "/d") -> Tree:
    parsed = [(name, parse_name(name)) for name in (record, *names)]
    made = [Entry(folder + "/" + name, what, Place()) for name, what in parsed if what is not None]
    return Tree(folder, {folder: Folder(folder, Place(), entries=made)})


def found_by(tree: Tree, *ids: Any) -> List[str]:
    return [os.path.basename(entry.path) for entry in tree.dumps_of(tree.records[0], *ids)]


def test_the_operators_dump_by_the_ids_inside_the_record() -> None:
    near, far, other = dump_name("Mul", "a", 7, 3, TIME - 5), dump_name("Mul", "a", 7, 3, TIME + 900), dump_name("Mul", "b", 1, 5, TIME)
    assert found_by(tree_of(far, other, near), 7, 3) == [near, far]
    assert found_by(tree_of(far, other, near), 7, 4) == []
    assert found_by(tree_of(near), 9, 3) == []


def test_old_names_match_by_the_task_alone() -> None:
    old = dump_name("Mul", "a", 7, None, TIME)
    assert found_by(tree_of(old), 7, 99) == [old]


def test_names_with_the_low_bits_of_the_task() -> None:
    low = dump_name("Mul", "a", 70001 & 0xFFFF, 3, TIME)
    full = dump_name("Mul", "a", 70001, 3, TIME + 100)
    assert found_by(tree_of(low), 70001, 3) == [low]
    assert found_by(tree_of(low, full), 70001, 3) == [full]


def test_contexts_and_threads() -> None:
    names = [dump_name("Add", "a", 0, 3, TIME + thread, 4, 1, thread, 0) for thread in range(3)]
    plain = dump_name("Add", "a", 0, 3, TIME + 50)
    assert found_by(tree_of(*names), 0, 3, 1, 2) == [names[2]]
    assert found_by(tree_of(*names), 0, 3, 9, 2) == []
    assert found_by(tree_of(*names), 0, 3) == names
    assert found_by(tree_of(plain), 0, 3, 1, 2) == [plain]
    # a 0 in a record can mean none, but not where a file really has it
    assert found_by(tree_of(*names), 0, 3, 1, 0) == [names[0]]
    assert found_by(tree_of(names[2]), 0, 3, 0, 0) == [names[2]]


def test_a_dump_comes_before_statistics() -> None:
    dump = dump_name("Mul", "a", 7, 3, TIME)
    assert found_by(tree_of(dump + ".csv", dump), 7, 3) == [dump, dump + ".csv"]


def test_other_folders_do_not_count() -> None:
    tree = tree_of(dump_name("Mul", "a", 7, 3, TIME), folder="/d/1")
    assert tree.dumps_of(Entry("/d/2/r", tree.records[0].name, Place()), 7, 3) == []


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), st.integers(0, 100))
def test_the_nearest_come_first(times: List[int], when: int) -> None:
    names = {dump_name("Mul", "a", 7, 3, TIME + time): time for time in times}
    tree = tree_of(*names, record=record_name(1, 5, TIME + when))
    distances = [abs(names[name] - when) for name in found_by(tree, 7, 3)]
    assert distances == sorted(abs(time - when) for time in names.values())[:16]


def test_more_files_than_anybody_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "_MOST_FILES", 3)
    for number in range(9):
        (tmp_path / dump_name("Mul", "a", number, 3, TIME)).write_bytes(b"")
    tree = find(str(tmp_path))
    assert [(problem.code, problem.values) for problem in tree.problems] == [("tree.many", {"most": 3})]
    assert len(tree.dumps) == 4
