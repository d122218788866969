"""``python -m tests.fuzz``: see ``--help``."""
from __future__ import annotations

import argparse
import os
import sys
import tempfile

TARGETS = ("records", "dumps", "names", "manifests", "reports")


def main() -> int:
    """Run what was asked for; exit status 1 where a fault was found."""
    about = "Fuzzers; both print executions, what they covered, and faults with the input that shows them."
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=about)
    chosen = parser.add_subparsers(dest="command")
    default = os.path.join(tempfile.gettempdir(), "npu_overflow_fuzz")
    guided = chosen.add_parser("guided", help="coverage-guided (needs atheris: pip install .[fuzz])")
    guided.add_argument("--seconds", type=int, default=300, help="for all targets together (300)")
    guided.add_argument("--target", choices=TARGETS, action="append", help="only this one; can be given again")
    again = chosen.add_parser("again", help="one input of the coverage-guided fuzzer once more, with its traceback")
    again.add_argument("target", choices=TARGETS)
    again.add_argument("input")
    mutate = chosen.add_parser("mutate", help="damaged sample trees through analyze and every reporter")
    mutate.add_argument("--seconds", type=int, default=300, help="how long (300)")
    mutate.add_argument("--seed", type=int, default=0, help="of the first case (0); the same seed damages the same")
    mutate.add_argument("--case", type=int, help="only this case of the seed, with its traceback")
    for command in (guided, again, mutate):
        command.add_argument("--output", default=default, help="where inputs, corpus and faults lie (%s)" % default)
    given = parser.parse_args()
    if given.command is None:
        parser.print_help()
        return 2
    given.output = os.path.abspath(given.output)
    os.makedirs(given.output, exist_ok=True)
    if given.command == "mutate":
        from . import mutate as trees

        return trees.one(given.seed, given.case, given.output) if given.case is not None else trees.run(given.seed, given.seconds, given.output)
    from . import guided as targets

    if given.command == "again":
        targets.again(given.target, given.input, given.output)
    else:
        return targets.run(given.target or list(TARGETS), given.seconds, given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
