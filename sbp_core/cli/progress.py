"""How far a long command is: a bar on standard error, if that is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

OnProgress: TypeAlias = Callable[[int, int, str], None]
"""Gets how much is done, of how much, and a remark to show beside that."""


@contextmanager
def progress(noun: str) -> Iterator[OnProgress]:
    """Show a bar while the body runs; `noun` is what is counted. Without a terminal, show nothing.

    The bar is gone in the end.
    """
    if not sys.stderr.isatty():
        yield lambda done, count, remark: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(noun, total=None)

        def report(done: int, count: int, remark: str) -> None:
            description = f"{noun}, {remark}" if remark else noun
            shown.update(task, completed=done, total=count, description=description)

        yield report
