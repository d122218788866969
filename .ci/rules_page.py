"""Writes ``docs/rules.md`` and ``docs/zh/rules.md`` from the rules, their sentences and the cases of their tests: ``python .ci/rules_page.py``.

``--check`` writes nothing and fails where a page is not what the rules say.
"""
from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any, List

SOURCE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(SOURCE / "tests" / "analysis"))
if importlib.util.find_spec("npu_overflow") is None:
    sys.path.insert(0, str(SOURCE))

WORDS = {
    "en": {
        "title": "Rules",
        "intro": "Advice in a report comes from an ordered list of rules: the most specific first, several can fit. Each rule says what it saw (the tensor, "
        "the element, the value); its code stands in `advice` and `evidence` of the JSON report. The examples below are cases of the rules' own tests "
        "(`tests/analysis/test_rules.py`); `python tests/rule_table.py` prints for every rule that it fires where it should and is silent where it should. "
        "This page is made by `.ci/rules_page.py`.",
        "when": "**When.**", "example": "**Example.**", "advice": "**Fix.**", "host": "**On a CPU or GPU.**",
        "batch": "**Where the value comes with the batch.**",
        "case": "{type}, verdict `{verdict}`{seen}",
    },
    "zh": {
        "title": "规则",
        "intro": "报告中的建议来自一个有序的规则列表：最具体的在前，可同时适用多条。每条规则都会给出依据（张量、元素、数值）；"
        "其代码出现在 JSON 报告的 `advice` 和 `evidence` 中。下面的示例取自规则自身的测试（`tests/analysis/test_rules.py`）；"
        "`python tests/rule_table.py` 会逐条打印规则是否在应当触发时触发、在不应触发时保持沉默。本页由 `.ci/rules_page.py` 生成。",
        "when": "**条件。**", "example": "**示例。**", "advice": "**处理。**", "host": "**在 CPU 或 GPU 上。**",
        "batch": "**数值来自输入批数据时。**",
        "case": "{type}，结论 `{verdict}`{seen}",
    },
}


def page(language: str) -> str:
    """The page in one language."""
    import test_rules

    from npu_overflow import messages
    from npu_overflow.analysis.rules import LAST_RESORT, RULES, advise
    from npu_overflow.report.model import Operator
    from npu_overflow.report.story import advice_text

    words = WORDS[language]
    lines = ["# " + words["title"], "", words["intro"], ""]
    for code in dict.fromkeys([rule.code for rule in RULES] + [LAST_RESORT]):
        given = next(case for wanted, case in test_rules.FIRES if wanted == code)
        codes, evidence = advise(given)
        lines += ["## %s: `%s`" % (messages.say("advice.%s.title" % code, language), code), ""]
        lines += [words["when"] + " " + messages.say("advice.%s.when" % code, language), ""]
        lines += [words["example"] + " " + words["case"].format(type="`%s`" % given.op_type, verdict=given.verdict, seen=_seen(evidence[code])), ""]
        for key, core in (("advice", given.core), ("host", "CPU")):
            if key == "advice" or messages.known("advice.%s.host" % code):
                operator = Operator(op_type=given.op_type, op_name=given.op_name, core=core, advice=codes, evidence=evidence)
                lines += _fix(words[key], advice_text(operator, code, language))
        if messages.known("advice.%s.batch" % code):
            lines += _fix(words["batch"], messages.say("advice.%s.batch" % code, language, batch="x"))
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def _seen(evidence: Any) -> str:
    """What the rule saw, as the JSON has it."""
    from npu_overflow.report.formatting import element, number

    shown = [(key, number(value) if isinstance(value, (int, float)) else element(value)) for key, value in evidence.items() if key != "op_type"]
    return "".join(", `%s` %s" % pair for pair in shown)


def _fix(word: str, text: str) -> List[str]:
    """The advice, its code in fences."""
    lines: List[str] = [word]
    code: List[str] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith(" "):
            code.append(line[4:])
            continue
        if code:
            lines += ["", "```text", *code, "```", ""]
            code = []
        if line:
            lines[-1:] = [lines[-1] + " " + line] if lines[-1] else ["", line]
    return [*lines, ""]


def main(check: bool) -> int:
    wrong = []
    for language, folder in (("en", SOURCE / "docs"), ("zh", SOURCE / "docs" / "zh")):
        target, text = folder / "rules.md", page(language)
        if check and (not target.exists() or target.read_text(encoding="utf-8") != text):
            wrong.append("%s is not what .ci/rules_page.py makes" % target)
        if not check:
            target.write_text(text, encoding="utf-8")
    print("\n".join(wrong) or "ok")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv) > 0)
