"""Only the warning that a replay causes by itself is kept back."""
from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from npu_overflow.collectors.quiet import quiet


def test_the_filter_is_for_one_warning_of_one_thread_and_goes(caplog: Any) -> None:
    logger = logging.getLogger("tensorflow")
    filters = list(logger.filters)
    caplog.set_level(logging.WARNING, logger="tensorflow")
    logger.propagate, propagate = True, logger.propagate
    try:
        with pytest.raises(KeyError), quiet():
            logger.warning("Using %s eagerly has significant overhead currently", "MirroredStrategy")
            logger.warning("another warning")
            other = threading.Thread(target=lambda: logger.warning("Using %s eagerly has significant overhead currently", "theirs"))
            other.start()
            other.join()
            raise KeyError
        logger.warning("Using %s eagerly has significant overhead currently", "mine")
    finally:
        logger.propagate = propagate
    said = [record.getMessage() for record in caplog.records if record.name == "tensorflow"]
    assert [text.split(" eagerly")[0] for text in said] == ["another warning", "Using theirs", "Using mine"]
    assert logger.filters == filters
