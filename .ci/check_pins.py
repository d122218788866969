"""Checks that the wheel leaves an old TensorFlow alone: ``python check_pins.py WHEEL FOLDER``.

Makes an environment of the running Python in FOLDER, with TensorFlow 2.6.5 and the versions that the Ascend adapter's users have beside it; installs the wheel
there as a user would, then its test extra; compares what was installed before and after, and asks ``pip check`` each time.
"""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import List, Set

PINS = ("tensorflow==2.6.5", "keras==2.6.0", "numpy==1.19.5", "protobuf==3.19.6", "six==1.15.0")
TYPING_EXTENSIONS = ("3.7.4.3", "3.10.0.2")


def pip(folder: Path, *arguments: str) -> str:
    """Output of one pip command in the environment; ends the program where it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PIP_QUIET"}  # quiet, pip list prints nothing
    command = [str(folder / "bin" / "python"), "-m", "pip", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    if done.returncode:
        sys.exit("pip %s failed:\n%s" % (" ".join(arguments), done.stdout))
    return done.stdout


def installed(folder: Path) -> Set[str]:
    """Lines ``name==version`` of everything installed."""
    return {line for line in pip(folder, "list", "--format", "freeze").split() if "==" in line}


def names(folder: Path) -> Set[str]:
    """Names of everything installed."""
    return {line.split("==")[0] for line in installed(folder)}


def changed(folder: Path, requirement: str) -> List[str]:
    """Packages that installing ``requirement`` removed or replaced; pip check must be clean before and after."""
    pip(folder, "check")
    before = installed(folder)
    pip(folder, "install", requirement)
    pip(folder, "check")
    return sorted(before - installed(folder))


def main(wheel: str, folder: Path) -> int:
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    wrong = 0
    pip(folder, "install", *PINS, "typing-extensions==" + TYPING_EXTENSIONS[0])
    before = names(folder)
    for version in TYPING_EXTENSIONS:
        pip(folder, "install", "typing-extensions==" + version)
        for requirement in (wheel, wheel + "[test]"):
            lost = changed(folder, requirement)
            wrong += len(lost)
            extra = requirement[len(wheel) :] or "[]"
            said = "changed " + ", ".join(lost) if lost else "nothing changed, pip check is clean"
            print("Python %d.%d, typing-extensions %s, %s: %s" % (*sys.version_info[:2], version, extra, said))
        pip(folder, "uninstall", "-y", *sorted(names(folder) - before))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
