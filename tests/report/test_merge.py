"""Reports of many ranks as one."""
from __future__ import annotations

import dataclasses
from typing import Any, Optional, Tuple

import pytest
import report_samples as samples

from npu_overflow.errors import UsageError
from npu_overflow.report.merge import merge
from npu_overflow.report.model import LossScale, Operator, Problem, Remark, Report


def operator(name: str, time: int, step: Optional[int] = None, **more: Any) -> Operator:
    return Operator(op_type="MatMul", op_name=name, core="AI Core", status=32, timestamp=time, train_step=step, record_file="r.%d" % time, **more)


def report(rank: Optional[int], *operators: Operator, first: Optional[int] = 0, **more: Any) -> Report:
    more.setdefault("path", "/dump/rank_%s/1" % rank)
    index = first if operators else None
    return Report(version="1", rank=rank, world_size=64, operators=operators, first_index=index, records=len(operators), mode="saturation", **more)


def names(merged: Report) -> Tuple[Tuple[Optional[int], Optional[str]], ...]:
    return tuple((item.rank, item.op_name) for item in merged.operators)


def sentences(merged: Report) -> Tuple[str, ...]:
    return tuple(remark.text for remark in merged.remarks)


def test_the_earliest_finding_is_the_culprit_and_its_rank_is_named() -> None:
    merged = merge([report(3, operator("c", 300), operator("d", 350)), report(37, operator("a", 100), operator("b", 400)), report(5, first=None)])
    assert names(merged) == ((37, "a"), (3, "c"), (3, "d"), (37, "b"))
    assert merged.first is not None and (merged.first.op_name, merged.rank, merged.world_size, merged.records) == ("a", 37, 64, 4)
    assert sentences(merged) == (
        "rank 37 overflowed first; ranks with a finding (2): 3, 37.",
        "ranks 37 and 3 overflowed within 10 ms of each other: clocks of different machines can't tell which was first.",
        "ranks without a finding (1): 5.",
    )


def test_training_steps_go_before_clocks() -> None:
    ahead = merge([report(0, operator("late", 10**9, 50)), report(1, operator("early", 2 * 10**9, 40))])
    assert names(ahead) == ((1, "early"), (0, "late"))
    assert sentences(ahead) == ("rank 1 overflowed first; ranks with a finding (2): 0, 1.",)
    by_clock = merge([report(0, operator("late", 2 * 10**9, 40)), report(1, operator("early", 10**9, None))])
    assert names(by_clock) == ((1, "early"), (0, "late"))


def test_an_operator_before_the_primary_finding_stays_in_its_place() -> None:
    merged = merge([report(0, operator("atomic", 50), operator("a", 100), first=1), report(1, operator("b", 70 + CLOSE))])
    assert names(merged) == ((0, "atomic"), (0, "a"), (1, "b"))
    assert merged.first_index == 1


CLOSE = 10_000


def test_ranks_that_share_a_folder_list_each_operator_once() -> None:
    both = (operator("a", 100, rank=0), operator("b", 200, rank=1))
    merged = merge([report(0, *both, path="/dump/1"), report(1, *both, first=1, path="/dump/1")])
    assert names(merged) == ((0, "a"), (1, "b"))
    assert merged.first_index == 0 and merged.path == "/dump/1"


def test_files_are_relative_to_what_the_paths_have_in_common() -> None:
    merged = merge([
        report(0, operator("a", 1, dump_file="0/x"), problems=(Problem("0/y", "cut"),)),
        report(1, operator("b", 2, dump_file="1/x"), problems=(Problem("1/y", "cut"),)),
    ])
    assert merged.path == "/dump"
    assert [item.dump_file for item in merged.operators] == ["rank_0/1/0/x", "rank_1/1/1/x"]
    assert [item.file for item in merged.problems] == ["rank_0/1/0/y", "rank_1/1/1/y"]


def test_reports_without_a_rank_get_their_place_in_the_list() -> None:
    assert names(merge([report(None, operator("a", 2), path="a"), report(None, operator("b", 1), path="/b")])) == ((1, "b"), (0, "a"))


def test_nothing_found_anywhere() -> None:
    merged = merge([report(0, first=None, reason="other_rank"), report(1, first=None)])
    assert merged.first is None and merged.rank is None and merged.reason == "other_rank"
    assert sentences(merged) == ("ranks without a finding (2): 0, 1.",)


def test_the_loss_scale_is_the_longest_history_the_highest_rate_the_first_trigger_and_all_kept_steps() -> None:
    scales = [
        LossScale(((1, 2.0, 1.0),), 0.1, ("A",), 9, (9, 11)),
        LossScale(((1, 4.0, 2.0), (2, 2.0, 1.0)), None, ("A", "B"), 7, (7, 9)),
        LossScale(),
    ]
    merged = merge([report(rank, operator("a", rank), loss_scale=scale) for rank, scale in enumerate(scales)])
    assert merged.loss_scale == LossScale(((1, 4.0, 2.0), (2, 2.0, 1.0)), 0.1, ("A", "B"), 7, (7, 9, 11))


def test_every_fact_of_one_report_outlives_merging_with_a_silent_one() -> None:
    """Whatever a report says of its loss scale and its host is there afterwards."""
    full = {"drops": ((1, 4.0, 2.0),), "rate": 0.5, "optimizers": ("A",), "trigger_step": 3, "kept_steps": (3, 4)}
    assert set(full) == {item.name for item in dataclasses.fields(LossScale)}
    for order in (1, -1):
        given = [report(0, operator("a", 1), loss_scale=LossScale(**full), host={"versions": {"tensorflow": "2"}}), report(1, first=None)]
        merged = merge(given[::order])
        assert merged.loss_scale is not None and dataclasses.asdict(merged.loss_scale) == full
        assert merged.host == {"versions": {"tensorflow": "2"}} and merged.mode == "saturation"


def test_the_same_report_twice_counts_once() -> None:
    one = report(0, operator("a", 1))
    assert merge([one, dataclasses.replace(one)]).records == 1


def test_none_is_wrong_usage() -> None:
    with pytest.raises(UsageError, match=r"There is no report to merge\."):
        merge([])


def test_it_is_a_report_like_any_other() -> None:
    whole = Report(path="/dump/a", version="1", operators=(samples.CULPRIT, samples.INHERITED), first_index=0, rank=3, world_size=8)
    merged = merge([whole, report(4, first=None)])
    again = Report.from_json(merged.to_json())
    assert again.first is not None and again.first.op_name == samples.CULPRIT.op_name and again.rank == 3


def test_problems_and_remarks_of_many_reports_stand_once() -> None:
    """By what they say: long lists are not searched once for each."""
    problems = tuple(Problem("file %d" % number, "The file is empty.", "file.empty", {"x": [number]}) for number in range(8000))
    remarks = tuple(Remark("remark %d" % number, "of_a_later_version", {"x": {"y": number}}) for number in range(8000))
    merged = merge([Report("d", "0", rank=rank, problems=problems, remarks=remarks) for rank in (0, 1)])
    assert merged.problems == problems
    assert merged.remarks[-8000:] == remarks and len(merged.remarks) < 8010


@pytest.mark.parametrize("own", [None, 0])
def test_a_finding_of_another_rank_than_its_report(own: Optional[int]) -> None:
    """Ranks that share a folder: its report is of none or of one, its operators are each of their own."""
    shared = dataclasses.replace(report(own, operator("a", 5, rank=7)), mode="inf_nan")
    merged = merge([report(1, operator("b", 9)), shared])
    assert names(merged) == ((7, "a"), (1, "b"))
    assert (merged.rank, merged.mode, merged.first_index, merged.records) == (7, "inf_nan", 0, 2)
