"""Prints, as a table, that every advice rule fires where it should and is silent where it should: ``python tests/rule_table.py``.

The cases are those of ``tests/analysis/test_rules.py``. Each rule also fires in a training with a planted fault (``tests/faults``, which proves it), or the
last column says why only a dump tree can show it. The exit status is 1 if one of them is wrong or a rule lacks a case.
"""
from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "analysis"))
if importlib.util.find_spec("npu_overflow") is None:
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))


#: rule -> the planted fault that fires it on a CPU
FAULTS = {
    "weights_lost": "inf_in_a_kernel",
    "masked_row": "row_masked_by_infinity",
    "mask_constant": "mask_1e9_whole_row",
    "log_or_reciprocal": "log_of_zero",
    "exponent": "exp_of_features",
    "power": "pow_three",
    "gradient_scale": "weight_gradient_sum",
    "weight_range": "weight_too_large_for_float16",
    "cast_range": "feature_over_65504",
    "dot_product": "convolution",
    "mean_range": "inner_sum_of_a_mean",
    "sum_range": "sum_of_a_row",
    "product_range": "product_of_two",
    "constant_input": "nan_in_the_features",
    "scale_at_floor": "late_fault",
    "keep_float32": "matmul_large_weights",
    "ask_support": "float32_product",
}
#: rule -> why no training on a CPU can fire it
TREES_ONLY = {
    "padding": "only an NPU pads tensors",
    "integer_status": "bits of the device's status",
    "cube_accumulation": "a bit of the device's status",
    "reduction_inside": "only a device reports what neither inputs nor outputs show",
    "atomic_add": "a unit of the device",
    "optimizer_float16": "an update that spoils the weights is seen in a step that was asked for: tests/collect/test_fit.py",
    "custom_operator": "needs an operator compiled for this TensorFlow",
}


def table() -> int:
    """Print the table; returns how many rules are not as they should be."""
    import test_rules

    from npu_overflow import messages
    from npu_overflow.analysis.rules import LAST_RESORT, RULES, advise

    codes = list(dict.fromkeys([rule.code for rule in RULES] + [LAST_RESORT]))
    wrong = 0
    print("| rule | headline | fires where it should | silent where it should | planted fault, or why there is none |")
    print("| --- | --- | --- | --- | --- |")
    for code in codes:
        fires = [code in advise(given)[0] for wanted, given in test_rules.FIRES if wanted == code]
        silent = [code not in advise(given)[0] for wanted, given in test_rules.SILENT if wanted == code]
        shown = FAULTS.get(code) or TREES_ONLY.get(code)
        good = (code in FAULTS) != (code in TREES_ONLY) and bool(fires) and bool(silent) and all(fires) and all(silent)
        wrong += not good
        print("| %s | %s | %d of %d | %d of %d | %s%s |" % (
            code, messages.say("advice.%s.title" % code), sum(fires), len(fires), sum(silent), len(silent), shown, "" if good else "  WRONG"))
    wrong += len((set(FAULTS) | set(TREES_ONLY)) - set(codes))
    print("\n%d rules, %d cases, %d with a planted fault, %d wrong" % (len(codes), len(test_rules.FIRES) + len(test_rules.SILENT), len(FAULTS), wrong))
    return wrong


if __name__ == "__main__":
    sys.exit(table() > 0)
