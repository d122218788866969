"""Two thin doors to a Session: ``OverflowWatch`` for Keras ``fit``, ``overflow_dump`` for
everything else.

``OverflowWatch`` has a callback's methods and no callback's base class: so it works with keras,
tf.keras and tf_keras alike, and making one touches no TensorFlow (on an NPU nothing of TensorFlow
may exist before the device opens).
"""
from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import os
import sys
from types import TracebackType
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Optional,
    Tuple,
    Type,
    TypeVar,
    Union,
    cast,
)

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.report.model import Report
from npu_overflow.report.tensorboard import folder_beside
from npu_overflow.training.options import WatchOptions
from npu_overflow.training.session import Session

__all__ = ["OverflowWatch", "overflow_dump"]


Init = TypeVar("Init", bound=Callable[..., None])


def _by_keyword(signature: Init) -> Init:
    """A constructor that people, editors and type checkers see with this signature; a name that is
    not in it is refused with those that are."""

    @functools.wraps(signature)
    def init(self: Any, **given: Any) -> None:
        self._start(WatchOptions.of(**given))

    return cast(Init, init)


class _Watched:
    """What both entry points are made with; the defaults are those of ``WatchOptions``."""

    @_by_keyword
    def __init__(
        self,
        *,
        patience: int = 5,
        window: int = 100,
        warmup: int = 20,
        min_scale: float = 1.0,
        at_steps: Union[int, Iterable[int]] = (),
        check_every: Union[int, str] = "auto",
        keep: int = 3,
        max_collect_steps: int = 20,
        max_collect_seconds: float = 300.0,
        max_reports: int = 5,
        limit: int = 3,
        dump_path: Union[str, os.PathLike[str], None] = None,
        dump: bool = True,
        max_disk: Union[int, str] = 2000000000,
        max_memory: Union[int, str] = 256000000,
        collector: Any = "auto",
        on_overflow: str = "report",
        on_report: Optional[Callable[[Report], None]] = None,
        optimizer: Any = None,
        restore: bool = False,
        tensorboard_dir: Union[str, os.PathLike[str], None] = None,
        language: Optional[str] = None,
        verbose: int = 1,
    ) -> None:
        pass


class OverflowWatch(_Watched):
    """A Keras callback that watches the loss scale and, after repeated overflows, reports the
    operator that overflows first. ``isinstance`` takes it for a callback of every Keras that is
    loaded.

    Example:
        ``model.fit(data, callbacks=[npu_overflow.OverflowWatch()])``

    Raises:
        UsageError: an unknown option, or a value that is not accepted.
    """

    # what Keras asks of its callbacks
    _supports_tf_logs = True  # tf.keras 2.x: logs may stay tensors: a step does not wait for them
    _chief_worker_only = None
    _keras_api_names = ()
    async_safe = False

    def _start(self, options: WatchOptions) -> None:
        self._session = Session(options)
        self._session.configure_device()
        self.model: Any = None
        self.params: Dict[str, Any] = {}
        self._lasting = False  # several calls of ``fit`` with one model are one training
        self._begun: Optional[int] = None
        # a training has begun and no step of it yet: a watch that is given twice begins once
        self._fresh = False

    def __copy__(self) -> OverflowWatch:
        """A watch of its own with the same options: a training's state belongs to one watch."""
        return self._anew(dict)

    def __deepcopy__(self, memo: Dict[int, Any]) -> OverflowWatch:
        """So, too: tuners copy callbacks for each trial. Optimizers and functions among the options
        stay the same objects."""
        return self._anew(lambda more: copy.deepcopy(more, memo))

    def __reduce__(self) -> Tuple[Any, ...]:
        """Pickled as its options and what a class of the user's adds: a fresh watch."""
        options = self._session.options
        started = vars(OverflowWatch._of(options))
        own = {name: value for name, value in vars(self).items() if name not in started}
        return _unpickled, (type(self), options, own)

    @property  # type: ignore[misc]
    def __class__(self) -> Type[Any]:
        """What ``isinstance`` asks: a class that is a callback of every Keras that is loaded."""
        own: Any = type(self)
        return _as_callback(own, _callback_classes())

    @classmethod
    def _of(cls, options: WatchOptions) -> OverflowWatch:
        made = cls.__new__(cls)
        made._start(options)
        return made

    def __repr__(self) -> str:
        """What it is doing, and what it has found."""
        found = [report.first for report in self.reports]
        names = ", ".join("%s %s" % (item.op_type, item.op_name) for item in found if item)
        return "OverflowWatch(%s%s)" % (self.state, ": " + names if names else "")

    def _anew(self, copied: Callable[[Dict[str, Any]], Dict[str, Any]]) -> OverflowWatch:
        """A fresh watch; ``copied`` copies what a class of the user's adds."""
        fresh = type(self)._of(self._session.options)
        known, own = vars(fresh), vars(self)
        known.update(copied({name: own[name] for name in own if name not in known}))
        return fresh

    # --- what people read

    @property
    def state(self) -> str:
        """"watching", "collecting", "reported" (until the next trigger is allowed) or "off"."""
        return self._session.run.machine.state

    @property
    def drops(self) -> List[Tuple[int, float, float]]:
        """Falls of the loss scale: (training step, before, after)."""
        return self._session.run.machine.drops

    @property
    def reports(self) -> List[Report]:
        """Reports of this training, oldest first."""
        return self._session.run.delivery.reports

    @property
    def stop_requested(self) -> bool:
        """True once a report was made and ``on_overflow`` is "stop"."""
        return self._session.run.delivery.stop_requested

    def step(
        self, loss_scale: Optional[float] = None, finite: Optional[bool] = None
    ) -> contextlib.AbstractContextManager[None]:
        """Mark one training step of a loop that calls no tf.function and no Keras optimizer.

        ``with watch.step():`` around a step makes it collectable. ``watch.step(loss_scale=…,
        finite=…)`` after a step tells how it went: inside ``overflow_dump`` what TensorFlow
        executed since the step before is collected, in ``fit`` it is only watched.

        Args:
            loss_scale: the loss scale after the step.
            finite: whether the step's gradients were finite.
        """
        if loss_scale is None and finite is None:
            return self._session.steps.marked_step()
        self._session.steps.told_step(loss_scale, finite)
        return contextlib.nullcontext()

    # --- Keras hooks

    def set_params(self, params: Dict[str, Any]) -> None:
        """Keras hands over the parameters of ``fit``."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """Keras hands over the model."""
        self.model = model
        self._fresh = False

    def on_train_begin(self, logs: Any = None) -> None:
        """A new training: everything starts afresh."""
        if self._fresh:
            return
        self._fresh = True
        self._session.board.folder = self._session.options.tensorboard_dir or folder_beside(self)
        self._session.begin(self.model, lasting=self._lasting)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """The next training call begins at step ``batch`` of the epoch."""
        if self._begun == batch:
            return
        self._begun, self._fresh = batch, False
        self._session.steps.before_fit_call(self.model, private.steps_per_execution(self.model))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """A training call ended at step ``batch`` of the epoch."""
        if self._begun is None:
            return
        steps, self._begun = batch - self._begun + 1, None
        self._session.after_steps(max(1, steps), self._loss_is_finite(logs))
        if self.stop_requested:
            self.model.stop_training = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """A new epoch: Keras starts its running mean of the loss again."""
        self._session.epoch_begins()

    def on_train_end(self, logs: Any = None) -> None:
        """Training ended."""
        if self._lasting:
            self._session.pause()
            self.model = None
        else:
            self._session.end()

    def _loss_is_finite(self, logs: Any) -> Optional[bool]:
        """Whether every loss is finite, under whatever name it is logged (``d_loss``); asked only
        where nothing else tells (asking waits for the step)."""
        if not self._session.needs_loss or not isinstance(logs, dict):
            return None
        try:
            losses = [float(value) for name, value in logs.items() if "loss" in name.lower()]
        except (TypeError, ValueError):
            return None
        return all(map(math.isfinite, losses)) if losses else None

    def _nothing(self, *args: Any, **kwargs: Any) -> None:
        """Hooks of Keras that are of no interest here."""

    on_batch_begin = on_batch_end = on_epoch_end = _nothing
    on_test_begin = on_test_end = on_test_batch_begin = on_test_batch_end = _nothing
    on_predict_begin = on_predict_end = _nothing
    on_predict_batch_begin = on_predict_batch_end = _nothing

    def _implements_train_batch_hooks(self) -> bool:
        return True

    def _implements_test_batch_hooks(self) -> bool:
        return False

    def _implements_predict_batch_hooks(self) -> bool:
        return False


def _unpickled(
    cls: Type[OverflowWatch], options: WatchOptions, own: Dict[str, Any]
) -> OverflowWatch:
    made = cls._of(options)
    vars(made).update(own)
    return made


def _callback_classes() -> Tuple[type, ...]:
    """``Callback`` of each Keras that is loaded, each once."""
    found = []
    for name in ("keras", "tf_keras"):
        loaded = getattr(sys.modules.get(name), "callbacks", None)
        kind = getattr(loaded, "Callback", None)
        if isinstance(kind, type) and kind not in found:
            found.append(kind)
    return tuple(found)


@functools.lru_cache(maxsize=None)
def _as_callback(cls: Type[Any], callbacks: Tuple[type, ...]) -> Type[Any]:
    """``cls``, or where callbacks are given a class that is each of them, too."""
    if not callbacks:
        return cls
    return type(cls.__name__, (cls, *callbacks), {"__module__": cls.__module__})


class overflow_dump(_Watched):
    """Watches a training loop of any kind: ``with npu_overflow.overflow_dump(): train()``.

    Calls of tf.functions that move an optimizer are the training steps; ``fit`` inside is seen too.
    Yields the watch.

    Raises:
        UsageError: an unknown option, or a value that is not accepted.
    """

    def _start(self, options: WatchOptions) -> None:
        self._watch = OverflowWatch._of(options)

    def __enter__(self) -> OverflowWatch:
        session = self._watch._session
        session.begin(None)
        session.watch_loop()
        return self._watch

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        session = self._watch._session
        session.steps.remove()
        session.end(failed=kind is not None and not issubclass(kind, SystemExit))


for _entry in (OverflowWatch, overflow_dump) if WatchOptions.__doc__ else ():  # not under -OO
    _meaning = inspect.cleandoc(WatchOptions.__doc__ or "").partition("Args:\n")[2]
    _entry.__doc__ = "%s\n\nArgs:\n%s" % (inspect.cleandoc(_entry.__doc__ or ""), _meaning)
