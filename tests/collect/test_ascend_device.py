"""Configuring the dump, on the double of the vendor's package; and the double's own options, each line of how the real ones behave."""
from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest
from fake_npu_device import adapter

from npu_overflow.collect.ascend.device import (
    configure_at_open,
    configure_overflow,
    configured_dump_path,
    is_device_open,
    npu_device_dump_config,
    open_device,
    ranks_now,
)
from npu_overflow.errors import CannotCollect, PathError, UsageError


@pytest.fixture
def npu_device() -> Iterator[Any]:
    with adapter.loaded() as module:
        module._device.keep_context = True
        yield module


@pytest.fixture
def old_npu_device() -> Iterator[Any]:
    with adapter.loaded("old") as module:
        module._device.keep_context = True
        yield module


# --- the double behaves as the adapter does


def test_an_unknown_option_is_an_error(npu_device: Any) -> None:
    # "Setting an unknown name: ValueError: NpuDumpConfig has no option NAME, all options [...]"
    with pytest.raises(ValueError, match=r"^NpuDumpConfig has no option dump_everything, all options \['enable_dump', .*\]$"):
        npu_device.global_options().dump_config.dump_everything = True


def test_a_wrong_value_is_an_error(npu_device: Any) -> None:
    # "A value outside the list: ValueError: 'x' not in optional list [...], or TypeError: Expected bool, got str"
    dump = npu_device.global_options().dump_config
    with pytest.raises(ValueError, match=r"^'x' not in optional list \['input', 'output', 'all'\]$"):
        dump.dump_mode = "x"
    with pytest.raises(TypeError, match=r"^Expected bool, got str$"):
        dump.enable_dump_debug = "1"


def test_reading_gives_strings(npu_device: Any) -> None:
    # "Reading gives an object with .value (a string or None). as_dict() is flat, strings only, booleans as "1" and "0""
    options = npu_device.global_options()
    assert (options.dump_config.enable_dump.value, options.dump_config.dump_path.value) == ("0", None)
    options.dump_config.enable_dump = True
    assert options.as_dict()["enable_dump"] == "1"
    assert all(isinstance(value, str) for value in options.as_dict().values())
    assert npu_device.global_options() is options


def test_the_debug_level_once_set_stays_and_warns(npu_device: Any, capsys: Any) -> None:
    # "absent from as_dict() until set; once set, every open() prints a warning to stdout, and it can't be unset"
    options = npu_device.global_options()
    assert "op_debug_level" not in options.as_dict()
    options.op_debug_level = 4
    with pytest.raises(ValueError, match="not in optional list"):
        options.op_debug_level = None
    npu_device.open()
    assert "Option 'op_debug_level' is deprecated" in capsys.readouterr().out


def test_both_dumps_together_are_refused(npu_device: Any) -> None:
    # "enable_dump and enable_dump_debug together is an error"
    dump = npu_device.global_options().dump_config
    dump.enable_dump = dump.enable_dump_debug = True
    with pytest.raises(RuntimeError, match="cannot be enabled at the same time"):
        npu_device.open()


def test_a_second_open_returns_the_same_handle(npu_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # "A second open() returns the same handle. open(other) raises RuntimeError"
    monkeypatch.setenv("ASCEND_DEVICE_ID", "3")
    handle = npu_device.open()
    assert handle.name().endswith(":3") and npu_device.open() is handle and npu_device.open(3) is handle
    with pytest.raises(RuntimeError, match=r"^Failed create npu instance on device 0 as existed instance on \[3\]$"):
        npu_device.open(0)


def test_options_are_read_once(npu_device: Any) -> None:
    # "reads the options ONCE; what is set later changes as_dict() and not the device"
    npu_device.open()
    npu_device.global_options().dump_config.enable_dump_debug = True
    assert npu_device.global_options().as_dict()["enable_dump_debug"] == "1"
    assert not npu_device._device.dumping()


def test_closing_and_opening_gives_the_stale_handle(npu_device: Any) -> None:
    # "close() + open() returns the stale handle with the engine down"
    handle = npu_device.open()
    npu_device.npu_device.close()
    assert npu_device.open() is handle
    assert not npu_device._device._running


def test_two_sizes_exclude_each_other(npu_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # "RANK_SIZE or CM_WORKER_SIZE (not both)"
    monkeypatch.setenv("RANK_SIZE", "2")
    monkeypatch.setenv("CM_WORKER_SIZE", "2")
    with pytest.raises(ValueError, match="cannot be configured at the same time"):
        npu_device.open()


@pytest.mark.parametrize(
    ("environment", "refused"),
    [
        ({"RANK_SIZE": "2"}, "CM_CHIEF_IP and RANK_TABLE_FILE are all not be configured."),
        ({"RANK_SIZE": "2", "RANK_TABLE_FILE": "table.json"}, "You must specify rank id by set env RANK_ID in distribution mode"),
        ({"CM_WORKER_SIZE": "2", "CM_CHIEF_IP": "10.0.0.1"}, "You must specify cm chief port by set env CM_CHIEF_PORT in distribution mode"),
        ({"RANK_SIZE": "2", "RANK_TABLE_FILE": "table.json", "CM_CHIEF_IP": "10.0.0.1"}, "cannot be configured at the same time"),
    ],
)
def test_several_ranks_need_a_table_or_a_chief(npu_device: Any, environment: Any, refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # "Environment: ASCEND_DEVICE_ID (default 0), RANK_SIZE or CM_WORKER_SIZE (not both), RANK_ID, RANK_TABLE_FILE, CM_CHIEF_IP…"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RuntimeError, match=refused):
        npu_device.open()


def test_older_adapters_lack_options(old_npu_device: Any) -> None:
    # "Older versions lack some", and know one kind of error
    dump = old_npu_device.global_options().dump_config
    assert not hasattr(dump, "dump_data") and dump.dump_debug_mode.value is None
    assert not hasattr(old_npu_device, "is_inf_nan_enabled") and not hasattr(old_npu_device, "set_device_sat_mode")
    with pytest.raises(ValueError, match=r"^'1' not in optional list \[True, False\]$"):
        dump.enable_dump_debug = "1"


def test_an_adapter_that_keeps_its_devices_elsewhere_is_asked_for_the_default(npu_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(npu_device.npu_device, "_npu_device_instances")
    answers = [None, object()]
    monkeypatch.setattr(npu_device.npu_device, "global_npu_ctx", lambda: answers.pop(0))
    assert [is_device_open(npu_device), is_device_open(npu_device)] == [False, True]


# --- overflow


@pytest.mark.parametrize("action", ["overflow", "dump"])
def test_only_options_that_are_there_are_set(npu_device: Any, action: str) -> None:
    # "Older versions lack some: set only what is there." Setting another is a ValueError.
    dump = npu_device.global_options().dump_config
    for name in ("dump_debug_mode", "dump_step", "dump_mode"):
        dump._fixed_attrs.remove(name)
        del dump.__dict__[name]
    npu_device_dump_config(npu_device, action)
    assert npu_device.global_options().as_dict()["enable_dump_debug" if action == "overflow" else "enable_dump"] == "1"
    assert not {"dump_debug_mode", "dump_step", "dump_mode"} & set(npu_device.global_options().as_dict())


def test_overflow_is_configured(npu_device: Any, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert npu_device_dump_config(npu_device) is npu_device
    options = npu_device.global_options().as_dict()
    path = str(tmp_path / "precision_data" / "overflow" / "dump")
    assert (options["enable_dump_debug"], options["enable_dump"], options["dump_path"], options["dump_debug_mode"]) == ("1", "0", path, "all")
    assert os.path.isdir(path) and os.listdir(path) == []
    assert "op_debug_level" not in options
    assert configured_dump_path(npu_device) == path
    graphs = str(tmp_path / "precision_data" / "npu" / "debug_0" / "graph")
    assert [os.environ[name] for name in ("DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_PATH", "NPU_DUMP_GRAPH")] == ["2", "3", graphs, "true"]


@pytest.fixture(autouse=True)
def graph_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DUMP_GE_GRAPH", "DUMP_GRAPH_LEVEL", "DUMP_GRAPH_PATH", "NPU_DUMP_GRAPH"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


def test_old_adapters_get_the_debug_level(old_npu_device: Any) -> None:
    npu_device_dump_config(old_npu_device, "overflow")
    assert old_npu_device.global_options().as_dict()["op_debug_level"] == "4"


def test_what_the_user_set_for_graphs_stays(npu_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DUMP_GE_GRAPH", "1")
    npu_device_dump_config(npu_device)
    assert os.environ["DUMP_GE_GRAPH"] == "1"


def test_twice_is_harmless_before_and_after_open(npu_device: Any, recwarn: Any) -> None:
    npu_device_dump_config(npu_device)
    before = npu_device.global_options().as_dict()
    npu_device_dump_config(npu_device)
    npu_device.open()
    npu_device_dump_config(npu_device)
    assert npu_device.global_options().as_dict() == before
    assert len(recwarn) == 0


def test_after_open_it_says_that_it_comes_too_late(npu_device: Any) -> None:
    npu_device.open()
    with pytest.warns(RuntimeWarning, match=r"open already.*before npu_device\.open\(\)"):
        assert npu_device_dump_config(npu_device) is npu_device
    assert npu_device.global_options().as_dict()["enable_dump_debug"] == "0"
    assert configured_dump_path(npu_device) is None


def test_after_open_another_path_comes_too_late(npu_device: Any, tmp_path: Path) -> None:
    npu_device_dump_config(npu_device)
    npu_device.open()
    with pytest.warns(RuntimeWarning, match="open already"):
        npu_device_dump_config(npu_device, dump_path=str(tmp_path / "other"))
    assert configured_dump_path(npu_device) == str(tmp_path / "precision_data" / "overflow" / "dump")


def test_after_close_it_is_too_late_too(npu_device: Any) -> None:
    npu_device.open()
    npu_device.npu_device.close()
    with pytest.warns(RuntimeWarning, match="open already"):
        npu_device_dump_config(npu_device)


def test_each_rank_has_its_folder(npu_device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "1")
    monkeypatch.setenv("RANK_SIZE", "2")
    npu_device_dump_config(npu_device)
    assert configured_dump_path(npu_device) == str(tmp_path / "precision_data" / "overflow" / "dump" / "rank_1")
    npu_device_dump_config(npu_device, dump_path="mine")
    assert configured_dump_path(npu_device) == str(tmp_path / "mine")


def test_exception_dump_is_warned_of(npu_device: Any) -> None:
    npu_device.global_options().enable_exception_dump = 1
    with pytest.warns(RuntimeWarning, match="enable_exception_dump is 1"):
        npu_device_dump_config(npu_device)


def test_little_room_is_warned_of(npu_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**10, 10**10 - 10**8, 10**8))  # type: ignore[attr-defined]
    with pytest.warns(RuntimeWarning, match=r"only 0\.1 GB are free"):
        npu_device_dump_config(npu_device)


def test_a_path_that_is_a_file_is_an_error(npu_device: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PathError, match="can't be written"):
        npu_device_dump_config(npu_device, dump_path="file")
    assert configured_dump_path(npu_device) is None


def test_a_path_that_cannot_be_written_is_an_error(npu_device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_options: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(PathError, match="Read-only file system"):
        npu_device_dump_config(npu_device)


def test_the_other_dump_is_in_the_way(npu_device: Any) -> None:
    npu_device.global_options().dump_config.enable_dump = True
    with pytest.raises(CannotCollect, match="enable_dump is on"):
        npu_device_dump_config(npu_device)


def test_an_adapter_without_overflow_dump(npu_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npu_device, "global_options", lambda: type("Options", (), {"dump_config": object()})())
    with pytest.raises(CannotCollect, match="no overflow dump"):
        npu_device_dump_config(npu_device)


def test_the_first_adapters_have_no_options_of_the_process(npu_device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # they took their options as an argument of open()
    monkeypatch.delattr(npu_device, "global_options")
    for action, message in (("overflow", "no overflow dump"), ("dump", "no option dump_config.enable_dump"), ("fusion_off", "no option fusion_switch_file")):
        with pytest.raises(CannotCollect, match=message):
            npu_device_dump_config(npu_device, action)
    assert configured_dump_path(npu_device) is None


def test_without_a_rank_table_the_open_device_tells_the_rank(npu_device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # "RANK_SIZE or CM_WORKER_SIZE (not both)": there is no RANK_ID beside the latter
    chief = {"CM_CHIEF_IP": "10.0.0.1", "CM_CHIEF_PORT": "6000", "CM_CHIEF_DEVICE": "0", "CM_WORKER_IP": "10.0.0.2"}
    for name, value in {"CM_WORKER_SIZE": "16", "ASCEND_DEVICE_ID": "3", **chief}.items():
        monkeypatch.setenv(name, value)
    npu_device_dump_config(npu_device)
    assert configured_dump_path(npu_device) == str(tmp_path / "precision_data" / "overflow" / "dump" / "rank_3")
    assert (ranks_now().rank, ranks_now().world_size) == (3, 16)
    npu_device._device.worker_id = 11  # the fourth device of the second machine
    npu_device.open()
    assert (ranks_now().device, ranks_now().rank, ranks_now().world_size) == (3, 11, 16)


# --- the other actions


def test_dump_is_configured(npu_device: Any, tmp_path: Path) -> None:
    npu_device_dump_config(npu_device, "dump")
    options = npu_device.global_options().as_dict()
    path = str(tmp_path / "precision_data" / "npu" / "debug_0" / "dump")
    assert [options[name] for name in ("enable_dump", "enable_dump_debug", "dump_path", "dump_step", "dump_mode")] == ["1", "0", path, "0", "all"]
    assert os.path.isdir(path)
    with pytest.raises(CannotCollect, match="enable_dump is on"):
        configure_overflow(npu_device, path)


def test_fusion_off(npu_device: Any) -> None:
    npu_device_dump_config(npu_device, "overflow|fusion_off")
    path = npu_device.global_options().as_dict()["fusion_switch_file"]
    assert json.loads(Path(path).read_text()) == {"Switch": {"GraphFusion": {"ALL": "off"}, "UBFusion": {"ALL": "off"}}}
    assert npu_device.global_options().as_dict()["enable_dump_debug"] == "1"


def test_the_fusion_switch_file_is_the_users_to_edit(npu_device: Any) -> None:
    npu_device_dump_config(npu_device, "fusion_switch")
    path = Path(npu_device.global_options().as_dict()["fusion_switch_file"])
    assert json.loads(path.read_text()) == {"Switch": {"GraphFusion": {}, "UBFusion": {}}}
    path.write_text("edited")
    npu_device_dump_config(npu_device, "fusion_switch")
    assert path.read_text() == "edited"
    assert npu_device.global_options().as_dict()["enable_dump_debug"] == "0"


@pytest.mark.parametrize("action", ["overflow|dump", "dump|overflow", "fusion_off|fusion_switch", "all", "", "overflow|", 5])
def test_wrong_actions(npu_device: Any, action: Any) -> None:
    with pytest.raises(ValueError, match=r"exclude each other|accepted: overflow, dump, fusion_off, fusion_switch") as raised:
        npu_device_dump_config(npu_device, action)
    assert isinstance(raised.value, UsageError)
    assert npu_device.global_options().as_dict()["enable_dump_debug"] == "0"


ENVIRONMENTS: List[Tuple[Any, Tuple[str, str]]] = [
    ({}, ("0", "0")),
    ({"PRECISION_TOOL_OVERFLOW": "True"}, ("0", "1")),
    ({"PRECISION_TOOL_DUMP": "True"}, ("1", "0")),
    ({"PRECISION_TOOL_DUMP": "1"}, ("0", "0")),
]


@pytest.mark.parametrize(("environment", "expected"), ENVIRONMENTS)
def test_the_environment_decides_where_no_action_is_given(npu_device: Any, environment: Any, expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert npu_device_dump_config(npu_device, None) is npu_device
    options = npu_device.global_options().as_dict()
    assert (options["enable_dump"], options["enable_dump_debug"]) == expected


# --- at open


def test_a_script_that_cannot_be_changed_is_configured_when_it_opens(npu_device: Any, tmp_path: Path) -> None:
    said: List[str] = []
    original = npu_device.open
    undo = configure_at_open(npu_device, str(tmp_path / "dump"), lambda code, **values: said.append(code))
    assert not is_device_open(npu_device) and open_device(npu_device) is None
    npu_device.open(2)
    assert is_device_open(npu_device) and open_device(npu_device) == 2
    assert npu_device._device.dumping() and said == []
    undo()
    assert npu_device.open is original and npu_device.npu_device.open is original


def test_opening_goes_on_where_configuring_fails(npu_device: Any, tmp_path: Path) -> None:
    said: List[str] = []
    (tmp_path / "file").write_text("")
    configure_at_open(npu_device, str(tmp_path / "file"), lambda code, **values: said.append(code))
    npu_device.open()
    assert is_device_open(npu_device) and said == ["dump_config.unwritable"]


def test_what_the_script_configured_by_itself_stays(npu_device: Any, tmp_path: Path) -> None:
    configure_at_open(npu_device, str(tmp_path / "ours"), lambda code, **values: None)
    npu_device.global_options().dump_config.enable_dump_debug = True
    npu_device.global_options().dump_config.dump_path = "theirs"
    npu_device.open()
    assert configured_dump_path(npu_device) == str(tmp_path / "theirs")


def test_an_open_that_somebody_replaced_since_stays(npu_device: Any, tmp_path: Path) -> None:
    undo = configure_at_open(npu_device, str(tmp_path), lambda code, **values: None)
    theirs = lambda: None  # noqa: E731
    npu_device.open = theirs
    undo()
    assert npu_device.open is theirs


def test_nothing_is_imported_to_look() -> None:
    assert not is_device_open()
    assert (open_device(), configured_dump_path()) == (None, None)


# --- what is said, word for word

TOO_LATE = (
    "The device is open already; it reads its options once, when it opens, so the dump can't be switched on any more. "
    "Call npu_overflow.npu_device_dump_config(npu_device) before npu_device.open() and start the training anew."
)
LITTLE_ROOM = "only 0.1 GB are free for the dump in {path}; the dump of one step can have gigabytes."
EXCEPTION_DUMP = "enable_exception_dump is 1: on networks with dynamic shapes this disables the overflow dump. Leave it at its default, 2."


def _open(npu_device: Any, monkeypatch: Any) -> None:
    npu_device.open()


def _little_room(npu_device: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**10, 10**10 - 10**8, 10**8))  # type: ignore[attr-defined]


def _exception_dump(npu_device: Any, monkeypatch: Any) -> None:
    npu_device.global_options().enable_exception_dump = 1


@pytest.mark.parametrize(("prepare", "message"), [(_open, TOO_LATE), (_little_room, LITTLE_ROOM), (_exception_dump, EXCEPTION_DUMP)])
def test_warnings_word_for_word(npu_device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Any, message: str) -> None:
    prepare(npu_device, monkeypatch)
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        npu_device_dump_config(npu_device, dump_path="dump")
    said = [(item.category, str(item.message)) for item in given]
    assert said == [(RuntimeWarning, message.format(path=tmp_path / "dump"))]
    assert given[0].filename == __file__  # the line that called it


OTHER_DUMP = (
    "The option dump_config.%s is on; the device refuses the dump of all operators and the overflow dump together. Switch it off before npu_device.open()."
)
UNWRITABLE = "{path} can't be written: {reason}. Give another dump_path; it must be readable and writable, on a disk with room."


def _no_overflow_dump(npu_device: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(npu_device, "global_options", lambda: type("Options", (), {"dump_config": object()})())


def _enable(name: str) -> Any:
    return lambda npu_device, monkeypatch: setattr(npu_device.global_options().dump_config, name, True)


def _nothing(npu_device: Any, monkeypatch: Any) -> None:
    pass


def _a_file(npu_device: Any, monkeypatch: Any) -> None:
    Path("dump").write_text("")


ERRORS: List[Any] = [
    (_nothing, "all", UsageError, "Unknown action 'all'; accepted: overflow, dump, fusion_off, fusion_switch, several joined with '|'."),
    (_nothing, "overflow|dump", UsageError, "'overflow' and 'dump' exclude each other. Choose one of them."),
    (_nothing, "fusion_off|fusion_switch", UsageError, "'fusion_off' and 'fusion_switch' exclude each other. Choose one of them."),
    (_no_overflow_dump, "overflow", CannotCollect,
     "This version of npu_device has no overflow dump (no option dump_config.enable_dump_debug). Install a newer one."),
    (_no_overflow_dump, "fusion_off", CannotCollect, "This version of npu_device has no option fusion_switch_file."),
    (_enable("enable_dump"), "overflow", CannotCollect, OTHER_DUMP % "enable_dump"),
    (_enable("enable_dump_debug"), "dump", CannotCollect, OTHER_DUMP % "enable_dump_debug"),
    (_a_file, "overflow", PathError, UNWRITABLE),
]


@pytest.mark.parametrize(("prepare", "action", "kind", "message"), ERRORS)
def test_errors_word_for_word(npu_device: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prepare: Any, action: str, kind: Any, message: str) -> None:
    prepare(npu_device, monkeypatch)
    with pytest.raises(kind) as raised:
        npu_device_dump_config(npu_device, action, "dump")
    assert str(raised.value) == message.format(path=tmp_path / "dump", reason=os.strerror(17))
    assert "�" not in raised.value.message("zh") != raised.value.message("en")
