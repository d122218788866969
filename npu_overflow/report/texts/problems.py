"""Problems of single files and remarks of a report."""
from __future__ import annotations

from typing import Dict, Tuple

TEXTS: Dict[str, Tuple[str, str]] = {
    "manifest.unreadable": ("The record of the watch can't be read: {reason}.", "无法读取监视记录：{reason}。"),
}
