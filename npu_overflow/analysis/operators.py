"""One entry of the report from all that is known of an operator."""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Tuple

from npu_overflow.analysis.opening import Opened
from npu_overflow.analysis.rules import Case, advise
from npu_overflow.analysis.sentences import english
from npu_overflow.analysis.steps import Before
from npu_overflow.dump.replay_info import ReplayInfo
from npu_overflow.dump.status import bits_of, meanings_of
from npu_overflow.report.model import Operator, Trial

__all__ = ["Context", "operator_of"]

_FROM_HOST = ("phase", "location", "location_kind", "source_line", "layer", "forward_op", "origin", "cured_by_scale")
_MOST_CALLS = 4
_MOST_TRIALS = 16
_FROM_PART = ("status", "model_id", "task_id", "stream_id", "context_id", "thread_id")


@dataclass(frozen=True)
class Context:
    """All entries of a report and what was found out about them, each list in their order.

    Args:
        operators, verdicts, modes, ranks, train_steps: one an entry.
        made_by: index of an inherited entry -> index of the entry that made its input.
        mode_is_known: the mode comes from a manifest or from the user, not from the record's layout.
        steps: (steps_seen, steps_first).
        before: what happened before each in its step.
        loss_scale: the last one seen, or None.
        relative: a path as the report names it.
    """

    operators: Sequence[Opened]
    verdicts: Sequence[str]
    made_by: Mapping[int, int]
    modes: Sequence[Optional[str]]
    mode_is_known: Sequence[bool]
    ranks: Sequence[Optional[int]]
    train_steps: Sequence[Optional[int]]
    steps: Sequence[Tuple[int, int]]
    before: Sequence[Before]
    loss_scale: Optional[float]
    relative: Callable[[str], str]


def operator_of(context: Context, index: int) -> Operator:
    """The report's entry number ``index``."""
    opened = context.operators[index]
    place, part, host = opened.found.entry.place, opened.found.part, opened.host
    maker = context.made_by.get(index)
    codes, evidence = advise(_case(context, index)) if opened.inputs is not None or opened.problems else ((), {})
    from_host: Dict[str, Any] = {}
    if host is not None:
        if any(trial.change == "float32" for trial in host.trials):  # it was tried: that says more
            codes = tuple(code for code in codes if code != "keep_float32")
        from_host = {name: getattr(host, name) for name in _FROM_HOST}
        from_host["origin_detail"] = _origin_detail(host)
        from_host["called_from"] = tuple(host.called_from[:_MOST_CALLS])
        from_host["trials"] = tuple(Trial(**asdict(info)) for info in host.trials[:_MOST_TRIALS] if info.change)
    from_part: Dict[str, Any] = {}
    if part is not None:
        from_part = {name: getattr(part, name) for name in _FROM_PART}
        from_part["status_bits"] = bits_of(part.status)
        from_part["status_text"] = _status_text(opened)
    return Operator(
        op_type=opened.op_type,
        op_name=opened.op_name,
        core=opened.core,
        device=place.device,
        rank=context.ranks[index],
        step=place.data_index,
        train_step=context.train_steps[index],
        timestamp=opened.found.entry.name.timestamp,
        verdict=context.verdicts[index],
        inherited_from=None if maker is None else context.operators[maker].op_name,
        advice=codes,
        evidence=evidence,
        steps_seen=context.steps[index][0],
        steps_first=context.steps[index][1],
        dump_file=None if opened.dump_file is None else context.relative(opened.dump_file),
        record_file=None if part is None else context.relative(opened.found.entry.path),
        inputs=None if opened.inputs is None else tuple(facts.summary for facts in opened.inputs),
        outputs=None if opened.outputs is None else tuple(facts.summary for facts in opened.outputs),
        **from_part,
        **from_host,
    )


def _origin_detail(host: ReplayInfo) -> Optional[Dict[str, Any]]:
    return None if host.origin_detail is None else asdict(host.origin_detail)


def _status_text(opened: Opened) -> Tuple[str, ...]:
    """The meaning of the status, in English."""
    part = opened.found.part
    if part is None:
        return ()
    if opened.host is not None:
        return (english("status.host"),)
    return tuple(english(code, **values) for code, values in meanings_of(part.core, part.status))


def _case(context: Context, index: int) -> Case:
    """The operator as the rules see it."""
    opened = context.operators[index]
    part, host = opened.found.part, opened.host
    status = part.status if part is not None and part.core == "AI Core" and isinstance(part.status, int) and host is None else 0
    return Case(
        op_type=opened.op_type,
        op_name=opened.op_name,
        core=opened.core,
        verdict=context.verdicts[index],
        bits=status if isinstance(status, int) else 0,
        mode=context.modes[index],
        inputs=opened.inputs or (),
        outputs=opened.outputs or (),
        phase=host.phase if host is not None else None,
        forward_clean=context.before[index].forward_clean,
        dumped_producer=True if index in context.made_by else (False if context.before[index].all_read else None),
        loss_scale=context.loss_scale,
        host=host is not None,
        origin=host.origin if host is not None else "operator",
        origin_detail=_origin_detail(host) if host is not None else None,
        variables=host.variables if host is not None else {},
        cured_by_scale=host.cured_by_scale if host is not None else None,
    )
