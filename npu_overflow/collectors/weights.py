"""The weights of a model at the trigger, for the process that goes on from there: one ``.npz`` without pickle, beside the manifest."""
from __future__ import annotations

import contextlib
import os
import zipfile
from typing import Any, List

import numpy as np

__all__ = ["load_weights", "save_weights", "weights_path"]


def weights_path(folder: str, rank: int) -> str:
    """Where the weights of one rank lie."""
    return os.path.join(folder, "weights-%d.npz" % rank)


def save_weights(model: Any, path: str) -> None:
    """Write the weights of a Keras model aside, then by renaming.

    Raises:
        OSError: the folder can't be written to, or the disk is full. What was there before is then unchanged.
    """
    aside = "%s.%d.part" % (path, os.getpid())
    try:
        with open(aside, "wb") as file:
            np.savez(file, **{"w%d" % i: value for i, value in enumerate(model.get_weights())})
        os.replace(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise


def load_weights(model: Any, path: str) -> None:
    """Set the weights of a built model to those of a file.

    Raises:
        OSError: the file can't be read.
        ValueError: it holds other weights than this model's; nothing is set then.
    """
    wanted = model.get_weights()
    found: List[Any] = []
    try:
        with zipfile.ZipFile(path) as archive:
            if len(archive.namelist()) != len(wanted):
                raise ValueError("%d arrays, the model has %d" % (len(archive.namelist()), len(wanted)))
            for i, value in enumerate(wanted):
                found.append(_read(archive, "w%d.npy" % i, value))
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise ValueError(str(error)) from None
    model.set_weights(found)


def _read(archive: zipfile.ZipFile, name: str, like: Any) -> Any:
    """One array, if its header says that it is like ``like``: nothing is allocated before."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _order, dtype = header(file)
    if shape != like.shape or dtype != like.dtype:
        raise ValueError("%s is %s %s, the model's is %s %s" % (name, dtype, list(shape), like.dtype, list(like.shape)))
    with archive.open(name) as file:
        return np.lib.format.read_array(file, allow_pickle=False)
