"""What every input must keep to: errors that are documented, bounded time and memory, nothing written outside its own folder."""
from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import time
import traceback
from typing import Any, Dict, Iterator, List, Tuple

from npu_overflow import messages
from npu_overflow.errors import NpuOverflowError

#: seconds of the processor that one small input may take: a guard against hangs, not a measure of speed, and the machine may be busy
MOST_SECONDS = 20.0
#: bytes by which one small input may raise the process's peak of memory
MOST_MEMORY = 384 << 20


#: what changes files -> which of its arguments are their paths; and what no reading of a file should ever do
_PATHS: Dict[str, Tuple[int, ...]] = {
    **{name: (0,) for name in ("os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod")},
    **{"os.rename": (0, 1), "os.link": (1,), "os.symlink": (1,)},
}
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "socket.connect", "ctypes.dlopen")


class Broken(AssertionError):
    """A promise that an input broke."""


def require(holds: Any, promise: str, *more: object) -> None:
    """Raise ``Broken`` where it does not hold."""
    if not holds:
        raise Broken("%s: %s" % (promise, ", ".join(map(repr, more))) if more else promise)


def check_error(error: NpuOverflowError) -> None:
    """A documented error has a sentence in every language, its values filled in."""
    for language in messages.LANGUAGES:
        require(messages.known(error.code) and error.message(language) != error.code, "an error has a sentence", error.code)
        require(isinstance(error.hint(language), str), "an error has a hint or none")


def peak() -> int:
    """Most bytes of memory that this process ever had; 0 where the system does not tell."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """What runs inside neither takes long nor much memory; a documented error is checked and is no fault."""
    before, began = peak(), time.process_time()
    try:
        yield
    except NpuOverflowError as error:
        check_error(error)
    took, grew = time.process_time() - began, peak() - before
    require(took < MOST_SECONDS, "an input takes no more than %d s" % MOST_SECONDS, took)
    require(grew < MOST_MEMORY, "an input takes no more than %d MB" % (MOST_MEMORY >> 20), grew >> 20)


class Writes:
    """Notes files that are made, changed or removed outside the folders that may be written to (Python 3.8 and later; else it notes nothing)."""

    def __init__(self) -> None:
        self.active = self.hooked = False
        self.allowed: Tuple[str, ...] = ()
        self.seen: List[str] = []

    def _hook(self, event: str, given: Tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, mode, flags = given
            writes = (isinstance(mode, str) and any(letter in mode for letter in "wax+")) or (
                isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC))
            )
            if writes:
                self._note(event, path)
        elif event in _PATHS:
            for place in _PATHS[event]:
                self._note(event, given[place])
        elif event in _FORBIDDEN or event.startswith("pickle."):
            self.seen.append(event)

    def _note(self, event: str, path: Any) -> None:
        if isinstance(path, int):
            return
        self.active = False  # realpath may itself do what is noted
        try:
            text = os.fsdecode(path)
            real = os.path.join(os.path.realpath(os.path.dirname(os.path.abspath(text))), os.path.basename(text))
        finally:
            self.active = True
        if text != os.devnull and "__pycache__" not in text and not any(real == folder or real.startswith(folder + os.sep) for folder in self.allowed):
            self.seen.append("%s %r" % (event, text))

    @contextlib.contextmanager
    def only_in(self, *folders: str) -> Iterator[None]:
        """Nothing else is written than what lies in ``folders``."""
        if not self.hooked and hasattr(sys, "addaudithook"):
            sys.addaudithook(self._hook)  # for good: it slows what runs in this process afterwards, so not before it is needed
            self.hooked = True
        self.allowed, self.seen, self.active = tuple(map(os.path.realpath, folders)), [], True
        try:
            yield
        finally:
            self.active = False
        require(not self.seen, "nothing is written outside its folder", *self.seen[:5])


WRITES = Writes()


def kind_of(error: BaseException) -> str:
    """What tells one fault from another: the error's type and the last place of the package that it came through."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "npu_overflow" in frame.filename.replace(os.sep, "/").split("/")]
    where = "%s:%s" % (os.path.basename(frames[-1].filename), frames[-1].name) if frames else "-"
    promise = str(error).split(":")[0] if isinstance(error, Broken) else ""
    return " ".join(part for part in (type(error).__name__, where, promise) if part)


def key_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]
