"""Put the benchmarks' results into docs/performance.md and docs/zh/performance.md.

    python benchmarks/page.py            runs all of them
    python benchmarks/page.py analyze    runs some

Each table stands between ``<!-- analyze.py -->`` and ``<!-- end -->``; everything else on the pages is written by hand. Run it on an idle machine.
"""
from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import timing

PAGES = ("docs/performance.md", "docs/zh/performance.md")


def output_of(script: str) -> str:
    """What a benchmark prints."""
    here = os.path.dirname(os.path.abspath(__file__))
    environment = dict(os.environ, PYTHONPATH=timing.ROOT, TF_CPP_MIN_LOG_LEVEL="3")
    done = subprocess.run([sys.executable, os.path.join(here, script)], env=environment, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    return done.stdout.strip()


def with_table(text: str, script: str, body: str) -> str:
    """``text`` with ``body`` where the output of ``script`` stands."""
    before, rest = text.split("<!-- %s -->" % script, 1)
    _, after = rest.split("<!-- end -->", 1)
    return "%s<!-- %s -->\n\n%s\n\n<!-- end -->%s" % (before, script, body, after)


def main() -> None:
    wanted = sys.argv[1:]
    texts = {path: Path(timing.ROOT, path).read_text(encoding="utf-8") for path in PAGES}
    for script in re.findall(r"<!-- (\w+\.py) -->", texts[PAGES[0]]):
        if wanted and script[:-3] not in wanted:
            continue
        found = output_of(script)
        body = found if found.startswith("|") else "```text\n%s\n```" % found
        for path, text in texts.items():
            texts[path] = with_table(text, script, body)
    for path, text in texts.items():
        Path(timing.ROOT, path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
