"""Help and messages of the command line."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
}
