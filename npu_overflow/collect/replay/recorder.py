"""What TensorFlow executes on this thread: one entry for each call of a function, one for each eager operator.

Kept are numbers, attributes and what came from outside: data, variables, constants, random draws. What an entry
made is not kept: the record is run again when it is wanted.
"""
from __future__ import annotations

import contextlib
import sys
import threading
from types import CodeType, FrameType
from typing import Any, Callable, Dict, FrozenSet, Iterable, Iterator, List, Optional, Set, Tuple, Union

from npu_overflow.collect.replay import program as programs
from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.training import console

__all__ = ["Entry", "Record", "Recorder", "Values"]

Frame = Tuple[CodeType, int]  # code and line
Values = Dict[int, Tuple[Any, Any]]  # tensor number of a variable's handle -> handle, value

#: entries of steps that have ended stay for those that use what they made, up to so many
_MOST_OLD = 4000
#: entries of one step
_MOST_ENTRIES = 200000

# eager operators whose results are taken as they were: running them again would give others, or use something up
_HELD = ("Iterator", "Anonymous", "VarHandleOp", "MultiDeviceIterator", "Optional", "Queue", "LookupTable", "HashTable",
         "MutableHashTable", "ReadFile", "MatchingFiles", "SummaryWriter", "CreateSummary", "MakeIterator", "OneShot", "Mutex",
         "RngReadAndSkip", "StatefulUniform", "StatefulStandardNormal", "StatefulTruncatedNormal", "StatefulRandomBinomial")


class Entry:
    """One call of a function, or one eager operator.

    Attributes:
        type: operator type, or the function's name.
        inputs: tensors from outside, or the numbers of tensors that earlier entries of the step made.
        numbers: number of each input.
        outputs: numbers of the tensors that it made.
        given: its outputs, where they are taken as they were.
        graph: of a called function, as it was traced.
        function: what was called, so that TensorFlow does not take its graph apart when the training drops it.
        looks: types and shapes of a call's outputs.
        node: of an eager operator.
        begin: variables that the call writes, as they were before it.
        scope, stack: of an eager operator: name scope, and the lines of Python that led to it.
        forward: of an eager operator of the backward pass: (type, numbers of the outputs) of the operator that it differentiates.
        backward: whether a tape's gradient ran it.
    """

    __slots__ = ("backward", "begin", "forward", "function", "given", "graph", "inputs", "looks", "node", "numbers", "outputs", "scope", "stack", "type")

    def __init__(self, op_type: str, inputs: List[Any], numbers: List[int], outputs: List[int]) -> None:
        self.type, self.inputs, self.numbers, self.outputs = op_type, inputs, numbers, outputs
        self.given: Optional[List[Any]] = None
        self.graph: Any = None
        self.function: Any = None
        self.node: Any = None
        self.looks: Tuple[Any, ...] = ()
        self.begin: Values = {}
        self.scope, self.stack = "", ()  # type: str, Tuple[Frame, ...]
        self.forward: Optional[Tuple[str, Tuple[int, ...]]] = None
        self.backward = False

    @property
    def is_call(self) -> bool:
        """Whether it is the call of a function."""
        return self.node is None


class Record:
    """The entries of one step, and the values with which it began.

    Args:
        entries: in the order of execution.
        begin: variables that an entry wrote, as they were before.
        variables: Python objects of the variables that the step used, by the numbers of their handles.
        too_large: what it would take to hold is more than allowed.
    """

    def __init__(self, entries: List[Entry], begin: Values, variables: Dict[int, Any], too_large: bool = False) -> None:
        self.entries, self.begin, self.variables, self.too_large = entries, begin, variables, too_large

    @property
    def trainable(self) -> FrozenSet[int]:
        """Numbers of the handles of trainable variables."""
        return frozenset(number for number, variable in self.variables.items() if getattr(variable, "trainable", False))


    def exchanged(self) -> Dict[int, int]:
        """Numbers of tensors from outside -> numbers of those that a call made and that they stand for: where gradients are exchanged
        between workers in Python, a later call is given tensors like those that an earlier one returned."""
        found: Dict[int, int] = {}
        for i, entry in enumerate(self.entries):
            outside = [t for t in entry.inputs if not isinstance(t, int)] if entry.is_call else []
            looks = [(t.dtype, tuple(t.shape)) if t.dtype.is_floating else None for t in outside]
            for earlier in self.entries[:i]:
                count = len(earlier.looks)
                at = next((k for k in range(len(looks) - count + 1) if tuple(looks[k : k + count]) == earlier.looks), -1)
                if count and at >= 0:
                    found.update(zip((private.tensor_id(t) for t in outside[at : at + count]), earlier.outputs))
        return found


class Recorder:
    """Records what this thread executes while it is on.

    Args:
        max_bytes: what a step's record may hold.
        keep_all: whether the next call's variables are kept whatever decides over them: nothing skips the step, or there are several.
    """

    def __init__(self, max_bytes: int, keep_all: Callable[[], bool] = lambda: True) -> None:
        self._max_bytes, self._keep_all = max_bytes, keep_all
        self.programs = programs.Programs()  #: of the functions seen so far
        self._on = self._installed = False  # one that gave up records nothing and is still installed
        self._thread = 0
        self._variables: Dict[int, Any] = {}
        self._sizes: Dict[int, int] = {}  # of variables, in bytes
        self._weights: Dict[int, FrozenSet[int]] = {}  # positions among a graph's inputs; programs hold the graphs
        self._eager_written: Dict[int, Any] = {}  # handles that eager operators were seen to write
        self._reset()

    def _reset(self) -> None:
        self._old: List[Entry] = []  # of steps that have ended
        self._entries: List[Entry] = []
        self._made: Set[int] = set()
        self._leaves: Set[int] = set()
        self._bytes = 0
        self._begin: Values = {}
        self._pending: Values = {}
        self._calling: Any = None
        self.gave_up = False  #: the record has holes

    # --- on and off -----------------------------------------------------------------------------------------------------------

    def on(self) -> None:
        """Begin to record on this thread."""
        if not self._installed:
            self._on = self._installed = True
            self._thread = threading.get_ident()
            self._reset()
            private.found("add_callback")(self._executed)
            _standing_before.add(self)

    def off(self) -> None:
        """Stop, and forget everything."""
        if self._installed:
            self._on = self._installed = False
            _standing_before.remove(self)
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
        """A step ended: what follows is the next one's.

        Args:
            known: variables that steps write, besides those seen to be written.
        """
        self._old = (self._old + self._entries)[-_MOST_OLD:] if len(self._entries) < _MOST_OLD else []
        self._entries, self._made, self._leaves, self._bytes = [], set(), set(), 0
        handles = {private.tensor_id(handle): handle for variable in known for handle in private.handles_of(variable)}
        handles.update(self._eager_written)
        self._begin = self._values(handles)

    def forget(self) -> None:
        """Nothing executed so far belongs to the next step."""
        self._old, self._entries = [], []

    def record(self) -> Record:
        """What was executed since the last step ended, with earlier entries that it takes tensors from."""
        entries = list(self._entries)
        wanted = {number for entry in entries for number in entry.numbers}
        for entry in reversed(self._old):
            if wanted.intersection(entry.outputs):
                entries.insert(0, entry)
                wanted.update(entry.numbers)
        begin: Values = {}
        for entry in entries:
            for number, value in entry.begin.items():
                begin.setdefault(number, value)
        begin = {**self._begin, **begin}
        return Record(entries, begin, dict(self._variables), self._bytes > self._max_bytes)

    def may_have_written(self, handle: int, applied: bool) -> bool:
        """Whether the step may have written the variable with this number of its handle.

        Args:
            applied: whether its functions may have written weights.
        """
        calls = self._entries if applied else []
        return handle in self._eager_written or any(self._call_writes(entry, handle) for entry in calls if entry.graph is not None)

    def _call_writes(self, entry: Entry, handle: int) -> bool:
        program = self.programs.called(entry.type, None, entry.graph)
        return program is not None and any(entry.numbers[position] == handle for position in self.programs.written(program))

    # --- what is seen ---------------------------------------------------------------------------------------------------------

    def about_to_call(self, function: Any, args: Any) -> None:
        """A function is about to be called: keep the variables that it writes."""
        if not self._on or threading.get_ident() != self._thread or not private.found("context")().executing_eagerly():
            return
        self._calling = function
        try:
            self._pending = self._values(self._to_keep(function, [*args, *function.captured_inputs]))
        except Exception:
            self._give_up()

    def _to_keep(self, function: Any, inputs: List[Any]) -> Dict[int, Any]:
        """Handles of the variables that a call is going to write. Where the step is skipped if it overflows, without those that it
        leaves as they were then."""
        graph = function.graph
        program = self.programs.of_graph(graph)
        if id(graph) not in self._weights:
            self._meet_variables(graph)
            numbers = [private.tensor_id(item) if private.is_eager(item) else 0 for item in inputs]
            self._weights[id(graph)] = frozenset(i for i, number in enumerate(numbers) if self._is_weight(number))
        written = self.programs.written(program, frozenset() if self._keep_all() else self._weights[id(graph)])
        found = {}
        for position, only_if_applied in written.items():
            if not only_if_applied:
                item = inputs[position]
                found.update({private.tensor_id(handle): handle for handle in private.handles_of(item) or [item]})
        return {number: handle for number, handle in found.items() if private.handle_type(handle) is not None}

    def _is_weight(self, number: int) -> bool:
        return bool(getattr(self._variables.get(number), "trainable", False))

    def _executed(self, op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        """TensorFlow's callback: an operator was made in a graph, or has run."""
        if graph is not None or not self._on:
            return
        try:
            name = op_type if isinstance(op_type, str) else op_type.decode()
            self._add(name, list(inputs), attrs or (), list(outputs or ()), sys._getframe(1))
        except Exception:
            self._give_up()

    def _give_up(self) -> None:
        console.log_failure("recording a step failed; the training is not affected")
        self._on, self.gave_up = False, True

    def _add(self, op_type: str, inputs: List[Any], attrs: Any, outputs: List[Any], frame: FrameType) -> None:
        if self._bytes > self._max_bytes or len(self._entries) > _MOST_ENTRIES:
            self._entries, self._old, self._bytes = [], [], self._max_bytes + 1  # nothing is held of a step that holds too much
            return
        numbers = [private.tensor_id(t) for t in inputs]
        self._note_unseen_reads([t for n, t in zip(numbers, inputs) if n not in self._made and n not in self._leaves], frame)
        kept: List[Union[Any, int]] = []
        for number, tensor in zip(numbers, inputs):
            kept.append(number if number in self._made else tensor)
            if number not in self._made and number not in self._leaves and tensor.dtype.name != "resource":
                self._leaves.add(number)
                self._bytes += _bytes_of(tensor)
        entry = Entry(op_type, kept, numbers, [private.tensor_id(t) for t in outputs])
        if op_type.startswith("__") or private.is_function(op_type):
            entry.graph, entry.function = _graph_behind(frame), self._calling
            entry.looks = tuple((t.dtype, tuple(t.shape)) for t in outputs)
            entry.begin, self._pending = self._pending, {}
            if entry.graph is not None and id(entry.graph) not in self._weights:
                self._meet_variables(entry.graph)
            entry.stack, entry.backward, _ = _stack(frame)
        else:
            entry.node = programs.node_of_call(op_type, inputs, attrs, outputs)
            entry.stack, entry.backward, entry.forward = _stack(frame)
            self._note_eager(entry, inputs, outputs, frame)
        self._made.update(entry.outputs)
        self._entries.append(entry)

    def _note_unseen_reads(self, tensors: List[Any], frame: FrameType) -> None:
        """Variables among the arguments of the operator's Python function: TensorFlow reads those itself and tells nobody."""
        given = list(_variables_in(frame.f_locals.values())) if tensors else []
        for tensor in tensors if given else ():
            variable = next((item for item in given if _is_value_of(tensor, item)), None)
            if variable is None:
                continue
            handle = variable.handle
            number, kind = private.tensor_id(handle), tensor.dtype.as_datatype_enum
            self._variables.setdefault(number, variable)
            entry = Entry("ReadVariableOp", [handle], [number], [private.tensor_id(tensor)])
            entry.node = programs.node_of_call("ReadVariableOp", [handle], ("dtype", kind), [tensor])
            entry.given = [tensor]
            self._made.update(entry.outputs)
            self._entries.append(entry)

    def _note_eager(self, entry: Entry, inputs: List[Any], outputs: List[Any], frame: FrameType) -> None:
        kind = entry.node.kind
        entry.scope = private.name_scope()
        if kind in ("read", "write") or entry.type.startswith("Resource"):
            for handle in inputs:
                number = private.tensor_id(handle)
                if handle.dtype.name == "resource" and number not in self._variables:
                    self._variables[number] = _variable_behind(frame, handle)
                if handle.dtype.name == "resource" and kind == "write":
                    self._eager_written[number] = handle
        if kind in ("random", "draw") or entry.type.startswith(_HELD):
            entry.given = outputs
            self._bytes += sum(_bytes_of(t) for t in outputs)
        elif kind == "read" and self._bytes < self._max_bytes:
            entry.given = outputs  # the variable's own memory, until it is written

    def _meet_variables(self, graph: Any) -> None:
        for variable in getattr(graph, "variables", ()):
            for handle in private.handles_of(variable):
                self._variables.setdefault(private.tensor_id(handle), variable)

    def _values(self, handles: Dict[int, Any]) -> Values:
        """Values of variables, the smallest first, within the bounds."""
        for number, handle in handles.items():
            if number not in self._sizes:
                self._sizes[number] = _bytes_of(handle)
        found: Values = {}
        left = self._max_bytes
        for number, handle in sorted(handles.items(), key=lambda item: self._sizes[item[0]]):
            left -= self._sizes[number]
            if left < 0:
                break
            value = private.read_variable(handle)
            if value is not None:
                found[number] = (handle, value)
        return found


class _StandingBefore:
    """The one function that stands before the calls of all concrete functions, for all recorders that are on."""

    def __init__(self) -> None:
        self._recorders: List[Recorder] = []
        self._undo: Callable[[], None] = lambda: None
        self._changing = threading.Lock()  # trainings on several threads

    def add(self, recorder: Recorder) -> None:
        with self._changing:
            if not self._recorders:
                self._stand()
            self._recorders = [*self._recorders, recorder]

    def remove(self, recorder: Recorder) -> None:
        with self._changing:
            self._recorders = [item for item in self._recorders if item is not recorder]
            if not self._recorders:
                self._undo()

    def _stand(self) -> None:
        kind = private.found("concrete_function")
        real = kind._call_flat

        def call_flat(function: Any, args: Any, *more: Any, **kwargs: Any) -> Any:
            for item in self._recorders:
                item.about_to_call(function, args)
            return real(function, args, *more, **kwargs)

        self._undo = private.patch(kind, "_call_flat", call_flat)


_standing_before = _StandingBefore()


def _bytes_of(tensor: Any) -> int:
    """Size of a tensor, or of the variable behind a handle."""
    if tensor.dtype.name == "resource":
        kind = private.handle_type(tensor)
        if kind is None:
            return 0
        import tensorflow as tf

        return int(tf.as_dtype(kind.dtype).size) * _count(d.size for d in kind.shape.dim)
    if tensor.dtype.name in ("variant", "string"):
        return 0
    return int(tensor.dtype.size) * _count(tensor.shape)


def _count(shape: Iterable[Any]) -> int:
    count = 1
    for n in shape:
        count *= max(int(n or 0), 0)
    return count


def _variables_in(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from (item for item in value if len(private.handles_of(item)) == 1 and hasattr(item, "handle"))
        elif hasattr(value, "handle") and len(private.handles_of(value)) == 1:
            yield value


def _is_value_of(tensor: Any, variable: Any) -> bool:
    """Whether a tensor is a variable's value: where it can be told by its memory, else by type and shape."""
    value = private.read_variable(variable.handle)
    if value is None or value.dtype != tensor.dtype or value.shape != tensor.shape:
        return False
    one, other = private.host_view(tensor), private.host_view(value)
    if one is None or other is None:
        return True
    if not one.ndim:  # NumPy copies single numbers
        return bool(one.tobytes() == other.tobytes())
    return bool(one.__array_interface__["data"][0] == other.__array_interface__["data"][0])


# --- what the Python stack tells --------------------------------------------------------------------------------------------


def _graph_behind(frame: Optional[FrameType]) -> Any:
    """The graph of the function that TensorFlow's own code is calling at this moment; None where its frames do not show it."""
    for _ in range(8):
        if frame is None:
            return None
        graph = getattr(frame.f_locals.get("self"), "graph", None)
        if graph is not None:
            return graph
        frame = frame.f_back
    return None


def _variable_behind(frame: Optional[FrameType], handle: Any) -> Any:
    """The variable whose method is reading or writing through ``handle`` at this moment, or None."""
    for _ in range(8):
        if frame is None:
            return None
        item = frame.f_locals.get("self")
        if item is not None and any(own is handle for own in private.handles_of(item)):
            return item
        frame = frame.f_back
    return None


_IS_BACKWARD: Dict[CodeType, int] = {}  # 0: no, 1: the backward pass, 2: a gradient function with its forward operator


def _stack(frame: Optional[FrameType]) -> Tuple[Tuple[Frame, ...], bool, Optional[Tuple[str, Tuple[int, ...]]]]:
    """The Python stack; whether a tape's gradient is on it; and which forward operator that differentiates."""
    stack: List[Frame] = []
    backward, forward = False, None
    while frame is not None:
        code = frame.f_code
        kind = _IS_BACKWARD.get(code)
        if kind is None:
            kind = 0
            if code.co_filename.endswith(("eager/backprop.py", "eager/imperative_grad.py", "eager\\backprop.py")):
                kind = 2 if code.co_name == "_gradient_function" else 1 if code.co_name in ("gradient", "imperative_grad") else 0
            _IS_BACKWARD[code] = kind
        if kind:
            backward = True
            if kind == 2 and forward is None:
                known = frame.f_locals
                forward = str(known.get("op_name")), tuple(t._id for t in known.get("outputs") or () if hasattr(t, "_id"))
        stack.append((code, frame.f_lineno))
        frame = frame.f_back
    return tuple(stack), backward, forward
