"""What the manifests beside a dump say of it: mode, ranks, training steps, loss scale. Without any,
everything still works."""
from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from npu_overflow.analysis.entries import Opened
from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.layout import Tree
from npu_overflow.dump.names import Place, is_time_folder
from npu_overflow.report.model import LossScale
from npu_overflow.training.manifest import Manifest, read_manifests

__all__ = ["RunFacts", "folders_of", "host_of", "in_time_folder", "loss_scale_of", "read_run_facts"]

#: folders above the given path that can hold its manifests: {time}, and {dump_path} above it
_LEVELS = 6


@dataclass
class RunFacts:
    """The manifests of a tree by time folder; "" holds those of {dump_path} itself, whose process
    has no time folder yet."""

    by_run: Dict[str, List[Manifest]] = field(default_factory=dict)
    problems: List[FileProblem] = field(default_factory=list)
    _of_place: Dict[Place, Optional[Manifest]] = field(default_factory=dict, repr=False)

    @property
    def run_ids(self) -> Mapping[str, str]:
        """Time folder -> run id."""
        return {
            run: found[0].run_id for run, found in self.by_run.items() if run and found[0].run_id
        }

    def of_runs(self, runs: Iterable[Optional[str]]) -> List[Manifest]:
        """The manifests of these time folders; where they have none, those that still wait for a
        time folder."""
        names = sorted({run or "" for run in runs})
        found = [manifest for name in names for manifest in self.by_run.get(name, ())]
        return found or list(self.by_run.get("", ()))

    def of_place(self, place: Place) -> Optional[Manifest]:
        """The manifest of the process that wrote into a folder: of its time folder, and of its
        device where several lie there."""
        if place not in self._of_place:
            found = self.of_runs([place.run])
            same = [manifest for manifest in found if manifest.device == place.device]
            alone = found[0] if len(found) == 1 else None
            self._of_place[place] = same[0] if same else alone
        return self._of_place[place]

    def mode_of(self, opened: Opened, given: Optional[str]) -> Optional[str]:
        """Overflow mode of one entry: the manifest's, else ``given``, else as the record's layout
        tells."""
        manifest = self.of_place(opened.found.entry.place)
        if manifest is not None and manifest.mode is not None:
            return manifest.mode
        if opened.host is not None:
            return "inf_nan"
        return given or {"old": "saturation", "magic": "inf_nan"}.get(opened.found.layout)

    def train_step(self, opened: Opened) -> Optional[int]:
        """The training step of one entry, or None."""
        if opened.host is not None and opened.host.train_step is not None:
            return opened.host.train_step
        entry = opened.found.entry
        index = entry.place.data_index
        manifest = self.of_place(entry.place)
        fallback = index if opened.host is not None else None
        if manifest is None or index is None:
            return fallback
        if manifest.folder_steps:  # several graphs: most trees have none
            inside = in_time_folder(os.path.dirname(entry.path), entry.place.run)
            step = manifest.folder_steps.get(inside or "")
            if step is not None:
                return step
        return manifest.train_steps.get(index, fallback)


def read_run_facts(tree: Tree) -> RunFacts:
    """Read the manifests of every run of ``tree``, which was not yet narrowed to one run."""
    result = RunFacts()
    for run, folder in sorted(folders_of(tree), key=lambda pair: pair[1]):
        found = read_manifests(folder)
        result.problems += [
            FileProblem(item.file, item.code, item.values) for item in found.problems
        ]
        if found:
            result.by_run.setdefault(run, []).extend(found)
    return result


def in_time_folder(folder: str, run: Optional[str]) -> Optional[str]:
    """A folder's path relative to its time folder, as manifests write it; None outside of one."""
    above = _time_folder(folder, run)
    return None if above is None else os.path.relpath(folder, above).replace(os.sep, "/")


def folders_of(tree: Tree) -> Set[Tuple[str, str]]:
    """(time folder or "", path) of folders to look in: the root, the time folders in and above it,
    and what they lie in."""
    result: Set[Tuple[str, str]] = set()

    def add(folder: str) -> None:
        name = os.path.basename(folder)
        result.add((name if is_time_folder(name) else "", folder))

    add(tree.root)
    for inside in tree.folders.values():
        above = _time_folder(inside.path, inside.place.run)
        if above is not None:
            add(os.path.dirname(above))
            add(above)
    folder = tree.root
    for _ in range(_LEVELS):
        if is_time_folder(os.path.basename(folder)):
            add(folder)
            add(os.path.dirname(folder))
            break
        folder = os.path.dirname(folder)
    return result


def _time_folder(folder: str, run: Optional[str]) -> Optional[str]:
    """The {time} folder named ``run`` that ``folder`` lies in, or None."""
    for _ in range(_LEVELS if run is not None else 0):
        if os.path.basename(folder) == run:
            return folder
        folder = os.path.dirname(folder)
    return None


def loss_scale_of(manifests: List[Manifest]) -> Optional[LossScale]:
    """What the watch saw. The loss scale is the same on every rank; the rate is the highest of
    them."""
    if not manifests:
        return None
    drops = max((manifest.drops for manifest in manifests), key=len)
    rates = [manifest.rate for manifest in manifests if manifest.rate is not None]
    given = (optimizer.get("name") for manifest in manifests for optimizer in manifest.optimizers)
    names = dict.fromkeys(name for name in given if isinstance(name, str))
    triggers = [(manifest.trigger or {}).get("step") for manifest in manifests]
    steps = [s for s in triggers if isinstance(s, int) and not isinstance(s, bool)]
    return LossScale(
        drops=tuple((int(step), float(before), float(after)) for step, before, after in drops),
        rate=max(rates, default=None),
        optimizers=tuple(names),
        trigger_step=min(steps, default=None),
        kept_steps=tuple(sorted({step for manifest in manifests for step in manifest.kept_steps})),
    )


def host_of(manifests: List[Manifest], core: Optional[str]) -> Optional[Mapping[str, Any]]:
    """Facts of the process for a tree of the host collector, None for one of an NPU.

    Args:
        core: "CPU" or "GPU" where an operator's own file says that it ran there.
    """
    hosts = [manifest for manifest in manifests if manifest.collector == "host"]
    if core is None and not hosts:
        return None
    facts: Dict[str, Any] = {"collector": "host", "core": core}
    if hosts:
        facts.update(hostname=hosts[0].hostname, pid=hosts[0].pid, versions=dict(hosts[0].versions))
    return facts
