"""``run --restart``: starts the script in a process of its own and, where it asks for it, once more
with the dump on."""
from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from typing import Any, Callable, Dict, Iterator, List

from npu_overflow import messages
from npu_overflow.training import restart

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
    sys.stderr.write(
        "npu_overflow: %s\n" % messages.say(code, messages.language_of_user(), **values)
    )
    sys.stderr.flush()


def _child(command: List[str], environment: Dict[str, str]) -> int:
    flags: Any = getattr(subprocess, "_args_from_interpreter_flags", list)
    words = [sys.executable, *flags(), "-m", "npu_overflow", "run", *command]
    with _forwarding() as forward_to:
        child = subprocess.Popen(words, env=dict(os.environ, **environment))
        forward_to(child)
        return _wait(child)


def _wait(child: subprocess.Popen[bytes]) -> int:
    """Wait in short turns: a signal that comes just before a long system call would be handled only
    after it."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return child.wait(timeout=1)


@contextlib.contextmanager
def _forwarding() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Signals that come to this process go on to the child, once it is given; Ctrl-C at a terminal
    goes to both by itself."""
    children: List[subprocess.Popen[bytes]] = []
    early: List[int] = []

    def arrived(number: int, frame: Any) -> None:
        if number == signal.SIGINT and _terminal_is_ours():
            return
        if children:
            send(number)
        else:
            early.append(number)

    def send(number: int) -> None:
        with contextlib.suppress(OSError):
            children[0].send_signal(number)

    def forward_to(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in early:
            send(number)

    before = {}
    for name in _FORWARDED:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, arrived)
    try:
        yield forward_to
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _terminal_is_ours() -> bool:
    """Whether this process is in the foreground of a terminal: then Ctrl-C reaches the child
    without help."""
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
