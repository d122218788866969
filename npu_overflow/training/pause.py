"""A training of several ``fit`` calls: one watch that pauses between them, and what all watches of a script share."""
from __future__ import annotations

import weakref
from typing import Any, Callable, List, Optional, Set, Tuple

from npu_overflow.collect.base import Collector, Training
from npu_overflow.training import loss_scale
from npu_overflow.training.manifest import Manifest
from npu_overflow.training.policy import Policy

__all__ = ["Pausing", "Script"]


class Script:
    """What the watches of one script have said: each need not say it again.

    Attributes:
        announced: codes of the lines on how a training is watched.
        culprit: the operator that the last printed report named.
    """

    def __init__(self) -> None:
        self.announced: Set[str] = set()
        self.culprit: Optional[str] = None


class Pausing:
    """Between two calls of ``fit`` of one model the watch keeps what it knows, and nothing of the model: the script may drop that.

    A part of ``Session``, in a file of its own; it uses the session's state and makes none that others write.
    """

    _collector: Optional[Collector]
    _training: Optional[Training]
    _manifest: Manifest
    _policies: List[Policy]
    _finished: List[Policy]
    _paused: bool
    _active: bool
    _loss_was_bad: bool
    _step: int
    _looked: int
    state: str
    add_optimizer: Callable[[Any], None]
    fail: Callable[[], None]
    _choose_collector: Callable[..., bool]
    _look: Callable[[Optional[bool]], None]
    _report: Callable[[], None]
    _last_loss_seen: Callable[[], None]
    _take: Callable[[], None]
    _optimizers: Callable[[Any], List[Any]]

    def pause(self) -> None:
        """``fit`` has ended and the same model may go on: as at an end, but everything that is known is kept. Never raises."""
        if not self._active or self._paused:
            return
        try:
            lasts = getattr(self._collector, "lasts", False)
            if lasts and self._step > self._looked:
                self._look(None)
            self._take()
            if self.state == "collecting":
                self._report()
            assert self._training is not None
            self._last_loss_seen()
            self._known = [(weakref.ref(reader.optimizer), policy) for reader, policy in zip(self._training.readers, self._policies)]
            self._training.readers.clear()
            self._policies = []
            self._training.model = None
            if self._collector is not None and not lasts:
                self._collector.close()
                self._collector = None  # it may hold parts of the model
        except Exception:
            self.fail()
        self._paused = True

    def _resume(self, model: Any) -> None:
        """``fit`` goes on with the same model, with the optimizer of before or another."""
        assert self._training is not None
        self._paused, self._loss_was_bad = False, False
        if self.state == "off":
            return
        self._training.model = model
        if self._collector is None:
            if not self._choose_collector():
                return
        else:
            self._collector.prepare(self._training)
        known: List[Tuple[Any, Policy]] = self._known
        self._known = []
        for optimizer in self._optimizers(model):
            reader = loss_scale.reader_for(optimizer)
            policy = next((policy for made, policy in known if made() is reader.optimizer), None)
            if policy is None:
                self.add_optimizer(optimizer)
            else:
                self._training.readers.append(reader)
                self._policies.append(policy)
        self._finished += [policy for _made, policy in known if not any(policy is item for item in self._policies)]

    _known: List[Tuple[Any, Policy]]
