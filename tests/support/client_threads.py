"""Threads of clients at work, until they are stopped, and how far each has come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Self

PROGRESS_SECONDS = 90


class ClientThreads:
    """A context manager that starts threads and stops them. An error in a thread fails the test.

    Each thread counts what was acknowledged to it in `acknowledged`, if it counts anything, ends
    soon when `stopping` is set, and puts what it raises into `failures`.
    """

    def __init__(self, counting: int) -> None:
        self.acknowledged = [0] * counting
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []
        self.threads: Sequence[threading.Thread] = ()

    def __enter__(self) -> Self:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self.threads:
            thread.join(PROGRESS_SECONDS)
            assert not thread.is_alive(), "a client hangs"
        assert not self.failures, self.failures

    def wait_for_progress(self, is_worth_it: Callable[[], bool] = lambda: True) -> None:
        """Wait until each that counts has counted on, or it is not worth it any more."""
        before = list(self.acknowledged)
        deadline = time.monotonic() + PROGRESS_SECONDS
        while is_worth_it() and any(map(int.__le__, self.acknowledged, before)):
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, f"no progress within {PROGRESS_SECONDS} s"
            time.sleep(0.005)
