"""Writes ``docs/api.md`` and ``docs/zh/api.md`` from the docstrings of the public names: ``python .ci/api_page.py``; ``--check`` only compares."""
from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from typing import Any, List

SOURCE = Path(__file__).resolve().parent.parent
if importlib.util.find_spec("npu_overflow") is None:
    sys.path.insert(0, str(SOURCE))

INTRO = {
    "en": ("API", "Everything public, as its docstrings say. This page is made by `.ci/api_page.py`. Importing the package imports neither "
           "TensorFlow nor numpy; each name loads when it is first used."),
    "zh": ("API", "全部公开接口，内容取自源码中的英文文档字符串。本页由 `.ci/api_page.py` 生成。"
           "导入本包不会导入 TensorFlow 或 numpy；各名称在首次使用时才加载。"),
}

#: in the order in which people meet them
NAMES = ("OverflowWatch", "overflow_dump", "WatchOptions", "analyze", "npu_device_dump_config", "Report", "Operator", "TensorSummary",
         "NpuOverflowError", "UsageError", "PathError", "CannotWrite", "DumpFormatError", "CannotCollect", "MissingExtra")


def page(language: str) -> str:
    import npu_overflow

    missing = set(npu_overflow.__all__) - {*NAMES, "__version__"}
    assert not missing, missing
    title, intro = INTRO[language]
    lines = ["# " + title, "", intro, ""]
    for name in NAMES:
        value = getattr(npu_overflow, name)
        lines += ["## %s" % name, ""]
        if inspect.isfunction(value):
            lines += ["```text", name + _signature(value), "```", ""]
        lines += _doc(value)
        if inspect.isclass(value) and not issubclass(value, Exception):
            lines += _members(name, value)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _signature(value: Any) -> str:
    return re.sub(r"'([\w\[\], .]+)'", r"\1", str(inspect.signature(value)))


def _doc(value: Any) -> List[str]:
    """A docstring; its indented parts stay as they are written."""
    first, _, rest = inspect.cleandoc(value.__doc__ or "").partition("\n\n")
    lines = [first.replace("``", "`").replace("\n", " "), ""]
    return lines + (["```text", rest, "```", ""] if rest.strip() else [])


def _members(name: str, cls: Any) -> List[str]:
    """Methods and properties, except Keras' hooks."""
    lines: List[str] = []
    hidden = ("on_", "set_", "_")
    fields = {item.name for item in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for member, value in vars(cls).items():
        value = getattr(value, "__func__", value)
        documented = isinstance(value, property) or inspect.isfunction(value)
        if member.startswith(hidden) or member in fields or not documented or not (value.__doc__ or (isinstance(value, property) and value.fget.__doc__)):
            continue
        head = member if isinstance(value, property) else member + _signature(value).replace("(cls, ", "(").replace("(self, ", "(").replace("(self)", "()")
        lines += ["### %s.%s" % (name, member), "", "```text", head, "```", ""] + _doc(value)
    return lines


def main(check: bool) -> int:
    wrong = 0
    for language, folder in (("en", SOURCE / "docs"), ("zh", SOURCE / "docs" / "zh")):
        target, text = folder / "api.md", page(language)
        if not check:
            target.write_text(text, encoding="utf-8")
        elif not target.exists() or target.read_text(encoding="utf-8") != text:
            wrong += 1
            print("%s is not what .ci/api_page.py makes" % target)
    return wrong


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv) > 0)
