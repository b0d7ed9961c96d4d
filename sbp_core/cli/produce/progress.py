"""How far a file is read, on a terminal."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sbp_core.cli.produce.lines import Opened
from sbp_core.cli.produce.sender import Sender
from sbp_core.cli.progress import BYTES, progress
from sbp_core.wording import counted


@contextmanager
def shown_progress(source: Opened, sender: Sender) -> Iterator[Callable[[], None]]:
    """Show how much of a file is read, and how many records are acknowledged.

    Yields the function to call from time to time. Nothing is shown for what is no regular file.
    """
    found = os.fstat(source.descriptor)
    if source.is_standard or not stat.S_ISREG(found.st_mode):
        yield lambda: None
        return
    with progress(BYTES) as report:

        def show() -> None:
            read_bytes = os.lseek(source.descriptor, 0, os.SEEK_CUR)
            report(read_bytes, found.st_size, counted(sender.record_count, "record"))

        yield show
