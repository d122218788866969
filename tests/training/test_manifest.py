"""The manifest: written whole, without secrets; read as untrusted."""
from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow import messages
from npu_overflow.training.manifest import (
    MAX_BYTES,
    Manifest,
    argv_of,
    environment_of,
    plain,
    read_manifest,
    read_manifests,
)


def sample(**changes: Any) -> Manifest:
    values: Any = {
        "run_id": "20240517093010-1234",
        "rank": 3,
        "world_size": 8,
        "device": 3,
        "hostname": "node-1",
        "pid": 1234,
        "started": 1715938210.5,
        "versions": {"tensorflow": "2.6.5", "python": "3.8.18"},
        "mode": "saturation",
        "collector": "ascend",
        "options": {"patience": 5, "at_steps": [1, 2], "min_scale": 1.0},
        "argv": ["train.py", "--batch", "32"],
        "environment": {"RANK_ID": "3"},
        "state": "collecting",
        "state_history": [(0, "watching"), (120, "collecting")],
        "optimizers": [{"name": "LossScaleOptimizer", "family": "tf_keras_2", "dynamic": True, "floor": 1.0}],
        "drops": [(120, 32768.0, 16384.0), (121, float("inf"), 1.0)],
        "rate": 0.004,
        "trigger": {"step": 120, "reason": "frequent"},
        "kept_steps": [118, 119, 120],
        "kept_folders": ["0/ge_default_20240517093010_1/1/7"],
        "train_steps": {7: 118, 8: 119},
        "folder_steps": {"0/ge_default_20240517093010_1/2/7": 121},
        "remarks": [("watch.blind", {"name": "LossScaleOptimizer"})],
        "reason": None,
        "request": {"why": "device_open_without_dump", "step": 120},
        "reports": ["report.json"],
    }
    values.update(changes)
    return Manifest(**values)


def put(folder: Path, content: Any, name: str = "session-0.json") -> Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


# --- there and back


def test_what_is_written_is_read(tmp_path: Path) -> None:
    manifest = sample()
    path = manifest.write(str(tmp_path))
    assert path == str(tmp_path / "session-3.json")
    assert os.listdir(str(tmp_path)) == ["session-3.json"]
    back = read_manifest(path)
    assert back == manifest
    assert back.folder == str(tmp_path)


JSON = st.recursive(st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3), max_leaves=8)


@given(
    drops=st.lists(st.tuples(st.integers(0, 2**40), st.floats(allow_nan=False), st.floats(allow_nan=False)), max_size=5),
    remarks=st.lists(st.tuples(st.text(), st.dictionaries(st.text(), JSON, max_size=3)), max_size=3),
    text=st.text(),
)
def test_any_value_can_be_written(tmp_path_factory: Any, drops: Any, remarks: Any, text: str) -> None:
    folder = tmp_path_factory.mktemp("run")
    sample(drops=drops, remarks=remarks, hostname=text, rate=float("nan")).write(str(folder))
    (back,) = read_manifests(str(folder))
    assert back.drops == drops
    assert [code for code, _values in back.remarks] == [code for code, _values in remarks]
    assert back.hostname == text.encode("utf-8", "surrogatepass").decode("utf-8", "surrogatepass")


def test_undecodable_arguments_can_be_written(tmp_path: Path) -> None:
    sample(argv=["train.py", os.fsdecode(b"\xff\xfe.txt")]).write(str(tmp_path))
    (back,) = read_manifests(str(tmp_path))
    assert back.argv[1].endswith(".txt")


def test_objects_in_options_become_names(tmp_path: Path) -> None:
    class Thing:
        pass

    sample(options={"on_report": plain, "optimizer": Thing(), "steps": range(3), "path": tmp_path}).write(str(tmp_path))
    (back,) = read_manifests(str(tmp_path))
    assert back.options["on_report"] == "<plain>"
    assert back.options["optimizer"].endswith("Thing>")
    assert back.options["steps"] == [0, 1, 2]
    assert back.options["path"] == str(tmp_path)


# --- writing


def test_it_moves_to_the_time_folder(tmp_path: Path) -> None:
    manifest = sample()
    manifest.write(str(tmp_path))
    run = tmp_path / "20240517093010"
    run.mkdir()
    manifest.write(str(run))
    assert read_manifests(str(tmp_path)) == []
    assert read_manifests(str(run)) == [manifest]


def test_it_leaves_the_manifest_of_another_run(tmp_path: Path) -> None:
    manifest = sample()
    manifest.write(str(tmp_path))
    other = sample(run_id="another")
    other.write(str(tmp_path))
    run = tmp_path / "20240517093010"
    run.mkdir()
    manifest.write(str(run))
    assert [item.run_id for item in read_manifests(str(tmp_path))] == ["another"]


def test_a_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = sample()
    manifest.write(str(tmp_path))

    def full(*_arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    manifest.state = "reported"
    with pytest.raises(OSError, match="the disk is full"):
        manifest.write(str(tmp_path))
    assert os.listdir(str(tmp_path)) == ["session-3.json"]
    assert read_manifests(str(tmp_path))[0].state == "collecting"


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="its folder does not exist"):
        sample().write(str(tmp_path / "missing"))


# --- secrets


@pytest.mark.parametrize(
    ("given_line", "expected"),
    [
        (["a.py", "--token", "abc", "--lr", "0.1"], ["a.py", "--token", "<redacted>", "--lr", "0.1"]),
        (["a.py", "--api-key=abc"], ["a.py", "--api-key=<redacted>"]),
        (["a.py", "--password", "--verbose"], ["a.py", "--password", "--verbose"]),
        (["a.py", "AWS_SECRET_ACCESS_KEY=abc"], ["a.py", "AWS_SECRET_ACCESS_KEY=<redacted>"]),
        (["a.py", "https://me:abc@host/data"], ["a.py", "https://<redacted>@host/data"]),
        (["a.py", "--data=s3://me:abc@host/data"], ["a.py", "--data=s3://<redacted>@host/data"]),
        (["--tokenizer=bert", "--max_tokens", "512", "--author", "me", "--keep=3"], ["--tokenizer=bert", "--max_tokens", "512", "--author", "me", "--keep=3"]),
    ],
)
def test_secrets_of_the_command_line_are_redacted(given_line: Any, expected: Any) -> None:
    assert argv_of(given_line) == expected


def test_only_relevant_variables_are_kept_and_secrets_redacted() -> None:
    environment = {"RANK_ID": "1", "HOME": "/home/me", "ASCEND_API_TOKEN": "abc", "TF_CONFIG": "{}", "MY_PASSWORD": "abc", "HCCL_IF": "http://u:p@h"}
    assert environment_of(environment) == {"RANK_ID": "1", "ASCEND_API_TOKEN": "<redacted>", "TF_CONFIG": "{}", "HCCL_IF": "http://<redacted>@h"}


def test_no_secret_reaches_the_file(tmp_path: Path) -> None:
    path = sample(argv=["a.py", "--token", "hunter2"], environment={"NPU_TOKEN": "hunter2", "OTHER_KEY": "hunter2"}).write(str(tmp_path))
    assert "hunter2" not in Path(path).read_text(encoding="utf-8")


# --- reading what others wrote


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "nonsense",
        "[" * 100_000,
        '{"rank": "3"}',
        '{"rank": true}',
        '{"rank": 1e400}',
        '{"rank": %s}' % ("9" * 100_000),
        '{"world_size": -9223372036854775809}',
        '{"mode": "other"}',
        '{"drops": [[1, 2]]}',
        '{"drops": [[1, "2", 3]]}',
        '{"drops": 5}',
        '{"options": []}',
        '{"options": {"a": %s1%s}}' % ("[" * 50, "]" * 50),
        '{"train_steps": {"../x": 1}}',
        '{"versions": {"tensorflow": 2}}',
        '{"reports": ["/etc/passwd"]}',
        '{"reports": ["a/../../../etc/passwd"]}',
        '{"hostname": "%s"}' % ("x" * 100_000),
    ],
)
def test_a_bad_manifest_is_a_problem_and_the_others_are_read(tmp_path: Path, content: str) -> None:
    put(tmp_path, content, "session-0.json")
    sample(rank=1).write(str(tmp_path))
    found = read_manifests(str(tmp_path))
    assert [item.rank for item in found] == [1]
    (problem,) = found.problems
    assert problem.file == str(tmp_path / "session-0.json")
    assert messages.known(problem.code)
    assert len(messages.say(problem.code, **problem.values)) < 300


def test_bytes_that_are_no_text_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "session-0.json").write_bytes(b"\xff\xfe{}")
    assert len(read_manifests(str(tmp_path)).problems) == 1


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with open(str(tmp_path / "session-0.json"), "wb") as file:
        file.truncate(MAX_BYTES + 1)
    (problem,) = read_manifests(str(tmp_path)).problems
    assert str(MAX_BYTES) in problem.values["reason"]


def test_links_folders_and_pipes_are_problems(tmp_path: Path) -> None:
    sample(rank=9).write(str(tmp_path))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "session-0.json").symlink_to(tmp_path / "session-9.json")
    (folder / "session-1.json").mkdir()
    os.mkfifo(str(folder / "session-2.json"))
    found = read_manifests(str(folder))
    assert found == []
    assert len(found.problems) == 3


def test_other_names_are_not_looked_at(tmp_path: Path) -> None:
    for name in ("session-x.json", "session-0.json.bak", ".session-0.json.1.part", "report.json"):
        put(tmp_path, "{", name)
    found = read_manifests(str(tmp_path))
    assert (found, found.problems) == ([], [])


def test_a_missing_folder_holds_none(tmp_path: Path) -> None:
    assert read_manifests(str(tmp_path / "missing")) == []


def test_fields_of_other_versions_are_ignored_and_missing_ones_have_defaults(tmp_path: Path) -> None:
    old = {"finding": {"op_name": "a"}, "judged": 3, "ended": True}
    put(tmp_path, {"schema": 7, "something_new": [1], "rank": 2, "rate": "nan", **old}, "session-2.json")
    (manifest,) = read_manifests(str(tmp_path))
    assert (manifest.schema, manifest.rank, manifest.state) == (7, 2, "watching")
    assert manifest.rate is not None and manifest.rate != manifest.rate


def test_ranks_come_in_order(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        sample(rank=rank).write(str(tmp_path))
    assert [item.rank for item in read_manifests(str(tmp_path))] == [0, 2, 10]


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=20))
def test_any_json_gives_a_manifest_or_a_problem(tmp_path_factory: Any, value: Any) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    names = list(sample().to_dict())
    put(folder, {name: value for name in names})
    found = read_manifests(str(folder))
    assert len(found) + len(found.problems) == 1
