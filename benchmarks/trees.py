"""Dump trees for the benchmarks: few large files, or many small ones."""
from __future__ import annotations

import os
import sys
from typing import Any

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np

from npu_overflow.dump.names import dump_name, record_name
from npu_overflow.dump.record import Part
from npu_overflow.dump.writer import TensorSpec, write_dump, write_record

__all__ = ["large", "many"]

RUN = "20260504101112"
TIME = 1777889472000000


def large(root: str, operators: int = 5, mebibytes: int = 64, seed: int = 0) -> str:
    """``operators`` operators of three float16 tensors of ``mebibytes`` each, every output with an Inf in its middle; the path."""
    random = np.random.default_rng(seed)
    folder = os.path.join(root, RUN, "0", "model", "1", "7")
    os.makedirs(folder, exist_ok=True)
    for task in range(operators):
        values = [random.standard_normal((mebibytes << 19) // 4096 * 4096, dtype=np.float32).astype(np.float16).reshape(-1, 4096) for _ in range(3)]
        values[2].reshape(-1)[values[2].size // 2] = np.inf
        _operator(folder, task, values)
    return root


def many(root: str, files: int = 40000, devices: int = 1, steps: int = 10) -> str:
    """``files`` small files: half records, half the dumps of their operators, spread over ``devices`` and ``steps``; the path."""
    values = [np.arange(8, dtype=np.float16), np.ones(8, np.float16), np.full(8, np.inf, np.float16)]
    for task in range(files // 2):
        place = task * devices * steps // (files // 2)
        folder = os.path.join(root, RUN, str(place // steps), "model", "1", str(place % steps))
        os.makedirs(folder, exist_ok=True)
        _operator(folder, task, values)
    return root


def _operator(folder: str, task: int, values: Any) -> None:
    """An operator and the record that names it."""
    name = "model/layer_%d/MatMul" % task
    time = TIME + 20 * task
    path = os.path.join(folder, dump_name("MatMul", name, task + 1, 3, time))
    write_dump(path, name, [TensorSpec(value) for value in values[:2]], [TensorSpec(values[2])])
    part = Part("AIC", 0x20, model_id=1, stream_id=3, task_id=task + 1)
    write_record(os.path.join(folder, record_name(task + 1, 9, time + 5)), [part])
