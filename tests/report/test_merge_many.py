"""Reports of thousands of ranks: memory grows with what is shown, and bounded merging says the same as merging all."""
from __future__ import annotations

import random
import tracemalloc
from typing import Iterator, List, Optional

import pytest

from npu_overflow.report.merge import Merging, merge
from npu_overflow.report.merge_parts import First, Ranks, Seen, Some
from npu_overflow.report.model import Operator, Problem, Remark, Report, TensorSummary


def reports(ranks: int, operators: int = 6, seed: int = 0, steps: bool = False) -> Iterator[Report]:
    """One a rank, made when it is its turn."""
    chance = random.Random(seed)
    for rank in range(ranks):
        begin = chance.randrange(10**9)
        found = []
        for place in range(operators):
            tensors = (TensorSummary(0, "float16", "ND", (2, 3), min=-1.0, max=1.0),)
            found.append(
                Operator(
                    op_type="MatMul", op_name="layer_%d" % place, core="AI Core", timestamp=begin + place, task_id=place, inputs=tensors, outputs=tensors,
                    train_step=chance.randrange(50) if steps else None, record_file="r.%d" % place,
                )
            )  # fmt: skip
        yield Report(path="/dump/rank_%d" % rank, version="1", rank=rank, world_size=ranks, records=operators, first_index=1, operators=tuple(found))


def peak(ranks: int) -> int:
    tracemalloc.start()
    try:
        merging = Merging(200)
        for report in reports(ranks):
            merging.add(report, b"%08d" % report.rank)
        merged = merging.report()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert merged.records == ranks * 6 and merged.world_size == ranks
    return most


def test_memory_grows_with_operators_and_not_with_ranks() -> None:
    peak(20)  # what is loaded once
    few, many = peak(200), peak(2000)
    assert many < 1.5 * few, (few, many)


@pytest.mark.parametrize("steps", [False, True])
@pytest.mark.parametrize("most", [1, 5, 40])
def test_the_first_ones_of_all(steps: bool, most: int) -> None:
    whole, some = merge(reports(60, steps=steps)), merge(reports(60, steps=steps), most)
    assert whole.first_index is not None and some.first == whole.first
    assert (some.records, some.rank, some.world_size, some.run, some.path) == (whole.records, whole.rank, whole.world_size, whole.run, whole.path)
    assert [remark for remark in some.remarks if remark.code != "merge.left_out"] == list(whole.remarks)
    assert [operator for operator in whole.operators if operator in some.operators] == list(some.operators)
    # those that come first among the operators at or after their own report's finding
    expected = [operator for operator in whole.operators if operator.op_name != "layer_0"][:most]
    kept = [operator for operator in some.operators if operator.op_name != "layer_0"]
    assert [operator for operator in kept if operator in expected] == expected
    assert all(operator == whole.first for operator in kept if operator not in expected)
    assert len(some.operators) <= 2 * most + 1
    left_out = [remark.values for remark in some.remarks if remark.code == "merge.left_out"]
    assert left_out == [{"kept": len(some.operators), "count": 360}]


def test_operators_without_a_step_turn_the_order_to_time_however_late_they_come() -> None:
    def operator(name: str, time: int, step: Optional[int]) -> Operator:
        return Operator(op_type="Mul", op_name=name, core="AIV", timestamp=time, train_step=step, record_file=name)

    given = [
        Report(path="/a", version="1", rank=rank, first_index=0, operators=(operator("n%d" % rank, 100 - rank, rank),)) for rank in range(5)
    ]
    assert [item.op_name for item in merge(given, 2).operators] == ["n0", "n1"]
    given.append(Report(path="/a", version="1", rank=5, first_index=0, operators=(operator("late", 1000, None),)))
    merged = merge(given, 2)
    assert [item.op_name for item in merged.operators] == ["n4", "n3"] and merged.first_index == 0


def test_problems_and_remarks_are_bounded_and_what_is_left_out_is_said() -> None:
    def noisy(rank: int) -> Report:
        problems = tuple(Problem("f%d" % place, "cut") for place in range(10))
        return Report(path="/d/%d" % rank, version="1", rank=rank, problems=problems, remarks=(Remark("remark of %d" % rank),))

    merged = merge((noisy(rank) for rank in range(300)), 5)
    assert (len(merged.problems), len([remark for remark in merged.remarks if remark.code is None])) == (1000, 200)
    said = [remark.text for remark in merged.remarks if remark.code is not None]
    assert said[1:] == ["2000 more problems are not listed; the first 1000 are.", "100 more remarks are not listed; the first 200 are."]


def test_reports_can_be_added_after_a_look() -> None:
    merging = Merging(3)
    given = list(reports(4))
    for report in given[:2]:
        merging.add(report)
    assert merging.report().records == 12
    for report in given:
        merging.add(report)
    assert merging.report() == merge(given, 3) and merging.count == 4


def test_a_digest_tells_what_came_already() -> None:
    merging = Merging()
    report = next(reports(1))
    for digest in (b"one of 8", b"one of 8", b"two of 8"):
        merging.add(report, digest)
    assert merging.count == 2


@pytest.mark.parametrize("most", [0, 1, 3, None])
def test_first(most: Optional[int]) -> None:
    first: First[str] = First(most)
    for key in (5, 3, 9, 3, 1, 7, 5):
        first.add(key, "name %d" % key, str(key))
    assert [item for _, _, item in first.items()] == ["1", "3", "5", "7", "9"][:most]


def test_ranks() -> None:
    ranks, numbers = Ranks(), [0, 7, 8, 9999, 5, 7, -1, 1 << 40, 1 << 20, (1 << 20) - 1]
    for number in numbers:
        ranks.add(number)
    assert ranks.sorted() == sorted(set(numbers))


def test_some_and_seen() -> None:
    some: Some[int] = Some(2)
    for number in (1, 2, 1, 3, 4):
        some.add(number, number)
    assert (some.items(), some.left_out) == ([1, 2], 2)
    seen, digests = Seen(), [bytes([number] * 32) for number in (5, 1, 9, 5, 1)]
    answers: List[bool] = [seen.first_time(digest) for digest in digests]
    assert answers == [True, True, True, False, False]
