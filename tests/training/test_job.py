"""Rank, size and device as the launchers tell them."""
from __future__ import annotations

import json
import os
from typing import Any, Dict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npu_overflow.training.job import Ranks, prefix, rank_folder, ranks_of, shared_folder


def tf_config(kind: str, index: Any, cluster: Any) -> Dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


WORKERS = {"worker": ["a:1", "b:1", "c:1"]}
CHIEF = {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"]}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        ({}, (0, 0, 1)),
        ({"ASCEND_DEVICE_ID": "5"}, (5, 0, 1)),
        ({"ASCEND_DEVICE_ID": "3", "RANK_ID": "11", "RANK_SIZE": "16"}, (3, 11, 16)),
        ({"RANK_ID": "1", "CM_WORKER_SIZE": "2"}, (0, 1, 2)),
        # an Ascend job without a rank table must have no RANK_ID: the ranks are numbered when the devices have found each other
        ({"ASCEND_DEVICE_ID": "3", "CM_WORKER_SIZE": "8"}, (3, 3, 8)),
        ({"CM_WORKER_SIZE": "8"}, (0, 0, 8)),
        ({"ASCEND_DEVICE_ID": "5", "CM_WORKER_SIZE": "2"}, (5, 0, 2)),
        ({"CM_WORKER_SIZE": "0"}, (0, 0, 1)),
        ({"ASCEND_DEVICE_ID": "1", "CM_WORKER_SIZE": "8", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}, (1, 5, 8)),
        ({"RANK_ID": "0", "RANK_SIZE": "1"}, (0, 0, 1)),
        ({"HOROVOD_RANK": "2", "HOROVOD_SIZE": "4", "HOROVOD_LOCAL_RANK": "1"}, (1, 2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "2"}, (2, 2, 4)),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (1, 1, 2)),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "3"}, (3, 3, 4)),
        (tf_config("worker", 2, WORKERS), (0, 2, 3)),
        (tf_config("worker", 1, CHIEF), (0, 2, 3)),
        (tf_config("chief", 0, CHIEF), (0, 0, 3)),
        (tf_config("ps", 0, CHIEF), (0, 0, 1)),
        (tf_config("evaluator", 0, CHIEF), (0, 0, 1)),
        (tf_config("worker", 9, WORKERS), (0, 0, 1)),
        (tf_config("worker", "x", WORKERS), (0, 0, 1)),
        ({"TF_CONFIG": "{"}, (0, 0, 1)),
        ({"TF_CONFIG": "[]"}, (0, 0, 1)),
        ({"TF_CONFIG": '{"cluster": 5, "task": {"type": "worker"}}'}, (0, 0, 1)),
        # Ascend's own decide
        ({"RANK_ID": "1", "RANK_SIZE": "2", "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8"}, (0, 1, 2)),
        # half told, or nonsense
        ({"RANK_ID": "1"}, (0, 0, 1)),
        ({"RANK_ID": "9", "RANK_SIZE": "2"}, (0, 0, 1)),
        ({"RANK_ID": "-1", "RANK_SIZE": "2"}, (0, 0, 1)),
        ({"RANK_ID": "one", "RANK_SIZE": "two", "ASCEND_DEVICE_ID": "zero"}, (0, 0, 1)),
    ],
)
def test_rank_size_and_device(environment: Dict[str, str], place: Any) -> None:
    ranks = ranks_of(environment)
    assert (ranks.device, ranks.rank, ranks.world_size) == place


@given(st.dictionaries(st.sampled_from(["RANK_ID", "RANK_SIZE", "TF_CONFIG", "ASCEND_DEVICE_ID", "WORLD_SIZE", "RANK"]), st.text(max_size=20)))
def test_any_environment_gives_a_place(environment: Dict[str, str]) -> None:
    ranks = ranks_of(environment)
    assert 0 <= ranks.rank < ranks.world_size


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK_ID", "6")
    monkeypatch.setenv("RANK_SIZE", "8")
    assert (ranks_of().rank, ranks_of().world_size) == (6, 8)


# --- run id


@pytest.mark.parametrize(
    "job",
    [{"PMIX_NAMESPACE": "prterun-host-77@1"}, {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, {"OMPI_MCA_ess_base_jobid": "99"}, {"NPU_OVERFLOW_RUN_ID": "abc"}],
)
def test_ranks_of_one_job_share_a_run_id(job: Dict[str, str]) -> None:
    one, two = (ranks_of(dict(job, RANK_ID=rank, RANK_SIZE="2")).run_id for rank in ("0", "1"))
    assert one == two


@pytest.mark.parametrize("environment", [{}, {"SLURM_JOB_ID": "12", "SLURM_STEP_ID": "0"}, {"RANK_ID": "0", "RANK_SIZE": "2", "SLURM_JOB_ID": "12"}])
def test_else_each_process_has_its_own(environment: Dict[str, str]) -> None:
    assert ranks_of(environment).run_id != ranks_of(environment).run_id


def test_a_long_or_odd_job_name_is_hashed() -> None:
    run_id = ranks_of({"RANK_ID": "0", "RANK_SIZE": "2", "PMIX_NAMESPACE": "x\n" * 100}).run_id
    assert len(run_id) == 32 and run_id.isalnum()


# --- folders and voices


def test_each_rank_has_its_folder() -> None:
    assert rank_folder("dump", Ranks(rank=3, world_size=8)) == os.path.join("dump", "rank_3")
    assert rank_folder("dump", Ranks()) == "dump"


def test_lines_carry_the_rank_where_there_are_several() -> None:
    assert prefix(Ranks(rank=37, world_size=64)) == "[rank 37] "
    assert prefix(Ranks()) == ""


def test_the_folder_that_all_ranks_share() -> None:
    ranks = Ranks(rank=3, world_size=8)
    assert shared_folder(rank_folder("dump", ranks), ranks) == "dump"
    assert shared_folder("given", ranks) == "given"
    assert shared_folder("rank_0", Ranks()) == "rank_0"
