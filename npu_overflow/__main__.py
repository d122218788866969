"""``python -m npu_overflow``: the same as the command ``npu-overflow``."""
from __future__ import annotations

import sys

from npu_overflow.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
