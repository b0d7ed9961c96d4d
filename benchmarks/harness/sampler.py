"""Looks at something again and again while something else happens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Final, Generic, TypeVar

SAMPLE_INTERVAL_S: Final = 0.5

T = TypeVar("T")


class Sampler(Generic[T]):
    """Calls `sample` at once, every `interval_s`, and once more at the end, in a thread."""

    def __init__(self, sample: Callable[[], T], *, interval_s: float = SAMPLE_INTERVAL_S) -> None:
        self._sample = sample
        self._interval_s = interval_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self.samples: list[T] = []

    def __enter__(self) -> Sampler[T]:
        self.samples.append(self._sample())
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        self._thread.join()
        self.samples.append(self._sample())

    def _run(self) -> None:
        while not self._is_over.wait(self._interval_s):
            self.samples.append(self._sample())
