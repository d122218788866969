"""How a training that needs a new process asks for one, and who can give it.

A device reads its dump options once, so the dump can't be switched on in the process that needs it. ``npu-overflow run --restart`` supervises the
script and can start it once more, from its own command line. The two processes talk through one small file in a folder of the supervisor's; nothing
in it is ever executed. Without a supervisor nothing is ended and nothing is restarted.
"""
from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any, Dict, Optional

from npu_overflow.atomic import atomic_write

__all__ = ["AGAIN", "EXIT_STATUS", "RestartRequested", "VARIABLE", "accept", "ask", "can_restart", "ended", "in_notebook", "read_request", "wants_restart"]

#: names the file through which a supervised script asks; taken out of the environment before the script runs, so that its own children ask nobody
VARIABLE = "NPU_OVERFLOW_SUPERVISOR"

#: set for the second start: "restore" where weights were saved at the trigger, else "anew"
AGAIN = "NPU_OVERFLOW_RESTARTED"

#: of the process that makes room for its successor (EX_TEMPFAIL); never the status of ``run``
EXIT_STATUS = 75

_MOST_BYTES = 65_536

_supervisor: Dict[str, str] = {}


class RestartRequested(SystemExit):
    """Ends the script so that the supervisor can start it again. As ``SystemExit`` it passes ``except Exception`` and runs ``finally``."""

    def __init__(self) -> None:
        super().__init__(EXIT_STATUS)


def accept() -> None:
    """Take the supervisor's offer out of the environment, where there is one."""
    path = os.environ.pop(VARIABLE, None)
    if path:
        _supervisor["path"] = path


def wants_restart() -> bool:
    """Whether the user asked for a restart: this process runs under ``npu-overflow run --restart`` and has not been restarted yet."""
    return "path" in _supervisor


def in_notebook() -> bool:
    """Whether the code runs in a kernel, which outlives its cells and belongs to its user."""
    find = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = find() if callable(find) else None
    # a terminal's IPython is no notebook, and has no kernel
    return shell is not None and (type(shell).__name__ != "TerminalInteractiveShell" or getattr(shell, "kernel", None) is not None)


def can_restart() -> bool:
    """Whether this process may be ended now for a restart: there is a supervisor, and this is the thread whose end ends the script."""
    return wants_restart() and threading.current_thread() is threading.main_thread() and not in_notebook()


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
