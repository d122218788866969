"""From trees to reports: what the corpus doesn't hold."""
from __future__ import annotations

import inspect
import io
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
from dump_trees import CLEAN, INF, PINNED, RUN, TIME, Step, host_of, titles

from npu_overflow.analysis import opening, selection
from npu_overflow.analysis.analyzer import analyze
from npu_overflow.dump.record import Part
from npu_overflow.dump.writer import TensorSpec
from npu_overflow.errors import PathError, UsageError
from npu_overflow.report.story import tell
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.options import DEFAULT_DUMP_PATH

OTHER = np.array([[7.0, np.inf], [0.5, 4.0]], np.float16)


def chain_of_three(root: Path) -> Step:
    step = Step(root)
    step.operator("MatMul", "a/MatMul", 1, 100)
    step.operator("Relu", "a/Relu", 2, 200, [INF], [OTHER])
    step.operator("Mul", "a/Mul", 3, 300, [CLEAN, OTHER], [np.array([np.nan], np.float16)])
    return step


def test_the_chain_names_the_maker_of_each_input(tmp_path: Path) -> None:
    chain_of_three(tmp_path)
    report = analyze(str(tmp_path))
    assert titles(report) == [("a/MatMul", "computed_here"), ("a/Relu", "inherited"), ("a/Mul", "inherited")]
    assert [operator.inherited_from for operator in report.operators] == [None, "a/MatMul", "a/Relu"]
    assert [operator.advice for operator in report.operators[1:]] == [(), ()]


def test_an_input_that_nobody_made(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.operator("Mul", "a/Mul", 1, 100, [OTHER], [INF])
    first = analyze(str(tmp_path)).first
    assert first is not None and (first.verdict, first.inherited_from, first.advice) == ("inherited", None, ("constant_input",))


def test_equal_figures_are_not_equal_bytes(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.operator("MatMul", "a/MatMul", 1, 100, [CLEAN], [INF])
    step.operator("Relu", "a/Relu", 2, 200, [INF[:, ::-1].copy()], [OTHER])
    assert analyze(str(tmp_path)).operators[1].inherited_from is None


def test_the_nearest_maker_of_the_same_step(tmp_path: Path) -> None:
    for data_index, time in ((0, 100), (1, 5000)):
        step = Step(tmp_path, data_index)
        step.operator("MatMul", "a/MatMul%d" % data_index, 1, time)
        step.operator("Relu", "a/Relu", 2, time + 100, [INF], [OTHER])
    report = analyze(str(tmp_path))
    assert [operator.inherited_from for operator in report.operators] == [None, "a/MatMul0", None, "a/MatMul1"]


def test_limit_opens_the_first_finding_and_those_after_it(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.operator("AddN", "g/AddN", 1, 100, core="SDMA")
    for number in range(2, 6):
        step.operator("Mul", "m/Mul_%d" % number, number, 100 * number)
    report = analyze(str(tmp_path), limit=2)
    assert report.first_index == 1
    assert [operator.inputs is not None for operator in report.operators] == [False, True, True, False, False]
    closed = report.operators[3]
    assert (closed.op_type, closed.op_name, closed.verdict, closed.outputs, closed.advice) == ("Mul", "m_Mul_4", "unknown", None, ())
    assert closed.dump_file is not None
    assert [operator.inputs is not None for operator in analyze(str(tmp_path), limit=0).operators] == [False] * 5
    assert [operator.inputs is not None for operator in analyze(str(tmp_path), limit=5).operators] == [True] * 5


def test_steps_in_which_an_operator_overflowed(tmp_path: Path) -> None:
    for data_index, names in ((0, "ab"), (1, "ba"), (2, "b"), (3, "bb")):
        step = Step(tmp_path, data_index)
        for place, name in enumerate(names):
            step.operator("Mul", name, ord(name), 10000 * data_index + 100 * place)
    seen = {operator.op_name: (operator.steps_seen, operator.steps_first) for operator in analyze(str(tmp_path)).operators}
    assert seen == {"a": (2, 1), "b": (4, 3)}


def test_both_parts_of_an_old_record(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.record(1, 100, parts=[Part("L2 Atomic Add", 0x10000, 11, 2, 1), Part("AI Core", 0x28, 11, 2, 2)])
    step.dump("AddN", "g/AddN", 1, 100)
    step.dump("Mul", "m/Mul", 2, 110, [CLEAN], [PINNED])
    report = analyze(str(tmp_path))
    assert [(operator.core, operator.op_name) for operator in report.operators] == [("L2 Atomic Add", "g/AddN"), ("AI Core", "m/Mul")]
    assert (report.first_index, report.mode, report.records) == (1, "saturation", 1)
    assert report.operators[1].status_bits == ("0x8", "0x20")
    assert len(report.operators[1].status_text) == 2 and report.operators[0].status_text == ("atomic add: overflow",)
    assert report.operators[0].record_file == report.operators[1].record_file


def test_a_record_without_a_dump_is_one_problem(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.record(9, 100)
    report = analyze(str(tmp_path))
    first = report.first
    assert first is not None
    assert (first.op_type, first.op_name, first.verdict, first.dump_file, first.task_id) == (None, None, "unknown", None, 9)
    assert [(problem.code, problem.file) for problem in report.problems] == [("problem.no_dump", first.record_file)]
    assert "task 9" in report.problems[0].reason


def test_a_cut_dump_still_shows_what_is_whole(tmp_path: Path) -> None:
    step = Step(tmp_path)
    path = step.operator("Mul", "m/Mul", 1, 100, [INF], [CLEAN])
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) - 2)
    first = analyze(str(tmp_path)).first
    assert first is not None and first.inputs is not None and first.outputs is not None
    assert (first.verdict, first.inputs[0].pos_inf, first.outputs[0].note) == ("inherited", 1, "cut")


def test_a_dump_that_goes_away_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Step(tmp_path)
    path = step.operator("Mul", "m/Mul", 1, 100)
    count_tensors = opening.count_tensors

    def gone(opened: Any, mode: Any, workers: Any) -> Any:
        if os.path.exists(path):
            os.unlink(path)
        return count_tensors(opened, mode, workers)

    monkeypatch.setattr(opening, "count_tensors", gone)
    report = analyze(str(tmp_path))
    assert report.operators[0].verdict == "unknown"
    assert [problem.code for problem in report.problems] == ["file.gone"]


def test_remark_that_it_could_be_saturation(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.operator("Mul", "m/Mul", 1, 100, [CLEAN], [PINNED])
    report = analyze(str(tmp_path))
    assert report.operators[0].verdict == "internal"
    assert [remark.text.endswith("could be saturation mode: try --mode saturation") for remark in report.remarks] == [True]
    step.operator("Mul", "m/Mul", 1, 100, [CLEAN], [np.concatenate([PINNED, INF])])
    assert analyze(str(tmp_path)).remarks == ()


def test_devices_with_close_clocks(tmp_path: Path) -> None:
    Step(tmp_path, device=0).operator("Mul", "m/Mul", 1, 100)
    Step(tmp_path, device=3).operator("Mul", "m/Mul", 1, 5000)
    report = analyze(str(tmp_path))
    assert [remark.values["devices"] for remark in report.remarks if remark.code == "remark.clocks_close"] == ["0, 3"]
    assert [operator.device for operator in report.operators] == [0, 3]


def test_a_clock_that_was_set(tmp_path: Path) -> None:
    Step(tmp_path, 4).operator("Mul", "m/later", 1, 100)
    Step(tmp_path, 3).operator("Mul", "m/earlier", 1, 9000)
    report = analyze(str(tmp_path))
    assert [operator.op_name for operator in report.operators] == ["m/earlier", "m/later"]
    assert [(problem.code, problem.file) for problem in report.problems] == [("problem.clock_set", RUN + "/0/graph/11")]


def test_records_that_report_nothing_are_one_remark(tmp_path: Path) -> None:
    step = Step(tmp_path)
    for time in (100, 200, 300):
        step.record(1, time, parts=[Part("AIV", 0, 11, 2, 1)])
    report = analyze(str(tmp_path))
    assert (report.records, report.operators, report.first) == (3, (), None)
    assert [(remark.code, remark.values["count"]) for remark in report.remarks] == [("remark.record.nothing", 3)]


def test_statistics_instead_of_a_dump(tmp_path: Path) -> None:
    step = Step(tmp_path)
    step.record(1, 100)
    rows = [
        "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,Nan Count,Negative Inf Count,Positive Inf Count",
        "Input,0,8,DT_FLOAT16,ND,2x2,4,-2,0.875,4,0,0,0",
        "Output,0,8,DT_FLOAT16,ND,2x2,inf,0.5,1.8,4,0,0,2",
    ]
    Path(step.folder, "Mul.m_Mul.1.2.%d.csv" % (TIME + 105)).write_text("\n".join(rows) + "\n", encoding="utf-8")
    report = analyze(str(tmp_path))
    first = report.first
    assert first is not None and first.outputs is not None
    assert (first.op_type, first.op_name, first.verdict) == ("Mul", "m_Mul", "computed_here")
    assert (first.outputs[0].pos_inf, first.outputs[0].max, first.outputs[0].shape, first.outputs[0].first_overflow) == (2, float("inf"), (2, 2), None)
    assert [remark.code for remark in report.remarks] == ["remark.statistics"]


# -- one file


def test_one_record(tmp_path: Path) -> None:
    step = chain_of_three(tmp_path)
    record = step.record(3, 300)
    report = analyze(record)
    assert titles(report) == [("a/Mul", "inherited")]
    assert report.records == 1


def test_one_dump_brings_its_record(tmp_path: Path) -> None:
    step = chain_of_three(tmp_path)
    dump = step.dump("Relu", "a/Relu", 2, 200, [INF], [OTHER])
    report = analyze(dump)
    assert titles(report) == [("a/Relu", "inherited")]
    assert (report.operators[0].status, report.operators[0].dump_file) == (1, os.path.basename(dump))


def test_one_dump_without_a_record(tmp_path: Path) -> None:
    dump = Step(tmp_path).dump("Mul", "m/Mul", 1, 100)
    report = analyze(dump)
    first = report.first
    assert first is not None
    assert (first.verdict, first.core, first.status, first.record_file, first.task_id) == ("computed_here", "", 0, None, None)
    assert report.problems == ()


# -- trees of the host collector


def host_step(root: Path) -> Step:
    step = Step(root, data_index=130, model="model", model_id=1)
    harmless = host_of(role="absorbed", op_type="Log", op_name="model/mask/Log")
    step.operator("Log", "model/mask/Log", 1, 1, core="AIC", version=2, host=harmless)
    culprit = host_of(op_type="MatMul", op_name="model/fc/MatMul", location="train.py:13", location_kind="call", train_step=130, cured_by_scale=False)
    step.operator("MatMul", "model/fc/MatMul", 2, 2, core="AIC", version=2, host=culprit)
    return step


def test_a_host_tree(tmp_path: Path) -> None:
    host_step(tmp_path)
    report = analyze(str(tmp_path), limit=1)
    first = report.first
    assert first is not None and report.first_index == 1
    assert (report.mode, report.host) == ("inf_nan", {"collector": "host", "core": "CPU"})
    assert titles(report) == [("model/mask/Log", "absorbed"), ("model/fc/MatMul", "computed_here")]
    assert [operator.core for operator in report.operators] == ["CPU", "CPU"]
    assert (first.location, first.location_kind, first.phase, first.cured_by_scale) == ("train.py:13", "call", "forward", False)
    assert (first.train_step, first.step) == (130, 130)
    assert report.operators[0].advice == () and "keep_float32" in first.advice
    assert first.status_text == ("a non-finite value came out of this operator",)


def test_nothing_to_blame_on_a_host_tree(tmp_path: Path) -> None:
    step = Step(tmp_path, data_index=130)
    step.operator("Log", "model/mask/Log", 1, 1, core="AIC", version=2, host=host_of(role="absorbed"))
    report = analyze(str(tmp_path))
    assert (report.first, report.first_index, titles(report)) == (None, None, [("model/mask/Log", "absorbed")])


def test_an_origin_that_is_no_operator(tmp_path: Path) -> None:
    detail = {"name": "features", "element": [3, 1], "value": "inf"}
    step = Step(tmp_path, data_index=5)
    step.operator("Cast", "model/Cast", 1, 1, [INF], [INF], core="AIC", version=2, host=host_of(core="GPU", origin="data", origin_detail=detail))
    first = analyze(str(tmp_path)).first
    assert first is not None
    assert (first.core, first.origin, first.verdict) == ("GPU", "data", "inherited")
    assert first.origin_detail == {"name": "features", "element": [3, 1], "value": float("inf")}


def test_statistics_of_a_tensor_that_was_cut(tmp_path: Path) -> None:
    figures = {"min": -1.5, "max": "inf", "mean": 0.25, "nan": 0, "pos_inf": 7, "neg_inf": 0, "first_overflow": {"index": [900, 3], "value": "inf"}}
    cut = TensorSpec(np.zeros(8, np.float16), shape=(1000, 8), size=16)
    step = Step(tmp_path, data_index=5)
    step.operator("MatMul", "model/MatMul", 1, 1, [CLEAN], [cut], core="AIC", version=2, host=host_of(tensors={"output.0": figures}))
    report = analyze(str(tmp_path))
    first = report.first
    assert first is not None and first.outputs is not None
    assert (first.verdict, report.problems) == ("computed_here", ())
    output = first.outputs[0]
    assert (output.max, output.pos_inf, output.shape, output.note) == (float("inf"), 7, (1000, 8), "cut")
    assert output.first_overflow == {"index": [900, 3], "value": float("inf")}


@pytest.mark.parametrize(
    "host",
    [
        {},
        {"core": 3, "role": ["culprit"], "origin": {}, "phase": 1, "train_step": -4, "location": "", "tensors": [1]},
        {"origin_detail": "x", "cured_by_scale": "no", "location_kind": 1, "forward_op": []},
        {"tensors": {"output.0": {"min": "x", "max": 10**18, "nan": -1, "first_overflow": {"index": "abc"}}, "input.0": 3}},
        {"origin_detail": {"name": 4, "element": [-1], "value": []}, "train_step": 2**63, "op_name": ["x"]},
    ],
)
def test_hostile_facts_are_ignored(tmp_path: Path, host: Any) -> None:
    Step(tmp_path, data_index=5).operator("MatMul", "model/MatMul", 1, 1, core="AIC", version=2, host=host)
    report = analyze(str(tmp_path))
    assert json.loads(report.to_json())["operators"][0]["core"] == "CPU"
    assert report.operators[0].op_name == "model/MatMul"
    assert report.operators[0].origin == "operator"


def test_unfinished_steps_are_said(tmp_path: Path) -> None:
    step = host_step(tmp_path)
    step.dump("Mul", "model/Mul", 3, 3, host=host_of(), rename=False)
    report = analyze(str(tmp_path))
    assert [(remark.code, remark.values["step"]) for remark in report.remarks] == [("remark.unfinished", "130")]
    assert len(report.operators) == 2 and report.problems == ()


# -- manifests


def test_what_the_manifest_says(tmp_path: Path) -> None:
    Step(tmp_path, data_index=7).operator("Mul", "m/Mul", 1, 100, [CLEAN], [PINNED])
    manifest = Manifest(run_id="job-7", rank=2, world_size=4, device=0, mode="saturation", rate=0.2, train_steps={7: 120})
    manifest.drops = [(100, 4.0, 2.0), (120, 2.0, 1.0)]
    manifest.optimizers = [{"name": "Adam"}, {"name": "Adam"}]
    manifest.remarks = [("remark.interrupted", {"done": 1, "total": 2})]
    manifest.write(str(tmp_path / RUN))
    report = analyze(str(tmp_path))
    first = report.first
    assert first is not None
    assert (report.mode, report.rank, report.world_size, first.rank, first.train_step, first.verdict) == ("saturation", 2, 4, 2, 120, "computed_here")
    assert report.loss_scale is not None
    assert (report.loss_scale.drops[-1], report.loss_scale.rate, report.loss_scale.optimizers) == ((120, 2.0, 1.0), 0.2, ("Adam",))
    assert "scale_at_floor" in first.advice
    assert [remark.code for remark in report.remarks] == ["remark.interrupted"]
    deep = os.path.join(str(tmp_path), RUN, "0", "graph", "11", "7")
    assert analyze(deep).rank == 2


def test_hostile_remarks_of_a_manifest(tmp_path: Path) -> None:
    manifest = Manifest(reason="not_reproduced", remarks=[("remark.unfinished", {"code": 1, "self": 2, "language": 3, "step": "4"}), ("{x}", {"0": 1})])
    manifest.write(str(tmp_path))
    report = analyze(str(tmp_path))
    assert [remark.values for remark in report.remarks] == [{"step": "4"}, {"0": 1}]
    report.print(file=io.StringIO(), language="zh")


def test_an_unknown_status_of_an_atomic_addition(tmp_path: Path) -> None:
    Step(tmp_path).operator("AddN", "g/AddN", 1, 100, core="DHA Atomic Add", status=0x7700)
    assert analyze(str(tmp_path)).operators[0].status_text == ("atomic add: an overflow, unknown code 0x77",)


def test_the_manifest_wins_over_the_user(tmp_path: Path) -> None:
    Step(tmp_path).operator("Mul", "m/Mul", 1, 100, [CLEAN], [PINNED])
    Manifest(mode="inf_nan").write(str(tmp_path / RUN))
    report = analyze(str(tmp_path), mode="saturation")
    assert (report.mode, report.operators[0].verdict, [remark.code for remark in report.remarks]) == ("inf_nan", "internal", ["remark.mode_known"])


def test_ranks_of_one_job_by_run_id(tmp_path: Path) -> None:
    for run, device, run_id in (("20240517093010", 1, "job"), ("20240517080000", 0, "job"), ("20240517092959", 2, "another")):
        Step(tmp_path, run=run, device=device).operator("Mul", "m/Mul_%d" % device, 1, 100 + 20000 * device)
        Manifest(run_id=run_id, rank=device, device=device, world_size=2).write(str(tmp_path / run))
    report = analyze(str(tmp_path))
    assert [(operator.op_name, operator.rank) for operator in report.operators] == [("m/Mul_0", 0), ("m/Mul_1", 1)]
    assert (report.rank, report.world_size) == (None, 2)


def test_of_ranks_that_share_a_time_folder_a_device_is_one(tmp_path: Path) -> None:
    for device in (0, 1):
        for data_index in (0, 1):
            Step(tmp_path, data_index, device=device).operator("Mul", "m/Mul_%d_%d" % (device, data_index), 1, 100 + device)
        Manifest(rank=5 - device, device=device, world_size=8, kept_folders=["%d/graph/11/1" % device]).write(str(tmp_path / RUN))
    report = analyze(str(tmp_path / RUN / "1"))
    assert [(operator.op_name, operator.rank) for operator in report.operators] == [("m/Mul_1_1", 4)]
    assert report.rank == 4


def test_a_collection_that_found_nothing(tmp_path: Path) -> None:
    Manifest(reason="not_reproduced", collector="host", rate=0.01).write(str(tmp_path))
    report = analyze(str(tmp_path))
    assert (report.first, report.reason, report.records) == (None, "not_reproduced", 0)
    assert report.host is not None and report.loss_scale is not None


def test_a_broken_manifest_is_a_problem(tmp_path: Path) -> None:
    Step(tmp_path).operator("Mul", "m/Mul", 1, 100)
    (tmp_path / RUN / "session-0.json").write_text("{", encoding="utf-8")
    report = analyze(str(tmp_path))
    assert [(problem.code, problem.file) for problem in report.problems] == [("manifest.unreadable", RUN + "/session-0.json")]
    assert len(report.operators) == 1


# -- what is accepted


@pytest.mark.parametrize("wrong", [{"mode": "nan"}, {"limit": -1}, {"limit": True}, {"limit": "3"}])
def test_wrong_options(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(UsageError):
        analyze(str(tmp_path), **wrong)


def test_wrong_paths(tmp_path: Path) -> None:
    Step(tmp_path).operator("Mul", "m/Mul", 1, 100)
    with pytest.raises(PathError, match="nowhere"):
        analyze(str(tmp_path / "nowhere"))
    with pytest.raises(PathError, match=RUN):
        analyze(str(tmp_path), run="20200101000000")


def test_the_default_path_is_that_of_the_options() -> None:
    assert inspect.signature(analyze).parameters["path"].default == DEFAULT_DUMP_PATH


def test_an_empty_folder_holds_no_overflow(tmp_path: Path) -> None:
    report = analyze(str(tmp_path))
    assert (report.records, report.mode, report.first, report.run, report.problems) == (0, None, None, None, ())
    assert analyze(str(tmp_path), mode="saturation").mode == "saturation"


def test_an_interrupt_keeps_what_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain_of_three(tmp_path)
    count_tensors = opening.count_tensors

    def interrupted(opened: Any, mode: Any, workers: Any) -> Any:
        if opened.op_type == "Relu":
            raise KeyboardInterrupt
        return count_tensors(opened, mode, workers)

    monkeypatch.setattr(opening, "count_tensors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        analyze(str(tmp_path))
    report = analyze(str(tmp_path), progress=True)
    assert [operator.inputs is not None for operator in report.operators] == [True, False, False]
    assert [(remark.code, remark.values) for remark in report.remarks] == [("remark.interrupted", {"done": 1, "total": 3})]


def test_progress_goes_to_stderr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    chain_of_three(tmp_path)
    analyze(str(tmp_path), progress=True)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("npu_overflow.analysis.progress.QUIET", -1.0)
    monkeypatch.setattr("npu_overflow.analysis.progress.QUIET_LOG", -1.0)
    analyze(str(tmp_path), progress=True)
    captured = capsys.readouterr()
    assert captured.out == "" and "3" in captured.err


def test_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chain_of_three(tmp_path)
    monkeypatch.chdir(tmp_path)
    report = analyze(RUN)
    assert report.path == RUN
    assert report.operators[0].dump_file is not None and report.operators[0].dump_file.startswith("0/graph/11/0/MatMul.")
    shutil.rmtree(str(tmp_path / RUN))


def test_of_thousands_of_records_few_are_read_where_few_are_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "_FEW_RECORDS", 3)
    steps = [Step(tmp_path, data_index) for data_index in range(3)]
    for task in range(9):
        steps[task // 3].operator("Mul", "model/mul_%d" % task, task + 1, 100 * task, core="AICPU" if task == 0 else "AIV")
    opened: List[str] = []
    real = selection.read_record
    monkeypatch.setattr(selection, "read_record", lambda path: opened.append(path) or real(path))
    report = analyze(str(tmp_path), limit=2)
    assert report.first is not None and report.first.op_name == "model/mul_1"
    assert (report.records, len(opened), [operator.op_name for operator in report.operators]) == (9, 3, ["model/mul_0", "model/mul_1", "model/mul_2"])
    assert [(remark.code, remark.values) for remark in report.remarks] == [("remark.first_records", {"read": 3, "total": 9})]
    del opened[:]
    whole = analyze(str(tmp_path), limit=2, every_record=True)
    assert len(opened) == 9 and whole.first == report.first and len(whole.operators) == 9
    assert analyze(str(tmp_path)).remarks == whole.remarks == ()


def test_few_dumps_of_a_host_tree_are_held_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of many operators with many tensors is read in parts; the report is the same."""
    step = Step(tmp_path)
    for number in range(6):
        step.operator("Mul", "m/mul_%d" % number, number, number * 10, [CLEAN] * 3, [INF], host=host_of(op_type="Mul", op_name="m/mul_%d" % number))
    whole = analyze(str(tmp_path))
    monkeypatch.setattr(opening, "_MOST_HELD", 8)
    assert analyze(str(tmp_path)).to_json() == whole.to_json()
    assert [operator.inputs is None for operator in analyze(str(tmp_path), limit=2).operators] == [False, False, True, True, True, True]


@pytest.mark.parametrize("taken", ["_code", "code", "language", "self"])
def test_remarks_of_a_manifest_with_values_of_any_name(tmp_path: Path, taken: str) -> None:
    chain_of_three(tmp_path)
    Manifest(run_id="x", remarks=[("remark.unfinished", {taken: 1, "step": "7"})]).write(str(tmp_path / RUN))
    (remark,) = analyze(str(tmp_path)).remarks
    assert remark.code == "remark.unfinished" and remark.text.startswith("Step 7 unfinished") and remark.values == {"step": "7"}


@pytest.mark.parametrize(
    "op_type, value, result, largest, said",
    [
        ("Square", 300.0, np.inf, 9e4, "largest output is 90.?000: keep it in float32"),
        ("Reciprocal", 0.0, np.inf, None, "overflows in float32 as well"),
        ("Sqrt", 4.0, np.inf, None, "an intermediate result of the device did"),
    ],
)
def test_the_culprit_is_computed_again(
    tmp_path: Path, op_type: str, value: float, result: float, largest: Any, said: str
) -> None:
    given, got = np.float16([value]), np.float16([result])
    Step(tmp_path).operator(op_type, "a/b", 1, 100, [given], [got])
    first = analyze(str(tmp_path)).first
    assert first is not None
    assert [(trial.change, trial.largest) for trial in first.trials] == [("recomputed", largest)]
    advice = tell(analyze(str(tmp_path)), "en").advice[0]
    assert re.search(said, advice.lines[0][1]), advice
    helped = first.trials[0].finite  # CANN then keeps this operator alone in float32
    line = "a/b::InputDtype:float32,OutputDtype:float32"
    assert [text for is_code, text in advice.lines if is_code][:1] == [line] * helped
