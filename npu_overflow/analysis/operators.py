"""The operators as the report has them, with what happened before each, in which steps, and what
was tried."""
from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from npu_overflow import messages
from npu_overflow.analysis.artefacts import dtype_line
from npu_overflow.analysis.case import Case, is_backward
from npu_overflow.analysis.entries import AI_CORES, Opened, first_of
from npu_overflow.analysis.recompute import recomputed
from npu_overflow.analysis.rules import advise
from npu_overflow.analysis.state import State
from npu_overflow.dump.replay_info import ReplayInfo
from npu_overflow.dump.status import bits_of, meanings_of
from npu_overflow.report.model import Operator, Trial

__all__ = ["describe", "recompute_first"]

_FROM_HOST = (
    *("phase", "location", "location_kind", "source_line", "layer", "forward_op", "origin"),
    "cured_by_scale",
)
_FROM_PART = ("status", "model_id", "task_id", "stream_id", "context_id", "thread_id")
_MOST_CALLS = 4
_MOST_TRIALS = 16


class Before(NamedTuple):
    """What happened in the same step before an operator.

    Args:
        forward_clean: no operator of the forward pass overflowed; harmless ones don't count.
        all_read: the outputs of all operators before it are known.
    """

    forward_clean: bool
    all_read: bool


def describe(state: State) -> None:
    """Make the report's entries of all that is known."""
    train_steps = [state.facts.train_step(opened) for opened in state.operators]
    steps = _in_steps(state.operators, train_steps)
    before = _before_each(state.operators, state.verdicts)
    for index, train_step in enumerate(train_steps):
        made = _operator(state, index, before[index])
        seen, first = steps[index]
        made = replace(made, train_step=train_step, steps_seen=seen, steps_first=first)
        state.described.append(made)


def recompute_first(state: State) -> None:
    """On a dump of the NPU, try the operator that made the overflow alone in float32."""
    if state.first is None or state.growing.paths:
        return
    opened, first = state.operators[state.first], state.described[state.first]
    made_here = first.verdict in ("computed_here", "internal")
    if opened.host is None and first.core in AI_CORES and made_here:
        trials = recomputed(first.op_type or "", opened.candidates)
        code = _kept_alone(first) if any(trial.finite for trial in trials) else ()
        trials = tuple(replace(trial, code=code) for trial in trials)
        state.described[state.first] = replace(first, trials=trials)


def _kept_alone(operator: Operator) -> Tuple[str, ...]:
    """How CANN keeps only this operator in float32: the line of ``customize_dtypes``, and the
    option that names the file."""
    line = dtype_line(operator) if "keep_float32" in operator.advice else None
    option = 'npu.global_options().customize_dtypes = "customize_dtypes.txt"'
    return () if line is None else (line, option)


def _operator(state: State, index: int, before: Before) -> Operator:
    opened = state.operators[index]
    entry, part, host = opened.found.entry, opened.found.part, opened.host
    manifest = state.facts.of_place(entry.place)
    maker = state.made_by.get(index)
    known = opened.inputs is not None or opened.problems
    codes, evidence = advise(_case(state, index, before)) if known else ((), {})
    more: Dict[str, Any] = {}
    if host is not None:
        if any(trial.change == "float32" for trial in host.trials):  # it was tried: that says more
            codes = tuple(code for code in codes if code != "keep_float32")
        more.update(_from_host(host))
    if part is not None:
        more.update((name, getattr(part, name)) for name in _FROM_PART)
        more["status_bits"] = bits_of(part.status)
        meanings = meanings_of(part.core, part.status) if host is None else [("status.host", {})]
        more["status_text"] = tuple(messages.say(code, "en", **values) for code, values in meanings)
        more["record_file"] = state.relative(entry.path)
    return Operator(
        op_type=opened.op_type,
        op_name=opened.op_name,
        core=opened.core,
        device=entry.place.device,
        rank=manifest.rank if manifest is not None else None,
        step=entry.place.data_index,
        timestamp=entry.name.timestamp,
        verdict=state.verdicts[index],
        inherited_from=None if maker is None else state.operators[maker].op_name,
        advice=codes,
        evidence=evidence,
        dump_file=None if opened.dump_file is None else state.relative(opened.dump_file),
        inputs=_summaries(opened.inputs),
        outputs=_summaries(opened.outputs),
        **more,
    )


def _summaries(tensors: Optional[Sequence[Any]]) -> Optional[Tuple[Any, ...]]:
    return None if tensors is None else tuple(facts.summary for facts in tensors)


def _from_host(host: ReplayInfo) -> Dict[str, Any]:
    """What the host collector wrote of an operator, as far as the report has it."""
    trials = (Trial(**asdict(info)) for info in host.trials[:_MOST_TRIALS] if info.change)
    return {
        **{name: getattr(host, name) for name in _FROM_HOST},
        "origin_detail": _origin_detail(host),
        "called_from": tuple(host.called_from[:_MOST_CALLS]),
        "trials": tuple(trials),
    }


def _origin_detail(host: ReplayInfo) -> Optional[Dict[str, Any]]:
    return None if host.origin_detail is None else asdict(host.origin_detail)


def _case(state: State, index: int, before: Before) -> Case:
    """The operator as the rules see it."""
    opened = state.operators[index]
    part, host = opened.found.part, opened.host
    status = part.status if part is not None and part.core == "AI Core" and host is None else 0
    drops = [manifest.drops[-1] for manifest in state.manifests if manifest.drops]
    more: Dict[str, Any] = {}
    if host is not None:
        names = ("phase", "origin", "variables", "cured_by_scale")
        more = {name: getattr(host, name) for name in names}
        more["origin_detail"] = _origin_detail(host)
    return Case(
        op_type=opened.op_type,
        op_name=opened.op_name,
        core=opened.core,
        verdict=state.verdicts[index],
        bits=status if isinstance(status, int) else 0,
        mode=state.mode_of(opened),
        inputs=opened.inputs or (),
        outputs=opened.outputs or (),
        forward_clean=before.forward_clean,
        dumped_producer=True if index in state.made_by else (False if before.all_read else None),
        loss_scale=min((after for _, _, after in drops), default=None),
        host=host is not None,
        **more,
    )


# -- steps


def _in_steps(
    operators: Sequence[Opened], train_steps: Sequence[Optional[int]]
) -> List[Tuple[int, int]]:
    """For each entry: (steps in which its operator overflowed, steps in which it was the first): a
    persistent culprit stands out from a passer-by.

    Args:
        train_steps: None where it isn't known; then data_index tells steps of one graph apart.
    """
    steps: Dict[Any, List[int]] = {}
    who: List[Any] = []
    for index, (opened, train_step) in enumerate(zip(operators, train_steps)):
        place = opened.found.entry.place
        step = place[2:] if train_step is None else (train_step,)
        steps.setdefault(step, []).append(index)
        who.append(opened.key or index)  # an unknown operator is only itself
    seen: Dict[Any, Set[Any]] = {name: set() for name in who}
    first: Dict[Any, Set[Any]] = {name: set() for name in who}
    for step, members in steps.items():
        for index in members:
            seen[who[index]].add(step)
        leader = first_of([operators[index] for index in members])
        if leader is not None:
            first[who[members[leader]]].add(step)
    return [(len(seen[name]), len(first[name])) for name in who]


def _before_each(operators: Sequence[Opened], verdicts: Sequence[str]) -> List[Before]:
    """For each entry, what the entries before it in its step say."""
    states: Dict[Any, Before] = {}
    result = []
    for opened, verdict in zip(operators, verdicts):
        before = states.get(opened.found.entry.place, Before(True, True))
        result.append(before)
        phase = opened.host.phase if opened.host is not None else None
        harmless = verdict in ("absorbed", "padding_only")
        harmless = harmless or is_backward(opened.op_type, opened.op_name, phase)
        states[opened.found.entry.place] = Before(
            before.forward_clean and harmless,
            before.all_read and opened.outputs is not None and verdict != "unknown",
        )
    return result
