"""``run --restart``: starts the script in a process of its own and, where it asks for it, once more with the dump on."""
from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, Dict, Iterator, List

from npu_overflow import restart
from npu_overflow.report import texts

__all__ = ["supervise"]

#: signals that were meant for the script
_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT", "SIGINT")


def supervise(command: List[str]) -> int:
    """Run ``npu-overflow run`` with the arguments ``command`` in a process, and at most once more.

    Returns:
        the exit status of the last one. Where a signal ended it, this process dies of the same one.
    """
    folder = tempfile.mkdtemp(prefix="npu_overflow_")
    try:
        request = os.path.join(folder, "request.json")
        status = _child(command, {restart.VARIABLE: request})
        facts = restart.read_request(request)
        if status == restart.EXIT_STATUS and facts is not None and facts.get("ended") is True:
            restored = facts.get("weights") is True
            _say("run.restarting.weights" if restored else "run.restarting", step=facts.get("step"))
            status = _child(command, {restart.AGAIN: "restore" if restored else "anew"})
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if status < 0:
        _die_of(-status)
    return status


def _say(code: str, **values: Any) -> None:
    sys.stderr.write("npu_overflow: %s\n" % texts.say(code, texts.language_of_user(), **values))
    sys.stderr.flush()


def _child(command: List[str], environment: Dict[str, str]) -> int:
    flags: Any = getattr(subprocess, "_args_from_interpreter_flags", list)
    words = [sys.executable, *flags(), "-m", "npu_overflow", "run", *command]
    with _forwarding() as pid:
        child = subprocess.Popen(words, env=dict(os.environ, **environment))
        pid.append(child.pid)
        return child.wait()


@contextlib.contextmanager
def _forwarding() -> Iterator[List[int]]:
    """Signals that come to this process go on to the child; Ctrl-C at a terminal goes to both by itself."""
    pids: List[int] = []

    def forward(number: int, frame: Any) -> None:
        if pids and not (number == signal.SIGINT and _terminal_is_ours()):
            with contextlib.suppress(OSError):
                os.kill(pids[0], number)

    before = {}
    for name in _FORWARDED:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, forward)
    try:
        yield pids
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal_is_ours() -> bool:
    """Whether this process is in the foreground of a terminal: then Ctrl-C reaches the child without help."""
    try:
        handle = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(handle) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(handle)


def _die_of(number: int) -> None:
    sys.stdout.flush()
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
