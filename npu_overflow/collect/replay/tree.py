"""The operators of a replayed step as a dump tree of the vendor's format, so that one analyzer
serves devices and hosts."""
from __future__ import annotations

import json
import os
import re
import time
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Optional, Sequence

from npu_overflow.atomic import atomic_write
from npu_overflow.collect.replay.blame import Findings
from npu_overflow.collect.replay.finite import first_bad
from npu_overflow.collect.replay.taint import Held, HeldTensor, OpRef
from npu_overflow.dump import names, writer
from npu_overflow.dump.codes import elements
from npu_overflow.dump.record import Part
from npu_overflow.dump.replay_info import TrialInfo
from npu_overflow.dump.writer import TensorSpec

__all__ = ["HostTree"]

# from here on a cast gives Inf
_LARGEST = {
    "float16": 65520.0,
    "bfloat16": 3.3961775292304957e38,
    "float32": 3.4028235677973366e38,
}
_OPAQUE = ("resource", "variant", "string")
_REPLICA = re.compile(r"(?:^|/)replica_(\d+)/")
_STREAM = 0


class HostTree:
    """One time folder: ``{dump_path}/{time}/{device}/{model_name}/1/{training step}/``; operators
    past ``max_bytes`` are not written. ``core``: "CPU" or "GPU"."""

    def __init__(
        self, dump_path: str, model_name: str, device: int, core: str, max_bytes: int
    ) -> None:
        self.path = _time_folder(dump_path)
        self._level, self._device, self._core = _level(model_name), device, core
        self._left = max_bytes

    def write(
        self,
        step: int,
        found: Findings,
        trials: Sequence[TrialInfo],
        describe: Callable[[OpRef], Dict[str, Any]],
        variable: Callable[[int], str],
    ) -> int:
        """Write the operators of one step, in the order of execution; returns how many did not fit.

        Args:
            trials: what was tried against the step's culprit.
            describe: tells what people are told of an operator.
            variable: the name of a variable by the number of its handle.
        """
        now = int(time.time() * 1e6)
        left_out = 0
        written: List[str] = []
        for place, held in enumerate(sorted(found.held, key=lambda item: item.op.order)):
            role = _role(held, found)
            if role is None:
                continue
            size = sum(map(_size, held.inputs + held.outputs))
            if size > self._left:
                left_out += 1
                continue
            self._left -= size
            facts = {"core": self._core, "role": role, "train_step": step, **describe(held.op)}
            facts.update(_facts(held, variable))
            if role == "culprit":
                facts["cured_by_scale"] = found.cured_by_scale
                facts["trials"] = [asdict(trial) for trial in trials]
            stamp, task = now + 2 * place, held.op.order + 1
            name = facts["op_name"]
            replica = _REPLICA.search(name)
            device = self._device + (int(replica.group(1)) if replica else 0)
            folder = os.path.join(self.path, str(device), self._level, "1", str(step))
            os.makedirs(folder, exist_ok=True)
            dump = names.dump_name(held.op.type, name, task, _STREAM, stamp + 1)
            record = names.record_name(place + 1, _STREAM, stamp)
            dump, record = os.path.join(folder, dump), os.path.join(folder, record)
            sides = [_spec(item) for item in held.inputs], [_spec(item) for item in held.outputs]
            part = Part("AIC", 1, model_id=1, task_id=task, stream_id=_STREAM)
            written += (
                writer.write_dump(dump, name, *sides, host=facts, rename=False),
                writer.write_record(record, [part], layout="magic", version=2, rename=False),
            )
        for path in written:
            writer.finish(path)
        return left_out


    def write_survey(self, step: int, found: Dict[str, Any]) -> None:
        """Write the magnitudes of a step, which ``survey`` found."""
        path = os.path.join(self.path, names.SURVEY_FILE)
        atomic_write(path, json.dumps({"step": step, **found}, allow_nan=False) + "\n")


def _facts(held: Held, variable: Callable[[int], str]) -> Dict[str, Any]:
    """What the replay knows of an operator and its tensors, by the names of ``ReplayInfo``."""
    inputs = [("input.%d" % i, item) for i, item in enumerate(held.inputs)]
    outputs = [("output.%d" % i, item) for i, item in enumerate(held.outputs)]
    read = [(key, item.variable) for key, item in inputs if item.variable]
    return {
        "host": 1,
        "op_type": held.op.type,
        "origin": held.origin.kind if held.origin else "operator",
        "origin_detail": _detail(held, variable),
        "variables": {key: variable(label.handle) for key, label in read},
        "tensors": {key: item.cut for key, item in inputs + outputs if item.cut is not None},
    }


def _time_folder(dump_path: str) -> str:
    """A new time folder; a second later where this second's is taken by another collection."""
    moment = time.time()
    while True:
        path = os.path.join(dump_path, time.strftime("%Y%m%d%H%M%S", time.localtime(moment)))
        try:
            os.makedirs(path)
            return path
        except FileExistsError:
            moment += 1


def _level(name: str) -> str:
    """A model's name as one level of a path; one that is a number would read as another level."""
    level = "".join(c if c.isprintable() else "_" for c in names.clean(name))[:200]
    return "model_" + level if level.isdigit() else level or "model"


def _role(held: Held, found: Findings) -> Optional[str]:
    """What an operator was in this step, or None where it says nothing."""
    if held.origin is None:
        guilty = any(held.bits & origin.bit for origin in found.guilty)
        return "inherited" if guilty else None
    if held.origin is found.culprit:
        return "culprit"
    if any(held.origin is origin for origin in found.guilty):
        return "origin"
    return "absorbed" if held.origin.kind == "operator" else None


def _detail(held: Held, variable: Callable[[int], str]) -> Optional[Dict[str, Any]]:
    """The variable, batch or literal, and its first element that its consumer can't hold."""
    source = held.origin.source if held.origin else None
    if source is None:
        return None
    name = variable(source.handle) if source.kind == "variable" else source.name or None
    detail: Dict[str, Any] = {"name": name, "element": None, "value": None}
    tensor = source.tensor
    if not _has_values(tensor) and held.inputs:
        tensor = held.inputs[0].tensor
    if _has_values(tensor):
        values = tensor.numpy()
        limit = _LARGEST.get(held.outputs[0].dtype) if held.outputs else None
        bad = first_bad(values) or (first_bad(values, limit) if limit else None)
        if bad is not None:
            detail["element"], detail["value"] = list(bad[0]), bad[1]
    return detail


def _has_values(tensor: Any) -> bool:
    return hasattr(tensor, "numpy") and tensor.dtype.name not in _OPAQUE


def _size(item: HeldTensor) -> int:
    known = _has_values(item.tensor)
    return int(item.tensor.dtype.size) * elements(item.shape) if known else 0


def _spec(item: HeldTensor) -> TensorSpec:
    """The writer's form of a tensor; one that was cut keeps its type and shape and has no bytes."""
    if not _has_values(item.tensor):
        return TensorSpec(b"", item.dtype, item.shape, size=0)
    return TensorSpec(item.tensor.numpy(), item.dtype, item.shape)
