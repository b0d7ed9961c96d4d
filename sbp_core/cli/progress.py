"""How far a long command is, and how long it still takes: a line on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

OnProgress: TypeAlias = Callable[[int, int | None, str], None]
"""Gets how much is done, of how much if that is known, and a remark to show beside that."""

BYTES: Final = "bytes"
"""The noun with which sizes are shown in their units."""


def is_shown() -> bool:
    """Return whether anybody sees the progress of the command."""
    return sys.stderr.isatty()


@contextmanager
def progress(noun: str) -> Iterator[OnProgress]:
    """Show a bar while the body runs; `noun` is what is counted. Without a terminal, show nothing.

    The bar is gone in the end.
    """
    if not is_shown():
        yield lambda done, count, remark: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(),
        DownloadColumn(binary_units=True) if noun == BYTES else MofNCompleteColumn(),
        TimeRemainingColumn(elapsed_when_finished=True),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=None)

        def report(done: int, count: int | None, remark: str) -> None:
            words = [noun] if noun != BYTES else []
            description = ", ".join([*words, remark] if remark else words)
            total = None if count is None else max(done, count)
            shown.update(task, completed=done, total=total, description=description)

        yield report
