"""What the manifests beside a dump say of it: mode, ranks, training steps, loss scale. Without any, everything still works."""
from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Set, Tuple

from npu_overflow.dump.files import FileProblem
from npu_overflow.dump.folder import Folder
from npu_overflow.dump.layout import Tree, place_of
from npu_overflow.dump.names import Entry, Place, is_time_folder
from npu_overflow.report.model import LossScale
from npu_overflow.training.manifest import Manifest, read_manifests

__all__ = ["RunFacts", "collected_only", "folders_of", "in_time_folder", "read_run_facts"]

#: folders above the given path that can hold its manifests: {time}, and {dump_path} above it
_LEVELS = 6


@dataclass
class RunFacts:
    """The manifests of a tree by time folder; "" holds those of {dump_path} itself, whose process has no time folder yet."""

    by_run: Dict[str, List[Manifest]] = field(default_factory=dict)
    problems: List[FileProblem] = field(default_factory=list)
    _of_place: Dict[Place, Optional[Manifest]] = field(default_factory=dict, repr=False)

    @property
    def run_ids(self) -> Mapping[str, str]:
        """Time folder -> run id."""
        return {run: found[0].run_id for run, found in self.by_run.items() if run and found[0].run_id}

    def of_runs(self, runs: Iterable[Optional[str]]) -> List[Manifest]:
        """The manifests of these time folders; where they have none, those that still wait for a time folder."""
        found = [manifest for run in sorted({run or "" for run in runs}) for manifest in self.by_run.get(run, ())]
        return found or list(self.by_run.get("", ()))

    def of_entry(self, entry: Entry) -> Optional[Manifest]:
        """The manifest of the process that wrote a file: of its time folder, and of its device where several lie there."""
        return self.of_place(entry.place)

    def of_place(self, place: Place) -> Optional[Manifest]:
        """The manifest of the process that wrote into a folder."""
        if place not in self._of_place:
            found = self.of_runs([place.run])
            same = [manifest for manifest in found if manifest.device == place.device]
            self._of_place[place] = same[0] if same else (found[0] if len(found) == 1 else None)
        return self._of_place[place]


def read_run_facts(tree: Tree) -> RunFacts:
    """Read the manifests of every run of ``tree``, which was not yet narrowed to one run."""
    result = RunFacts()
    for run, folder in sorted(folders_of(tree).items(), key=lambda pair: pair[1]):
        found = read_manifests(folder)
        result.problems.extend(FileProblem(problem.file, problem.code, problem.values) for problem in found.problems)
        if found:
            result.by_run.setdefault(run[0], []).extend(found)
    return result


def collected_only(tree: Tree, facts: RunFacts) -> Tuple[Tree, int]:
    """Leave out the records of sporadic overflow that still lie beside those of the last collection, and say how many they are.

    A file, or a folder of one graph, that was asked for is never narrowed.
    """
    if tree.single is not None or place_of(tree.root).model_name is not None:
        return tree, 0
    kept_by: Dict[int, Set[str]] = {}
    folders = {path: folder if _was_kept(folder, facts, kept_by) else folder.with_records(()) for path, folder in tree.folders.items()}
    kept = replace(tree, folders=folders)
    return kept, tree.record_count - kept.record_count


def _was_kept(folder: Folder, facts: RunFacts, kept_by: Dict[int, Set[str]]) -> bool:
    """Whether a folder belongs to the last collection, as far as its manifest says; ``kept_by`` remembers what each manifest says."""
    manifest = facts.of_place(folder.place)
    inside = in_time_folder(folder.path, folder.place.run)
    if manifest is None or manifest.kept_folders is None or inside is None:
        return True
    if id(manifest) not in kept_by:
        kept_by[id(manifest)] = set(manifest.kept_folders)
    return inside in kept_by[id(manifest)]


def in_time_folder(folder: str, run: Optional[str]) -> Optional[str]:
    """A folder's path relative to its time folder, as manifests write it; None outside of one."""
    above = _time_folder(folder, run)
    return None if above is None else os.path.relpath(folder, above).replace(os.sep, "/")


def folders_of(tree: Tree) -> Dict[Tuple[str, str], str]:
    """(time folder or "", path) -> folder to look in: the root, the time folders in and above it, and what they lie in."""
    result: Dict[Tuple[str, str], str] = {}

    def add(folder: str) -> None:
        name = os.path.basename(folder)
        result[(name if is_time_folder(name) else "", folder)] = folder

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
    """What the watch saw. The loss scale is the same on every rank; the rate is the highest of them."""
    if not manifests:
        return None
    drops = max((manifest.drops for manifest in manifests), key=len)
    rates = [manifest.rate for manifest in manifests if manifest.rate is not None]
    given = (optimizer.get("name") for manifest in manifests for optimizer in manifest.optimizers)
    names = dict.fromkeys(name for name in given if isinstance(name, str))
    triggers = [step for step in ((manifest.trigger or {}).get("step") for manifest in manifests) if isinstance(step, int) and not isinstance(step, bool)]
    return LossScale(
        drops=tuple((int(step), float(before), float(after)) for step, before, after in drops),
        rate=max(rates, default=None),
        optimizers=tuple(names),
        trigger_step=min(triggers, default=None),
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
