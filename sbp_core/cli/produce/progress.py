"""How far a file is read, on a terminal."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sbp_core.cli.produce.lines import Opened
from sbp_core.cli.produce.sender import Sender


@contextmanager
def shown_progress(source: Opened, sender: Sender) -> Iterator[Callable[[], None]]:
    """Show on standard error how far a file is read, and how many records are acknowledged.

    Yields the function to call from time to time. Nothing is shown if standard error is no
    terminal, or if there is no regular file.
    """
    found = os.fstat(source.descriptor)
    if source.is_standard or not sys.stderr.isatty() or not stat.S_ISREG(found.st_mode):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[records]} records"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=found.st_size, records=0)

        def show() -> None:
            read_bytes = os.lseek(source.descriptor, 0, os.SEEK_CUR)
            progress.update(task, completed=read_bytes, records=sender.record_count)

        yield show
