"""Facts of one run and rank, beside its dump: what only the training process knew.

``{dump_path}/{time}/session-{rank}.json``, or ``{dump_path}/session-{rank}.json`` until the device
has made its time folder. Written aside and renamed at every change of state, so that a reader never
sees half a file. A manifest that is read is as untrusted as the dump beside it: its size is
bounded, every field's type is checked, and nothing in it is ever executed.
"""
from __future__ import annotations

import dataclasses
import json
import os
import re
import stat
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from npu_overflow import jsonform
from npu_overflow.atomic import atomic_write
from npu_overflow.errors import reason_of

__all__ = [
    "SCHEMA",
    "Manifest",
    "ManifestProblem",
    "Manifests",
    "argv_of",
    "environment_of",
    "plain",
    "read_manifest",
    "read_manifests",
]

SCHEMA = 1

#: a manifest of 10,000 drops and reports has about 1 MB
MAX_BYTES = 16 * 2**20
#: manifests read in one folder: more ranks than this are merged from their reports
MAX_FILES = 20_000
#: bytes of all manifests of one folder
MAX_ALL_BYTES = 128 * 2**20
_FORM = jsonform.Form(depth=12, text=65_536, items=200_000, whole=(-(2**63), 2**64 - 1))
#: values in one file: as Python objects they take fifty times the bytes that they have in JSON
_MAX_VALUES = 1_000_000

_FILE = re.compile(r"^session-(\d{1,7})\.json$")
# "author", "tokenizer" and "max_tokens" are no secrets
_SECRET = re.compile(
    r"token(?!s$|i[sz])|passw|passphrase|secret|credential|api_?key|auth(?!or)|cookie"
    r"|(^|_)(key|pwd|pass|sk|ak)$",
    re.IGNORECASE,
)
_LOGIN = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s@]+@", re.IGNORECASE)
_REDACTED = "<redacted>"

#: environment variables that can change what a training does, by beginning
_RELEVANT = (
    *("ASCEND_", "CM_", "CUDA_VISIBLE", "DUMP_", "ENABLE_", "GE_", "HCCL_", "HOROVOD_", "JOB_ID"),
    *("KERAS_", "LOCAL_RANK", "NPU_", "OMPI_COMM_WORLD_", "OMP_", "PMI_RANK", "PMI_SIZE"),
    *("PRECISION_TOOL_", "PYTHONHASHSEED", "RANK", "SLURM_JOB_ID", "SLURM_PROCID"),
    *("SLURM_NTASKS", "SLURM_STEP_ID"),
    *("TF_", "WORLD_SIZE", "XLA_"),
)


def _are_inside(paths: Iterable[str]) -> bool:
    """Whether paths relative to the manifest stay inside its folder."""
    return not any(
        os.path.isabs(path) or ".." in path.replace("\\", "/").split("/") or "\0" in path
        for path in paths
    )


@dataclass
class Manifest:
    """One run of one rank. The session changes it while training goes on; the analysis reads it.

    Args:
        run_id: the same for all ranks of one job where the launcher tells, else of this process
            alone.
        rank, world_size, device: of the process.
        started: seconds since the epoch.
        versions: name -> version, e.g. of "tensorflow", "keras", "npu_device", "npu_overflow",
            "python".
        mode: "saturation", "inf_nan" or None where it isn't known.
        collector: "ascend", "host" or None.
        options: the watch's options, as plain values.
        argv, environment: of the process; secrets redacted, only the variables that matter.
        state: "watching", "collecting", "reported" or "off"; state_history: (training step, state)
            at each change.
        optimizers: {"name", "family", "dynamic", "floor"} of each that is watched.
        drops: falls of the loss scale (training step, before, after).
        rate: overflowing steps as a part of all.
        trigger: {"step" (the one that collecting begins at), "optimizer", "reason", …} of the last
            trigger, or None.
        kept_steps: training steps whose overflow dumps were kept.
        kept_folders: data_index folders of the last collection, relative to the time folder: the
            analysis leaves out the others, whose overflow was sporadic. None: everything is
            analyzed.
        train_steps: data_index (the folder's name) -> training step.
        folder_steps: data_index folder, relative to the time folder -> training step, where another
            graph's folder of the same name is another step.
        remarks: (code, values) of sentences in the catalogue.
        reason: why a collection found nothing, e.g. "not_reproduced".
        ended: the training has ended: no report will follow.
        request: what should be done in a new process ({"why", "step", …}), or None. Nothing is ever
            executed from it.
        reports: files of the reports made, relative to the manifest.
        folder: where it was read from or written to last; not in the file.
    """

    run_id: str = ""
    rank: int = 0
    world_size: int = 1
    device: int = 0
    hostname: str = ""
    pid: int = 0
    started: float = 0.0
    versions: Dict[str, str] = field(default_factory=dict)
    mode: Optional[str] = field(default=None, metadata=jsonform.one_of("saturation", "inf_nan"))
    collector: Optional[str] = None
    options: Dict[str, Any] = field(default_factory=dict)
    argv: List[str] = field(default_factory=list)
    environment: Dict[str, str] = field(default_factory=dict)
    state: str = "watching"
    state_history: List[Tuple[int, str]] = field(default_factory=list)
    optimizers: List[Dict[str, Any]] = field(default_factory=list)
    drops: List[Tuple[int, float, float]] = field(default_factory=list)
    rate: Optional[float] = None
    trigger: Optional[Dict[str, Any]] = None
    kept_steps: List[int] = field(default_factory=list)
    kept_folders: Optional[List[str]] = None
    train_steps: Dict[int, int] = field(default_factory=dict)
    folder_steps: Dict[str, int] = field(default_factory=dict)
    remarks: List[Tuple[str, Dict[str, Any]]] = field(default_factory=list)
    reason: Optional[str] = None
    ended: bool = False
    request: Optional[Dict[str, Any]] = None
    reports: List[str] = field(default_factory=list, metadata=jsonform.accepts(_are_inside))
    schema: int = SCHEMA
    folder: Optional[str] = field(default=None, compare=False)

    @property
    def file_name(self) -> str:
        return "session-%d.json" % self.rank

    def to_dict(self) -> Dict[str, Any]:
        """The manifest as plain dicts and lists, secrets redacted."""
        names = [item.name for item in dataclasses.fields(self) if item.name != "folder"]
        result = {name: getattr(self, name) for name in names}
        result["argv"] = argv_of(self.argv)
        result["environment"] = environment_of(self.environment)
        made: Dict[str, Any] = plain(result)
        return made

    def write(self, folder: str) -> str:
        """Write it into ``folder`` (it must exist) aside, then by renaming; moves there from the
        folder it was written to last.

        Returns:
            the path of the file.

        Raises:
            CannotWrite (an OSError): the folder can't be written to, or the disk is full. What was
            there before is then unchanged.
        """
        path = os.path.join(folder, self.file_name)
        text = json.dumps(self.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        atomic_write(path, text + "\n")
        earlier, self.folder = self.folder, folder
        if earlier is not None and os.path.realpath(earlier) != os.path.realpath(folder):
            self._forget(os.path.join(earlier, self.file_name))
        return path

    def _forget(self, path: str) -> None:
        """Remove the manifest left in the waiting place, if it still is of this run."""
        try:
            if read_manifest(path).run_id == self.run_id:
                os.unlink(path)
        except (OSError, ValueError):
            pass


@dataclass(frozen=True)
class ManifestProblem:
    """A manifest that could not be used: ``code`` and ``values`` make the sentence."""

    file: str
    code: str
    values: Mapping[str, Any] = field(default_factory=dict)


class Manifests(List[Manifest]):
    """Manifests by rank; ``problems`` lists the files that could not be read."""

    def __init__(
        self, found: Iterable[Manifest] = (), problems: Iterable[ManifestProblem] = ()
    ) -> None:
        super().__init__(found)
        self.problems: List[ManifestProblem] = list(problems)


def read_manifests(folder: str) -> Manifests:
    """The manifests that lie directly in ``folder``, by rank. Never raises: bad ones become
    problems, a missing folder gives none."""
    result = Manifests()
    ranked: List[Tuple[int, str]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                match = _FILE.match(entry.name)
                if match is not None and len(ranked) < MAX_FILES:
                    ranked.append((int(match.group(1)), entry.path))
    except OSError:
        return result
    left = MAX_ALL_BYTES
    for _rank, path in sorted(ranked):
        try:
            left -= os.lstat(path).st_size
            if left < 0:
                raise ValueError("more than %d bytes of manifests in one folder" % MAX_ALL_BYTES)
            result.append(read_manifest(path))
        except (OSError, ValueError) as error:
            reason = {"reason": _reason(error)}
            result.problems.append(ManifestProblem(path, "manifest.unreadable", reason))
    return result


def read_manifest(path: str) -> Manifest:
    """One manifest.

    Raises:
        OSError: it can't be opened, or is a link or no regular file.
        ValueError: it is no manifest; the message says what is wrong.
    """
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        raise OSError("no regular file")
    if found.st_size > MAX_BYTES:
        raise ValueError("%d bytes, more than %d" % (found.st_size, MAX_BYTES))
    careful = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, os.O_RDONLY | careful)
    with open(handle, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError("more than %d bytes" % MAX_BYTES)
    if sum(map(data.count, b",[{")) > _MAX_VALUES:
        raise ValueError("more than %d values" % _MAX_VALUES)
    content = jsonform.parse(data)
    if not isinstance(content, dict):
        raise ValueError("no JSON object")
    return _FORM.read(Manifest, dict(content, folder=os.path.dirname(os.path.abspath(path))))


def _reason(error: Exception) -> str:
    return reason_of(error)[:200]


# --- making what is written


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: functions and other objects become their names, infinities and
    NaN the strings "inf", "-inf", "nan"."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, float):
        return jsonform.number_or_word(value)
    if hasattr(value, "__index__"):
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset, range)):
        ordered = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
        return [plain(item) for item in ordered]
    if hasattr(value, "__float__"):
        return plain(float(value))
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return "<%s>" % name


def _is_secret(name: str) -> bool:
    return _SECRET.search(name.strip("-").replace("-", "_")) is not None


def argv_of(arguments: Iterable[str]) -> List[str]:
    """A command line with the values of ``--token X``, ``--password=X``, ``NAME_KEY=X`` and logins
    in addresses redacted."""
    result: List[str] = []
    hide_next = False
    for argument in map(str, arguments):
        name, equals, _value = argument.partition("=")
        secret = _is_secret(name)
        if hide_next and not argument.startswith("-"):
            result.append(_REDACTED)
        elif equals and secret:
            result.append(name + equals + _REDACTED)
        else:
            result.append(_LOGIN.sub(r"\1%s@" % _REDACTED, argument))
        hide_next = not equals and secret and argument.startswith("-")
    return result


def environment_of(environment: Mapping[str, str]) -> Dict[str, str]:
    """The variables that matter to a training, by name; those whose name tells of a secret are
    redacted."""
    chosen = {}
    for name in sorted(environment):
        if name.startswith(_RELEVANT):
            shown = _LOGIN.sub(r"\1%s@" % _REDACTED, environment[name])
            chosen[name] = _REDACTED if _is_secret(name) else shown
    return chosen
