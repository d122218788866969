"""This process in its job, from the environment: which rank of how many it is, on which device.

Launchers tell it in different ways. They are asked in the order of ``_LAUNCHERS``; the first that
tells a rank and a size decides. Ascend's own variables come first: on an NPU they are what the
device itself goes by. An Ascend job without a rank table (CM_CHIEF_IP, CM_WORKER_SIZE …) has no
RANK_ID: the ranks are numbered when the devices have found each other. There the size is told, and
until the device is open its id stands for the rank.
"""
from __future__ import annotations

import hashlib
import json
import os
import time
import uuid
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Optional, Tuple

__all__ = [
    "Ranks",
    "numbered_by_device",
    "prefix",
    "rank_folder",
    "ranks_of",
    "shared_folder",
]

#: (name of the rank, names of the size); TF_CONFIG is asked between Ascend's and the others
_ASCEND: Tuple[str, Tuple[str, ...]] = ("RANK_ID", ("RANK_SIZE", "CM_WORKER_SIZE"))
_LAUNCHERS: Tuple[Tuple[str, Tuple[str, ...]], ...] = (
    ("HOROVOD_RANK", ("HOROVOD_SIZE",)),
    ("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    ("PMI_RANK", ("PMI_SIZE",)),
    ("RANK", ("WORLD_SIZE",)),
    ("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
)
_DEVICES = (
    *("ASCEND_DEVICE_ID", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    *("LOCAL_RANK", "SLURM_LOCALID"),
)

#: variables that are the same in all ranks of one start of a job, and differ between starts
_JOBS: Tuple[Tuple[str, ...], ...] = (
    ("NPU_OVERFLOW_RUN_ID",),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("TORCHELASTIC_RUN_ID",),
)


@dataclass(frozen=True)
class Ranks:
    """This process among its job.

    Args:
        device: id of the device on this machine, 0 where nothing tells.
        rank: from 0.
        world_size: ranks in the job.
        run_id: the same in all ranks of one start of a job where the launcher tells one, else of
            this process alone.
    """

    device: int = 0
    rank: int = 0
    world_size: int = 1
    run_id: str = ""

    @property
    def several(self) -> bool:
        return self.world_size > 1


def ranks_of(environment: Optional[Mapping[str, str]] = None) -> Ranks:
    """Device, rank, size and run id from ``environment`` (default: this process's). Values that
    make no sense are ignored."""
    variables = os.environ if environment is None else environment
    device = _first_number(variables, _DEVICES) or 0
    rank, size = _told(variables) or _by_device(variables, device)
    return Ranks(device, rank, size, _run_id(variables, size))


def numbered_by_device(environment: Optional[Mapping[str, str]] = None) -> bool:
    """Whether the rank is told by nothing but the device, once it is open."""
    variables = os.environ if environment is None else environment
    return _told(variables) is None and _by_device(variables, 0)[1] > 1


def rank_folder(dump_path: str, ranks: Ranks) -> str:
    """The folder of one rank under the default dump path: with several ranks ``/rank_{id}`` is
    added. A path that the user gave stays as it is."""
    return os.path.join(dump_path, "rank_%d" % ranks.rank) if ranks.several else dump_path


def prefix(ranks: Ranks) -> str:
    """What stands before each printed line: "[rank 37] " with several ranks, else nothing."""
    return "[rank %d] " % ranks.rank if ranks.several else ""


def shared_folder(dump_path: str, ranks: Ranks) -> str:
    """What holds the folders of all ranks: the dump path, or the one above a rank's own."""
    own = ranks.several and os.path.basename(dump_path) == "rank_%d" % ranks.rank
    return os.path.dirname(dump_path) if own else dump_path


def _told(variables: Mapping[str, str]) -> Optional[Tuple[int, int]]:
    """(rank, world size) where a launcher tells both."""
    others = [_from_pair(variables, pair) for pair in _LAUNCHERS]
    for place in (_from_pair(variables, _ASCEND), _from_tf_config(variables), *others):
        if place is not None and place[1] > 1:
            return place
    return None


def _by_device(variables: Mapping[str, str], device: int) -> Tuple[int, int]:
    """(rank, world size) where at most the size is told."""
    size = _number(variables, "CM_WORKER_SIZE") or 1
    return (device if device < size else 0), size


def _from_pair(
    variables: Mapping[str, str], names: Tuple[str, Tuple[str, ...]]
) -> Optional[Tuple[int, int]]:
    rank = _number(variables, names[0])
    size = _first_number(variables, names[1])
    if rank is None or size is None or rank >= size:
        return None
    return rank, size


def _from_tf_config(variables: Mapping[str, str]) -> Optional[Tuple[int, int]]:
    """Rank and size of a ``MultiWorkerMirroredStrategy``: the chief first, then the workers;
    evaluators and parameter servers are no ranks."""
    try:
        config = json.loads(variables.get("TF_CONFIG") or "null")
        cluster, task = config["cluster"], config["task"]
        chiefs, workers = len(cluster.get("chief") or ()), len(cluster.get("worker") or ())
        index = int(task.get("index", 0)) + (chiefs if task["type"] == "worker" else 0)
        if task["type"] in ("chief", "worker") and 0 <= index < chiefs + workers:
            return index, chiefs + workers
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        pass
    return None


def _first_number(variables: Mapping[str, str], names: Iterable[str]) -> Optional[int]:
    numbers = (_number(variables, name) for name in names)
    return next((number for number in numbers if number is not None), None)


def _number(variables: Mapping[str, str], name: str) -> Optional[int]:
    text: Any = variables.get(name, "").strip()
    return int(text) if text.isdecimal() and len(text) < 8 else None


def _run_id(variables: Mapping[str, str], size: int) -> str:
    for names in _JOBS:
        values = [variables.get(name, "") for name in names]
        # a job of one rank needs no shared id, and its launcher's would join several trainings of
        # one shell script
        if all(values) and (size > 1 or names[0].startswith("NPU_OVERFLOW_")):
            text = "-".join(values)
            if len(text) <= 64 and text.isprintable():
                return text
            return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return "%s-%d-%s" % (time.strftime("%Y%m%d%H%M%S"), os.getpid(), uuid.uuid4().hex[:8])
