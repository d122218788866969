"""Any report that the model can hold, for property tests."""
from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import strategies as st

from npu_overflow.report.json_text import TEXT_KEYS
from npu_overflow.report.model import (
    Headroom,
    LayerRange,
    LossScale,
    Operator,
    Problem,
    Remark,
    Report,
    TensorSummary,
    Trial,
)

TEXT = st.text(max_size=30) | st.sampled_from(
    ["nan", "inf", "a/" * 60 + "MatMul", "\x1b[31mred", "\u202eevil", "[bold]x[/bold]", "名字" * 40, "\udcff", "{0}{x}"],
)
COUNT = st.integers(0, 2**63)
FLOAT = st.floats(allow_nan=False) | st.just(float("inf")) | st.sampled_from([65504.0, 3.4028234663852886e38, -0.0])
NUMBER = FLOAT | COUNT | st.booleans()
SHAPE = st.lists(st.integers(0, 2**40), max_size=6).map(tuple)
ELEMENT = st.none() | st.builds(lambda index, value: {"index": index, "value": value}, st.lists(COUNT, max_size=5), FLOAT)
LIKE_NUMBERS = st.sampled_from(["inf", "-inf", "nan", "\\inf", "\\\\nan", "Infinity"])
_LEAF = st.none() | st.booleans() | FLOAT | COUNT | TEXT | LIKE_NUMBERS
#: free JSON: numbers, texts that read like numbers, lists and dicts of them
EVIDENCE = st.dictionaries(
    st.sampled_from(["value", "limit", "index", "share", "why", "known"]) | st.text(max_size=5),
    st.recursive(_LEAF, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "low", "counts"]), inner, max_size=2), max_leaves=5),
    max_size=3,
).map(lambda found: {key: value for key, value in found.items() if key not in TEXT_KEYS})
NAMED = st.fixed_dictionaries({"name": TEXT | LIKE_NUMBERS, "file": TEXT | LIKE_NUMBERS})
HISTOGRAM = st.builds(lambda low, counts: {"low": low, "counts": counts}, st.integers(-200, 200), st.lists(COUNT, max_size=4))
HOST = st.fixed_dictionaries({"versions": st.dictionaries(TEXT, TEXT | LIKE_NUMBERS, max_size=2), "pid": COUNT})
CODES = st.lists(st.sampled_from(["sample_first", "sample_second", "of_a_later_version"]), max_size=3).map(tuple)


def _maybe(strategy: Any) -> Any:
    return st.none() | strategy


TENSORS = st.builds(
    TensorSummary,
    index=st.integers(0, 99),
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "type 77", "string"]) | TEXT,
    format=st.sampled_from(["ND", "FRACTAL_NZ"]) | TEXT,
    shape=SHAPE,
    original_shape=_maybe(SHAPE),
    min=_maybe(NUMBER),
    max=_maybe(NUMBER),
    mean=_maybe(FLOAT),
    nan=COUNT,
    pos_inf=COUNT,
    neg_inf=COUNT,
    saturated=COUNT,
    overflow_in_padding=COUNT,
    first_overflow=ELEMENT,
    headroom_log2=_maybe(st.floats(0, 2000)),
    histogram=_maybe(HISTOGRAM),
    bytes=COUNT,
    note=_maybe(st.sampled_from(["cut", "no_data", "missing", "not_decoded", "new note"])),
)
SIDE = _maybe(st.lists(TENSORS, max_size=3).map(tuple))
TRIALS = st.builds(
    Trial,
    change=st.sampled_from(["float32", "loss_scale", "constant", "epsilon"]) | TEXT,
    layers=st.lists(TEXT, max_size=2).map(tuple),
    value=_maybe(FLOAT),
    finite=st.booleans(),
    next=_maybe(TEXT),
    largest=_maybe(FLOAT),
    code=st.lists(st.sampled_from(["x = tf.cast(x, tf.float32)", "\x1b[31m"]), max_size=2).map(tuple),
)
OPERATORS = st.builds(
    Operator,
    op_type=_maybe(TEXT),
    op_name=_maybe(TEXT),
    core=st.sampled_from(["AI Core", "AIC", "CPU", "type 9"]) | TEXT,
    status=COUNT | st.lists(COUNT, min_size=4, max_size=4).map(tuple),
    status_bits=st.lists(TEXT, max_size=2).map(tuple),
    status_text=st.lists(TEXT, max_size=2).map(tuple),
    device=_maybe(COUNT),
    rank=_maybe(COUNT),
    step=_maybe(COUNT),
    train_step=_maybe(COUNT),
    timestamp=_maybe(COUNT),
    model_id=_maybe(COUNT),
    task_id=_maybe(COUNT),
    stream_id=_maybe(COUNT),
    context_id=_maybe(COUNT),
    thread_id=_maybe(COUNT),
    verdict=st.sampled_from(["computed_here", "inherited", "internal", "padding_only", "absorbed", "unknown", "new verdict"]),
    origin=st.sampled_from(["operator", "variable", "data", "constant", "new origin"]),
    origin_detail=_maybe(st.builds(lambda name, element, value: {"name": name, "element": element, "value": value}, TEXT, st.lists(COUNT, max_size=3), FLOAT)),
    inherited_from=_maybe(TEXT),
    phase=_maybe(st.sampled_from(["forward", "backward", "new phase"])),
    location=_maybe(TEXT),
    location_kind=_maybe(st.sampled_from(["call", "created", "fit", "new kind"])),
    source_line=_maybe(TEXT),
    called_from=st.lists(TEXT, max_size=2).map(tuple),
    layer=_maybe(TEXT),
    forward_op=_maybe(TEXT),
    cured_by_scale=_maybe(st.booleans()),
    trials=st.lists(TRIALS, max_size=2).map(tuple),
    advice=CODES,
    evidence=EVIDENCE | NAMED,
    steps_seen=COUNT,
    steps_first=COUNT,
    dump_file=_maybe(TEXT),
    record_file=_maybe(TEXT),
    inputs=SIDE,
    outputs=SIDE,
)
SCALES = st.builds(
    LossScale,
    drops=st.lists(st.tuples(COUNT, FLOAT, FLOAT), max_size=3).map(tuple),
    rate=_maybe(st.floats(0, 1)),
    optimizers=st.lists(TEXT | LIKE_NUMBERS, max_size=2).map(tuple),
    trigger_step=_maybe(COUNT),
    kept_steps=st.lists(COUNT, max_size=3).map(tuple),
)
RANGES = st.builds(
    LayerRange,
    layer=TEXT,
    phase=st.sampled_from(["forward", "backward", "update"]) | TEXT,
    largest=FLOAT,
    smallest=_maybe(FLOAT),
    op_type=TEXT,
    op_name=TEXT,
    headroom_log2=_maybe(FLOAT),
    nonzero=COUNT,
    flushed=COUNT,
)
HEADROOM = st.builds(
    Headroom,
    layers=st.lists(RANGES, max_size=3).map(tuple),
    step=_maybe(COUNT),
    dtype=TEXT,
    loss_scale=_maybe(FLOAT),
)
PLAIN = st.builds(
    Report,
    path=TEXT,
    version=st.just("0.1.0"),
    run=_maybe(TEXT),
    mode=st.sampled_from([None, "saturation", "inf_nan"]),
    records=COUNT,
    rank=_maybe(COUNT),
    world_size=_maybe(COUNT),
    host=_maybe(HOST),
    operators=st.lists(OPERATORS, max_size=4).map(tuple),
    problems=st.lists(st.builds(Problem, TEXT, TEXT, code=_maybe(st.just("file.empty") | TEXT), values=EVIDENCE | NAMED), max_size=3).map(tuple),
    remarks=st.lists(st.builds(Remark, TEXT, code=_maybe(TEXT), values=EVIDENCE | NAMED), max_size=3).map(tuple),
    loss_scale=_maybe(SCALES),
    headroom=_maybe(HEADROOM),
    reason=_maybe(st.just("not_reproduced") | TEXT),
)


@st.composite
def reports(draw: Any) -> Report:
    """Any report, its primary finding one of its operators or None."""
    report: Report = draw(PLAIN)
    indices = [st.none()] + [st.integers(0, len(report.operators) - 1)] * bool(report.operators)
    return dataclasses.replace(report, first_index=draw(st.one_of(indices)))
