"""The other ranks of a job, where they share the dump path: what they found."""
from __future__ import annotations

import os
from typing import Dict, List, Optional, Tuple

from npu_overflow.dump.names import is_time_folder
from npu_overflow.training.manifest import Manifest, read_manifests

__all__ = ["has_judged", "neighbours"]

#: without an id from the launcher, trainings of one size that began within this many seconds are taken for one job
_TOGETHER = 600.0
_MOST_FOLDERS = 1000


def neighbours(dump_path: str, own: Manifest) -> List[Manifest]:
    """The manifests of the other ranks of this job below a shared dump path, by rank; none where each rank has its own folder."""
    folders = [dump_path]
    try:
        with os.scandir(dump_path) as entries:
            folders += sorted((entry.path for entry in entries if _is_run(entry)), reverse=True)[:_MOST_FOLDERS]
    except OSError:
        return []
    found: Dict[int, Manifest] = {}
    for folder in folders:
        for manifest in read_manifests(folder):
            if manifest.rank != own.rank and _same_job(manifest, own):
                known = found.get(manifest.rank)
                if known is None or _order(known) < _order(manifest):  # one that a start before has left is older
                    found[manifest.rank] = manifest
    return [found[rank] for rank in sorted(found)]


def has_judged(other: Manifest, step: Optional[int]) -> bool:
    """Whether a rank has analyzed its collection from training step ``step`` on, or will never.

    The loss scale of all ranks falls at the same steps, so they collect at the same ones.
    """
    return other.ended or other.state == "off" or (other.judged is not None and (step is None or other.judged >= step))


def _order(manifest: Manifest) -> Tuple[float, bool, int, bool]:
    """Later is greater: a training writes its manifest where it collects, and that can be several folders."""
    return manifest.started, manifest.ended, -1 if manifest.judged is None else manifest.judged, manifest.finding is not None


def _is_run(entry: os.DirEntry[str]) -> bool:
    return is_time_folder(entry.name) and entry.is_dir(follow_symlinks=False)


def _same_job(other: Manifest, own: Manifest) -> bool:
    if other.world_size != own.world_size:
        return False
    return other.run_id == own.run_id or abs(other.started - own.started) < _TOGETHER
