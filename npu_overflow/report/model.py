"""The report: frozen data between the analyzer and every output. Attribute names are the names in
the JSON (schema 1).

Fields are only ever added to a schema.
"""
from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import IO, Any, Dict, Mapping, Optional, Tuple, Union

from npu_overflow.jsonform import Number
from npu_overflow.report import json_text, notebook_html, print_report, write_html

__all__ = [
    *("SCHEMA", "Headroom", "LayerRange", "LossScale", "Operator", "Problem", "Remark", "Report"),
    *("TensorSummary", "Trial"),
]

SCHEMA = 1


@dataclass(frozen=True)
class TensorSummary:
    """One input or output of an operator: what it is and what stands in it.

    Args:
        index: position among the inputs or outputs.
        dtype: the data type's name, e.g. "float16"; "type N" where the number is unknown.
        format: the memory format's name, e.g. "ND" or "FRACTAL_NZ".
        shape: the shape on the device; padded in private formats.
        original_shape: the user's shape, or None where the dump has none.
        min, max: extremes that ignore NaN and include Inf; None where there is no such element or
            the type has no order.
        mean: over the finite elements, in float64.
        nan, pos_inf, neg_inf: counts in the valid region.
        saturated: count of elements at ±MAX of the type (saturation mode only, else 0).
        overflow_in_padding: overflow values outside the valid region of a private format.
        first_overflow: {"index": [...], "value": number}, the index in the original shape.
        headroom_log2: log2(MAX / largest finite magnitude); None for non-floats, zeros and empty
            tensors.
        histogram: counts of log2 magnitudes, where computed: {"low": exponent, "counts": [...]}.
        bytes: bytes of data in the dump.
        note: None, or why there are no numbers: "not_decoded", "missing", "cut", "no_data".
    """

    index: int
    dtype: str
    format: str
    shape: Tuple[int, ...]
    original_shape: Optional[Tuple[int, ...]] = None
    min: Optional[Number] = None
    max: Optional[Number] = None
    mean: Optional[float] = None
    nan: int = 0
    pos_inf: int = 0
    neg_inf: int = 0
    saturated: int = 0
    overflow_in_padding: int = 0
    first_overflow: Optional[Mapping[str, Any]] = None
    headroom_log2: Optional[float] = None
    histogram: Optional[Mapping[str, Any]] = None
    bytes: int = 0
    note: Optional[str] = None


@dataclass(frozen=True)
class Trial:
    """A change that was tried on the step itself, by running its record again.

    Args:
        change: "float32" (layers computed in float32), "loss_scale", "constant" (brought within the
            range of its type), "epsilon" (added to what must not be zero) or "recomputed" (the
            operator alone in float32, from the inputs in a dump of the NPU).
        layers: those computed in float32; what lies outside of layers by its name scope.
        value: the loss scale, the constant's magnitude or the epsilon.
        finite: whether the step was finite with it: no guard would skip it, and nothing non-finite
            reaches a weight.
        next: type and name of the operator that overflows then, where it was not.
        largest: magnitude of a float32 result that did not fit when ``next`` took it; of
            "recomputed" one that is finite and does not fit the output's type.
        code: what to type, a line each, where it helped.
    """

    change: str
    layers: Tuple[str, ...] = ()
    value: Optional[float] = None
    finite: bool = False
    next: Optional[str] = None
    largest: Optional[float] = None
    code: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Operator:
    """One entry of the report: an operator that overflowed, one for each reporting part of a
    record.

    ``inputs`` and ``outputs`` are None where the operator's dump was not opened. ``status`` is an
    int, or a list of four words for records of version 1. Fields that can't be known are None.
    """

    op_type: Optional[str] = None
    op_name: Optional[str] = None
    core: str = ""
    status: Union[int, Tuple[int, ...]] = 0
    status_bits: Tuple[str, ...] = ()
    status_text: Tuple[str, ...] = ()
    device: Optional[int] = None
    rank: Optional[int] = None
    step: Optional[int] = None
    train_step: Optional[int] = None
    timestamp: Optional[int] = None
    model_id: Optional[int] = None
    task_id: Optional[int] = None
    stream_id: Optional[int] = None
    context_id: Optional[int] = None
    thread_id: Optional[int] = None
    verdict: str = "unknown"
    origin: str = "operator"
    origin_detail: Optional[Mapping[str, Any]] = None
    inherited_from: Optional[str] = None
    phase: Optional[str] = None
    location: Optional[str] = None
    location_kind: Optional[str] = None
    source_line: Optional[str] = None
    called_from: Tuple[str, ...] = ()
    layer: Optional[str] = None
    forward_op: Optional[str] = None
    cured_by_scale: Optional[bool] = None
    trials: Tuple[Trial, ...] = ()
    advice: Tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    steps_seen: int = 1
    steps_first: int = 0
    dump_file: Optional[str] = None
    record_file: Optional[str] = None
    inputs: Optional[Tuple[TensorSummary, ...]] = None
    outputs: Optional[Tuple[TensorSummary, ...]] = None


@dataclass(frozen=True)
class Problem:
    """One file that could not be used in full, relative to the report's path.

    ``reason`` is English; ``code`` and ``values`` make the same sentence in another language.
    """

    file: str
    reason: str
    code: Optional[str] = None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Remark:
    """Something worth knowing that is no fault of a file: ``text`` is English, ``code`` and
    ``values`` translate it."""

    text: str
    code: Optional[str] = None
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LossScale:
    """What the watch saw of the loss scale.

    Args:
        drops: falls as (training step, before, after).
        rate: overflowing steps as a part of all.
        optimizers: names of those watched.
        trigger_step: training step at whose beginning overflow was judged frequent, or None; the
            terminal names the same.
        kept_steps: training steps whose overflow was collected.
    """

    drops: Tuple[Tuple[int, float, float], ...] = ()
    rate: Optional[float] = None
    optimizers: Tuple[str, ...] = ()
    trigger_step: Optional[int] = None
    kept_steps: Tuple[int, ...] = ()


@dataclass(frozen=True)
class LayerRange:
    """The magnitudes that one layer makes in one pass.

    Args:
        layer: its path; what lies outside of layers by the operator's name.
        phase: "forward", "backward" or "update" (what becomes of the gradients).
        largest, smallest: finite magnitudes above zero; ``smallest`` is None where it isn't known.
        op_type, op_name: the operator that made the largest.
        headroom_log2: log2(65504 / largest): how often it could double in float16; below 0 it does
            not fit.
        nonzero: elements above zero.
        flushed: of them, those that float16 rounds to zero (up to 2**-25).
    """

    layer: str
    phase: str = "forward"
    largest: float = 0.0
    smallest: Optional[float] = None
    op_type: str = ""
    op_name: str = ""
    headroom_log2: Optional[float] = None
    nonzero: int = 0
    flushed: int = 0


@dataclass(frozen=True)
class Headroom:
    """How near layers come to float16's limits.

    Args:
        layers: in the order of execution, each pass of a layer by itself.
        step: training step that was surveyed; None where the operators of a dump are told.
        dtype: type that was measured: "float16", else the type that these layers compute in and
            that is compared with float16.
        loss_scale: at that step.
    """

    layers: Tuple[LayerRange, ...] = ()
    step: Optional[int] = None
    dtype: str = "float16"
    loss_scale: Optional[float] = None


@dataclass(frozen=True, repr=False)
class Report:
    """What an overflow dump says.

    Args:
        path: the folder or file that was analyzed; files are relative to it.
        run: the newest time folder of the run, or None.
        mode: "saturation", "inf_nan" or None where there was nothing to tell it from.
        records: record files found, unreadable ones included.
        host: None for a dump of an NPU; facts of the process for a tree of the host collector.
        first_index: index of the primary finding in ``operators``, or None.
        operators: in the order in which they overflowed.
        loss_scale: what the watch saw, where a manifest lies beside the dump.
        headroom: of a step that was asked for; of an NPU's dump, of the operators in it.
        reason: why there is no finding although a collection ran, e.g. "not_reproduced", or
            "absorbed": what was non-finite reaches no gradient.
    """

    path: str
    version: str
    run: Optional[str] = None
    mode: Optional[str] = None
    records: int = 0
    rank: Optional[int] = None
    world_size: Optional[int] = None
    host: Optional[Mapping[str, Any]] = None
    first_index: Optional[int] = None
    operators: Tuple[Operator, ...] = ()
    problems: Tuple[Problem, ...] = ()
    remarks: Tuple[Remark, ...] = ()
    loss_scale: Optional[LossScale] = None
    headroom: Optional[Headroom] = None
    reason: Optional[str] = None
    schema: int = SCHEMA
    tool: str = "npu_overflow"

    @property
    def first(self) -> Optional[Operator]:
        """The first overflowing AI Core operator (on a host tree: the culprit), or None."""
        return None if self.first_index is None else self.operators[self.first_index]

    def __repr__(self) -> str:
        """One line: the finding, and how much there is."""
        first = self.first
        if first is not None:
            step = first.step if first.train_step is None else first.train_step
            parts = [
                "first=%s %s" % (_short(str(first.op_type)), _short(repr(first.op_name))),
                "step=%s" % step,
            ]
        else:
            parts = (
                ["first=None"]
                if self.reason is None
                else ["first=None", "reason=%s" % _short(repr(self.reason))]
            )
        parts += [
            "operators=%d" % len(self.operators),
            "records=%d" % self.records,
            "path=%s" % _short(repr(self.path)),
        ]
        return "Report(%s)" % ", ".join(parts)

    def to_dict(self) -> Dict[str, Any]:
        """The report as plain dicts and lists, ready for JSON."""
        result: Dict[str, Any] = {"schema": self.schema, "tool": self.tool, "version": self.version}
        for item in dataclasses.fields(self):
            if item.name not in ("schema", "tool", "version", "first_index"):
                result[item.name] = json_text.plain(getattr(self, item.name))
        result["first"] = self.first_index
        return result

    def to_json(self) -> str:
        """The report as JSON text (schema 1), one indent of a blank. Characters that could steer a
        terminal are escaped."""
        return json_text.text_of(self.to_dict())

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Report:
        """The report that ``to_dict`` wrote. Unknown fields (of a later version) are ignored.

        Raises:
            DumpFormatError: not a report, or a field of another type.
        """
        return json_text.restore(cls, data)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """The report that ``to_json`` wrote, "inf" and "nan" as numbers again.

        Raises:
            DumpFormatError: not JSON, not a report, or a field of another type.
        """
        return json_text.restore_json(cls, text)

    def print(self, file: Optional[IO[str]] = None, language: Optional[str] = None) -> None:
        """Print the terminal report to ``file`` (default: standard output) in "en" or "zh"
        (default: the user's)."""
        print_report(self, file=file, language=language)

    def to_html(self, path: str, language: Optional[str] = None) -> str:
        """Write the report as one HTML file that opens offline, aside first and then renamed; both
        languages are in it.

        Args:
            path: the file; one that exists is replaced.
            language: the one shown first, "en" or "zh" (default: the user's).

        Returns:
            ``path``.

        Raises:
            MissingExtra: jinja2 is not installed.
            OSError: the file can't be written.
        """
        return write_html(self, path, language)

    def _repr_html_(self) -> str:
        """What a notebook shows: the page, in a frame of its own."""
        return notebook_html(self)


def _short(text: str) -> str:
    """A name of an untrusted file in a line for people: printable, of bounded length."""
    text = "".join(sign if sign.isprintable() else "?" for sign in text[:1000])
    return text if len(text) <= 200 else "%s…%s" % (text[:120], text[-60:])
