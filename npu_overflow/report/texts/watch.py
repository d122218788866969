"""What the watch, the session and the collectors say while a training runs."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
}
