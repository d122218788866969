"""``npu-overflow run``: a training script under the watch, without a change to it.

The script runs in this process, so that its ``argv``, working folder, input, exit status and
signals stay its own. Only ``--restart`` needs a second process, which supervises.
"""
from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any, Dict, List, Optional, Type

from npu_overflow.launcher.program import Program, own_traceback
from npu_overflow.launcher.supervisor import supervise
from npu_overflow.training import job, restart

__all__ = ["launch"]


def launch(words: List[str], options: Dict[str, Any], own: List[str]) -> int:
    """Run a script or module under watch.

    Args:
        words: ``script.py args…`` or ``-m module args…``.
        options: for the watch.
        own: the options as they stood on the command line, to start the script once more.

    Returns:
        The script's exit status. What it raises is printed as Python would; ``SystemExit`` passes.

    Raises:
        UsageError: the script is not there, or an option is not accepted.
    """
    from npu_overflow.training.options import WatchOptions

    program = Program(words)
    WatchOptions.of(**options)
    restart.accept()
    if (
        options.get("on_overflow") == "restart"
        and not restart.wants_restart()
        and restart.AGAIN not in os.environ
        and not job.ranks_of().several
    ):
        return supervise([*own, "--", *words])
    again = os.environ.pop(restart.AGAIN, None)
    if again is not None:
        options = dict(
            options,
            on_overflow="report",
            restore=again == "restore" or bool(options.get("restore")),
        )
    return _run_here(program, options, dump=options.get("on_overflow") != "restart")


def _run_here(program: Program, options: Dict[str, Any], dump: bool) -> int:
    from npu_overflow.launcher.watches import Watches

    watches = Watches(options, dump)
    interrupted: List[bool] = []
    atexit.register(_die_of_interrupt, interrupted)  # the first that is registered runs last
    _flush_at_termination(watches)
    watches.install()
    try:
        program.run()
    except restart.RestartRequested:
        watches.end(failed=True)
        restart.ended()
        raise
    except SystemExit:
        watches.end(failed=False)
        raise
    except BaseException as error:
        watches.end(failed=True)
        _print_as_python(type(error), error, own_traceback(error.__traceback__))
        if isinstance(error, KeyboardInterrupt) and sys.version_info >= (3, 8):
            interrupted.append(True)
        return 1
    watches.end(failed=False)
    return 0


def _print_as_python(
    kind: Type[BaseException], error: BaseException, trace: Optional[TracebackType]
) -> None:
    """What the interpreter does with an exception that nobody caught."""
    error.__traceback__ = trace
    sys.last_type, sys.last_value, sys.last_traceback = kind, error, trace
    sys.stdout.flush()
    sys.excepthook(kind, error, trace)


def _die_of_interrupt(interrupted: List[bool]) -> None:
    """After Ctrl-C a shell expects a process that died of the signal."""
    if interrupted and os.name == "posix":
        sys.stdout.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _flush_at_termination(watches: Any) -> None:
    """Where nobody handles SIGTERM, analyze what was collected and then die of it as before. A
    handler of the script's takes the place of this one."""
    if (
        os.name != "posix"
        or threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        return

    def terminated(number: int, frame: Optional[FrameType]) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one ends it at once
        try:
            watches.end(failed=True)
            sys.stdout.flush()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
