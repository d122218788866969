"""What a collector must do for a session, and what it is told about the training."""
from __future__ import annotations

import abc
import contextlib
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Callable, ContextManager, List, Mapping, Optional, Sequence, Tuple

from npu_overflow.training.loss_scale import Reader
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.tracked import TrackedOptimizer, in_use

__all__ = ["Collector", "NoCollector", "Training", "adapted"]


@dataclass
class Training:
    """What is known of a training when it begins. Collectors read it; only the session changes it.

    Args:
        options: the watch's options.
        dump_path: absolute folder for dump trees of this rank.
        model: the Keras model in ``fit``, or None in a loop of the user's own.
        optimizers: those under watch, in the order they were found; grows when they are made later.
        rank, world_size, device: of this process.
        say: prints one line to the user: ``say(code, **values)`` with a code of ``messages``.
        bad_since: training step of the first sign of the present trouble: a non-finite loss, or the
            first counted overflow in the window.
        forced: the training call that begins now is wanted whatever it does (``at_steps``).
        fail: called in an ``except``: logs the failure and turns the watch off.
    """

    options: WatchOptions
    dump_path: str
    model: Any = None
    optimizers: List[TrackedOptimizer] = field(default_factory=list)
    rank: int = 0
    world_size: int = 1
    device: int = 0
    say: Callable[..., None] = lambda code, **values: None
    fail: Callable[[], None] = lambda: None
    bad_since: Optional[int] = None
    forced: bool = False

    @property
    def readers(self) -> List[Reader]:
        """What reads the loss scale of each optimizer that trains."""
        return [item.reader for item in in_use(self.optimizers)]


class Collector(abc.ABC):
    """One way to fetch the operators of overflowing steps. Every method is called on the training's
    thread."""

    #: "ascend" or "host", shown to the user
    name = ""

    #: (code, values) of sentences about the last collection, for its report
    remarks: Sequence[Tuple[str, Mapping[str, Any]]] = ()
    #: why the last collection found nothing (a code), or None
    reason: Optional[str] = None
    #: data_index folders of the last collection, relative to the tree; None: all of the tree
    #: belongs to it
    kept_folders: Optional[List[str]] = None
    #: training steps of the last collection, as far as they are known
    kept_steps: Sequence[int] = ()
    #: whether collecting takes a new process
    needs_restart = False
    #: data_index -> training step, where they differ
    train_steps: Mapping[int, int] = MappingProxyType({})
    #: data_index folder, relative to the tree -> training step, where the data_index alone does not
    #: tell
    folder_steps: Mapping[str, int] = MappingProxyType({})

    @abc.abstractmethod
    def prepare(self, training: Training) -> None:
        """Training begins. Raises CannotCollect where this collector can't work in this process."""

    def step_done(
        self, first_step: int, steps: int, overflows: int, counted: int, pending: List[int]
    ) -> None:
        """After each look at the loss scale, in every state: what the steps ``first_step`` …
        ``first_step + steps - 1`` did.

        Args:
            first_step: training step, counted from 0.
            steps: steps since the last look.
            overflows: overflowing steps among them, probes of dynamic loss scaling included.
            counted: those that count towards the trigger.
            pending: steps of counted overflows that are still inside the window (their files must
                be kept).
        """

    #: whether it can go on after ``close``, with another ``prepare``, and holds nothing of the
    #: model meanwhile
    survives_close = False

    #: whether ``stop`` may take long and may be called on another thread, after ``seal``, while the
    #: training goes on
    in_background = False

    def seal(self) -> None:
        """The collection ends with the steps that have ended by now; ``stop`` follows on another
        thread."""

    def overflow_signs(self, first_step: int, steps: int) -> Sequence[int]:
        """Training steps for which this collector has come to see signs of overflow since the last
        call, without any loss scale.

        Asked at each look, before ``step_done``, where the optimizer sees no overflow.
        """
        return ()

    @abc.abstractmethod
    def start(self, step: int) -> None:
        """Collect from training step ``step`` on.

        Raises CannotCollect where that is impossible now; the message says what to do.
        """

    @property
    @abc.abstractmethod
    def collected(self) -> int:
        """Overflowing steps collected since ``start``."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End collecting; the tree is complete afterwards. Harmless where nothing was started."""

    def salvage(self) -> bool:
        """The training was ended by an exception while nothing was being collected.

        Returns:
            whether there is something all the same, and it was taken as a collection, which
            ``stop`` ends.
        """
        return False

    @property
    @abc.abstractmethod
    def tree(self) -> Optional[str]:
        """Absolute path of the folder to analyze ({dump_path}/{time}), or None where nothing was
        written yet."""

    def arm_fit(self, model: Any, step: int) -> None:
        """While collecting, before each call of ``fit``'s training function; ``step`` is the first
        training step of the call."""

    def before_function(self, call: Any, step: int) -> None:
        """While collecting, before each outermost call of a tf.function in a loop of the user's
        own."""

    def step_ended(self, step: int, overflowed: Optional[bool] = None) -> None:
        """While collecting: a step of a loop of the user's own has ended.

        Args:
            overflowed: what the user said of it; None: the loss scale tells.
        """

    def on_accelerator(self) -> bool:
        """Whether looking at the loss scale waits for an accelerator."""
        return False

    def observed_step(self, step: int) -> ContextManager[Any]:
        """Around a step that the user marked with ``watch.step()``, while collecting."""
        return contextlib.ExitStack()

    def close(self) -> None:
        """Training ends: undo every hook. Called once, also after errors."""
        self.stop()


class NoCollector(Collector):
    """Collects nothing: before a collector is chosen, and between two calls of ``fit``.

    Args:
        last: one that was closed. What it collected is still told; nothing else of it is kept.
    """

    def __init__(self, last: Optional[Collector] = None) -> None:
        self._tree: Optional[str] = None
        if last is not None:
            self._tree = last.tree
            self.name, self.remarks, self.reason = last.name, last.remarks, last.reason
            self.kept_folders, self.kept_steps = last.kept_folders, last.kept_steps
            self.train_steps, self.folder_steps = last.train_steps, last.folder_steps

    def prepare(self, training: Training) -> None:
        """There is nothing to prepare."""

    def start(self, step: int) -> None:
        """There is nothing to start."""

    @property
    def collected(self) -> int:
        """No steps."""
        return 0

    def stop(self) -> None:
        """There is nothing to stop."""

    @property
    def tree(self) -> Optional[str]:
        """That of the last collector."""
        return self._tree


class _Adapted(NoCollector):
    """A collector of the user's own, whatever its class: what it lacks is done as here."""

    def __init__(self, own: Any) -> None:
        super().__init__()
        self._own = own

    def __getattribute__(self, name: str) -> Any:
        own = None if name.startswith("_") else self._own
        found = object.__getattribute__(self, name)
        return found if own is None else getattr(own, name, found)


def adapted(collector: Any) -> Collector:
    """A collector of the user's own as a ``Collector``, whatever methods beside ``prepare``,
    ``start`` and ``stop`` it has."""
    return collector if isinstance(collector, Collector) else _Adapted(collector)
