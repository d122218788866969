"""Marks for graph operators."""
from __future__ import annotations

import contextlib
from typing import Iterator


@contextlib.contextmanager
def keep_dtype_scope() -> Iterator[None]:
    """Graph operators built inside keep their type; eager and gradient operators are not marked."""
    yield
