"""Where collecting needs a new process: how a training asks for one, and what is handed over to it.

A device reads its dump options once, so the dump can't be switched on in the process that needs
it. ``npu-overflow run --restart`` supervises the script and can start it once more, from its own
command line. The two processes talk through one small file in a folder of the supervisor's; nothing
in it is ever executed. Without a supervisor nothing is ended and nothing is restarted.
"""
from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any, Dict, List, Optional, Set

from npu_overflow.atomic import atomic_write
from npu_overflow.collect.base import Training
from npu_overflow.errors import CannotCollect, reason_of
from npu_overflow.training import reports_io
from npu_overflow.training.console import Console
from npu_overflow.training.weights import load_state, load_weights, save_weights, weights_path

__all__ = [
    "AGAIN",
    "EXIT_STATUS",
    "Restart",
    "RestartRequested",
    "VARIABLE",
    "accept",
    "ask",
    "can_restart",
    "ended",
    "in_notebook",
    "read_request",
    "wants_restart",
]

#: names the file through which a supervised script asks; taken out of the environment before the
#: script runs, so that its own children ask nobody
VARIABLE = "NPU_OVERFLOW_SUPERVISOR"

#: set for the second start: "restore" where weights were saved at the trigger, else "anew"
AGAIN = "NPU_OVERFLOW_RESTARTED"

#: of the process that makes room for its successor (EX_TEMPFAIL); never the status of ``run``
EXIT_STATUS = 75

_MOST_BYTES = 65_536

_supervisor: Dict[str, str] = {}

_restored: List[bool] = []  # once in a process, however many trainings it has


class RestartRequested(SystemExit):
    """Ends the script so that the supervisor can start it again. As ``SystemExit`` it passes
    ``except Exception`` and runs ``finally``."""

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)


def accept() -> None:
    """Take the supervisor's offer out of the environment, where there is one."""
    path = os.environ.pop(VARIABLE, None)
    if path:
        _supervisor["path"] = path


def wants_restart() -> bool:
    """Whether the user asked for a restart: this process runs under ``npu-overflow run --restart``
    and has not been restarted yet."""
    return "path" in _supervisor


def in_notebook() -> bool:
    """Whether the code runs in a kernel, which outlives its cells and belongs to its user."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = find() if callable(find) else None
    # a terminal's IPython is no notebook, and has no kernel
    in_terminal = type(shell).__name__ == "TerminalInteractiveShell"
    return shell is not None and (not in_terminal or getattr(shell, "kernel", None) is not None)


def can_restart() -> bool:
    """Whether this process may be ended now for a restart: there is a supervisor, and this is the
    thread whose end ends the script."""
    in_main = threading.current_thread() is threading.main_thread()
    return wants_restart() and in_main and not in_notebook()


def ask(**facts: Any) -> None:
    """Tell the supervisor that a restart is wanted, and why.

    Raises:
        OSError: the file can't be written.
    """
    _write(dict(facts, ended=False))


def ended() -> None:
    """The script was really ended for the restart: nothing in it went on."""
    facts = read_request(_supervisor.get("path", ""))
    if facts is not None:
        _write(dict(facts, ended=True))


def read_request(path: str) -> Optional[Dict[str, Any]]:
    """What a supervised script asked for, or None where it did not."""
    try:
        with open(path, encoding="utf-8") as file:
            facts = json.loads(file.read(_MOST_BYTES))
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def _write(facts: Dict[str, Any]) -> None:
    atomic_write(_supervisor["path"], json.dumps(facts))


class Restart:
    """What one training asks of its next process, and what it takes over from the one before.

    Args:
        training: its options, model, rank and dump path.
        console: says what happens, or what the user can do.
    """

    def __init__(self, training: Training, console: Console) -> None:
        self._training, self._console = training, console
        self._said: Set[str] = set()  # codes of the requests that the user knows of
        self._restoring = training.options.restore and not _restored

    # --- the next process

    def warn(self) -> None:
        """A collector needs a new process and the user asked for one: say where that can't be."""
        if self._training.options.on_overflow != "restart":
            return
        if not self._say_impossible() and not wants_restart():
            self._console.say("watch.restart_alone", always=True)

    def request(self, error: CannotCollect, step: int) -> Dict[str, Any]:
        """Collecting is impossible in this process: keep the weights for one in which it is not.

        Returns:
            what a manifest says of it.
        """
        weights = self._save_weights() if self._is_wanted() else None
        return {"why": error.code, "step": step, "when": time.time(), "weights": weights}

    def ask(self, error: CannotCollect, request: Dict[str, Any]) -> None:
        """Ask the supervisor for the process, else say once what the user can do.

        Raises:
            RestartRequested: it is going to be started.
        """
        again = can_restart() and self._training.world_size == 1
        if again and _asked(request):
            self._console.say("watch.restart", always=True, step=request["step"])
            raise RestartRequested()
        if error.code in self._said:
            return
        self._said.add(error.code)
        self._console.say("watch.request", always=True, reason=self._console.reason(error))
        if self._is_wanted() and not self._say_impossible() and wants_restart() and not again:
            self._console.say("watch.restart_thread", always=True)

    def _is_wanted(self) -> bool:
        return wants_restart() or self._training.options.on_overflow == "restart"

    def _say_impossible(self) -> bool:
        """Say why nothing can be restarted here, if so."""
        if self._training.world_size > 1:
            size = self._training.world_size
            self._console.say("watch.restart_several", always=True, size=size)
        elif in_notebook():
            self._console.say("watch.restart_notebook", always=True)
        else:
            return False
        return True

    def _weights_path(self) -> str:
        return weights_path(self._training.dump_path, self._training.rank)

    def _save_weights(self) -> Optional[str]:
        """Name of the file with the model's weights; None: no model, or the disk refuses."""
        if self._training.model is None:
            return None
        path = self._weights_path()
        try:
            os.makedirs(self._training.dump_path, exist_ok=True)
            save_weights(self._training.model, path)
        except OSError as error:
            self._console.say_refused("watch.no_disk", path, error)
            return None
        return os.path.basename(path)

    # --- the process before

    def restore(self, step: int) -> bool:
        """Start from the weights saved at the trigger of the run before: once in a process, as soon
        as the model has its weights. May be called at each step.

        Args:
            step: training steps that have ended.

        Returns:
            whether the model, and with it the state of its optimizer, is another now.
        """
        self._restoring = self._restoring and not _restored
        if not self._restoring:
            return False
        model = self._training.model
        if step == 0 if model is None else not (model.built and model.weights):
            return False
        self._restoring = False
        _restored.append(True)
        if model is None:  # it does train, and there is no model to restore
            self._console.say("watch.not_restored.loop", always=True)
            return False
        path = self._weights_path()
        try:
            load_weights(model, path)
        except (OSError, ValueError) as error:
            reason = reason_of(error)
            self._console.say("watch.not_restored", always=True, reason=reason)
            return False
        shown = reports_io.shown(path)
        try:
            load_state(model, path)
        except Exception as error:
            reason = reason_of(error)
            self._console.say("watch.restored.weights", always=True, path=shown, reason=reason)
        else:
            self._console.say("watch.restored", path=shown)
        return True


def _asked(request: Dict[str, Any]) -> bool:
    try:
        ask(step=request["step"], weights=request["weights"] is not None)
    except OSError:
        return False
    return True
