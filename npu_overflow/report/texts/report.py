"""The words of the report itself: headings, verdicts, status bits."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
}
