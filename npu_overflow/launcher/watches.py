"""Puts a training that knows nothing of this package under watch: every ``fit``, every loop of the
user's own, and the dump of an Ascend device.

Each training is watched once: where the script has a watch of its own, that one does it.
"""
from __future__ import annotations

import functools
import inspect
import sys
import weakref
from types import ModuleType
from typing import Any, Callable, Dict, List, Optional, Tuple

from npu_overflow.collect.ascend import device as ascend_device
from npu_overflow.launcher.imports import after_import
from npu_overflow.training import job, loss_scale, session
from npu_overflow.training.applications import Applications
from npu_overflow.training.calls import Call, FunctionCalls
from npu_overflow.training.console import Console, Script
from npu_overflow.training.options import DEFAULT_DUMP_PATH, WatchOptions
from npu_overflow.training.restart import RestartRequested
from npu_overflow.training.session import Session
from npu_overflow.training.watch import OverflowWatch, overflow_dump

__all__ = ["Watches"]

#: module -> the class in it whose ``fit`` trains
FITS = {
    "keras.engine.training": "Model",
    "keras.src.engine.training": "Model",
    "keras.src.backend.tensorflow.trainer": "TensorFlowTrainer",
    "tensorflow.python.keras.engine.training": "Model",
    "tf_keras.engine.training": "Model",
    "tf_keras.src.engine.training": "Model",
}

#: modules of loss-scale optimizers: a loop that calls no tf.function shows by them
SCALING = (
    "keras.mixed_precision.loss_scale_optimizer",
    "keras.src.mixed_precision.loss_scale_optimizer",
    "keras.src.optimizers.loss_scale_optimizer",
    "tf_keras.mixed_precision.loss_scale_optimizer",
    "tf_keras.src.mixed_precision.loss_scale_optimizer",
)


class Watches:
    """The watches of one script.

    Args:
        options: for ``OverflowWatch``, as given on the command line.
        dump: whether the overflow dump of an Ascend device is configured when the device opens.
    """

    def __init__(self, options: Dict[str, Any], dump: bool = True) -> None:
        self._given = options
        self._options = WatchOptions.of(**options)
        self._dump = dump
        self._fits = 0
        self._script = Script()
        self._lasting: List[Tuple[weakref.ReferenceType[Any], OverflowWatch]] = []
        self._loop: Optional[Session] = None
        self._loop_undo: List[Callable[[], None]] = []
        self._calls = FunctionCalls(self._function)
        self._applications = Applications(self._calls.concerned, self._applied)
        self._modules = 0
        self._failed = False

    def install(self) -> None:
        """Be there when the script imports what trains."""
        for module in FITS:
            after_import(module, self._watch_fit)
        after_import("tensorflow", self._watch_functions)
        for module in SCALING:
            after_import(module, self._watch_optimizers)
        after_import("npu_device", self._adapter_loaded)

    def end(self, failed: bool) -> None:
        """The script has ended or is about to: analyze what every training that still runs has
        collected."""
        self._end_loop(failed)
        for active in session.active():
            active.end(failed)
        for _model, watch in self._lasting:
            watch._session.end(failed)
        self._lasting = []

    # --- fit

    def _watch_fit(self, module: ModuleType) -> None:
        kind = getattr(module, FITS[module.__name__], None)
        real = vars(kind).get("fit") if isinstance(kind, type) else None
        if real is None:
            return
        names = [name for name in inspect.signature(real).parameters if name != "self"]
        place = names.index("callbacks") if "callbacks" in names else -1
        watches = self

        @functools.wraps(real)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            return watches._fit(model, functools.partial(real, model), place, args, kwargs)

        setattr(kind, "fit", fit)  # noqa: B010

    def _fit(self, model: Any, real: Callable[..., Any], place: int, args: Any, kwargs: Any) -> Any:
        positional = 0 <= place < len(args)
        callbacks = args[place] if positional else kwargs.get("callbacks")
        theirs = _watches_in(callbacks)
        self._end_loop(False)
        if theirs or session.active():
            watch = theirs[0] if theirs else None
        else:
            watch = self._watch_of(model)
            callbacks = _with(callbacks, watch)
            args, kwargs = _put(args, kwargs, place if positional else None, callbacks)
        self._fits += 1
        try:
            return real(*args, **kwargs)
        except BaseException as error:
            if watch is not None:
                watch._session.end(
                    failed=not isinstance(error, SystemExit) or isinstance(error, RestartRequested)
                )
            raise
        finally:
            self._fits -= 1

    def _watch_of(self, model: Any) -> OverflowWatch:
        """The watch of a model: scripts that call ``fit`` once an epoch have one training, not
        many."""
        watch = next(
            (
                watch
                for known, watch in self._lasting
                if known() is model and watch._session.is_active
            ),
            None,
        )
        gone = [
            known
            for known in self._lasting
            if known[0]() is None or not known[1]._session.is_active
        ]
        for known in gone:
            known[1]._session.end()
        self._lasting = [known for known in self._lasting if known not in gone]
        if watch is None:
            watch = OverflowWatch(**self._given)
            watch._session.script, watch._lasting = self._script, True
            self._lasting.append((weakref.ref(model), watch))
        return watch

    # --- loops of the script's own

    def _watch_functions(self, module: ModuleType) -> None:
        try:
            self._calls.install()
        except Exception:  # a TensorFlow whose functions can't be seen: fit is still watched
            self._failed = True

    def _watch_optimizers(self, module: ModuleType) -> None:
        self._applications.install()
        loss_scale.watch_new_optimizers(self._applications.see)

    def _applied(self, optimizer: Any) -> None:
        """An optimizer was used in Python, outside every tf.function."""
        begun = self._loop is not None
        loop = self._loop_session()
        if loop is not None and begun:
            loop.steps.optimizer_applied()
        elif loop is not None:  # the step that shows that there is a loop
            loop.after_steps(1)

    def _function(self, call: Call, proceed: Callable[..., Any]) -> Any:
        loop = self._loop_session()
        if loop is None:
            return proceed(*call.args, **call.kwargs)
        return loop.steps.function_call(call, proceed)

    def _loop_session(self) -> Optional[Session]:
        """The session that watches a call outside ``fit``; None where nothing is there to watch or
        somebody else does."""
        if self._fits:
            return None
        others = [active for active in session.active() if active is not self._loop]
        if others:
            self._end_loop(False)
            return None
        if self._loop is None and self._scaling_is_loaded():
            self._loop = Session(self._options, self._script)
            self._loop.begin(None, announce=False)
            self._loop_undo.append(loss_scale.watch_new_optimizers(self._loop.optimizer_made))
        return self._loop

    def _scaling_is_loaded(self) -> bool:
        """Whether any module of loss-scale optimizers is there: before, there is no loss scale to
        watch."""
        if self._modules == len(sys.modules):
            return False
        self._modules = len(sys.modules)
        found = any("loss_scale_optimizer" in name for name in list(sys.modules))
        if found:
            self._modules = 0
        return found

    def _end_loop(self, failed: bool) -> None:
        while self._loop_undo:
            self._loop_undo.pop()()
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.end(failed)

    # --- Ascend

    def _adapter_loaded(self, npu_device: ModuleType) -> None:
        if self._dump:
            path = self._options.dump_path or job.rank_folder(DEFAULT_DUMP_PATH, job.ranks_of())
            ascend_device.configure_at_open(npu_device, path, Console(self._options).say)
        # as_default() assigns Function.__call__
        ascend_device.after_default(npu_device, self._calls.reinstall)


def _watches_in(callbacks: Any) -> List[OverflowWatch]:
    """The watches among the callbacks of ``fit``, in whatever they are nested."""
    if isinstance(callbacks, OverflowWatch):
        return [callbacks]
    if isinstance(callbacks, overflow_dump):
        return []
    inside = (
        callbacks if isinstance(callbacks, (list, tuple)) else getattr(callbacks, "callbacks", None)
    )
    return (
        [watch for item in inside for watch in _watches_in(item)]
        if isinstance(inside, (list, tuple))
        else []
    )


def _with(callbacks: Any, watch: OverflowWatch) -> Any:
    """The callbacks and the watch behind them; a list of the script's own is not changed."""
    if callbacks is None:
        return [watch]
    if isinstance(callbacks, (list, tuple)):
        return [*callbacks, watch]
    if callable(getattr(callbacks, "append", None)):  # a CallbackList, which fit takes as it is
        watch.set_model(getattr(callbacks, "model", None))
        callbacks.append(watch)
        return callbacks
    return [callbacks, watch]


def _put(args: Any, kwargs: Dict[str, Any], place: Optional[int], callbacks: Any) -> Any:
    if place is None:
        return args, dict(kwargs, callbacks=callbacks)
    return (*args[:place], callbacks, *args[place + 1 :]), kwargs
