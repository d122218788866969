"""The Ascend collector: the device itself writes the operators of every step that overflows; this
keeps the files that matter.

The dump has to be configured before the device opens, and can't be switched off again. So it runs
from the first step on, files of sporadic overflows are deleted once they have left the window, and
at the trigger the files of the last steps are there already. Where the device was opened without
the dump, nothing can be collected in this process: ``start`` says what to do.
"""
from __future__ import annotations

import functools
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple, TypeVar, cast

from npu_overflow.collect.ascend import device as ascend_device
from npu_overflow.collect.ascend.files import OwnFiles, Unit
from npu_overflow.collect.base import Collector, Training
from npu_overflow.errors import CannotCollect, PathError

__all__ = ["AscendCollector"]

#: a file that is still being written when collecting ends is waited for this long
WAIT_SECONDS = 10.0
#: … and given up where nothing has grown for this long
STILL_SECONDS = 2.0
_POLL_SECONDS = 0.05
#: clocks of host and device differ by less than this; a time further off is not believed
_CLOCK_SECONDS = 60.0
_MOST_LOOKS = 10_000

#: (dump path, folder) of what any training of this process has reported: kept for ever
_reported: Set[Tuple[str, Tuple[str, ...]]] = set()

F = TypeVar("F", bound=Callable[..., Any])


def _locked(method: F) -> F:
    """Files are waited for on another thread while the training goes on."""

    @functools.wraps(method)
    def locked(self: AscendCollector, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return cast(F, locked)


@dataclass
class _Look:
    """Steps ``first`` … ``last``, which ended at ``ended`` (microseconds since the epoch)."""

    first: int
    last: int
    ended: int
    overflows: int = 0


class AscendCollector(Collector):
    """Keeps the dumps of frequent overflow, deletes those of sporadic overflow, holds ``max_disk``.

    Attributes:
        kept_folders: data_index folders of the last collection, relative to the time folder; None
            before the first.
        kept_steps: their training steps, as far as they are known.
        train_steps: data_index -> training step, where a look covered one step only.
        folder_steps: data_index folder, relative to the time folder -> training step, where another
            graph has taken the data_index: each counts its own.
    """

    name = "ascend"
    in_background = True
    survives_close = True

    def __init__(self) -> None:
        self.kept_folders: Optional[List[str]] = None
        self.kept_steps: List[int] = []
        self.train_steps: Dict[int, int] = {}
        self.folder_steps: Dict[str, int] = {}
        self.remarks: List[Tuple[str, Dict[str, Any]]] = []
        self.reason: Optional[str] = None
        self._asked_for = False  # the collection, by at_steps: its steps may be healthy
        self._training: Optional[Training] = None
        self._files: Optional[OwnFiles] = None
        self._looks: Deque[_Look] = deque(maxlen=_MOST_LOOKS)
        self._pending: Set[int] = set()
        self._from: Optional[int] = None
        self._collecting = False
        self._began = time.time()
        self._asked_default = False
        self._until: Optional[int] = None
        self._lock = threading.RLock()
        self._seen: Set[Tuple[str, ...]] = set()

    # --- the protocol

    def prepare(self, training: Training) -> None:
        """Configure the dump where the device is not open yet; else find out where it dumps to.

        Raises:
            CannotCollect: npu_device is not loaded, its other dump is on, or the dump path can't be
                written.
        """
        npu_device = ascend_device.loaded_adapter()
        if npu_device is None:
            raise CannotCollect("ascend.no_adapter")
        self._training = training
        if self._files is not None:  # the training goes on
            return
        path = ascend_device.configured_dump_path(npu_device)
        opened = ascend_device.is_device_open(npu_device)
        if path is None and training.options.dump and not opened:
            path = training.dump_path
            try:
                warnings = ascend_device.configure_overflow(npu_device, path)
            except PathError as error:
                raise CannotCollect(error.code, **error.values) from error
            for code, values in warnings:
                training.say(code, **values)
        if path is None:
            training.say("ascend.opened_without_dump.note")
            return
        training.dump_path = path
        device = ascend_device.open_device(npu_device)
        self._files = OwnFiles(path, training.device if device is None else device)
        # of a training before this one in the same process: what it reported stays, the rest is the
        # oldest of all
        for unit in self._files.scan():
            unit.earlier, unit.kept, unit.step = True, (path, unit.parts) in _reported, (-1, -1)
            self._seen.add(unit.parts)

    @_locked
    def step_done(
        self, first_step: int, steps: int, overflows: int, counted: int, pending: List[int]
    ) -> None:
        if (
            self._training is not None
            and not self._asked_default
            and ascend_device.is_device_open()
        ):
            self._asked_default = True
            if not ascend_device.is_default():
                self._training.say("ascend.not_default")
        if self._files is None:
            return
        last = first_step + steps - 1
        # another optimizer's view of the same steps
        if self._looks and (self._looks[-1].first, self._looks[-1].last) == (first_step, last):
            self._looks[-1].overflows = max(self._looks[-1].overflows, overflows)
            self._pending |= set(pending)
            return
        # every optimizer has told of the look before: what it left is judged now
        self._tidy()
        if steps > 0:
            self._looks.append(_Look(first_step, last, int(time.time() * 1e6), overflows))
        self._pending = set(pending)

    def seal(self) -> None:
        """Later steps don't belong to this collection any more."""
        with self._lock:
            self._until = self._looks[-1].last if self._looks else None

    @_locked
    def overflow_signs(self, first_step: int, steps: int) -> List[int]:
        """Steps whose overflow records have appeared on disk. Those that no look has covered yet
        are of the steps that end now. With no ``steps`` the training has ended: operators whose
        record is still to come are waited for, not for long."""
        if self._files is None:
            return []
        self._tidy()
        if steps == 0 and self._seen:
            self._await_records()
        found: List[Tuple[int, int]] = []
        for unit in self._files.units.values():
            if unit.parts in self._seen:
                continue
            self._files.refresh(unit)  # a record comes after its operator's dump
            if unit.records:
                self._seen.add(unit.parts)
                found.append(
                    unit.step if unit.step is not None else (first_step, first_step + steps - 1)
                )
        once = {span for span in found if span[0] == span[1]}  # several graphs of one step
        return sorted(
            [last for _first, last in once] + [last for first, last in found if first != last]
        )

    def _await_records(self) -> None:
        """Wait for the last records: until nothing has come for a moment and each operator has its
        own, not for long."""
        assert self._files is not None
        until, quiet = time.monotonic() + STILL_SECONDS, 0
        while quiet < 4 and time.monotonic() < until:
            known = len(self._files.units)
            time.sleep(_POLL_SECONDS)
            self._tidy()
            unseen = [unit for unit in self._files.units.values() if unit.parts not in self._seen]
            for unit in unseen:
                self._files.refresh(unit)
            still = known == len(self._files.units) and all(unit.records for unit in unseen)
            quiet = quiet + 1 if still else 0

    @_locked
    def start(self, step: int) -> None:
        if self._files is None:
            if ascend_device.loaded_adapter() is None:
                raise CannotCollect("ascend.no_adapter")
            raise CannotCollect("ascend.opened_without_dump")
        assert self._training is not None
        self.remarks, self.reason, self._until = [], None, None
        recent = sorted(self._pending)[-self._training.options.keep :]
        self._asked_for = self._training.forced
        self._from = step if self._asked_for or not recent else min(recent)
        self._collecting = True
        self._tidy()

    @property
    @_locked
    def collected(self) -> int:
        """Overflowing steps with records, from the last ``keep`` counted ones before the trigger
        on."""
        if not self._collecting:
            return 0
        self._tidy()
        return sum(1 for unit in self._chosen() if unit.records)

    def salvage(self) -> bool:
        """The device has dumped every overflow, also those that were not frequent yet."""
        if self._files is None or self._collecting:
            return False
        with self._lock:
            self._tidy(closing=True)
            steps = [
                unit.step[0]
                for unit in self._files.units.values()
                if not unit.kept and not unit.earlier and unit.step is not None
            ]
            if not steps and not self._pending:
                return False
            self._from, self._until, self._collecting = min([*steps, *self._pending]), None, True
        found = sum(1 for unit in self._wait() if unit.records)
        self._collecting = found > 0
        self.remarks, self.reason = [("ascend.before_trigger", {"count": found})], None
        return self._collecting

    def stop(self) -> None:
        if not self._collecting:
            return
        assert self._training is not None
        chosen = self._wait()
        with self._lock:
            if self._collecting:  # else another thread has ended it meanwhile
                self._settle(chosen)

    def _settle(self, chosen: List[Unit]) -> None:
        """The collection has ended with these units."""
        assert self._training is not None
        self._collecting = False
        assert self._files is not None
        for unit in chosen:
            unit.kept = True
            _reported.add((self._files.dump_path, unit.parts))
        self.kept_folders = sorted({unit.folder for unit in chosen})
        self.kept_steps = sorted(
            {
                step
                for unit in chosen
                if unit.step is not None
                for step in range(unit.step[0], unit.step[1] + 1)
            }
        )
        healthy = self._asked_for and not self._overflows()
        if not healthy and not any(unit.records for unit in chosen):
            # the register is summed over all ranks: the step is skipped everywhere, and one rank
            # has the dump
            self.reason = "other_rank" if self._training.world_size > 1 else "no_records"

    @property
    def tree(self) -> Optional[str]:
        run = None if self._files is None else self._files.run
        return (
            None
            if run is None or self._files is None
            else "%s/%s" % (self._files.dump_path.rstrip("/"), run)
        )

    @property
    def needs_restart(self) -> bool:  # type: ignore[override]
        """The device was opened without the dump."""
        return self._files is None and ascend_device.is_device_open()

    def on_accelerator(self) -> bool:
        """A look at the loss scale waits for the device."""
        return True

    def moved(self, call: Any) -> None:
        """A function moved an optimizer: of no interest, the device dumps by itself."""

    # --- files and steps

    def _tidy(self, closing: bool = False) -> None:
        """Find new files, give them their steps, delete what left the window without a trigger and
        what is over the budget.

        Args:
            closing: no further look will come: files written since the last one belong to the steps
                after it.
        """
        assert self._files is not None and self._training is not None
        device = ascend_device.open_device()
        if device is not None:  # it may have been opened after the watch began
            self._files.device = device
        for unit in self._files.scan():
            unit.stamp = self._believed(unit.stamp)
        for unit in self._files.units.values():
            if unit.step is None and not unit.kept:
                self._place(unit, closing)
            if not unit.settled:
                self._files.refresh(unit)
        self._delete_sporadic()
        self._hold_budget()

    def _place(self, unit: Unit, closing: bool = False) -> None:
        """Give a unit the steps of the look that ended first after its files were begun."""
        look = next((look for look in self._looks if look.ended >= unit.stamp), None)
        if look is None:
            if closing:
                following = self._looks[-1].last + 1 if self._looks else 0
                unit.step = (following, following)
            return
        unit.step = (look.first, look.last)
        if look.first != look.last or unit.data_index is None:
            return
        if self.train_steps.setdefault(unit.data_index, look.first) != look.first:
            self.folder_steps[unit.folder] = look.first

    def _believed(self, stamp: int) -> int:
        """A file's time, or now where the device's clock is another."""
        now = time.time()
        plausible = (self._began - _CLOCK_SECONDS) * 1e6 <= stamp <= (now + _CLOCK_SECONDS) * 1e6
        return stamp if plausible else int(now * 1e6)

    def _chosen(self) -> List[Unit]:
        """The units of the collection that runs: from the last ``keep`` counted steps on."""
        assert self._files is not None and self._from is not None
        units = [
            unit
            for unit in self._files.units.values()
            if not unit.kept and unit.step is not None and unit.step[1] >= self._from
        ]
        units = [
            unit for unit in units if self._until is None or (unit.step or (0, 0))[0] <= self._until
        ]
        for unit in units:
            self._files.refresh(unit)
        return sorted(units, key=lambda unit: unit.stamp)

    def _delete_sporadic(self) -> None:
        assert self._files is not None and self._training is not None
        if not self._looks:
            return
        gone_by = self._looks[-1].last - self._training.options.window
        for unit in list(self._files.units.values()):
            if unit.kept or unit.earlier or unit.step is None or self._is_collected(unit):
                continue
            first, last = unit.step
            if last <= gone_by and not any(first <= step <= last for step in self._pending):
                self._files.delete(unit)

    def _hold_budget(self) -> None:
        """Delete the oldest files over ``max_disk``, never those of a collection."""
        assert self._files is not None and self._training is not None
        over = (
            sum(unit.bytes for unit in self._files.units.values()) - self._training.options.max_disk
        )
        for unit in sorted(self._files.units.values(), key=lambda unit: unit.stamp):
            if over <= 0:
                break
            # the newest can still be written to
            if not unit.kept and unit.step is not None and not self._is_collected(unit):
                over -= unit.bytes
                self._files.delete(unit)

    def _is_collected(self, unit: Unit) -> bool:
        return (
            self._collecting
            and self._from is not None
            and unit.step is not None
            and unit.step[1] >= self._from
        )

    def _wait(self) -> List[Unit]:
        """Wait until the files of the collection are there and whole; not for long, and not for
        what has stopped growing."""
        assert self._files is not None
        end, still_since, seen = time.monotonic() + WAIT_SECONDS, time.monotonic(), (-1, -1)
        while True:
            with self._lock:
                # while the training goes on, what no look covers yet belongs to later steps
                self._tidy(closing=self._until is None)
                chosen = self._chosen()
                growing = [unit for unit in chosen if not self._files.is_whole(unit)]
                missing = self._expected() - sum(1 for unit in chosen if unit.records)
            if not growing and missing <= 0:
                return chosen
            size = (len(chosen), sum(unit.bytes for unit in chosen))
            if size != seen:
                seen, still_since = size, time.monotonic()
            if time.monotonic() > min(end, still_since + STILL_SECONDS):
                if growing:
                    self.remarks.append(("ascend.unfinished", {"count": len(growing)}))
                return chosen
            time.sleep(_POLL_SECONDS)

    def _expected(self) -> int:
        """Steps of the collection that must have a dump. With several ranks any other can be the
        one that overflowed."""
        assert self._training is not None
        return 0 if self._training.world_size > 1 else self._overflows()

    def _overflows(self) -> int:
        """Steps of the collection that overflowed."""
        start, end = self._from, self._until
        assert start is not None
        looks = [look for look in self._looks if look.last >= start]
        return sum(look.overflows for look in looks if end is None or look.first <= end)
