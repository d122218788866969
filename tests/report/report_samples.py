"""Hand-built reports for the tests of the reporters."""
from __future__ import annotations

from typing import Any, Dict

from npu_overflow.report.model import LossScale, Operator, Problem, Remark, Report, TensorSummary

INF = float("inf")

#: stands in for the catalogue's advice, whose wording is tested elsewhere
ADVICE = {
    "advice.sample_first": (
        "{tensor} of {op_name} stands at {limit}. Keep it in float32:\n    with npu.keep_dtype_scope():\n        y = layer(x)",
        "{op_name} 的 {tensor} 达到 {limit}。请保持 float32：\n    with npu.keep_dtype_scope():\n        y = layer(x)",
    ),
    "advice.sample_second": ("Otherwise, ask.", "否则请咨询支持人员。"),
}


def _half(index: int, low: float, high: float, mean: float, headroom: float, **more: Any) -> TensorSummary:
    fields: Dict[str, Any] = {"dtype": "float16", "format": "ND", "shape": (32, 64), "original_shape": (32, 64), "bytes": 4096}
    fields.update(more)
    return TensorSummary(index=index, min=low, max=high, mean=mean, headroom_log2=headroom, **fields)


CULPRIT = Operator(
    op_type="FusedMulAdd",
    op_name="bert/encoder/layer_10/intermediate/dense/mul/FusedMulAdd",
    core="AI Core",
    status=32,
    status_bits=("0x20",),
    status_text=("a floating-point computation overflowed",),
    device=0,
    rank=3,
    step=0,
    train_step=119,
    timestamp=1715938212345600,
    model_id=11,
    task_id=57,
    stream_id=3,
    verdict="computed_here",
    advice=("sample_first", "sample_second"),
    evidence={"sample_first": {"limit": 65504.0, "tensor": "output.0"}},
    steps_seen=3,
    steps_first=2,
    dump_file="20240517093010/0/ge_default_1/11/0/FusedMulAdd.mul.57.3.1715938212345678",
    record_file="20240517093010/0/ge_default_1/11/0/Opdebug.Node_OpDebug.1.5.1715938212345600",
    inputs=(_half(0, -381.5, 330.0, -0.8124, 7.42), _half(1, -965.0, 1004.0, -7.863, 6.03)),
    outputs=(_half(0, -65504.0, 65504.0, 274.2, 0.0, saturated=119, first_overflow={"index": [0, 5], "value": 65504.0}),),
)

INHERITED = Operator(
    op_type="Conv2D",
    op_name="net/conv1/Conv2D",
    core="AI Core",
    status=272,
    status_bits=("0x10", "0x100"),
    status_text=("an integer add, subtract, multiply or multiply-add overflowed", "float32 to float16, or int32 to float16, overflowed"),
    device=0,
    step=0,
    timestamp=1715938212345700,
    task_id=58,
    stream_id=3,
    verdict="inherited",
    inherited_from="bert/encoder/layer_10/intermediate/dense/mul/FusedMulAdd",
    dump_file="x",
    inputs=(
        _half(0, -65504.0, 65504.0, 274.2, 0.0, format="NC1HWC0", shape=(2, 1, 8, 8, 16), original_shape=(2, 8, 8, 3), saturated=119, overflow_in_padding=4,
              first_overflow={"index": [0, 0, 5, 1], "value": 65504.0}),
    ),
    outputs=(),
)

NPU = Report(
    path="precision_data/overflow/dump",
    version="0.1.0",
    run="20240517093010",
    mode="saturation",
    records=5,
    rank=0,
    world_size=8,
    first_index=0,
    operators=(CULPRIT, INHERITED, Operator(op_type="Mul", op_name="net/mul", core="AI Core", status=32, device=1, step=0), INHERITED, CULPRIT),
    problems=(Problem("20240517093010/0/ge_default_1/11/0/Mul.cut.22.3.1715938212000205", "The file ends early: 797 bytes of 1097."),),
    remarks=(Remark("The first entries of devices 0 and 1 are within 10 ms; clocks of devices are close but not equal."),),
    loss_scale=LossScale(((100, 32768.0, 16384.0), (119, 16384.0, 8192.0)), 0.0123, ("LossScaleOptimizer",)),
)

HOST = Report(
    path="precision_data/overflow/dump/20240517093010",
    version="0.1.0",
    run="20240517093010",
    mode="inf_nan",
    records=1,
    host={"tensorflow": "2.15.1"},
    first_index=0,
    operators=(
        Operator(
            op_type="MatMul",
            op_name="gradient_tape/model/block_1/fc2/MatMul_1",
            core="CPU",
            status=1,
            status_bits=("0x1",),
            status_text=("a non-finite value came out of this operator",),
            device=0,
            step=31,
            train_step=31,
            timestamp=1715938212345600,
            verdict="computed_here",
            phase="backward",
            location="model.py:13",
            location_kind="call",
            source_line="return tf.matmul(x, self.kernel)",
            called_from=("model.py:31", "train.py:58"),
            layer="model/block/fc2",
            forward_op="model/block_1/fc2/MatMul",
            cured_by_scale=True,
            steps_seen=1,
            steps_first=1,
            dump_file="0/model/1/31/MatMul.fc2.1.0.1715938212345600",
            inputs=(_half(0, -3.5, 1.25, 0.0123456, 14.2), TensorSummary(1, "string", "ND", (4,), note="not_decoded", bytes=96)),
            outputs=(_half(0, -12.0, INF, 0.5, 12.4, pos_inf=2, nan=1, first_overflow={"index": [3, 17], "value": INF}),),
        ),
    ),
    loss_scale=LossScale(((31, 32768.0, 16384.0),), 0.004),
)

ORIGIN_DATA = Report(
    path="precision_data/overflow/dump",
    version="0.1.0",
    mode="inf_nan",
    records=1,
    host={},
    first_index=0,
    operators=(
        Operator(
            op_type="Cast",
            op_name="model/Cast",
            core="CPU",
            status=1,
            train_step=7,
            step=7,
            verdict="inherited",
            origin="data",
            origin_detail={"name": "input 0 of the batch", "element": [3, 17], "value": float("nan")},
            inputs=(TensorSummary(0, "float32", "ND", (4, 32), nan=1, first_overflow={"index": [3, 17], "value": float("nan")}),),
            outputs=(),
        ),
    ),
)

NOT_REPRODUCED = Report(path="dump", version="0.1.0", run="20240517093010", mode="inf_nan", host={}, reason="not_reproduced")

NOTHING = Report(path="dump", version="0.1.0")

ABSORBED = Report(
    path="dump",
    version="0.1.0",
    records=1,
    mode="inf_nan",
    host={},
    operators=(Operator(op_type="Log", op_name="m/Log", core="CPU", verdict="absorbed", inputs=(), outputs=()),),
)

UNREADABLE = Report(path="dump", version="0.1.0", records=2, problems=(Problem("a", "The file is empty."), Problem("b", "The file is empty.")))

ALL = {
    "npu": NPU,
    "host": HOST,
    "origin_data": ORIGIN_DATA,
    "not_reproduced": NOT_REPRODUCED,
    "nothing": NOTHING,
    "absorbed": ABSORBED,
    "unreadable": UNREADABLE,
}
