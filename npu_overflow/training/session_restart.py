"""Where collecting needs a new process: ask for one, keep the weights for it, and start from them there."""
from __future__ import annotations

import os
import time
from typing import Any, Callable, List, Optional, Set

from npu_overflow import messages
from npu_overflow.collect.base import Training
from npu_overflow.errors import CannotCollect
from npu_overflow.training import job, reports_io, restart
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.policy import Policy
from npu_overflow.training.weights import load_state, load_weights, save_weights, weights_path

__all__ = ["Restarting"]

_restored: List[bool] = []  # once in a process, however many trainings it has


class Restarting:
    """Requests for a new process, and what is handed over to it.

    A part of ``Session``, in a file of its own; it uses the session's state and makes none that others write.
    """

    options: WatchOptions
    say: Callable[..., None]
    _say_refused: Callable[[str, str, OSError], None]
    _training: Optional[Training]
    _manifest: Manifest
    _ranks: job.Ranks
    _policies: List[Policy]
    _requested: Set[str]
    _step: int
    _change: Callable[[str], None]
    _restoring: bool

    def _request(self, error: CannotCollect) -> None:
        """Collecting is impossible in this process: record what is wanted, say what to do, and go on."""
        again = restart.can_restart() and not self._ranks.several
        weights = self._save_weights() if restart.wants_restart() or self.options.on_overflow == "restart" else None
        self._manifest.request = {"why": error.code, "step": self._step, "when": time.time(), "weights": weights}
        for policy in self._policies:
            policy.reported(self._step)
        self._change("reported")
        if again and self._asked(weights is not None):
            self.say("watch.restart", always=True, step=self._step)
            raise restart.RestartRequested()
        if error.code in self._requested:
            return
        self._requested.add(error.code)
        language = self.options.language or messages.language_of_user()
        hint = error.hint(language)
        self.say("watch.request", always=True, reason=error.message(language) + (" " + hint if hint else ""))
        if self._ranks.several and (restart.wants_restart() or self.options.on_overflow == "restart"):
            self.say("watch.restart_several", always=True, size=self._ranks.world_size)
        elif restart.in_notebook() and (restart.wants_restart() or self.options.on_overflow == "restart"):
            self.say("watch.restart_notebook", always=True)
        elif restart.wants_restart() and not again:
            self.say("watch.restart_thread", always=True)

    def _save_weights(self) -> Optional[str]:
        """Name of the file beside the manifest with the model's weights, or None where there is no model or the disk refuses."""
        assert self._training is not None
        model = self._training.model
        if model is None:
            return None
        path = weights_path(self._training.dump_path, self._ranks.rank)
        try:
            os.makedirs(self._training.dump_path, exist_ok=True)
            save_weights(model, path)
        except OSError as error:
            self._say_refused("watch.no_disk", path, error)
            return None
        return os.path.basename(path)

    def _asked(self, weights: bool) -> bool:
        try:
            restart.ask(step=self._step, weights=weights)
        except OSError:
            return False
        return True

    def _restore(self, model: Any) -> None:
        """Start from the weights saved at the trigger of the run before; once in a process, as soon as the model has its weights."""
        self._restoring = False
        if not self.options.restore or self._training is None or _restored:
            return
        if model is None:
            self._restoring = True
            if self._step > 0:  # it does train, and there is no model to restore
                _restored.append(True)
                self._restoring = False
                self.say("watch.not_restored.loop", always=True)
            return
        if not model.built or not model.weights:
            self._restoring = True
            return
        _restored.append(True)
        path = weights_path(self._training.dump_path, self._ranks.rank)
        try:
            load_weights(model, path)
        except (OSError, ValueError) as error:
            self.say("watch.not_restored", always=True, reason=getattr(error, "strerror", None) or str(error))
            return
        for policy in self._policies:
            policy.forget()
        try:
            load_state(model, path)
        except Exception as error:
            self.say("watch.restored.weights", always=True, path=reports_io.shown(path), reason=str(error))
            return
        self.say("watch.restored", path=reports_io.shown(path))
