"""Faults of the forward pass: operators that turn finite inputs into Inf or NaN."""
from __future__ import annotations

from typing import Any

import numpy as np

from .kit import BATCH, INF, Fault, Fit, Hand, Setting, Truth, f16, fault


@fault("matmul_large_weights")
def _(s: Setting) -> Fault:
    """Weights of 100 and features of 250: a product of 100 000."""
    n, m = s.size(4), s.size(6)
    kernel = np.full((n, m), 100.0)
    bad = s.uniform((BATCH, n), 150.0, 300.0)
    inputs = s.keras.Input((n,), name=s.name("features"))
    h = s.dense("first", np.eye(n))(inputs)
    h = s.dense("hot", kernel, dtype="float32" if s.cured else None)(h)
    training = Fit(s.compile(s.model(inputs, s.head(h, 1e-6))), good=s.uniform((BATCH, n)), bad=bad, start=4)
    truth = Truth("MatMul", s.path("net/hot/MatMul"), element=(0, 0), value=INF, start=4, cured_by_scale=False, advice="keep_float32")
    return Fault(training, truth, Hand([f16(bad), f16(kernel)], f16(f16(bad).astype(np.float32) @ kernel)))
