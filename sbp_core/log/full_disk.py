"""A disk that waits while it is full.

The log cannot go on without its next write, and a server that ends for a full disk is no better off
when it is started again. So the writes of the log wait until there is space. Each may be repeated:
it is at a position, and what was written of it in part is written again. Syncs are not: after one
that failed nothing is known about the bytes.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sbp_core.log.disk import OsDisk, OsFile
from sbp_core.log.space_reserve import RESERVE_NAME
from sbp_core.wire.checksum import Buffer

_LOG: Final = logging.getLogger(__name__)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PAUSE_SECONDS: Final = 0.5

T = TypeVar("T")


class Patience:
    """Repeats what fails for lack of space, on the thread of the caller, until `end`.

    The reserve in `directory` is given up first: it is for what has to be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_over = threading.Event()

    def end(self) -> None:
        """Let what waits fail, and what comes after it."""
        self._is_over.set()

    def wait_out(self, action: Callable[[], T]) -> T:
        """Return what the action returns once there is space. Raises its other errors."""
        is_waiting = False
        while True:
            try:
                done = action()
            except OSError as error:
                if error.errno not in _FULL or self._is_over.is_set():
                    raise
                if not is_waiting:
                    is_waiting = True
                    self._report()
                    continue
                self._is_over.wait(_PAUSE_SECONDS)
            else:
                if is_waiting:
                    _LOG.warning("log goes on folder=%s: the disk has space", self._directory)
                return done

    def _report(self) -> None:
        _LOG.error(
            "log waits folder=%s: its disk is full. Reads go on, appends wait; make room on it",
            self._directory,
        )
        with suppress(OSError):
            (self._directory / RESERVE_NAME).unlink()


class PatientDisk(OsDisk):
    """The operating system's file system, whose writes wait for space."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def create(self, path: Path) -> OsFile:
        """Create a file."""
        return self._patience.wait_out(partial(super().create, path))

    def replace(self, source: Path, target: Path) -> None:
        """Give a file another name."""
        self._patience.wait_out(partial(super().replace, source, target))

    def _file(self, path: Path, descriptor: int) -> OsFile:
        return _PatientFile(path, descriptor, self._patience)


class _PatientFile(OsFile):
    def __init__(self, path: Path, descriptor: int, patience: Patience) -> None:
        super().__init__(path, descriptor)
        self._patience = patience

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self._patience.wait_out(partial(super().pwritev, buffers, position))

    def truncate(self, size: int) -> None:
        self._patience.wait_out(partial(super().truncate, size))
