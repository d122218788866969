"""A model's weights and its optimizer's state at the trigger, for the process that goes on from
there: one ``.npz`` without pickle."""
from __future__ import annotations

import contextlib
import os
import zipfile
from typing import Any, List

import numpy as np

from npu_overflow.atomic import atomic_write
from npu_overflow.training import loss_scale

__all__ = ["load_state", "load_weights", "save_weights", "weights_are_lost", "weights_path"]


def weights_are_lost(model: Any) -> bool:
    """Whether any weight of a Keras model is non-finite; they are read one by one."""
    for weight in getattr(model, "weights", ()):
        # not initialised, not numbers, or on a device that is gone
        with contextlib.suppress(Exception):
            if not np.isfinite(np.asarray(weight.numpy(), np.float64)).all():
                return True
    return False


def weights_path(folder: str, rank: int) -> str:
    """Where the weights of one rank lie."""
    return os.path.join(folder, "weights-%d.npz" % rank)


def save_weights(model: Any, path: str) -> None:
    """Write the weights of a Keras model and the state of its optimizer (slots, count of steps,
    loss scale).

    Raises:
        CannotWrite (an OSError): what was there before is then unchanged.
    """
    arrays = {"w%d" % i: value for i, value in enumerate(model.get_weights())}
    state = enumerate(_optimizer_state(model))
    arrays.update({"o%d" % i: np.array(variable.numpy()) for i, variable in state})
    atomic_write(path, lambda file: np.savez(file, **arrays))


def load_weights(model: Any, path: str) -> None:
    """Set the weights of a built model to those of a file.

    Raises:
        OSError: the file can't be read.
        ValueError: it holds other weights than this model's; nothing is set then.
    """
    model.set_weights(_arrays(path, "w", model.get_weights()))


def load_state(model: Any, path: str) -> None:
    """Set the state of a compiled model's optimizer to that of a file; its variables are made for
    that, as Keras does when it loads a model.

    Raises:
        OSError: the file can't be read.
        ValueError: it holds the state of another optimizer; nothing is set then.
    """
    optimizer = getattr(model, "optimizer", None)
    methods = [getattr(optimizer, name, None) for name in ("build", "_create_all_weights")]
    make = next((method for method in methods if callable(method)), None)
    if make is not None:
        make(model.trainable_variables)
    variables = _optimizer_state(model)
    saved = _arrays(path, "o", [variable.numpy() for variable in variables])
    for variable, value in zip(variables, saved):
        variable.assign(value)


def _optimizer_state(model: Any) -> List[Any]:
    """The variables of a model's optimizer and of its loss scaling, always in the same order."""
    variables = getattr(getattr(model, "optimizer", None), "variables", ())
    found = list(variables() if callable(variables) else variables)
    for optimizer in loss_scale.find_in_model(model):
        for variable in loss_scale.reader_for(optimizer).state_variables():
            known = [*found, *(getattr(item, "_value", None) for item in found)]
            if not any(variable is item for item in known):
                found.append(variable)
    return found


def _arrays(path: str, kind: str, wanted: List[Any]) -> List[Any]:
    """The arrays of one kind, where they are as many as ``wanted`` and each is like the one
    there."""
    try:
        with zipfile.ZipFile(path) as archive:
            number = sum(1 for name in archive.namelist() if name.startswith(kind))
            if number != len(wanted):
                raise ValueError("%d arrays, the model has %d" % (number, len(wanted)))
            names = ["%s%d.npy" % (kind, i) for i in range(number)]
            return [_read(archive, *pair) for pair in zip(names, map(np.asarray, wanted))]
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(str(error)) from None


def _read(archive: zipfile.ZipFile, name: str, like: Any) -> Any:
    """One array, if its header says that it is like ``like``: nothing is allocated before."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        of_version = "read_array_header_%d_0" % (1 if version == (1, 0) else 2)
        header = getattr(np.lib.format, of_version)
        shape, _order, dtype = header(file)
    if shape != like.shape or dtype != like.dtype:
        about = (name, dtype, list(shape), like.dtype, list(like.shape))
        raise ValueError("%s is %s %s, the model's is %s %s" % about)
    with archive.open(name) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
