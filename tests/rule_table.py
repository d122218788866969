"""Prints, as a table, that every advice rule fires where it should and is silent where it should: ``python tests/rule_table.py``.

The cases are those of ``tests/analysis/test_rules.py``. The exit status is 1 if one of them is wrong or a rule lacks a case.
"""
from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "analysis"))
if importlib.util.find_spec("npu_overflow") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


def table() -> int:
    """Print the table; returns how many rules are not as they should be."""
    import test_rules

    from npu_overflow.analysis.rules import LAST_RESORT, RULES, advise
    from npu_overflow.report import texts

    codes = list(dict.fromkeys([rule.code for rule in RULES] + [LAST_RESORT]))
    wrong = 0
    print("| rule | headline | fires where it should | silent where it should |")
    print("| --- | --- | --- | --- |")
    for code in codes:
        fires = [code in advise(given)[0] for wanted, given in test_rules.FIRES if wanted == code]
        silent = [code not in advise(given)[0] for wanted, given in test_rules.SILENT if wanted == code]
        good = bool(fires) and bool(silent) and all(fires) and all(silent)
        wrong += not good
        print("| %s | %s | %d of %d | %d of %d%s |" % (
            code, texts.say("advice.%s.title" % code), sum(fires), len(fires), sum(silent), len(silent), "" if good else "  WRONG"))
    print("\n%d rules, %d cases, %d wrong" % (len(codes), len(test_rules.FIRES) + len(test_rules.SILENT), wrong))
    return wrong


if __name__ == "__main__":
    sys.exit(table() > 0)
