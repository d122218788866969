"""Three dump trees for the HTML report: one culprit, 500 operators, hostile names. Also for the pictures in the documentation."""
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict, List

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "analysis"))

from dump_trees import RUN, TIME, Step

from npu_overflow.dump.writer import TensorSpec, write_dump
from npu_overflow.training.manifest import Manifest

HOSTILE: List[str] = [
    "<script>document.title='owned'</script>",
    '"><img src=x onerror="document.title=\'owned\'">',
    "</style></script></title><svg onload=document.title='owned'>",
    "{{ 7 * 7 }}{% raise %}",
    "javascript:alert(1)//'\"`",
    "\u202eevil\u2066\x1b[31mred\x00",
    "net/" + "very_long_name_without_end/" * 80,
    "名字/卷积层_一/乘加",
]


def _half(seed: int, scale: float, shape: Any = (32, 64)) -> Any:
    return np.clip(np.random.RandomState(seed).standard_normal(shape) * scale, -65000, 65000).astype(np.float16)


def culprit_tree(root: Path) -> Path:
    """A network whose residual addition in layer 10 saturates; three more operators read the value; three steps, with a manifest."""
    base = "bert/encoder/layer_10"
    for number, data_index in enumerate((118, 121, 125)):
        step = Step(root, data_index)
        time = number * 900_000
        wide = _half(number, 9000.0)
        wide[0, 5] = 40000
        factor = _half(10 + number, 2.0)
        with np.errstate(over="ignore"):
            product = np.clip(wide.astype(np.float32) * factor.astype(np.float32) + 900.0, -65504, 65504).astype(np.float16)
        step.operator("FusedMulAdd", base + "/intermediate/dense/mul/FusedMulAdd", 57, time, [wide, factor], [product], core="AI Core", status=32, layout="old")
        normed = np.clip(product.astype(np.float32) * 1.5, -65504, 65504).astype(np.float16)
        step.operator("Mul", base + "/output/LayerNorm/mul", 58, time + 100, [product, factor], [normed], core="AI Core", status=32, layout="old")
        step.operator("MatMulV2", base + "/attention/self/query/MatMul", 59, time + 200, [normed, _half(3, 0.1, (64, 32))], [_half(4, 30000.0, (32, 32))],
                      core="AI Core", status=32, layout="old")
        step.operator("Add", base + "/output/add", 60, time + 300, [product, factor], [product], core="AI Core", status=32, layout="old")
        if number == 1:
            step.operator("AvgPool", "bert/pooler/AvgPool", 71, time + 400, [_half(5, 12000.0)], [_half(6, 9000.0)], core="AI Core", status=32, layout="old")
    (root / RUN / "0" / "graph" / "11" / "125" / "Mul.cut.77.2.1715938213900000").write_bytes(b"\x10\0\0\0\0\0\0\0short")
    drops = [(96, 65536.0, 32768.0), (118, 32768.0, 16384.0), (119, 16384.0, 8192.0), (120, 8192.0, 4096.0), (121, 4096.0, 2048.0), (125, 2048.0, 1024.0)]
    manifest = Manifest(
        run_id="demo", mode="saturation", collector="ascend", drops=drops, rate=0.024, trigger={"step": 121}, kept_steps=[118, 121, 125],
        train_steps={index: index for index in (118, 121, 125)}, optimizers=[{"name": "LossScaleOptimizer"}], versions={"tensorflow": "2.6.5"},
    )
    manifest.write(str(root / RUN))
    return root


def large_tree(root: Path, count: int = 500) -> Path:
    """Many operators on two devices, some in several steps, every one with a dump."""
    types = ("MatMulV2", "Add", "Mul", "Conv2D", "Softmax", "ReduceMeanD", "Cast", "LayerNorm")
    steps: Dict[Any, Step] = {}
    for number in range(count):
        key = (number % 2, number // 125)
        step = steps.setdefault(key, Step(root, data_index=key[1], device=key[0]))
        kind = types[number % len(types)]
        clean, bad = _half(number, 10.0, (4, 8)), _half(number, 1000.0, (4, 8))
        bad[number % 4, number % 8] = np.inf if number % 3 else np.nan
        inputs = [bad, clean] if number % 5 == 4 else [clean, clean]
        step.operator(kind, "model/block_%d/%s_%d" % (number % 12, kind.lower(), number), number + 1, number * 50, inputs, [bad])
    return root


def hostile_tree(root: Path) -> Path:
    """Operators, files and a manifest whose names try to break out of the page."""
    step = Step(root, 7)
    for number, name in enumerate(HOSTILE):
        kind = "Mul<b onmouseover=alert(1)>" if number % 2 else "Mul"
        value = _half(number, 100.0)
        value[1, 2] = np.inf
        step.record(number + 1, number * 50)
        file = "%s.plain.%d.2.%d" % (kind, number + 1, TIME + number * 50 + 5)
        write_dump(os.path.join(step.folder, file), name, [TensorSpec(_half(number, 1.0))], [TensorSpec(value)])
    Path(step.folder, "<img src=x onerror=alert(1)>.x.1.2.3").write_bytes(b"no dump")
    Manifest(
        run_id="<i>", mode="inf_nan", drops=[(3, 1024.0, 512.0)], optimizers=[{"name": "</script><script>document.title='owned'</script>"}], trigger={"step": 3}
    ).write(str(root / RUN))
    return root


TREES = {"culprit": culprit_tree, "large": large_tree, "hostile": hostile_tree}
