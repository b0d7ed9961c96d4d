"""A signal while records are written: the loop over them ends, and what was written counts.

A file is completed; a group's cursors are committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Self, TypeVar

from sbp_core.cli.signals import handled

T = TypeVar("T")


class Interrupts:
    """A context in which an interrupt is noted, if there is a file or a group.

    It ends only a wait for records. The second one raises KeyboardInterrupt unless there is a file:
    the reader of a pipe may be stuck. Without file and group the first one does.
    """

    def __init__(self, *, is_file: bool, has_group: bool) -> None:
        self._is_file = is_file
        self._is_waiting = False
        self.has_come = False
        """Whether there was an interrupt."""
        self._handling: AbstractContextManager[bool] = (
            handled(self._on_signal) if is_file or has_group else nullcontext(False)
        )

    def maybe_next(self, items: Iterator[T]) -> T | None:
        """Return the next item; None at the end, and once there was an interrupt."""
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
        self._is_deferring = self._handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)

    def _on_signal(self) -> None:
        is_first, self.has_come = not self.has_come, True
        if self._is_waiting or not (is_first or self._is_file):
            raise KeyboardInterrupt
