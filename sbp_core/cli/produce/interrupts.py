"""Interrupts, held back while records are appended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from sbp_core.cli.signals import handled


class Interrupts:
    """Raises KeyboardInterrupt at a signal; the first one not within `held`, but at the end of it.

    So it is known what became of the records that are on their way. Does nothing where Ctrl-C is
    ignored, as by commands that a shell runs in the background.
    """

    def __init__(self) -> None:
        self._is_held = False
        self._is_due = False
        self._has_come = False
        self._handling = handled(self._on_interrupt)

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
        self._handling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handling.__exit__(None, None, None)

    def _on_interrupt(self) -> None:
        is_first, self._has_come = not self._has_come, True
        if not (is_first and self._is_held):
            raise KeyboardInterrupt
        self._is_due = True
