"""The undo log of a replay: remembers every variable before it is written, and puts all of them back.

Resource operators are the only way in which a step changes variables, and all of them pass through here before they run. What can't be
undone (drawing from a pipeline, a collective with other workers, a table) is refused before it happens.
"""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Set, Tuple

from npu_overflow.collectors import compat
from npu_overflow.collectors.own_draws import OwnSeeds
from npu_overflow.collectors.snapshot import Snapshot
from npu_overflow.errors import CannotCollect

__all__ = ["UndoLog"]

# read a variable and change nothing
_READS = {"ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VariableShape", "VarIsInitializedOp", "_ReadVariablesOp"}
# seen by people or files: the compiled step has done them already, so a replay leaves them out
_SILENCED = ("PrintV2", "WriteSummary", "WriteScalarSummary", "WriteHistogramSummary", "WriteImageSummary", "WriteAudioSummary", "WriteGraphSummary",
             "WriteRawProtoSummary", "FlushSummaryWriter", "ImportEvent")
_COLLECTIVE = ("Collective", "Nccl", "Horovod", "Hcom", "XlaAllReduce", "CrossReplicaSum")
# what a collective makes of one worker's values when it stands alone: the values themselves
_REDUCES = ("CollectiveReduce", "NcclAllReduce", "HorovodAllreduce", "HorovodBroadcast", "HcomAllReduce", "HcomBroadcast", "XlaAllReduce", "CrossReplicaSum")
_PYTHON = ("PyFunc", "EagerPyFunc", "PyFuncStateless")
_DRAWS = ("IteratorGetNext", "MultiDeviceIteratorGetNext")
_OUTSIDE = ("LookupTableInsert", "LookupTableRemove", "LookupTableImport", "Queue", "Barrier", "WriteFile", "SaveV2", "SaveSlices", "MutexLock")


class UndoLog:
    """Old values of everything a replayed step writes.

    Args:
        workers: processes that train together.
        rewind: variables as they were when the step began. Those that the replay uses stand so in it, from their first use on; others, which may
            belong to a model that another thread evaluates, are left alone.

    Use: ``before`` for every operator, then ``undo`` once. ``allow`` names resources that may be used up (an iterator made for the replay).
    """

    def __init__(self, workers: int = 1, rewind: Optional[Snapshot] = None) -> None:
        self._workers = workers
        self._begin = rewind.values if rewind is not None else {}
        self.exchanged = False  # whether a collective was passed over
        self.refused: Optional[CannotCollect] = None  # Keras wraps what is raised inside a layer: this is what it was
        self._old: Dict[int, Tuple[Any, Any]] = {}  # handle's tensor id -> handle, value
        self._own: Set[int] = set()
        self._random: List[Tuple[Any, Any]] = []

    def __enter__(self) -> UndoLog:
        internals = compat.internals()
        self._eager_random = internals.random_state()
        # The replay draws its seeds elsewhere: the kernels of eager random operators keep a state per seed, so drawing the
        # training's next seeds here would move them on.
        seeds = OwnSeeds(0x5EED, self._eager_random)
        internals.set_random_state(seeds)
        self._put_back = internals.keep_global_seed(seeds.seed)
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.undo()
        finally:
            self._put_back()
            compat.internals().set_random_state(self._eager_random)

    def allow(self, handle: Any) -> None:
        """Let the replay use up this resource."""
        self._own.add(compat.tensor_id(handle))

    def before(self, op_type: str, inputs: Sequence[Any]) -> Optional[List[Any]]:
        """Called before an operator runs. Returns outputs to use instead of running it, or None.

        Raises:
            CannotCollect: the operator does something that can't be undone.
        """
        if op_type in _SILENCED:
            return []
        if op_type.startswith(_COLLECTIVE) or (self._workers > 1 and op_type in _PYTHON):
            return self._alone(op_type, inputs)
        if op_type in _PYTHON:  # its own state (a generator, a counter) could not be put back
            self._refuse("replay.python", op_type)
        for tensor in inputs:
            if getattr(getattr(tensor, "dtype", None), "name", None) != "resource":
                continue
            self._before_resource(op_type, tensor)
        if op_type.startswith(_OUTSIDE):
            self._refuse("replay.outside", op_type)
        return None

    def _refuse(self, code: str, op_type: str) -> None:
        self.refused = CannotCollect(code, op=op_type)
        raise self.refused

    def _alone(self, op_type: str, inputs: Sequence[Any]) -> List[Any]:
        """A collective would wait for workers that do not replay: only this worker's own values are looked at.

        Python functions count as collectives where there are several workers: many exchange gradients in one.
        """
        tensors = [tensor for tensor in inputs if tensor.dtype.is_floating]
        if op_type.startswith(_REDUCES) or (op_type in _PYTHON and len(tensors) == len(inputs)):
            self.exchanged = True
            return tensors[:1] if op_type.startswith(_REDUCES) else tensors
        self._refuse("replay.collective", op_type)
        return []

    def after(self, outputs: Sequence[Any]) -> None:
        """Called after an operator ran: resources that it made belong to the replay."""
        for tensor in outputs:
            if tensor.dtype.name == "resource":
                self._own.add(compat.tensor_id(tensor))

    def _before_resource(self, op_type: str, handle: Any) -> None:
        number = compat.tensor_id(handle)
        if number in self._own or number in self._old or (op_type in _READS and number not in self._begin):
            return
        if op_type.startswith(_DRAWS):
            self._refuse("replay.draws", op_type)
        value = compat.read_variable(handle)
        if value is not None:
            self._old[number] = (handle, value)
            if number in self._begin:
                compat.write_variable(handle, self._begin[number])

    def undo(self) -> None:
        """Write every old value back; afterwards the log is empty."""
        old, self._old = self._old, {}
        for handle, value in old.values():
            compat.write_variable(handle, value)


class Unlogged(UndoLog):
    """For a step that is observed in place: it may do what it does, and nothing is put back."""

    def before(self, op_type: str, inputs: Sequence[Any]) -> Optional[List[Any]]:
        return None

    def after(self, outputs: Sequence[Any]) -> None:
        pass
