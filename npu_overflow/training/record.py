"""The manifest of the present training, written beside its dump at every change of state."""
from __future__ import annotations

import dataclasses
import os
import socket
import sys
import tempfile
import threading
import time
from typing import Any, Dict

from npu_overflow.collect.base import Collector, Training
from npu_overflow.errors import CannotCollect, reason_of
from npu_overflow.training import loss_scale, reports_io
from npu_overflow.training.console import Console
from npu_overflow.training.job import Ranks
from npu_overflow.training.manifest import Manifest, plain
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.tracked import TrackedOptimizers
from npu_overflow.version import __version__

__all__ = ["RunRecord", "begun"]


class RunRecord:
    """Keeps the manifest of one training up to date on disk.

    Args:
        manifest: what is known of the run; others add to it before they write.
        training: where its dump lies.
        optimizers: tell the rate of overflow.
        console: says once that the disk refuses.

    Attributes:
        disk_warned: the user knows that the disk refuses.
    """

    def __init__(
        self,
        manifest: Manifest,
        training: Training,
        optimizers: TrackedOptimizers,
        console: Console,
    ) -> None:
        self.manifest = manifest
        self.disk_warned = False
        self._training, self._optimizers, self._console = training, optimizers, console
        self._writing = threading.RLock()  # a report is made beside the training

    def change(self, state: str, step: int, collector: Collector) -> None:
        """The watch is in ``state`` from training step ``step`` on."""
        self.manifest.state = state
        self.manifest.state_history.append((step, state))
        self.write(collector)

    def write(self, collector: Collector) -> None:
        """Write the manifest into the collector's tree, or where that is going to be."""
        with self._writing:
            manifest = self.manifest
            manifest.rate = self._optimizers.rate
            manifest.mode = loss_scale.npu_mode() or "inf_nan"
            manifest.kept_folders = collector.kept_folders
            manifest.kept_steps = list(collector.kept_steps)
            manifest.train_steps = dict(collector.train_steps)
            manifest.folder_steps = dict(collector.folder_steps)
            folder = collector.tree or self._training.dump_path
            if not folder:  # no training has begun
                return
            try:
                os.makedirs(folder, exist_ok=True)
                manifest.write(folder)
            except OSError as error:
                if not self.disk_warned:
                    self.disk_warned = True
                    self._console.say_refused("watch.no_disk", folder, error)

    def find_place(self) -> None:
        """Find out before a collection, not in the middle of it, that its files have a place: the
        dump path, else a temporary folder.

        Raises:
            CannotCollect: there is none.
        """
        path = self._training.dump_path
        try:
            os.makedirs(path, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):
                return
        except OSError as error:
            reason = reason_of(error)
        shown = reports_io.shown(path)
        try:
            self._training.dump_path = tempfile.mkdtemp(prefix="npu_overflow_")
        except OSError:
            self.disk_warned = True
            raise CannotCollect("dump_config.unwritable", path=shown, reason=reason) from None
        folder = self._training.dump_path
        self._console.say("watch.elsewhere", True, path=shown, reason=reason, folder=folder)


def begun(options: WatchOptions, ranks: Ranks) -> Manifest:
    """The manifest of a training that begins now in this process."""
    return Manifest(
        run_id=ranks.run_id,
        rank=ranks.rank,
        world_size=ranks.world_size,
        device=ranks.device,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        started=time.time(),
        versions=_versions(),
        mode=loss_scale.npu_mode() or "inf_nan",
        options=_plain_options(options),
        argv=list(sys.argv),
        environment=dict(os.environ),
    )


def _versions() -> Dict[str, str]:
    """Versions of what is loaded in this process."""
    found = {"npu_overflow": __version__, "python": ".".join(map(str, sys.version_info[:3]))}
    for name in ("tensorflow", "keras", "tf_keras", "npu_device", "numpy"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            found[name] = version
    return found


def _plain_options(options: WatchOptions) -> Dict[str, Any]:
    """The options as a manifest can hold them."""
    values = {item.name: getattr(options, item.name) for item in dataclasses.fields(options)}
    for name in ("on_report", "optimizer", "collector"):
        if values[name] is not None and not isinstance(values[name], str):
            values[name] = type(values[name]).__name__
    made: Dict[str, Any] = plain(values)
    return made
