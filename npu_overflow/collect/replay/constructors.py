"""Where the user's code makes a layer. Keras does not keep that line, so the source is searched for
the one call that names the layer. A wrong line is worse than none."""
from __future__ import annotations

import ast
import linecache
from typing import Any, Iterable, List, Optional, Tuple

from npu_overflow.collect.replay.lines import shown

__all__ = ["constructor_in_float32"]

MAX_TEXT = 68  # characters of a call with its arguments: 80 with a short place before it
_DTYPE = 'dtype="float32"'


def constructor_in_float32(files: Iterable[str], kind: str, name: str) -> Optional[str]:
    """``train.py:12: layers.Dense(8, name="d", dtype="float32")``, with the user's own arguments.

    Args:
        files: the user's files that may make the layer.
        kind: the name of the layer's class.
        name: of the layer.

    Returns:
        None where not exactly one call fits, or where ``**`` may hold a type already.
    """
    found = [item for file in files for item in _calls_in(file) if _makes(item[1], kind, name)]
    if len(found) != 1 or any(word.arg is None for word in found[0][1].keywords):
        return None
    file, call, source = found[0]
    return "%s: %s" % (shown((file, call.lineno, "")), _typed(call, source, name))


def _calls_in(file: str) -> List[Tuple[str, ast.Call, str]]:
    source = "".join(linecache.getlines(file))
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return []
    return [(file, node, source) for node in nodes if isinstance(node, ast.Call)]


def _makes(call: ast.Call, kind: str, name: str) -> bool:
    called = getattr(call.func, "attr", getattr(call.func, "id", None))
    return called == kind and any(
        word.arg == "name" and _constant(word.value) == name for word in call.keywords
    )


def _constant(node: ast.AST) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _typed(call: ast.Call, source: str, name: str) -> str:
    maker = _dotted(call.func)
    segment = getattr(ast, "get_source_segment", None)  # Python 3.8
    if segment is not None:
        texts = [segment(source, value) for value in call.args]
        kept = [word for word in call.keywords if word.arg != "dtype"]
        texts += ["%s=%s" % (word.arg, segment(source, word.value)) for word in kept]
        text = "%s(%s)" % (maker, ", ".join([*texts, _DTYPE]))
        if len(text) <= MAX_TEXT and "\n" not in text:
            return text
    return '%s(..., name="%s", %s)' % (maker, name, _DTYPE)


def _dotted(node: Any) -> str:
    if isinstance(node, ast.Attribute):
        return "%s.%s" % (_dotted(node.value), node.attr)
    return str(getattr(node, "id", "…"))
