"""One operator computed again in float32 from its dumped inputs.

A dump of the NPU holds no step that could be run again, but often all that one operator needs. What
a dump lacks are attributes (transpose, axes, strides, epsilon): each value that gives the dumped
shape is tried, and what contradicts the finite elements of the dumped output is dropped: nothing is
said of a dump that the formula does not explain. Dumps can lie: everything is bounded before memory
is taken for it.
"""
from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple

import numpy as np

from npu_overflow.dump import codes
from npu_overflow.dump.names import Entry
from npu_overflow.dump.reader import open_operator
from npu_overflow.dump.tensor import Tensor
from npu_overflow.errors import DumpFormatError
from npu_overflow.report.model import Trial

__all__ = ["Recomputed", "recompute", "recompute_tensors", "recomputed"]

Shape = Tuple[int, ...]
#: a result that waits: what it takes (multiply-adds or elements), and how it is made
Candidate = Tuple[int, Callable[[], Any]]

_MOST_ELEMENTS = 1 << 24  # of one tensor: 64 MB in float32
_MOST_WORK = 1 << 31  # multiply-adds of all candidates together: seconds
_MOST_CANDIDATES = 32
_MOST_STRIDE = 4
_EPSILONS = (1e-12, 1e-5, 1e-3)
#: how far a float16 result of the device may lie from that in float32, relative and absolute
_CLOSE = (0.02, 0.002)


@dataclass(frozen=True)
class Recomputed:
    """What an operator gives in float32.

    Args:
        largest: largest magnitude of its finite elements.
        finite: all elements are finite.
        fits: all are finite and within the range of the dumped output's type.
    """

    largest: float
    finite: bool
    fits: bool


def recomputed(op_type: str, candidates: Sequence[Entry]) -> Tuple[Trial, ...]:
    """The operator of a dump in float32, as a report has it: one trial, or none without an answer.

    Args:
        op_type: its type.
        candidates: files that can be its dump, best first.
    """
    if op_type not in _FORMULAS or not candidates:
        return ()
    try:
        dump = open_operator(candidates)
        found = recompute_tensors(op_type, dump.inputs, dump.outputs)
    except DumpFormatError:  # said already, when its tensors were counted
        return ()
    if found is None:
        return ()
    largest = found.largest if found.finite and not found.fits else None
    return (Trial("recomputed", finite=found.finite, largest=largest),)


def recompute_tensors(
    op_type: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]
) -> Optional[Recomputed]:
    """``recompute`` of an open dump; None too where a tensor is not whole, too large or in a
    private format that can't be unpacked.

    Raises:
        DumpFormatError: the file went away or shrank meanwhile.
    """
    if op_type not in _FORMULAS or not outputs:
        return None
    tensors = [tensor for tensor in inputs if tensor.note != "no_data"]
    for tensor in [*tensors, outputs[0]]:
        if tensor.note is not None or tensor.statistics is not None or tensor.parts != 1:
            return None
        if tensor.dtype not in codes.DECODED or tensor.count > _MOST_ELEMENTS:
            return None
        if max(codes.elements(tensor.original_shape or ()), tensor.count) > _MOST_ELEMENTS:
            return None
        if tensor.count != codes.elements(tensor.shape) or tensor.valid().remark is not None:
            return None
    arrays = [tensor.original() for tensor in tensors]
    return recompute(op_type, arrays, outputs[0].original(), codes.MAX.get(outputs[0].dtype))


def recompute(
    op_type: str, inputs: Sequence[Any], output: Any, limit: Optional[float]
) -> Optional[Recomputed]:
    """Compute an operator in float32.

    Args:
        op_type: type of the operator, as CANN or TensorFlow names it.
        inputs: its inputs in the user's shapes.
        output: its first output as it was dumped.
        limit: largest finite magnitude of the output's type; None where it is no float.

    Returns:
        None where no formula is known, the shapes or the finite outputs don't go with it, it is too
        much work, or attributes that are not in the dump would change the answer.
    """
    formula = _FORMULAS.get(op_type)
    arrays = [np.asarray(array) for array in inputs]
    sizes = [array.size for array in (*arrays, output)]
    if formula is None or limit is None or not arrays or not all(sizes):
        return None
    if max(sizes) > _MOST_ELEMENTS or any(a.dtype.kind not in "biuf" for a in arrays):
        return None
    candidates = list(itertools.islice(formula(arrays, output.shape), _MOST_CANDIDATES + 1))
    work = sum(max(size, *sizes) for size, _ in candidates)
    if len(candidates) > _MOST_CANDIDATES or work > _MOST_WORK:
        return None
    given = output.astype(np.float64)
    sure = np.isfinite(given) & (np.abs(given) < limit)
    found: List[Recomputed] = []
    with np.errstate(all="ignore"):
        for _, compute in candidates:
            result = np.asarray(compute())
            if sure.any() and not _like(result[sure], given[sure]):
                continue
            finite = result[np.isfinite(result)]
            largest = float(np.abs(finite).max()) if finite.size else 0.0
            whole = finite.size == result.size
            found.append(Recomputed(largest, whole, whole and largest <= limit))
    return found[0] if found and all(_same(found[0], other) for other in found) else None


def _like(result: Any, given: Any) -> bool:
    """Whether most elements are what the device got: where it overflowed inside, some differ."""
    relative, absolute = _CLOSE
    return bool(np.isclose(result, given, rtol=relative, atol=absolute).mean() > 0.5)


def _same(one: Recomputed, other: Recomputed) -> bool:
    close = math.isclose(one.largest, other.largest, rel_tol=0.01)
    return close and (one.finite, one.fits) == (other.finite, other.fits)


def _float32(array: Any) -> Any:
    return array.astype(np.float32)


# -- formulas: each gives the results that the dumped shapes allow


def _elementwise(
    count: int, function: Callable[..., Any]
) -> Callable[[Sequence[Any], Shape], Iterator[Candidate]]:
    def formula(arrays: Sequence[Any], shape: Shape) -> Iterator[Candidate]:
        if len(arrays) == count and _broadcast([a.shape for a in arrays]) == shape:
            yield codes.elements(shape), lambda: function(*map(_float32, arrays))

    return formula


def _broadcast(shapes: Sequence[Shape]) -> Optional[Shape]:
    """The common shape; unlike numpy's own it takes no memory, and None where there is none."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes))
    sizes = [set(column) - {1} for column in columns]
    if any(len(size) > 1 for size in sizes):
        return None
    return tuple(max(size, default=1) for size in sizes)


def _bias_add(arrays: Sequence[Any], shape: Shape) -> Iterator[Candidate]:
    if len(arrays) != 2 or arrays[0].shape != shape or arrays[1].ndim != 1:
        return
    for axis in {1, len(shape) - 1}:
        if 0 <= axis < len(shape) and shape[axis] == arrays[1].size:
            bias = _float32(arrays[1]).reshape([-1] + [1] * (len(shape) - 1 - axis))
            yield codes.elements(shape), lambda bias=bias: (  # type: ignore
                _float32(arrays[0]) + bias
            )


def _mat_mul(arrays: Sequence[Any], shape: Shape) -> Iterator[Candidate]:
    if len(arrays) not in (2, 3) or min(arrays[0].ndim, arrays[1].ndim) < 2:
        return
    bias = arrays[2] if len(arrays) == 3 else np.zeros(1, np.float32)
    if bias.size not in (1, shape[-1] if shape else 0):
        return
    for left, right in itertools.product(_turned(arrays[0]), _turned(arrays[1])):
        batch = _broadcast([left.shape[:-2], right.shape[:-2]])
        fits = batch is not None and left.shape[-1] == right.shape[-2]
        if fits and (*(batch or ()), left.shape[-2], right.shape[-1]) == shape:
            yield codes.elements(shape) * left.shape[-1], lambda a=left, b=right: (  # type: ignore
                np.matmul(_float32(a), _float32(b)) + _float32(bias).reshape(-1)
            )


def _turned(array: Any) -> Tuple[Any, Any]:
    return array, np.swapaxes(array, -1, -2)


def _conv2d(arrays: Sequence[Any], shape: Shape) -> Iterator[Candidate]:
    if len(arrays) != 2 or (arrays[0].ndim, arrays[1].ndim, len(shape)) != (4, 4, 4):
        return
    last, first = (0, 1, 2, 3), (0, 2, 3, 1)  # of images, to NHWC
    for order, turn in itertools.product((last, first), ((0, 1, 2, 3), (2, 3, 1, 0), (1, 2, 3, 0))):
        image, kernel = arrays[0].transpose(order), arrays[1].transpose(turn)  # kernel to HWCN
        out = tuple(shape[axis] for axis in order)
        if (image.shape[0], image.shape[3], kernel.shape[3]) != (out[0], kernel.shape[2], out[3]):
            continue
        work = codes.elements(out) * codes.elements(kernel.shape[:3])
        ways = {
            (stride, dilation, pads)
            for stride in range(1, _MOST_STRIDE + 1)
            for dilation in ((1, 2) if max(kernel.shape[:2]) > 1 else (1,))
            for pads in _pads(image.shape[1:3], kernel.shape[:2], out[1:3], stride, dilation)
        }
        for way in sorted(ways):
            yield work, lambda i=image, k=kernel, o=out, w=way, back=order: (  # type: ignore
                _convolve(i, k, o, *w).transpose(np.argsort(back))
            )


def _pads(
    size: Shape, kernel: Shape, out: Shape, stride: int, dilation: int
) -> Iterator[Tuple[Tuple[int, int], ...]]:
    """Padding before and after each axis, for "SAME" and for "VALID", that gives ``out``."""
    spans = [(extent - 1) * dilation + 1 for extent in kernel]
    if all(-(-given // stride) == got for given, got in zip(size, out)):
        total = [max((o - 1) * stride + k - n, 0) for o, k, n in zip(out, spans, size)]
        yield tuple((pad // 2, pad - pad // 2) for pad in total)
    if all(-(-(n - k + 1) // stride) == o for n, k, o in zip(size, spans, out)):
        yield ((0, 0), (0, 0))


def _convolve(
    image: Any, kernel: Any, out: Shape, stride: int, dilation: int, pads: Tuple[Any, Any]
) -> Any:
    padded = np.pad(_float32(image), ((0, 0), *pads, (0, 0)), mode="constant")
    weights, result = _float32(kernel), np.zeros(out, np.float32)
    for row, column in itertools.product(*map(range, kernel.shape[:2])):
        y, x = row * dilation, column * dilation
        part = padded[:, y : y + (out[1] - 1) * stride + 1 : stride]
        part = part[:, :, x : x + (out[2] - 1) * stride + 1 : stride]
        result += np.matmul(part, weights[row, column])
    return result


def _reduction(mean: bool) -> Callable[[Sequence[Any], Shape], Iterator[Candidate]]:
    def formula(arrays: Sequence[Any], shape: Shape) -> Iterator[Candidate]:
        array, axes = arrays[0], range(arrays[0].ndim)
        chosen: Iterable[Shape] = itertools.chain.from_iterable(
            itertools.combinations(axes, count) for count in range(len(axes) + 1)
        )
        if len(arrays) == 2 and arrays[1].dtype.kind in "iu" and arrays[1].size <= len(axes):
            given = [int(axis) for axis in arrays[1].reshape(-1)]
            chosen = [tuple(sorted({axis + len(axes) * (axis < 0) for axis in given}))]
        elif len(arrays) != 1 or len(axes) > 8:
            return
        for some in chosen:
            kept = tuple(array.shape[axis] for axis in axes if axis not in some)
            ones = tuple(1 if axis in some else array.shape[axis] for axis in axes)
            if set(some) <= set(axes) and shape in (kept, ones):
                yield array.size, lambda some=some: (  # type: ignore
                    (np.mean if mean else np.sum)(_float32(array), axis=some).reshape(shape)
                )

    return formula


def _softmax(arrays: Sequence[Any], shape: Shape) -> Iterator[Candidate]:
    if len(arrays) == 1 and arrays[0].shape == shape:
        for axis in reversed(range(len(shape))):
            yield arrays[0].size, lambda axis=axis: _softmax_of(  # type: ignore
                _float32(arrays[0]), axis
            )


def _softmax_of(values: Any, axis: int) -> Any:
    powers = np.exp(values - values.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def _layer_norm(arrays: Sequence[Any], shape: Shape) -> Iterator[Candidate]:
    if len(arrays) != 3 or arrays[0].shape != shape or arrays[1].shape != arrays[2].shape:
        return
    rank = arrays[1].ndim
    if 0 < rank <= len(shape) and arrays[1].shape == shape[-rank:]:
        for epsilon in _EPSILONS:
            yield arrays[0].size, lambda e=epsilon: _normalized(  # type: ignore
                *map(_float32, arrays), tuple(range(-rank, 0)), e
            )


def _normalized(values: Any, gamma: Any, beta: Any, axes: Shape, epsilon: float) -> Any:
    centred = values - values.mean(axis=axes, keepdims=True)
    variance = np.square(centred).mean(axis=axes, keepdims=True)
    return centred / np.sqrt(variance + np.float32(epsilon)) * gamma + beta


_FORMULAS: Dict[str, Callable[[Sequence[Any], Shape], Iterator[Candidate]]] = {
    **dict.fromkeys(("MatMul", "MatMulV2", "BatchMatMul", "BatchMatMulV2"), _mat_mul),
    **dict.fromkeys(("Add", "AddV2"), _elementwise(2, np.add)),
    **dict.fromkeys(("RealDiv", "Div"), _elementwise(2, np.divide)),
    **dict.fromkeys(("Sum", "ReduceSum", "ReduceSumD"), _reduction(mean=False)),
    **dict.fromkeys(("Mean", "ReduceMean", "ReduceMeanD"), _reduction(mean=True)),
    **dict.fromkeys(("Softmax", "SoftmaxV2"), _softmax),
    "BiasAdd": _bias_add,
    "Conv2D": _conv2d,
    "LayerNorm": _layer_norm,
    "Sub": _elementwise(2, np.subtract),
    "Mul": _elementwise(2, np.multiply),
    "Pow": _elementwise(2, np.power),
    "FusedMulAdd": _elementwise(3, lambda a, b, c: a * b + c),
    "Square": _elementwise(1, np.square),
    "Exp": _elementwise(1, np.exp),
    "Log": _elementwise(1, np.log),
    "Sqrt": _elementwise(1, np.sqrt),
    "Rsqrt": _elementwise(1, lambda a: 1 / np.sqrt(a)),
    "Reciprocal": _elementwise(1, np.reciprocal),
    "Cast": _elementwise(1, np.positive),
}
