"""Configures the dump of an Ascend NPU, before its device opens: afterwards the options change
nothing.

``npu_device`` is always handed in or taken from the loaded modules; it is never imported to look,
because importing it loads its libraries.
"""
from __future__ import annotations

import dataclasses
import functools
import os
import shutil
import sys
import tempfile
import warnings
import weakref
from typing import Any, Callable, Dict, List, MutableMapping, Optional, Tuple

from npu_overflow.atomic import atomic_write
from npu_overflow.errors import CannotCollect, NpuOverflowError, PathError, UsageError, reason_of
from npu_overflow.training.job import Ranks, numbered_by_device, rank_folder, ranks_of
from npu_overflow.training.options import DEFAULT_DUMP_PATH

__all__ = [
    "DEFAULT_GRAPH_PATH",
    "DEFAULT_PLAIN_PATH",
    "after_default",
    "configure_at_open",
    "configure_overflow",
    "configured_dump_path",
    "is_default",
    "is_device_open",
    "loaded_adapter",
    "npu_device_dump_config",
    "open_device",
    "ranks_now",
]

DEFAULT_PLAIN_PATH = "precision_data/npu/debug_0/dump"
DEFAULT_GRAPH_PATH = "precision_data/npu/debug_0/graph"

ACTIONS = ("overflow", "dump", "fusion_off", "fusion_switch")
_BY_ENVIRONMENT = {"overflow": "PRECISION_TOOL_OVERFLOW", "dump": "PRECISION_TOOL_DUMP"}
_FUSION_FILES = {
    "fusion_off": (
        "precision_data/fusion_off.cfg",
        '{"Switch":{"GraphFusion":{"ALL":"off"},"UBFusion":{"ALL":"off"}}}',
    ),
    "fusion_switch": (
        "precision_data/fusion_switch.cfg",
        '{"Switch":{"GraphFusion":{},"UBFusion":{}}}',
    ),
}
#: less free room than this gets a warning: dumps of one step can have gigabytes
ROOM = 2 * 10**9

Remark = Tuple[str, Dict[str, Any]]

#: adapter -> dump path of the overflow dump that was configured before its device opened: a device
#: can't be asked for its options
_before_open: MutableMapping[Any, str] = weakref.WeakKeyDictionary()


def npu_device_dump_config(
    npu_device: Any, action: Optional[str] = "overflow", dump_path: Optional[str] = None
) -> Any:
    """Configure dumps of an NPU; call it before ``npu_device.open()``. As the vendor's helper of
    this name.

    Args:
        npu_device: the module ``npu_device``.
        action: words joined with ``|``: "overflow" (operators of steps that overflow), "dump" (all
            operators of step 0), "fusion_off" (operator fusion off), "fusion_switch" (by an
            editable file). None: by the environment, "overflow" where PRECISION_TOOL_OVERFLOW,
            "dump" where PRECISION_TOOL_DUMP is "True".
        dump_path: folder of the dump, created where it is missing. Default:
            precision_data/overflow/dump (with several ranks /rank_{id} below it), of "dump"
            precision_data/npu/debug_0/dump, in the working folder.

    Returns:
        ``npu_device``.

    Raises:
        UsageError: (a ValueError) an unknown word, or words that exclude each other.
        PathError: the dump path can't be made or written to.
        CannotCollect: this adapter has no such dump.

    Where the device is open already, a RuntimeWarning says what to do and nothing is set.
    """
    words = _words(action)
    if words and is_device_open(npu_device):
        wanted = _path_of("overflow", dump_path) if "overflow" in words else None
        if wanted is None or _before_open.get(npu_device) != wanted:
            _warn(CannotCollect("dump_config.too_late"))
        return npu_device
    for word in words:
        if word in _FUSION_FILES:
            _configure_fusion(npu_device, word)
        else:
            path = _path_of(word, dump_path)
            remarks = (
                configure_overflow(npu_device, path)
                if word == "overflow"
                else _configure_plain(npu_device, path)
            )
            _dump_graphs()
            for code, values in remarks:
                _warn(CannotCollect(code, **values))
    return npu_device


def configure_overflow(npu_device: Any, dump_path: str) -> List[Remark]:
    """Switch the overflow dump on, before the device opens. Doing it twice is harmless.

    Returns:
        (code, values) of warnings for the user.

    Raises:
        CannotCollect: the device is open, the adapter has no overflow dump, or its other dump is
            on, which excludes this one.
        PathError: the dump path can't be made or written to.
    """
    path = os.path.abspath(dump_path)
    if is_device_open(npu_device):
        raise CannotCollect("dump_config.too_late")
    options = _options(npu_device)
    missing = CannotCollect("dump_config.no_overflow_dump")
    dump = _dump_options(options, "enable_dump_debug", "enable_dump", missing)
    remarks = _prepare_folder(path)
    dump.enable_dump_debug = True
    dump.dump_path = path
    _set_if_there(dump, "dump_debug_mode", "all")
    _set_debug_level(options)
    _before_open[npu_device] = path
    if _value(options, "enable_exception_dump") == "1":
        remarks.append(("dump_config.exception_dump", {}))
    return remarks


def configure_at_open(
    npu_device: Any, dump_path: str, say: Callable[..., None]
) -> Callable[[], None]:
    """Configure the overflow dump at the moment the device opens, in a script that can't be
    changed: ``open`` is replaced by a wrapper.

    Args:
        say: ``say(code, **values)`` for warnings. An error never keeps the device from opening: it
            is said as well.

    Returns:
        a function that puts ``open`` back, unless somebody else has replaced it since.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def opening(*args: Any, **kwargs: Any) -> Any:
            if not is_device_open(npu_device) and configured_dump_path(npu_device) is None:
                try:
                    for code, values in configure_overflow(npu_device, dump_path):
                        say(code, **values)
                except NpuOverflowError as error:
                    say(error.code, **error.values)
            return original(*args, **kwargs)

        return opening

    return _replace_open(npu_device, wrap)


def _replace_open(
    npu_device: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Callable[[], None]:
    """Replace ``open`` in the package and in the module that defines it; returns what puts it back
    unless somebody else has replaced it since."""
    modules: List[Any] = [npu_device, getattr(npu_device, "npu_device", None)]
    places = [
        (module, module.open) for module in modules if callable(getattr(module, "open", None))
    ]
    wrappers = [(module, original, wrap(original)) for module, original in places]
    for module, _original, wrapper in wrappers:
        module.open = wrapper

    def undo() -> None:
        for module, original, wrapper in wrappers:
            if module.open is wrapper:
                module.open = original

    return undo


def after_default(npu_device: Any, done: Callable[[], None]) -> Callable[[], None]:
    """Call ``done()`` each time a device has become the default: ``as_default`` assigns what it
    patches, so a wrapper put there before is lost.

    Returns:
        a function that undoes it, unless somebody else has replaced the same since.
    """
    undo: List[Callable[[], None]] = []
    kinds: List[Any] = []

    def wrap(handle: Any) -> None:
        kind = next((base for base in type.mro(type(handle)) if "as_default" in vars(base)), None)
        if kind is None or kind in kinds:
            return
        real = vars(kind)["as_default"]

        @functools.wraps(real)
        def as_default(self: Any, *args: Any, **kwargs: Any) -> Any:
            made = real(self, *args, **kwargs)
            done()
            return made

        def put_back() -> None:
            if vars(kind).get("as_default") is as_default:
                setattr(kind, "as_default", real)  # noqa: B010

        setattr(kind, "as_default", as_default)  # noqa: B010
        kinds.append(kind)
        undo.append(put_back)

    for handle in _instances(npu_device).values():
        wrap(handle)

    def opened(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def opening(*args: Any, **kwargs: Any) -> Any:
            handle = original(*args, **kwargs)
            wrap(handle)
            return handle

        return opening

    undo.append(_replace_open(npu_device, opened))

    def undo_all() -> None:
        while undo:
            undo.pop()()

    return undo_all


def loaded_adapter() -> Any:
    """The module ``npu_device`` where this process has loaded it, else None."""
    return sys.modules.get("npu_device")


def is_device_open(npu_device: Any = None) -> bool:
    """Whether a device was opened in this process. A closed one counts: opening it again gives the
    stale handle and reads no options."""
    inner = getattr(npu_device if npu_device is not None else loaded_adapter(), "npu_device", None)
    # an adapter that keeps them elsewhere: ask for the default
    if inner is not None and not hasattr(inner, "_npu_device_instances"):
        asks = getattr(inner, "global_npu_ctx", None)
        return callable(asks) and asks() is not None
    return bool(_instances(npu_device))


def is_default(npu_device: Any = None) -> bool:
    """Whether an open device is TensorFlow's default; True where the adapter can't be asked."""
    inner = getattr(npu_device if npu_device is not None else loaded_adapter(), "npu_device", None)
    asks = getattr(inner, "global_npu_ctx", None)
    return asks() is not None if callable(asks) else True


def open_device(npu_device: Any = None) -> Optional[int]:
    """Id of the device that is open, or None."""
    for key in _instances(npu_device):
        if str(key).isdecimal():
            return int(key)
    return None


def ranks_now() -> Ranks:
    """This process among its job: as the launcher tells it, and where only the device knows the
    rank, as the open one tells it."""
    place = ranks_of()
    if numbered_by_device():
        for handle in _instances(None).values():
            rank = getattr(handle, "worker_id", None)
            # an adapter that does not know this way of numbering runs alone
            if isinstance(rank, int) and getattr(handle, "workers_num", None) == place.world_size:
                return dataclasses.replace(place, rank=rank)
    return place


def configured_dump_path(npu_device: Any = None) -> Optional[str]:
    """Absolute dump path of the overflow dump, or None where it is not configured.

    What this module set before the device opened is known. Options that a script set by itself are
        believed: whether that was before or
    after the device opened can't be told.
    """
    npu_device = npu_device if npu_device is not None else loaded_adapter()
    if npu_device is None:
        return None
    if npu_device in _before_open:
        return _before_open[npu_device]
    dump = getattr(_options(npu_device), "dump_config", None)
    path = _value(dump, "dump_path")
    return os.path.abspath(path) if path and _is_on(dump, "enable_dump_debug") else None


def _instances(npu_device: Any) -> Dict[Any, Any]:
    inner = getattr(npu_device if npu_device is not None else loaded_adapter(), "npu_device", None)
    return getattr(inner, "_npu_device_instances", None) or {}


def _words(action: Any) -> List[str]:
    """The words of an action, checked."""
    if action is None:
        words = [word for word, name in _BY_ENVIRONMENT.items() if os.environ.get(name) == "True"]
    elif isinstance(action, str):
        words = [word.strip() for word in action.split("|")]
    else:
        words = [repr(action)]
    for word in words:
        if word not in ACTIONS:
            raise UsageError("dump_config.action", action=word, accepted=", ".join(ACTIONS))
    for one, other in (("overflow", "dump"), ("fusion_off", "fusion_switch")):
        if one in words and other in words:
            raise UsageError("dump_config.exclusive", one=one, other=other)
    return sorted(set(words), key=words.index)


def _path_of(word: str, dump_path: Optional[str]) -> str:
    if dump_path is not None:
        return os.path.abspath(dump_path)
    return os.path.abspath(
        rank_folder(DEFAULT_DUMP_PATH if word == "overflow" else DEFAULT_PLAIN_PATH, ranks_of())
    )


def _dump_options(options: Any, wanted: str, other: str, missing: CannotCollect) -> Any:
    """The dump options, where they have the one that is ``wanted`` and the ``other`` is off."""
    dump = getattr(options, "dump_config", None)
    if dump is None or not hasattr(dump, wanted):
        raise missing
    if _is_on(dump, other):
        raise CannotCollect("dump_config.other_dump", other=other)
    return dump


def _configure_plain(npu_device: Any, path: str) -> List[Remark]:
    """The dump of all operators, of step 0."""
    options = _options(npu_device)
    missing = CannotCollect("dump_config.no_option", option="dump_config.enable_dump")
    dump = _dump_options(options, "enable_dump", "enable_dump_debug", missing)
    remarks = _prepare_folder(path)
    dump.enable_dump = True
    dump.dump_path = path
    _set_if_there(dump, "dump_step", "0")
    _set_if_there(dump, "dump_mode", "all")
    _set_debug_level(options)
    return remarks


def _configure_fusion(npu_device: Any, word: str) -> None:
    options = _options(npu_device)
    if not hasattr(options, "fusion_switch_file"):
        raise CannotCollect("dump_config.no_option", option="fusion_switch_file")
    name, content = _FUSION_FILES[word]
    path = os.path.abspath(name)
    _make_folder(os.path.dirname(path))
    if word == "fusion_off" or not os.path.exists(path):  # the other is the user's to edit
        try:
            atomic_write(path, content + "\n", follow=True, keep_mode=True)
        except OSError as error:
            raise PathError("dump_config.unwritable", path=path, reason=reason_of(error)) from None
    options.fusion_switch_file = path


def _dump_graphs() -> None:
    """Graph dumps, as the vendor's helper has them; what the user set stays."""
    path = os.path.abspath(rank_folder(DEFAULT_GRAPH_PATH, ranks_of()))
    _make_folder(path)
    for name, value in (
        ("DUMP_GE_GRAPH", "2"),
        ("DUMP_GRAPH_LEVEL", "3"),
        ("DUMP_GRAPH_PATH", path),
        ("NPU_DUMP_GRAPH", "true"),
    ):
        os.environ.setdefault(name, value)


def _options(npu_device: Any) -> Any:
    """The options of the process, or None: the first adapters took theirs as an argument of
    ``open``."""
    asks = getattr(npu_device, "global_options", None)
    return asks() if callable(asks) else None


def _set_debug_level(options: Any) -> None:
    """Old adapters need it. Newer ones have op_debug_config instead: there it would be a warning at
    every ``open`` that can't be unset."""
    if hasattr(options, "op_debug_level") and not hasattr(options, "op_debug_config"):
        options.op_debug_level = 4


def _set_if_there(options: Any, name: str, value: Any) -> None:
    """Set an option that an older adapter may lack."""
    if hasattr(options, name):
        setattr(options, name, value)


def _value(options: Any, name: str) -> Optional[str]:
    """An option as text ("1" and "0" for booleans), None where it is unset or unknown."""
    option = getattr(options, name, None)
    value = getattr(option, "value", option)
    if value is None or isinstance(value, bool):
        return None if value is None else str(int(value))
    return str(value)


def _is_on(options: Any, name: str) -> bool:
    return _value(options, name) in ("1", "True", "true")


def _prepare_folder(path: str) -> List[Remark]:
    """Make the folder and see that it can be written to and has room; the device itself would find
    out at the first graph only."""
    _make_folder(path)
    try:
        with tempfile.TemporaryFile(dir=path) as probe:
            probe.write(b"\0" * 4096)
            probe.flush()
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise PathError("dump_config.unwritable", path=path, reason=reason_of(error)) from None
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        raise PathError("dump_config.unwritable", path=path, reason=os.strerror(13))
    return (
        [("dump_config.little_room", {"path": path, "free": "%.1f" % (free / 1e9)})]
        if free < ROOM
        else []
    )


def _make_folder(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise PathError("dump_config.unwritable", path=path, reason=reason_of(error)) from None


def _warn(error: NpuOverflowError) -> None:
    warnings.warn(error.for_user(), RuntimeWarning, stacklevel=3)
