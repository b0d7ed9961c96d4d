"""Freeing disk space: the cleaner's rounds, and more than that where the disk is short.

The cleaner frees full segments only. On a disk without room for appends, the open segment would
never become full, so what was trimmed and deleted in it would keep its space for ever. There the
log goes on in a new segment, and segments are rewritten also where that frees only a little.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogError
from sbp_core.log.cleaning.cleaner import Cleaned, Cleaner, SpaceReserve
from sbp_core.log.disk import describe_os_error
from sbp_core.log.durable_log import Log
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace

_LOG: Final = logging.getLogger(__name__)


class SpaceFreer:
    """Frees what is dead in one log. It belongs to one thread; `stop` may be called from any.

    `free_bytes` tells how much room the disk of the log has; it raises OSError.
    """

    def __init__(self, log: Log, free_bytes: Callable[[], int], disk_space: DiskSpace) -> None:
        self._log = log
        self._disk_space = disk_space
        self._free_bytes = free_bytes
        self._cleaner = Cleaner(log)
        self._reserve = SpaceReserve(log.disk, log.directory)
        self._not_worth_it_at = -1
        """Log position up to which too little of the open segment was dead."""
        self._is_stuck = False

    def keep_reserve(self) -> None:
        """Take the space that it needs to free more, if it is not taken yet."""
        self._reserve.keep()
        self._disk_space.lent_bytes = 0

    def stop(self) -> None:
        """Let `free` end before the next segment, now and later."""
        self._cleaner.stop()

    def free(self, *, is_short: bool) -> Cleaned:
        """Free what can be freed; with `is_short`, as much as possible. Raises LogError."""
        if not is_short:
            cleaned = self._cleaner.clean(limits.CLEAN_LIVE_SHARE_MAX, self._room())
            self.keep_reserve()
            return cleaned
        self._end_open_segment()
        return self._cleaner.clean(limits.CLEAN_LIVE_SHARE_SHORT_MAX, self._room())

    def _end_open_segment(self) -> None:
        """Let the open segment become a full one if enough of it is dead.

        Never without room for the next one: a log that cannot go on in it is dead.
        """
        end_position = self._log.end_position
        if end_position == self._not_worth_it_at:
            return
        held = self._cleaner.weigh_active()
        snapshot_bytes = self._log.snapshot_bytes()
        dead_bytes = held.held_bytes - held.live_bytes
        is_worth_it = held.live_bytes < limits.CLEAN_LIVE_SHARE_SHORT_MAX * held.held_bytes
        if not is_worth_it or dead_bytes < 2 * snapshot_bytes:
            self._not_worth_it_at = end_position
            return
        self._lend_reserve()
        wanted_bytes = 2 * snapshot_bytes + limits.LOG_LEFT_BYTES_MIN
        room_bytes = self._room()
        if room_bytes < wanted_bytes:
            if not self._is_stuck:
                _LOG.error(
                    "%d bytes that were trimmed or deleted cannot be freed: that takes %d bytes,"
                    " and the disk of %s has %d; make room on it",
                    dead_bytes,
                    wanted_bytes,
                    self._log.directory,
                    room_bytes,
                )
            self._is_stuck = True
            return
        self._is_stuck = False
        self._log.end_segment()
        _LOG.warning(
            "the log in %s goes on in a new segment: its disk is short, and %d of %d bytes in the"
            " one before were trimmed or deleted",
            self._log.directory,
            dead_bytes,
            held.held_bytes,
        )

    def _lend_reserve(self) -> None:
        """Give the reserve back for a while. Appends must not take it."""
        if self._room() < self._disk_space.floor_bytes + limits.LOG_RESERVE_BYTES:
            self._disk_space.lent_bytes = limits.LOG_RESERVE_BYTES
            self._reserve.release()

    def _room(self) -> int:
        try:
            return self._free_bytes()
        except OSError as error:
            path = self._log.directory
            raise LogError(
                f"the free space of {path} is not known: {describe_os_error(error)}"
            ) from error
