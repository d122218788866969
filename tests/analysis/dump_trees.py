"""Small dump trees and tensors for the tests of the analysis, made with the package's own writer."""
from __future__ import annotations

import os
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

import numpy as np

from npu_overflow.dump import codes, names
from npu_overflow.dump.record import Part
from npu_overflow.dump.tensor import Tensor
from npu_overflow.dump.writer import TensorSpec, write_dump, write_record

RUN = "20240517093010"
TIME = 1715938212000000

CLEAN = np.array([[1.0, -2.0], [0.5, 4.0]], np.float16)
INF = np.array([[1.0, np.inf], [0.5, 4.0]], np.float16)
PINNED = np.array([[1.0, -65504.0], [0.5, 65504.0]], np.float16)


def tensor_of(array: np.ndarray, dtype: Optional[str] = None, side: str = "input", index: int = 0, **more: Any) -> Tensor:
    """A tensor in memory; ``array`` holds items of the storage type."""
    name = dtype or array.dtype.name
    data = np.ascontiguousarray(array).tobytes()
    shape = more.pop("shape", array.shape)
    layout = more.pop("format", "ND")
    return Tensor(side, index, codes.DATA_TYPE_NUMBERS[name], name, layout, tuple(shape), bytes=len(data), size=len(data), source=data, **more)


class Step:
    """One folder of a tree."""

    def __init__(self, root: Any, data_index: int = 0, run: str = RUN, device: int = 0, model: str = "graph", model_id: int = 11) -> None:
        self.folder = os.path.join(str(root), run, str(device), model, str(model_id), str(data_index))
        os.makedirs(self.folder, exist_ok=True)

    def record(self, task: int, time: int, core: str = "AIV", status: Any = 1, name_task: int = 1, **more: Any) -> str:
        """A record at ``time`` microseconds after TIME."""
        parts = more.pop("parts", None) or [Part(core, status, 11, 2, task)]
        return write_record(os.path.join(self.folder, names.record_name(name_task, 5, TIME + time)), parts, **more)

    def dump(
        self,
        op_type: str,
        name: str,
        task: int,
        time: int,
        inputs: Sequence[Any] = (CLEAN,),
        outputs: Sequence[Any] = (INF,),
        host: Optional[Mapping[str, Any]] = None,
        **more: Any
    ) -> str:
        """An operator's dump a little after ``time``."""
        path = os.path.join(self.folder, names.dump_name(op_type, name, task, 2, TIME + time + 5))
        return write_dump(path, name, [_spec(item) for item in inputs], [_spec(item) for item in outputs], host, **more)

    def operator(self, op_type: str, name: str, task: int, time: int, inputs: Sequence[Any] = (CLEAN,), outputs: Sequence[Any] = (INF,), **more: Any) -> str:
        """A record and its dump; returns the path of the dump."""
        record = {key: more.pop(key) for key in ("core", "status", "parts", "version", "layout", "valid") if key in more}
        self.record(task, time, **record)
        return self.dump(op_type, name, task, time, inputs, outputs, **more)


def _spec(item: Any) -> TensorSpec:
    return item if isinstance(item, TensorSpec) else TensorSpec(item)


def host_of(**more: Any) -> Dict[str, Any]:
    """What the host collector writes, in its simplest form."""
    facts: Dict[str, Any] = {"host": 1, "core": "CPU", "origin": "operator", "role": "culprit", "phase": "forward"}
    facts.update(more)
    return facts


def titles(report: Any) -> List[Tuple[Any, ...]]:
    """(name, verdict) of each entry."""
    return [(operator.op_name, operator.verdict) for operator in report.operators]
