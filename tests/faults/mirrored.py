"""The training of ``ways.Apart``: run as a script with a task as JSON, prints the outcome as a line of JSON after "@"."""
from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

from .kit import Fit, Setting, under_policy
from .ways import START, Planted


def planted(s: Setting, path: str = "net/hot/MatMul", **truth: Any) -> Planted:
    """What is planted, the same in both processes: sizes and names are given in one order."""
    found = Planted(s, path, **truth)
    for part in ("net", "features", "first", "hot", "out"):
        s.name(part)
    return found


def main() -> None:
    """Do the task."""
    import tensorflow as tf

    task = json.loads(sys.argv[1])
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with under_policy("mixed_float16"):
        s = Setting(task["seed"], task["cured"])
        case = planted(s)
        with strategy.scope():
            model = s.compile(case.model())
        batch = [case.good, case.good]
        batch[task["replica"]] = case.bad
        training = Fit(model, good=np.concatenate([case.good, case.good]), bad=np.concatenate(batch), start=START)
        if "options" not in task:
            training.run()
            return
        outcome = training.train(**task["options"])
        answer = {"reports": [report.to_json() for report in outcome.reports], "drops": outcome.drops, "state": outcome.state, "said": outcome.said}
        sys.stdout.write("\n@" + json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
