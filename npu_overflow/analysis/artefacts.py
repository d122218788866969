"""Files that keep the culprits in float32 on Ascend: the list for ``modify_mixlist`` and the lines
for ``customize_dtypes``.

A file that exists already is merged into: it is the user's, and nothing in it is lost.

    mixlist            {"black-list": {"to-add": ["FusedMulAdd"]}}; types on the black list keep
    their precision customize_dtypes
    model/fc/MatMul::InputDtype:float32,float32,OutputDtype:float32, a line an operator

Both are of CANN's types and names. From a tree of the host collector neither can be made.
"""
from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, Match, NamedTuple, Optional, Sequence, Tuple

from npu_overflow.dump import codes
from npu_overflow.errors import PathError, reason_of
from npu_overflow.report.model import Operator, Report, TensorSummary

__all__ = ["Kept", "dtype_line", "kept_operators", "merge_dtypes", "merge_mixlist"]

#: advice that a float32 operator follows
_CODE = "keep_float32"

#: what an operator's type looks like; a file name in a dump can hold anything
_TYPE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,199}\Z")
#: what a name looks like that stands in a line of its own: no blanks, nothing that ends the name
_NAME = re.compile(r"^(?!.*::)[A-Za-z0-9_.][A-Za-z0-9_./\\>:@-]{0,999}\Z")

#: what stands in JSON as an escape can only be written back as one
_SURROGATES = re.compile("[\ud800-\udfff]")

_LISTS = ("black-list", "white-list", "gray-list")


class Kept(NamedTuple):
    """What to keep in float32, and what could not be said of it.

    Args:
        types: operator types, sorted, each once.
        operators: the operators behind them, in the order in which they overflowed, each name once.
        strange: types and names that look like none.
    """

    types: Tuple[str, ...]
    operators: Tuple[Operator, ...]
    strange: Tuple[str, ...]


def kept_operators(report: Report) -> Kept:
    """The operators that made an overflow themselves in float16 or narrower."""
    types: List[str] = []
    operators: List[Operator] = []
    strange: List[str] = []
    seen = set()
    for operator in report.operators:
        who = (operator.op_type, operator.op_name)
        if _CODE not in operator.advice or who in seen:
            continue
        seen.add(who)
        if operator.op_type is None or not _TYPE.match(operator.op_type):
            strange.append(operator.op_type or operator.op_name or "?")
            continue
        operators.append(operator)
        if operator.op_type not in types:
            types.append(operator.op_type)
    return Kept(tuple(sorted(types)), tuple(operators), tuple(strange))


def merge_mixlist(existing: Optional[str], types: Sequence[str]) -> Tuple[str, List[str]]:
    """The JSON for ``modify_mixlist``.

    Args:
        existing: text of the file that is there, or None.
        types: types to add to the black list.

    Returns:
        the new text, and those of ``types`` that the file sends elsewhere too (its own "to-remove",
        its white or gray list): both entries stand then, and the user must choose.

    Raises:
        PathError: the existing file is no such list.
    """
    data: Dict[str, Any] = {} if existing is None or not existing.strip() else _read(existing)
    black = _dict_of(data, "black-list")
    present = _names_of(black, "to-add", "black-list")
    black["to-add"] = sorted(set(present) | set(types))
    data["black-list"] = black
    elsewhere = set(_names_of(black, "to-remove", "black-list"))
    for name in _LISTS[1:]:
        elsewhere |= set(_names_of(_dict_of(data, name), "to-add", name))
    return _SURROGATES.sub(_escaped, json.dumps(data, indent=2, ensure_ascii=False)) + "\n", [
        name for name in types if name in elsewhere
    ]


def _read(text: str) -> Dict[str, Any]:
    def refuse(number: str) -> float:
        raise ValueError("%s is no number of JSON" % number)

    def exact(number: str) -> float:
        value = float(number)
        return value if math.isfinite(value) else refuse(number)

    def whole(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError("a name stands twice")
        return dict(pairs)

    try:
        data = json.loads(
            text.lstrip("\ufeff"), object_pairs_hook=whole, parse_float=exact, parse_constant=refuse
        )
    except (ValueError, RecursionError) as error:
        raise PathError("mixlist.not_json", reason=reason_of(error)) from None
    if not isinstance(data, dict):
        raise PathError("mixlist.not_json", reason=type(data).__name__)
    return data


def _escaped(match: Match[str]) -> str:
    return json.dumps(match.group())[1:-1]


def _dict_of(data: Dict[str, Any], name: str) -> Dict[str, Any]:
    value = data.get(name, {})
    if not isinstance(value, dict):
        raise PathError("mixlist.shape", name=name)
    return value


def _names_of(data: Dict[str, Any], name: str, where: str) -> List[str]:
    value = data.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PathError("mixlist.shape", name="%s.%s" % (where, name))
    return value


def dtype_line(operator: Operator) -> Optional[str]:
    """The operator's line for ``customize_dtypes``, or None where its name can't stand there or its
    tensors are not known.

    Floating-point tensors get float32, others keep their type.
    """
    if (
        operator.op_name is None
        or not _NAME.match(operator.op_name)
        or not (operator.inputs or operator.outputs)
    ):
        return None
    parts = []
    for word, tensors in (("InputDtype", operator.inputs), ("OutputDtype", operator.outputs)):
        if tensors:
            parts.append("%s:%s" % (word, ",".join(_float32(tensor) for tensor in tensors)))
    return "%s::%s" % (operator.op_name, ",".join(parts))


def _float32(tensor: TensorSummary) -> str:
    low = (
        codes.could_overflow(tensor.dtype)
        and "complex" not in tensor.dtype
        and tensor.dtype != "float64"
    )
    return "float32" if low or not re.match(r"^[a-z0-9_]+\Z", tensor.dtype) else tensor.dtype


def merge_dtypes(existing: Optional[str], lines: Sequence[str]) -> Tuple[str, List[str]]:
    """The file for ``customize_dtypes``.

    Args:
        existing: text of the file that is there, or None. It stays as it is, what is new stands
            behind it, with its line ends.
        lines: lines to add.

    Returns:
        the new text, and the operators that the file names already with other types: its own line
            wins.
    """
    kept = existing or ""
    lines_of = [line.lstrip("\ufeff") for line in kept.split("\n")]
    known = {
        line.split("::", 1)[0].strip(): line.strip()
        for line in lines_of
        if "::" in line and not line.lstrip().startswith("OpType::")
    }
    added, conflicts = [], []
    for line in sorted(set(lines)):
        name = line.split("::", 1)[0]
        if name not in known:
            added.append(line)
        elif known[name] != line:
            conflicts.append(name)
    end = "\r\n" if "\r\n" in kept else "\n"
    if kept and added and not kept.endswith("\n"):
        kept += end
    return kept + "".join(line + end for line in added), conflicts
