"""The operators of a replayed step as a dump tree of the vendor's format, so that one analyzer serves devices and hosts."""
from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from npu_overflow.collect.replay.blame import Findings
from npu_overflow.collect.replay.cure import Trial
from npu_overflow.collect.replay.finite import first_bad
from npu_overflow.collect.replay.lines import shown
from npu_overflow.collect.replay.names import Facts
from npu_overflow.collect.replay.taint import Held, HeldTensor, Label, OpRef, Origin
from npu_overflow.dump import names, writer
from npu_overflow.dump.record import Part
from npu_overflow.dump.writer import TensorSpec

__all__ = ["HostTree"]

_LARGEST = {"float16": 65520.0, "bfloat16": 3.3961775292304957e38, "float32": 3.4028235677973366e38}  # from here on a cast gives Inf
_STREAM = 0


class HostTree:
    """One time folder: ``{dump_path}/{time}/{device}/{model_name}/1/{training step}/``.

    Args:
        dump_path: made where it is missing.
        model_name: as TensorFlow names the model.
        device: number of the device or rank's device.
        core: "CPU" or "GPU".
        max_bytes: budget for the whole tree; operators past it are not written.
    """

    def __init__(self, dump_path: str, model_name: str, device: int, core: str, max_bytes: int) -> None:
        self.path = _time_folder(dump_path)
        self._model_name, self._device, self._core = _level(model_name) or "model", device, core
        self._left = max_bytes

    def write(
        self,
        step: int,
        found: Findings,
        trials: Sequence[Trial],
        describe: Callable[[OpRef], Facts],
        variable: Callable[[int], str],
    ) -> int:
        """Write the operators of one step, in the order of execution; returns how many did not fit.

        Args:
            step: training step.
            found: what the runs of the step showed.
            trials: what was tried against its culprit.
            describe: tells what people are told of an operator.
            variable: the name of a variable by the number of its handle.

        Raises:
            OSError: the folder can't be written to.
        """
        now = int(time.time() * 1e6)
        left_out = 0
        written: List[str] = []
        for place, held in enumerate(sorted(found.held, key=lambda item: item.op.order)):
            role = _role(held, found)
            if role is None:
                continue
            size = sum(_size(item) for item in held.inputs + held.outputs)
            if size > self._left:
                left_out += 1
                continue
            self._left -= size
            op = describe(held.op)
            stamp, task = now + 2 * place, held.op.order + 1
            folder = os.path.join(self.path, str(self._device + op.replica), self._model_name, "1", str(step))
            os.makedirs(folder, exist_ok=True)
            dump = os.path.join(folder, names.dump_name(held.op.type, op.name, task, _STREAM, stamp + 1))
            record = os.path.join(folder, names.record_name(place + 1, _STREAM, stamp))
            inputs, outputs = [_spec(item) for item in held.inputs], [_spec(item) for item in held.outputs]
            facts = self._facts(held, op, found, role, step, variable)
            if role == "culprit":
                facts["trials"] = [asdict(trial) for trial in trials]
            written.append(writer.write_dump(dump, op.name, inputs, outputs, host=facts, rename=False))
            part = Part("AIC", 1, model_id=1, task_id=task, stream_id=_STREAM)
            written.append(writer.write_record(record, [part], layout="magic", version=2, rename=False))
        for path in written:
            writer.finish(path)
        return left_out

    def _facts(self, held: Held, op: Facts, found: Findings, role: str, step: int, variable: Callable[[int], str]) -> Dict[str, Any]:
        origin, location = held.origin, op.location
        facts: Dict[str, Any] = {
            "host": 1,
            "core": self._core,
            "op_type": held.op.type,
            "op_name": op.name,
            "layer": op.layer,
            "phase": op.phase,
            "location": shown(location.places[0]) if location else None,
            "location_kind": location.kind if location else None,
            "source_line": (location.text or None) if location else None,
            "called_from": [shown(place) for place in location.places[1:]] if location and location.kind == "call" else [],
            "forward_op": op.forward,
            "origin": origin.kind if origin else "operator",
            "origin_detail": _detail(origin, held, variable) if origin else None,
            "role": role,
            "train_step": step,
            "cured_by_scale": found.cured_by_scale if role == "culprit" else None,
        }
        variables = {"input.%d" % i: variable(item.variable.handle) for i, item in enumerate(held.inputs) if item.variable}
        if variables:
            facts["variables"] = variables
        cut = {}
        for side, items in (("input", held.inputs), ("output", held.outputs)):
            for i, item in enumerate(items):
                if item.cut is not None:
                    cut["%s.%d" % (side, i)] = item.cut
        if cut:
            facts["tensors"] = cut
        return facts


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
    """A model's name as one level of a path, by the vendor's rule; a level that is a number would read as another."""
    level = "".join("_" if c in "./\\ " or not c.isprintable() else c for c in name)[:200]
    return "model_" + level if level.isdigit() else level


def _role(held: Held, found: Findings) -> Optional[str]:
    """What an operator was in this step, or None where it says nothing."""
    if held.origin is not None:
        if held.origin is found.culprit:
            return "culprit"
        if any(held.origin is origin for origin in found.guilty):
            return "origin"
        return "absorbed" if held.origin.kind == "operator" else None
    guilty = 0
    for origin in found.guilty:
        guilty |= origin.bit
    return "inherited" if held.bits & guilty else None


def _detail(origin: Origin, held: Held, variable: Callable[[int], str]) -> Optional[Dict[str, Any]]:
    """Name of the variable, batch or literal, and its first bad element: non-finite, or too large for the operator's output type."""
    if origin.source is None:
        return None
    tensor = origin.source.tensor
    detail: Dict[str, Any] = {"name": _named(origin.source, variable), "element": None, "value": None}
    if not _has_values(tensor):
        tensor = held.inputs[0].tensor if held.inputs else None
    if _has_values(tensor):
        values = tensor.numpy()
        limit = _LARGEST.get(held.outputs[0].dtype) if held.outputs else None
        bad = first_bad(values) or (first_bad(values, limit) if limit else None)
        if bad is not None:
            detail["element"], detail["value"] = list(bad[0]), bad[1]
    return detail


def _named(label: Label, variable: Callable[[int], str]) -> Optional[str]:
    return variable(label.handle) if label.kind == "variable" else label.name or None


def _has_values(tensor: Any) -> bool:
    return hasattr(tensor, "numpy") and tensor.dtype.name not in ("resource", "variant", "string")


def _size(item: HeldTensor) -> int:
    return 0 if item.tensor is None or item.dtype in ("resource", "variant", "string") else int(item.tensor.dtype.size) * _count(item.shape)


def _count(shape: Tuple[int, ...]) -> int:
    count = 1
    for n in shape:
        count *= n
    return count


def _spec(item: HeldTensor) -> TensorSpec:
    """The writer's form of a tensor; one that was cut keeps its type and shape and has no bytes."""
    if item.tensor is None or item.dtype in ("resource", "variant", "string"):
        return TensorSpec(b"", item.dtype, item.shape, size=0)
    return TensorSpec(item.tensor.numpy(), item.dtype, item.shape)
