"""Large tensors counted by several processes; each case in a process of its own, as forking wants it."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from dump_trees import INF, Step

from npu_overflow.analysis import workers

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks on Linux only")

SCRIPT = """
import os, sys
from npu_overflow.analysis import workers
from npu_overflow.analysis.analyzer import analyze
workers._LARGE_BYTES = 0
asked = []
real = workers.summarize

def summarize(tensor, mode):
    if os.getpid() == parent:
        asked.append(tensor.index)
    {in_child}
    return real(tensor, mode)

workers.summarize = summarize
parent = os.getpid()
report = analyze(sys.argv[1], processes=2)
counted_here = len(asked)
print(report.to_json() == analyze(sys.argv[1]).to_json(), counted_here, [problem.code for problem in report.problems])
"""


def run(tmp_path: Path, in_child: str = "pass", before: str = "") -> str:
    step = Step(tmp_path)
    for task in range(1, 4):
        step.operator("Mul", "m/mul_%d" % task, task, 100 * task, outputs=[INF])
    script = before + SCRIPT.format(in_child=in_child)
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.returncode == 0
    return done.stdout


def test_the_report_is_the_same_and_others_did_the_work(tmp_path: Path) -> None:
    assert run(tmp_path) == "True 0 []\n"


def test_where_a_process_is_killed_this_one_counts(tmp_path: Path) -> None:
    assert run(tmp_path, "os.getpid() == parent or os.kill(os.getpid(), 9)") == "True 6 []\n"


#: it is there until the process ends
THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"


@pytest.mark.parametrize("before", [THREAD, "import sys\nsys.modules['tensorflow'] = None\n"], ids=["thread", "tensorflow"])
def test_threads_and_tensorflow_forbid_it(tmp_path: Path, before: str) -> None:
    assert run(tmp_path, before=before) == "True 6 []\n"


RAISES = """
    from npu_overflow.errors import DumpFormatError
    if os.getpid() != parent:
        raise DumpFormatError("file.gone")
"""


def test_problems_of_a_file_come_back(tmp_path: Path) -> None:
    assert run(tmp_path, RAISES) == "False 0 ['file.gone', 'file.gone', 'file.gone']\n"


def test_processors() -> None:
    assert 1 <= workers.processors() <= (os.cpu_count() or 1)
