"""Disk space that is kept for what frees space: the file `reserve` in a folder.

A disk that is full leaves no room for the entries and commits of a deletion. The file is removed
then, and made again once there is space.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from sbp_core.log.disk import Disk, describe_os_error

RESERVE_NAME: Final = "reserve"

_LOG: Final = logging.getLogger(__name__)


class SpaceReserve:
    """The reserve in `directory`. It belongs to one thread at a time."""

    def __init__(self, disk: Disk, directory: Path, size_bytes: int) -> None:
        self._disk = disk
        self._path = directory / RESERVE_NAME
        self._size_bytes = size_bytes
        self.is_whole = False
        """Whether the space is known to be kept."""

    def keep(self) -> None:
        """Allocate the space. A failure is logged: its owner goes on without the reserve then."""
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
        """Whether nobody else gave the reserve up, as a log does that waits for space."""
        with suppress(OSError):
            return RESERVE_NAME in self._disk.list_names(self._path.parent)
        return False

    def release(self) -> None:
        """Give the space back. Idempotent."""
        self.is_whole = False
        with suppress(OSError):
            self._disk.remove(self._path)
