"""Waiting for what happens in other threads."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(is_so: Callable[[], object], seconds: float = 180) -> None:
    """Return once `is_so` says so; fail if it does not for so long."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
