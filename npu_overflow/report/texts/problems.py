"""Problems of single files and remarks of a report."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
}
