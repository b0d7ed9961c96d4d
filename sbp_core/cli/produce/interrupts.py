"""Ctrl-C, held back while records are appended."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self


class Interrupts:
    """Raises KeyboardInterrupt at Ctrl-C; the first one not within `held`, but at the end of it.

    So it is known what became of the records that are on their way. Does nothing where Ctrl-C is
    ignored, as by commands that a shell runs in the background.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._is_due = False
        self._has_come = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the first interrupt back in the body."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False
        if self._is_due:
            self._is_due = False
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._previous = signal.getsignal(signal.SIGINT)
        if self._previous is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._on_interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._previous)

    def _on_interrupt(self, _: int, __: FrameType | None) -> None:
        is_first, self._has_come = not self._has_come, True
        if not (is_first and self._is_held):
            raise KeyboardInterrupt
        self._is_due = True
