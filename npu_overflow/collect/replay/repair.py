"""Finite values in place of others, element by element: the means by which blame is tested.

An operator that is repaired keeps what it only passes on. Its own are the non-finite elements that no non-finite input accounts for: where it
works element by element, those with finite inputs; elsewhere those that are finite when it runs in a wider type on the same inputs (Inf stays Inf in
any type, an overflow does not).
"""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

from npu_overflow.collect.replay import tensorflow as private
from npu_overflow.collect.replay.finite import is_float

__all__ = ["repaired", "repaired_outputs"]

_ELEMENTWISE = frozenset(
    "Abs Add AddV2 AddN BiasAdd Cast Cosh Div DivNoNan Elu EluGrad Erf Exp Expm1 Inv InvGrad Log Log1p Maximum Minimum Mul MulNoNan Neg Pow RealDiv Reciprocal "
    "ReciprocalGrad Relu Relu6 ReluGrad Rsqrt RsqrtGrad Select SelectV2 Selu Sigmoid SigmoidGrad Sinh Softplus SoftplusGrad Softsign Sqrt SqrtGrad Square "
    "SquaredDifference Sub Tanh TanhGrad Xdivy Xlog1py Xlogy".split()
)


def repaired(tensor: Any, where: Optional[Any] = None) -> Any:
    """The tensor with ±1 in place of Inf and NaN: small enough to do no new harm, large enough to divide by.

    Args:
        where: a boolean numpy array; only elements where it is True are replaced.
    """
    import numpy as np
    import tensorflow as tf

    if not is_float(tensor):
        return tensor
    values = tensor.numpy()
    wide = _wide(values)
    bad = ~np.isfinite(wide)
    if where is not None:
        bad &= where
    if not bad.any():
        return tensor
    signs = np.where(np.isinf(wide) & (wide.real < 0), -1.0, 1.0)
    with tf.device(tensor.device):
        return tf.constant(np.where(bad, signs, wide).astype(values.dtype), tensor.dtype)


def repaired_outputs(op_type: str, inputs: Sequence[Any], attrs: Any, outputs: List[Any], inherits: bool) -> List[Any]:
    """The outputs with the operator's own non-finite elements repaired.

    Args:
        inherits: whether any input holds non-finite values.
    """
    if not inherits:
        return [repaired(tensor) for tensor in outputs]
    own = _own_elementwise(inputs, outputs) if op_type in _ELEMENTWISE else _own_by_range(op_type, inputs, attrs, outputs)
    return [repaired(tensor, mask) if mask is not None else tensor for tensor, mask in zip(outputs, own)]


def _own_elementwise(inputs: Sequence[Any], outputs: Sequence[Any]) -> List[Optional[Any]]:
    import numpy as np

    masks: List[Optional[Any]] = []
    for tensor in outputs:
        finite: Any = True
        try:
            for item in inputs:
                if is_float(item):
                    finite = finite & np.isfinite(_wide(item.numpy()))
            masks.append(np.broadcast_to(finite, tuple(tensor.shape)))
        except ValueError:  # shapes that do not broadcast by numpy's rule
            masks.append(None)
    return masks


def _own_by_range(op_type: str, inputs: Sequence[Any], attrs: Any, outputs: Sequence[Any]) -> List[Optional[Any]]:
    """Elements that are finite in the next wider type; none where the operator has no such kernel."""
    import numpy as np
    import tensorflow as tf

    narrow = next((tensor.dtype for tensor in outputs if is_float(tensor)), None)
    if narrow not in (tf.float16, tf.bfloat16, tf.float32):
        return [None] * len(outputs)
    wider = tf.float64 if narrow == tf.float32 else tf.float32
    try:
        given = [tf.constant(_wide(tensor.numpy()), wider) if tensor.dtype == narrow else tensor for tensor in inputs]
        types = tuple(wider.as_datatype_enum if item == narrow.as_datatype_enum and isinstance(attrs[i - 1], str) else item for i, item in enumerate(attrs))
        results = private.run_op(op_type, given, types, len(outputs))
    except Exception:  # no kernel for the wider type, or types given in another way
        return [None] * len(outputs)
    return [np.isfinite(_wide(tensor.numpy())) if is_float(tensor) else None for tensor in results]


def _wide(values: Any) -> Any:
    import numpy as np

    return values.astype(np.float32) if values.dtype.kind not in "fc" else values
