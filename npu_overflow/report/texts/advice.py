"""Advice, by rule code."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
}
