"""Ctrl-C while a file is being written: the loop over records ends, and the file is completed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Interrupts:
    """A context in which Ctrl-C is noted, if `is_deferring`; it ends only a wait for what is next.

    Otherwise it raises KeyboardInterrupt as ever, or is ignored where a shell ignores it.
    """

    def __init__(self, *, is_deferring: bool) -> None:
        self._is_deferring = is_deferring and _raises_interrupts()
        self._is_waiting = False
        self._former: Any = None
        self.has_come = False
        """Whether Ctrl-C was pressed."""

    def maybe_next(self, items: Iterator[T]) -> T | None:
        """Return the next item; None at the end, and once Ctrl-C was pressed."""
        if not self._is_deferring:
            return next(items, None)
        try:
            self._is_waiting = True
            return None if self.has_come else next(items, None)
        except KeyboardInterrupt:
            return None
        finally:
            self._is_waiting = False

    def __enter__(self) -> Self:
        if self._is_deferring:
            self._former = signal.signal(signal.SIGINT, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_deferring:
            signal.signal(signal.SIGINT, self._former)

    def _on_signal(self, _: int, __: FrameType | None) -> None:
        self.has_come = True
        if self._is_waiting:
            raise KeyboardInterrupt


def _raises_interrupts() -> bool:
    """Whether Ctrl-C raises KeyboardInterrupt in this thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
