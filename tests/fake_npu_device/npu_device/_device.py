"""The device: its register, its overflow mode, its graphs and steps, and the dump files that it writes in the background, piece by piece."""
from __future__ import annotations

import atexit
import contextlib
import os
import queue
import shutil
import tempfile
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple

#: INF/NaN mode instead of saturation
inf_nan = False
#: steps a call
loop_size = 1
#: for tests within one process: leave TensorFlow's eager context alone when the device opens
keep_context = False
#: how files grow
piece_bytes = 1 << 16
piece_seconds = 0.001
#: whether another rank sets the register in a step: it is summed over all ranks
others_overflow: Optional[Callable[[int], bool]] = None
#: number that this rank gets when the ranks have found each other; None: the one it was given, else that of its device
worker_id: Optional[int] = None

_running = False
_device_id = 0
_options: Dict[str, str] = {}
_time_folder: Optional[str] = None
_opened = ""
_register = False
_reads = 0
_tasks = 0
_last_time = 0
_model_ids: Dict[int, int] = {}
_runs: Dict[int, int] = {}
_executions: Dict[str, int] = {}
_current: Optional[Run] = None
_original_call: Any = None
_original_function: Any = None
_lock = threading.RLock()
_files: queue.Queue[Tuple[str, bytes]] = queue.Queue()
_writer: Optional[threading.Thread] = None


class Run:
    """One call of a graph: ``loop_size`` steps."""

    def __init__(self, model_id: int, index: int) -> None:
        self.model_id, self.index = model_id, index
        self.executed: Dict[str, int] = {}

    def data_index(self, op_name: str) -> int:
        inner = self.executed.get(op_name, 0)
        return self.index if loop_size == 1 else self.index * (loop_size + 1) + inner


def start(device_id: int, options: Dict[str, str]) -> None:
    """What the compiled part does when the device opens."""
    global _running, _options, _opened, _device_id
    if options.get("enable_dump") == "1" and options.get("enable_dump_debug") == "1":
        raise ValueError("enable_dump and enable_dump_debug cannot be enabled at the same time")
    _running, _options, _device_id, _opened = True, dict(options), device_id, time.strftime("%Y%m%d%H%M%S")


def stop() -> None:
    global _running
    _running = False


def number_of_rank(device_id: int) -> int:
    """Where several ranks have found each other, each gets its number."""
    return worker_id if worker_id is not None else int(os.environ.get("RANK_ID", device_id))


def original_call() -> Any:
    """Function.__call__ as it stood when this package was imported (or first needed it), whoever has replaced it since."""
    global _original_call, _original_function
    if _original_call is None:
        from tensorflow.python.eager import def_function

        _original_call, _original_function = def_function.Function.__call__, def_function.function
    return _original_call


def original_function() -> Any:
    """tf.function as it stood then."""
    original_call()
    return _original_function


def running_graph() -> bool:
    return _current is not None


@contextlib.contextmanager
def graph_run(function: Any) -> Iterator[None]:
    """The outermost call of a function: one run of its graph."""
    global _current
    if _running and dumping() and _time_folder is None and not os.access(_options.get("dump_path", ""), os.R_OK | os.W_OK):
        raise RuntimeError("[EINVAL] dump_path %s does not exist or has no permission" % _options.get("dump_path"))
    model_id = _model_ids.setdefault(id(function), len(_model_ids) + 1)
    _runs[model_id] = _runs.get(model_id, -1) + 1
    _current = Run(model_id, _runs[model_id])
    try:
        yield
    finally:
        _current = None


def dumping() -> bool:
    return _options.get("enable_dump_debug") == "1"


def next_step(op_name: str) -> int:
    """How often an operator has run before."""
    with _lock:
        _executions[op_name] = _executions.get(op_name, -1) + 1
        return _executions[op_name]


def executed(op_name: str) -> None:
    """An operator ended: within a loop, its next run belongs to the next step."""
    if _current is not None:
        _current.executed[op_name] = _current.executed.get(op_name, 0) + 1


def read_and_clear() -> bool:
    """Whether any rank overflowed since the last reading; clears the register."""
    global _register, _reads
    with _lock:
        overflowed = _register or (others_overflow is not None and others_overflow(_reads))
        _register, _reads = False, _reads + 1
        return overflowed


def read_register() -> int:
    """The register as a user would read it."""
    return int(_register)


def overflow(op_type: str, op_name: str, inputs: Sequence[Any], outputs: Sequence[Any], core: str = "AI Core", status: int = 0x20) -> None:
    """An operator overflowed: set the register, and dump it where that was switched on before the device opened."""
    global _register, _tasks
    with _lock:
        _register = True
        if not (_running and dumping() and _current is not None):
            return
        _tasks += 1
        folder = os.path.join(_folder(), str(_device_id), "ge_default_%s_%d" % (_opened, _current.model_id), str(_current.model_id))
        folder = os.path.join(folder, str(_current.data_index(op_name)))
        os.makedirs(folder, exist_ok=True)
        for name, content in _contents(op_type, op_name, inputs, outputs, core, status, _tasks % 65536, _current.model_id):
            _files.put((os.path.join(folder, name), content))
        _start_writer()


def flush() -> None:
    """Wait until every file is whole."""
    _files.join()


def _folder() -> str:
    """{dump_path}/{time}, made at the first overflow; neighbours that started in the same second share it."""
    global _time_folder
    if _time_folder is None:
        _time_folder = os.path.join(_options["dump_path"], _opened)
        os.makedirs(_time_folder, exist_ok=True)
    return _time_folder


def _contents(
    op_type: str, op_name: str, inputs: Sequence[Any], outputs: Sequence[Any], core: str, status: int, task: int, model_id: int
) -> List[Tuple[str, bytes]]:
    """The files of one overflow: the operator's dump, then its record."""
    from npu_overflow.dump import record, writer
    from npu_overflow.dump.names import dump_name, record_name

    stamp = _stamp()
    stream = 3
    names = [dump_name(op_type, op_name, task, stream, stamp), record_name(1, 5, stamp + 5)]
    if inf_nan and core == "AI Core":
        core = "AIC"
    part = record.Part(core=core, status=status, model_id=model_id, stream_id=stream, task_id=task)
    made = []
    folder = tempfile.mkdtemp()
    try:
        writer.write_dump(os.path.join(folder, names[0]), op_name, [writer.TensorSpec(x) for x in inputs], [writer.TensorSpec(x) for x in outputs])
        writer.write_record(os.path.join(folder, names[1]), [part], layout="magic" if inf_nan else "old")
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                made.append((name, file.read()))
    finally:
        shutil.rmtree(folder)
    return made


def _stamp() -> int:
    """Microseconds, never the same twice."""
    global _last_time
    _last_time = max(int(time.time() * 1e6), _last_time + 10)
    return _last_time


def _start_writer() -> None:
    global _writer
    if _writer is None or not _writer.is_alive():
        _writer = threading.Thread(target=_write, name="fake_npu_dump", daemon=True)
        _writer.start()
        atexit.register(flush)


def _write() -> None:
    """Files grow by appended pieces while the training goes on."""
    while True:
        path, content = _files.get()
        try:
            for start_ in range(0, len(content), piece_bytes):
                with open(path, "ab") as file:
                    file.write(content[start_ : start_ + piece_bytes])
                time.sleep(piece_seconds)
        except OSError:
            pass  # the folder is gone or the disk full: the device goes on
        finally:
            _files.task_done()
