"""Which collector a training has: chosen when it begins, and anew when a device turns out to be
open, or not to be."""
from __future__ import annotations

from typing import Optional, Tuple

from npu_overflow import messages
from npu_overflow.collect.ascend import device as ascend_device
from npu_overflow.collect.base import Collector, NoCollector, Training
from npu_overflow.collect.choice import choose
from npu_overflow.training.console import Console, Script

__all__ = ["ChosenCollector"]


class ChosenCollector:
    """The collector of one training.

    Args:
        training: the collector is prepared for it.
        console: says which it is.
        script: knows which the user has been told of.

    Attributes:
        now: the collector.
        check_every: steps between two checks of the loss scale.
    """

    def __init__(self, training: Training, console: Console, script: Script) -> None:
        self.now: Collector = NoCollector()
        self.check_every = 1
        self._training, self._console, self._script = training, console, script
        self._unsaid: Optional[Tuple[str, str]] = None

    def choose(self, may_open: bool = False) -> None:
        """Choose and prepare it.

        Args:
            may_open: an Ascend device can still be opened before the first step.

        Raises:
            CannotCollect: it can't work in this process.
        """
        options = self._training.options
        self.now, why = choose(options.collector, may_open)
        self.now.prepare(self._training)
        self._unsaid = ("watch.collector." + self.now.name, why)
        # a check waits for the device, so on accelerators it is rarer
        usual = 10 if self.now.on_accelerator() else 1
        self.check_every = options.check_every if isinstance(options.check_every, int) else usual

    def announce(self) -> None:
        """Say which it is and why, once in a script."""
        said, self._unsaid = self._unsaid, None
        if said is not None and said[0] not in self._script.announced:
            self._script.announced.add(said[0])
            collector = self._training.options.collector
            why = messages.say("watch.why." + said[1], self._console.language, collector=collector)
            self._console.say(said[0], why=why)

    @property
    def is_outdated(self) -> bool:
        """Whether another would be chosen by now, because a device has opened."""
        on_host = self._training.options.collector == "auto" and self.now.name == "host"
        return on_host and ascend_device.is_device_open()

    @property
    def has_no_device(self) -> bool:
        """Whether a step that begins now runs elsewhere: npu_device has opened nothing."""
        on_device = self._training.options.collector == "auto" and self.now.name == "ascend"
        return on_device and not ascend_device.is_device_open()

    def park(self) -> None:
        """``fit`` has ended: one that may hold parts of the model is closed."""
        if not self.now.survives_close:
            self.now.close()
            self.now = NoCollector(self.now)

    def resume(self) -> None:
        """``fit`` goes on. Raises CannotCollect."""
        if self.now.survives_close:
            self.now.prepare(self._training)
        else:
            self.choose()
