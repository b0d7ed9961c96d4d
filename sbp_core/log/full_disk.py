"""A disk whose writes wait while it is full, and the space reserve of the cleaner.

The log cannot go on without its next write, and to restart a server does not help against a full
disk. So the writes of the log wait for space. A write may be repeated, because it is at a fixed
position. A sync is never repeated: after a failed sync nothing is known about the bytes.
"""

from __future__ import annotations

import errno
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sbp_core.log.disk import Disk, OsDisk, OsFile, describe_os_error
from sbp_core.wire.checksum import Buffer

_LOG: Final = logging.getLogger(__name__)
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_PAUSE_SECONDS: Final = 0.5
_RESERVE_NAME: Final = "reserve"

T = TypeVar("T")


class Patience:
    """Repeats actions that fail for lack of space, on the thread of the caller, until `end`.

    The reserve in `directory` is given up first.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._is_over = threading.Event()

    def end(self) -> None:
        """Let waiting actions fail, and all later ones."""
        self._is_over.set()

    def wait_out(self, action: Callable[[], T]) -> T:
        """Run `action` again until there is space; return its result. Raises its other errors."""
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
                    continue  # at once: the reserve has made room
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
            (self._directory / _RESERVE_NAME).unlink()


class PatientDisk(OsDisk):
    """The operating system's file system, whose writes wait for space."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def create(self, path: Path) -> OsFile:
        """Create a file, when there is space."""
        return self._patience.wait_out(partial(super().create, path))

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file, when there is space."""
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


class SpaceReserve:
    """A file in `directory` that keeps space for the cleaner. One thread may use it at a time."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int) -> None:
        self._disk = disk
        self._path = directory / _RESERVE_NAME
        self._size_bytes = size_bytes
        self.is_whole = False
        """Whether the reserve was allocated."""

    def keep(self) -> None:
        """Allocate the space. A failure is logged, and there is no reserve then."""
        if self.is_whole and self._is_there():
            return
        try:
            with suppress(FileNotFoundError):
                self._disk.remove(self._path)
            with closing(self._disk.create(self._path)) as file:
                file.pwritev([bytes(self._size_bytes)], 0)
        except OSError as error:
            self.release()
            _LOG.warning("reserve not kept path=%s: %s", self._path, describe_os_error(error))
        else:
            self.is_whole = True

    def _is_there(self) -> bool:
        """Whether the file exists. `Patience` removes it when the log waits for space."""
        with suppress(OSError):
            return _RESERVE_NAME in self._disk.list_names(self._path.parent)
        return False

    def release(self) -> None:
        """Free the space. Idempotent."""
        self.is_whole = False
        with suppress(OSError):
            self._disk.remove(self._path)
