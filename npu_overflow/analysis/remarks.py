"""What is worth knowing about a report as a whole: clocks, modes, layouts."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from npu_overflow.analysis.operators import Context
from npu_overflow.analysis.selection import close_clocks

__all__ = ["of_records", "remarks_of"]

Coded = Tuple[str, Mapping[str, Any]]


def of_records(remarks: Sequence[Tuple[str, str, Mapping[str, Any]]], relative: Callable[[str], str]) -> List[Coded]:
    """Remarks about single records, one for each code: thousands can say the same.

    Args:
        remarks: (path, code, values).
        relative: a path as the report names it.
    """
    files: Dict[str, List[str]] = {}
    for path, code, _ in remarks:
        files.setdefault(code, []).append(path)
    return [("remark." + code, {"count": len(paths), "file": relative(paths[0])}) for code, paths in files.items()]


def remarks_of(context: Context) -> List[Coded]:
    """(code, values) of every remark about the entries."""
    result: List[Coded] = []
    # the host collector numbers its files by the order of execution: no clocks are compared there
    devices = close_clocks([opened.found for opened in context.operators if opened.host is None])
    if devices:
        result.append(("remark.clocks_close", {"devices": ", ".join("?" if device is None else str(device) for device in devices)}))
    result.extend(_maybe_saturation(context))
    result.extend(_layouts(context))
    result.extend(_from_statistics(context))
    return result


def _maybe_saturation(context: Context) -> List[Coded]:
    """±MAX and neither Inf nor NaN anywhere in an operator, while INF/NaN mode was only guessed from the record."""
    for index, opened in enumerate(context.operators):
        if opened.inputs is None or opened.host is not None or context.mode_is_known[index] or context.modes[index] != "inf_nan":
            continue
        numbers = [facts.numbers for facts in opened.inputs + (opened.outputs or ()) if facts.largest is not None]
        if any(each.at_max for each in numbers) and not any(each.nan or each.pos_inf or each.neg_inf for each in numbers):
            return [("remark.maybe_saturation", {"name": opened.op_name or "?"})]
    return []


def _layouts(context: Context) -> List[Coded]:
    """Private formats whose padding could not be told apart, one remark a reason and format."""
    counts: Dict[Tuple[str, str], int] = {}
    for facts in _all_facts(context):
        if facts.remark is not None:
            key = (facts.remark, facts.summary.format)
            counts[key] = counts.get(key, 0) + 1
    return [("remark." + code, {"format": name, "tensors": count}) for (code, name), count in counts.items()]


def _from_statistics(context: Context) -> List[Coded]:
    """Statistics files hold extremes, not elements."""
    return [("remark.statistics", {})] if any(opened.statistics for opened in context.operators) else []


def _all_facts(context: Context) -> List[Any]:
    return [facts for opened in context.operators for side in (opened.inputs, opened.outputs) for facts in _or_empty(side)]


def _or_empty(side: Optional[Tuple[Any, ...]]) -> Tuple[Any, ...]:
    return side or ()
