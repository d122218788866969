"""This process in its job: which rank of how many it is, on which device, what the other ranks
found, and who prints. From the environment, and from manifests on a shared dump path; nothing is
opened.

Launchers tell it in different ways. They are asked in the order of ``_LAUNCHERS``; the first that
tells a rank and a size decides. Ascend's own
variables come first: on an NPU they are what the device itself goes by. An Ascend job without a
    rank table (CM_CHIEF_IP, CM_WORKER_SIZE …) has no
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
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from npu_overflow.dump.names import is_time_folder
from npu_overflow.training.manifest import Manifest, read_manifests

__all__ = [
    "Ranks",
    "has_judged",
    "is_speaker",
    "numbered_by_device",
    "peers",
    "prefix",
    "rank_folder",
    "ranks_of",
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

#: without an id from the launcher, trainings of one size that began within this many seconds are
#: taken for one job
_TOGETHER = 600.0
_MOST_FOLDERS = 1000


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


def is_speaker(
    ranks: Ranks, has_finding: bool, others: Iterable[Tuple[int, Optional[bool]]] = ()
) -> Optional[bool]:
    """Whether this rank prints its report: with several ranks only with a finding, and only the
    lowest such rank; None: not known yet.

    Args:
        others: (rank, whether it has a finding, None where it is still looking) of the ranks whose
            manifests are in reach, because the dump path is shared.
    """
    if not ranks.several:
        return True
    lower = [found for rank, found in others if rank < ranks.rank]
    if not has_finding or any(lower):
        return False
    return None if None in lower else True


def peers(dump_path: str, own: Manifest) -> List[Manifest]:
    """The manifests of the other ranks of this job below a shared dump path, by rank; none where
    each rank has its own folder."""
    folders = [dump_path]
    try:
        with os.scandir(dump_path) as entries:
            runs = sorted((entry.path for entry in entries if _is_run(entry)), reverse=True)
            folders += runs[:_MOST_FOLDERS]
    except OSError:
        return []
    found: Dict[int, Manifest] = {}
    for folder in folders:
        for manifest in read_manifests(folder):
            if manifest.rank != own.rank and _same_job(manifest, own):
                known = found.get(manifest.rank)
                # one that a start before has left is older
                if known is None or _order(known) < _order(manifest):
                    found[manifest.rank] = manifest
    return [found[rank] for rank in sorted(found)]


def has_judged(other: Manifest, step: Optional[int]) -> bool:
    """Whether a rank has analyzed its collection from training step ``step`` on, or will never.

    The loss scale of all ranks falls at the same steps, so they collect at the same ones.
    """
    if other.ended or other.state == "off":
        return True
    return other.judged is not None and (step is None or other.judged >= step)


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


def _order(manifest: Manifest) -> Tuple[float, bool, int, bool]:
    """Later is greater: a training writes its manifest where it collects, and that can be several
    folders."""
    judged = -1 if manifest.judged is None else manifest.judged
    return manifest.started, manifest.ended, judged, manifest.finding is not None


def _is_run(entry: os.DirEntry[str]) -> bool:
    return is_time_folder(entry.name) and entry.is_dir(follow_symlinks=False)


def _same_job(other: Manifest, own: Manifest) -> bool:
    if other.world_size != own.world_size:
        return False
    return other.run_id == own.run_id or abs(other.started - own.started) < _TOGETHER
