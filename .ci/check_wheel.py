"""Checks a built wheel: ``python check_wheel.py WHEEL``. Pure, whole, nothing else in it, described rightly."""
from __future__ import annotations

import email
import re
import sys
import zipfile
from pathlib import Path
from typing import List

SOURCE = Path(__file__).resolve().parent.parent
PACKAGE = "npu_overflow"


def problems(wheel: Path) -> List[str]:
    """What is wrong with ``wheel``, one sentence each."""
    with zipfile.ZipFile(str(wheel)) as archive:
        names = set(archive.namelist())
        info = next(name.split("/")[0] for name in names if ".dist-info/" in name)
        metadata = email.message_from_bytes(archive.read(info + "/METADATA"))
        tags = email.message_from_bytes(archive.read(info + "/WHEEL"))
        scripts = archive.read(info + "/entry_points.txt").decode()
    version = re.search(r'__version__ = "([^"]+)"', (SOURCE / PACKAGE / "version.py").read_text(encoding="utf-8"))
    expected = {path.relative_to(SOURCE).as_posix() for path in (SOURCE / PACKAGE).rglob("*.py") if "__pycache__" not in path.parts}
    data = ("py.typed", "report/schema_1.json", "report/templates/*")
    expected |= {path.relative_to(SOURCE).as_posix() for pattern in data for path in (SOURCE / PACKAGE).glob(pattern)}

    wrong = ["it lacks " + name for name in sorted(expected - names)]
    wrong += ["it holds " + name for name in sorted(names - expected) if not name.startswith((info + "/", PACKAGE + "/"))]
    if not wheel.name.endswith("-py3-none-any.whl") or tags["Root-Is-Purelib"] != "true":
        wrong.append("it is not a pure py3-none-any wheel")
    if version is None or metadata["Version"] != version.group(1):
        wrong.append("its version is %s, version.py says otherwise" % metadata["Version"])
    if "npu-overflow = npu_overflow.cli:main" not in scripts:
        wrong.append("it has no command npu-overflow")
    if metadata["Requires-Python"] != ">=3.7":
        wrong.append("it is for Python %s" % metadata["Requires-Python"])
    if not any(name.startswith(info + "/") and name.endswith("LICENSE") for name in names):
        wrong.append("it has no LICENSE")
    always = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    named = {re.split(r"[^A-Za-z0-9_-]", line)[0] for line in always}
    if named != {"jinja2", "numpy", "protobuf", "rich"}:
        wrong.append("it always installs " + ", ".join(sorted(named)))
    return wrong


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]))
    print("%s: %s" % (Path(sys.argv[1]).name, "; ".join(found) or "ok"))
    sys.exit(bool(found))
