"""Room that is kept for freeing room: the file `reserve`, which takes LOG_RESERVE_BYTES.

A log frees the space of dead batches by going on in a new segment, and that takes some itself. On a
disk that is full to the last byte there would be no way out. The file is removed then, and made
again once there is room.
"""

from __future__ import annotations

import logging
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from sbp_core.limits import LOG_RESERVE_BYTES
from sbp_core.log.disk import Disk, describe_os_error

RESERVE_NAME: Final = "reserve"

_LOG: Final = logging.getLogger(__name__)


class SpaceReserve:
    """The reserve of the log in `directory`. It belongs to one thread at a time."""

    def __init__(self, disk: Disk, directory: Path) -> None:
        self._disk = disk
        self._path = directory / RESERVE_NAME
        self._is_whole = False

    def keep(self) -> None:
        """Take the space. A failure is logged: the log does without the reserve then."""
        if self._is_whole:
            return
        try:
            with suppress(FileNotFoundError):
                self._disk.remove(self._path)
            with closing(self._disk.create(self._path)) as file:
                file.pwritev([bytes(LOG_RESERVE_BYTES)], 0)
        except OSError as error:
            self.release()
            _LOG.warning("%s cannot be kept: %s", self._path, describe_os_error(error))
        else:
            self._is_whole = True

    def release(self) -> None:
        """Give the space back. Idempotent."""
        self._is_whole = False
        with suppress(OSError):
            self._disk.remove(self._path)
