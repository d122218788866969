"""What TensorFlow executes on this thread: one entry for each call of a function, one for each
eager operator.

Kept are numbers, attributes and what came from outside: data, variables, constants, random draws.
What an entry made is not kept: the record is run again when it is wanted.
"""
from __future__ import annotations

import contextlib
import itertools
import sys
import threading
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional, Set, Tuple

from npu_overflow.collect.replay import program as programs
from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.lines import Place
from npu_overflow.training import console

__all__ = ["Entry", "Record", "Recorder", "Values", "is_backward"]

Values = Dict[int, Tuple[Any, Any]]  # tensor number of a variable's handle -> handle, value

#: entries of steps that have ended stay for those that use what they made, up to so many
_MOST_OLD = 4000
#: entries of one step
_MOST_ENTRIES = 200000

# eager operators that give others when they run again, or use something up: results are kept
_HELD = tuple(
    "Iterator Anonymous VarHandleOp MultiDeviceIterator Optional Queue LookupTable HashTable "
    "MutableHashTable ReadFile MatchingFiles SummaryWriter CreateSummary MakeIterator OneShot "
    "Mutex RngReadAndSkip StatefulUniform StatefulStandardNormal StatefulTruncatedNormal "
    "StatefulRandomBinomial".split()
)
# functions of TensorFlow's that run the backward pass
_BACKWARD = {
    "gradient": "backprop.py",
    "_gradient_function": "backprop.py",
    "_GradientsHelper": "gradients_util.py",
}


@dataclass
class Entry:
    """One call of a function, or one eager operator."""

    type: str  # operator type, or the function's name
    inputs: List[Any]  # from outside, or the numbers of what earlier entries of the step made
    numbers: List[int]  # of the inputs
    outputs: List[int]  # numbers, too
    given: Optional[List[Any]] = None  # its outputs, where they are taken as they were
    graph: Any = None  # of a called function, as it was traced
    function: Any = None  # held, so that TensorFlow does not take its graph apart
    looks: Tuple[Any, ...] = ()  # types and shapes of a call's outputs
    node: Any = None  # of an eager operator
    begin: Values = field(default_factory=dict)  # variables that a call writes, as they were
    scope: str = ""  # of an eager operator
    stack: Tuple[Place, ...] = ()  # the lines of Python that led to it, the outermost first
    #: type of the operator that it differentiates, and the numbers of its outputs
    forward: Optional[Tuple[str, Tuple[int, ...]]] = None
    backward: bool = False  # a tape's gradient ran it

    @property
    def is_call(self) -> bool:
        """Whether it is the call of a function."""
        return self.node is None


@dataclass
class Record:
    """The entries of one step, and the values with which it began."""

    entries: List[Entry]
    begin: Values  # variables that an entry wrote, as they were before
    variables: Dict[int, Any]  # that the step used, by the numbers of their handles
    too_large: bool = False  # what it would take to hold is more than allowed

    @property
    def trainable(self) -> FrozenSet[int]:
        """Numbers of the handles of trainable variables."""
        return frozenset(n for n, variable in self.variables.items() if _is_trainable(variable))

    def exchanged(self) -> Dict[int, int]:
        """Numbers of tensors from outside -> numbers of those that a call made and that they stand
        for: where gradients are exchanged between workers in Python, a later call is given tensors
        like those that an earlier one returned."""
        found: Dict[int, int] = {}
        calls = [entry for entry in self.entries if entry.is_call]
        for i, entry in enumerate(calls):
            outside = [t for t in entry.inputs if not isinstance(t, int)]
            looks = tuple(_look(t) if t.dtype.is_floating else None for t in outside)
            for earlier in calls[:i]:
                count = len(earlier.looks)
                places = range(len(looks) - count + 1 if count else 0)
                for at in [k for k in places if looks[k : k + count] == earlier.looks][:1]:
                    found.update(zip(map(private.tensor_id, outside[at:]), earlier.outputs))
        return found


class Recorder:
    """Records what this thread executes while it is on.

    Args:
        max_bytes: what a step's record may hold.
        keep_all: whether a call's variables are kept that change only if the step is not skipped.
    """

    def __init__(self, max_bytes: int, keep_all: Callable[[], bool] = lambda: True) -> None:
        self._max_bytes, self._keep_all = max_bytes, keep_all
        self.programs = programs.Programs()  #: of the functions seen so far
        # one that gave up records nothing and is still installed
        self._on = self._installed = False
        self._thread = 0
        self._variables: Dict[int, Any] = {}
        self._sizes: Dict[int, int] = {}  # of variables, in bytes
        self._met: Set[int] = set()  # graphs whose variables are known; programs hold the graphs
        self._eager_written: Dict[int, Any] = {}  # handles that eager operators were seen to write
        self._reset()

    def _reset(self) -> None:
        self._old: List[Entry] = []  # of steps that have ended
        self._entries: List[Entry] = []
        self._made: Set[int] = set()
        self._leaves: Set[int] = set()
        self._bytes = 0
        self._begin: Values = {}
        self._calling: Any = None
        self._pending: Values = {}
        self.gave_up = False  #: the record has holes

    # --- on and off -------------------------------------------------------------------------------

    def on(self) -> None:
        """Begin to record on this thread."""
        if not self._installed:
            self._on = self._installed = True
            self._thread = threading.get_ident()
            self._reset()
            private.found("add_callback")(self._executed)
            _stand_before_calls(self, True)

    def off(self) -> None:
        """Stop, and forget everything."""
        if self._installed:
            self._on = self._installed = False
            _stand_before_calls(self, False)
            if threading.get_ident() == self._thread:
                with contextlib.suppress(KeyError):  # somebody cleared all callbacks
                    private.found("remove_callback")(self._executed)
        self._reset()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What runs inside is not the training's."""
        was, self._on = self._on, False
        try:
            yield
        finally:
            self._on = was

    def begin_step(self, known: Iterable[Any] = ()) -> None:
        """What follows is the next step's; ``known``: variables that steps write, besides those
        seen to be written."""
        small = len(self._entries) < _MOST_OLD
        self._old = (self._old + self._entries)[-_MOST_OLD:] if small else []
        self._entries, self._made, self._leaves, self._bytes = [], set(), set(), 0
        self._begin = self._values({**private.handles_by_number(known), **self._eager_written})

    def forget(self) -> None:
        """Nothing executed so far belongs to the next step."""
        self._old, self._entries = [], []

    def record(self) -> Record:
        """What was executed since the last step ended, and what made its inputs before."""
        entries = list(self._entries)
        wanted = {number for entry in entries for number in entry.numbers}
        for entry in reversed(self._old):
            if wanted.intersection(entry.outputs):
                entries.insert(0, entry)
                wanted.update(entry.numbers)
        begin: Values = {}
        for entry in reversed(entries):
            begin.update(entry.begin)
        begin = {**self._begin, **begin}
        return Record(entries, begin, dict(self._variables), self._bytes > self._max_bytes)

    def may_have_written(self, handle: int, applied: bool) -> bool:
        """Whether the step may have written the variable with this number of its handle;
        ``applied``: whether its functions may have written weights."""
        written = set(self._eager_written)
        for entry in self._entries if applied else ():
            if entry.graph is not None:
                places = self.programs.written(self.programs.of_graph(entry.graph))
                written.update(entry.numbers[place] for place in places)
        return handle in written

    # --- what is seen -----------------------------------------------------------------------------

    def about_to_call(self, function: Any, args: Any) -> None:
        """A function is about to be called: keep the variables that it writes."""
        if not self._on or threading.get_ident() != self._thread:
            return
        if not private.found("context")().executing_eagerly():
            return
        try:
            kept = self._values(self._to_keep(function, [*args, *function.captured_inputs]))
            self._calling, self._pending = function, kept
        except Exception:
            self._give_up()

    def _to_keep(self, function: Any, inputs: List[Any]) -> Dict[int, Any]:
        """Handles of the variables that a call is going to write, also if the step is skipped."""
        program = self.programs.of_graph(function.graph)
        if id(function.graph) not in self._met:
            self._meet_variables(function.graph)
            self._met.add(id(function.graph))
        weights: FrozenSet[int] = frozenset()
        if not self._keep_all():
            weights = frozenset(i for i, item in enumerate(inputs) if self._is_weight(item))
        found: Dict[int, Any] = {}
        for position, only_if_applied in self.programs.written(program, weights).items():
            if not only_if_applied:
                item = inputs[position]
                for handle in private.handles_of(item) or [item]:
                    if private.handle_type(handle) is not None:
                        found[private.tensor_id(handle)] = handle
        return found

    def _is_weight(self, item: Any) -> bool:
        known = self._variables.get(private.tensor_id(item)) if private.is_eager(item) else None
        return _is_trainable(known)

    def _executed(
        self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any, graph: Any = None
    ) -> None:
        """TensorFlow's callback: an operator was made in a graph, or has run."""
        if graph is not None or not self._on:
            return
        try:
            kind = op_type if isinstance(op_type, str) else op_type.decode()
            self._add(kind, list(inputs), attrs or (), list(outputs or ()), sys._getframe(1))
        except Exception:
            self._give_up()

    def _give_up(self) -> None:
        console.log_failure("recording a step failed; the training is not affected")
        self._on, self.gave_up = False, True

    def _add(
        self, op_type: str, inputs: List[Any], attrs: Any, outputs: List[Any], frame: FrameType
    ) -> None:
        if self._bytes > self._max_bytes or len(self._entries) > _MOST_ENTRIES:
            # nothing is held of a step that holds too much
            self._entries, self._old, self._bytes = [], [], self._max_bytes + 1
            return
        self._note_unseen_reads(inputs, frame)
        entry = Entry(op_type, [], [], [private.tensor_id(t) for t in outputs])
        for tensor in inputs:
            number = private.tensor_id(tensor)
            entry.numbers.append(number)
            entry.inputs.append(number if number in self._made else tensor)
            if not self._is_known(number):
                self._leaves.add(number)
                self._bytes += 0 if tensor.dtype.name == "resource" else _bytes_of(tensor)
        entry.stack, entry.backward, entry.forward = _stack(frame)
        if op_type.startswith("__") or private.is_function(op_type):
            entry.function, entry.begin = self._calling, self._pending
            entry.graph = getattr(self._calling, "graph", None)
            entry.looks = tuple(map(_look, outputs))
            self._calling, self._pending = None, {}
        else:
            entry.node = programs.node_of_call(op_type, inputs, attrs, outputs)
            self._note_eager(entry, inputs, outputs, frame)
        self._made.update(entry.outputs)
        self._entries.append(entry)

    def _is_known(self, number: int) -> bool:
        return number in self._made or number in self._leaves

    def _note_unseen_reads(self, inputs: List[Any], frame: FrameType) -> None:
        """TensorFlow itself reads variables among an operator's arguments, and tells nobody."""
        fresh = [tensor for tensor in inputs if not self._is_known(private.tensor_id(tensor))]
        known = frame.f_locals.values() if fresh else ()
        items = (v if isinstance(v, (list, tuple)) else (v,) for v in known)
        given = [item for item in itertools.chain.from_iterable(items) if _is_variable(item)]
        for tensor in fresh if given else ():
            variable = next((item for item in given if _is_value_of(tensor, item)), None)
            if variable is not None:
                handle, kind = variable.handle, tensor.dtype.as_datatype_enum
                number, made = private.tensor_id(handle), private.tensor_id(tensor)
                self._variables.setdefault(number, variable)
                entry = Entry("ReadVariableOp", [handle], [number], [made], given=[tensor])
                entry.node = programs.node_of_call(entry.type, [handle], ("dtype", kind), [tensor])
                self._made.add(made)
                self._entries.append(entry)

    def _note_eager(
        self, entry: Entry, inputs: List[Any], outputs: List[Any], frame: FrameType
    ) -> None:
        import tensorflow as tf

        kind = entry.node.kind
        entry.scope = tf.get_current_name_scope()
        if kind in ("read", "write") or entry.type.startswith("Resource"):
            for handle in (item for item in inputs if item.dtype.name == "resource"):
                number = private.tensor_id(handle)
                if number not in self._variables:
                    self._variables[number] = _variable_behind(frame, handle)
                if kind == "write":
                    self._eager_written[number] = handle
        if kind in ("random", "draw") or entry.type.startswith(_HELD):
            entry.given = outputs
            self._bytes += sum(map(_bytes_of, outputs))
        elif kind == "read":
            entry.given = outputs  # the variable's own memory, until it is written

    def _meet_variables(self, graph: Any) -> None:
        for variable in getattr(graph, "variables", ()):
            for number in private.handles_by_number([variable]):
                self._variables.setdefault(number, variable)

    def _values(self, handles: Dict[int, Any]) -> Values:
        """Values of variables, the smallest first, within the bounds."""
        for number in handles.keys() - self._sizes.keys():
            self._sizes[number] = _bytes_of(handles[number])
        found: Values = {}
        left = self._max_bytes
        for number in sorted(handles, key=self._sizes.__getitem__):
            left -= self._sizes[number]
            value = private.read_variable(handles[number]) if left >= 0 else None
            if value is not None:
                found[number] = (handles[number], value)
        return found


_recorders: List[Recorder] = []  # that are on
_undo: List[Callable[[], None]] = []
_changing = threading.Lock()  # trainings on several threads


def _stand_before_calls(recorder: Recorder, on: bool) -> None:
    """One function stands before the calls of all concrete functions, while any recorder is on."""
    with _changing:
        _recorders[:] = [item for item in _recorders if item is not recorder] + [recorder] * on
        if _recorders and not _undo:
            kind = private.found("concrete_function")
            real = kind._call_flat

            def call_flat(function: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
                for item in tuple(_recorders):
                    item.about_to_call(function, args)
                return real(function, args, *more, **kwargs)

            _undo.append(private.patch(kind, "_call_flat", call_flat))
        elif not _recorders and _undo:
            _undo.pop()()


def _is_trainable(variable: Any) -> bool:
    return bool(getattr(variable, "trainable", False))


def _look(tensor: Any) -> Tuple[Any, ...]:
    return tensor.dtype, tuple(tensor.shape)


def _bytes_of(tensor: Any) -> int:
    """Size of a tensor, or of the variable behind a handle."""
    import tensorflow as tf

    dtype, shape = tensor.dtype, tensor.shape
    if dtype.name == "resource":
        kind = private.handle_type(tensor)
        if kind is None:
            return 0
        dtype, shape = tf.as_dtype(kind.dtype), tf.TensorShape(kind.shape)
    return 0 if dtype.name in ("variant", "string") else dtype.size * (shape.num_elements() or 0)


def _is_variable(item: Any) -> bool:
    return hasattr(item, "handle") and len(private.handles_of(item)) == 1


def _is_value_of(tensor: Any, variable: Any) -> bool:
    """Whether a tensor is a variable's value, as far as its memory, type and shape tell."""
    value = private.read_variable(variable.handle)
    known = value is not None and _look(value) == _look(tensor)
    return known and _memory(value) == _memory(tensor)


def _memory(tensor: Any) -> Any:
    """Where a tensor on the CPU lies; NumPy copies single numbers: of those the number."""
    view = private.host_view(tensor)
    if view is None:
        return None
    return view.__array_interface__["data"] if view.ndim else view.tobytes()


# --- what the Python stack tells ------------------------------------------------------------------


def is_backward(file: str, function: str) -> bool:
    """Whether a frame is TensorFlow's while it runs or builds the backward pass."""
    return function in _BACKWARD and file.endswith(_BACKWARD[function]) and "tensorflow" in file


def _outward(frame: Optional[FrameType]) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _variable_behind(frame: FrameType, handle: Any) -> Any:
    """The variable whose method is using ``handle`` at this moment, or None."""
    for inside in itertools.islice(_outward(frame), 8):
        item = inside.f_locals.get("self")
        if any(own is handle for own in private.handles_of(item)):
            return item
    return None


def _stack(
    frame: FrameType,
) -> Tuple[Tuple[Place, ...], bool, Optional[Tuple[str, Tuple[int, ...]]]]:
    """The Python stack, whether a gradient is on it, and of which forward operator."""
    stack: List[Place] = []
    backward, forward = False, None
    for inside in _outward(frame):
        code = inside.f_code
        if is_backward(code.co_filename, code.co_name):
            backward = True
            if forward is None and code.co_name == "_gradient_function":
                known = inside.f_locals
                outputs = filter(private.is_eager, known.get("outputs") or ())
                forward = str(known.get("op_name")), tuple(map(private.tensor_id, outputs))
        stack.append((code.co_filename, inside.f_lineno, code.co_name))
    return tuple(reversed(stack)), backward, forward
