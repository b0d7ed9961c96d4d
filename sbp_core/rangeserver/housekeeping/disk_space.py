"""Disk space: refuse appends before the disk is full, and free dead batches.

A log that meets the end of its disk cannot go on, so DiskSpace refuses appends before that.

The cleaner frees full segments only. So SpaceFreer ends the active segment when most of it was
trimmed or deleted. On a disk without room for appends the active segment would never become full:
there it is ended, and segments are rewritten, even if that frees only a little. The reserve has the
room for that, and for the entries of deletions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.errors import DiskFullError, LogError
from sbp_core.log.cleaning import Cleaned, Cleaner
from sbp_core.log.disk import translate_os_error
from sbp_core.log.durable_log import Log
from sbp_core.log.full_disk import SpaceReserve
from sbp_core.rangeserver.server_load import HostProbe
from sbp_core.records import merge_batches
from sbp_core.server.runtime import Clock

_LOG: Final = logging.getLogger(__name__)
_DEAD_BYTES_MIN: Final = 16 * limits.MIB
"""Dead bytes for which the active segment is ended on a disk with space."""


class DiskSpace:
    """Refuses appends that would leave less than `floor_bytes` on the disk of `folder`.

    `measure` reads the free space, for the metrics, and every DISK_LOOK_INTERVAL_MS while appends
    arrive; no append waits for it. In between the bytes of admitted appends are subtracted, and
    `pending_bytes`, which the log has not written yet. The first refusal is logged, and the first
    reading afterwards with space for an append of `append_bytes_max`.
    """

    def __init__(
        self,
        folder: Path,
        floor_bytes: int,
        *,
        probe: HostProbe,
        clock: Clock,
        threads: ThreadPoolExecutor,
        pending_bytes: Callable[[], int],
        append_bytes_max: int = limits.FRAME_BYTES_MAX,
    ) -> None:
        self._folder = folder
        self.floor_bytes = floor_bytes
        self.lent_bytes = 0
        """Bytes that the reserve released for the cleaner. Appends must not take them."""
        self._probe = probe
        self._clock = clock
        self._threads = threads
        self._pending_bytes = pending_bytes
        self._append_bytes_max = append_bytes_max
        self.free_bytes: int | None = None
        """The free space at the last reading; None before."""
        self._admitted_bytes = 0
        self._written_bytes = 0
        """Admitted bytes that were on the disk at the last reading."""
        self.is_refusing = False
        """Whether an append was refused, and the longest append has had no room since."""
        self._looked_at = clock.monotonic()
        self._look: asyncio.Task[None] | None = None

    @property
    def is_short(self) -> bool:
        """Whether the longest append would be refused."""
        left = self._left_bytes
        return left is not None and left < self.floor_bytes + self._append_bytes_max

    @property
    def _left_bytes(self) -> int | None:
        """The free space at the last reading, less the bytes admitted since."""
        if self.free_bytes is None:
            return None
        return self.free_bytes - (self._admitted_bytes - self._written_bytes)

    async def measure(self) -> int:
        """Read and return the free space in bytes. Raises OSError."""
        self._looked_at = self._clock.monotonic()
        written = self._admitted_bytes - self._pending_bytes()
        loop = asyncio.get_running_loop()
        free = await loop.run_in_executor(self._threads, self._probe.disk_free_bytes, self._folder)
        self.free_bytes, self._written_bytes = free, written
        if self.is_refusing and not self.is_short:
            self.is_refusing = False
            _LOG.warning("appends accepted again folder=%s: the disk has free space", self._folder)
        return free

    async def refresh(self) -> None:
        """Read the free space; after a failure the last reading stays."""
        try:
            await self.measure()
        except OSError as error:
            _LOG.warning("free space unknown folder=%s: %s", self._folder, error)

    def admit(self, length: int) -> None:
        """Admit an append of `length` bytes. Raises DiskFullError if the disk is too full."""
        age_ms = 1000 * (self._clock.monotonic() - self._looked_at)
        if age_ms >= limits.DISK_LOOK_INTERVAL_MS and (self._look is None or self._look.done()):
            self._look = asyncio.create_task(self.refresh())
        left = self._left_bytes
        if left is not None:
            floor = self.floor_bytes + self.lent_bytes
            if left - length < floor:
                raise self._refusal(max(left, 0), floor)
        self._admitted_bytes += length

    def _refusal(self, left_bytes: int, floor_bytes: int) -> DiskFullError:
        error = DiskFullError.of(
            f"the server's disk has {left_bytes} bytes left, of which {floor_bytes} are kept"
            " free: make room on it, or trim and delete streams"
        )
        if not self.is_refusing:
            self.is_refusing = True
            _LOG.warning("appends refused folder=%s: %s", self._folder, error)
        return error


class SpaceFreer:
    """Frees dead batches of one log, and merges small ones.

    It belongs to one thread; `stop` may be called from any thread. `free_bytes` returns the free
    space on the disk of the log, and raises OSError.
    """

    def __init__(self, log: Log, free_bytes: Callable[[], int], disk_space: DiskSpace) -> None:
        self._log = log
        self._disk_space = disk_space
        self._free_bytes = free_bytes
        self._cleaner = Cleaner(log, merge_batches)
        self._reserve = SpaceReserve(log.disk, log.directory, limits.LOG_RESERVE_BYTES)
        self._not_worth_it = -1, 0.0
        """Log position and live share at the last look that found too little to free."""
        self.is_stuck = False
        """Whether there is too little room to free dead batches."""

    def keep_reserve(self) -> None:
        """Allocate the reserve, if it is not allocated."""
        self._reserve.keep()
        self._disk_space.lent_bytes = 0

    def stop(self) -> None:
        """Let `free` end soon, now and later."""
        self._cleaner.stop()

    def free(self, *, is_short: bool, has_removals: bool) -> Cleaned:
        """Free what can be freed; as much as possible if `is_short`. Raises LogError.

        `has_removals`: something was trimmed or deleted since the last call.
        """
        if not is_short:
            if has_removals:
                self._end_open_segment(limits.CLEAN_LIVE_SHARE_MAX, _DEAD_BYTES_MIN)
            cleaned = self._cleaner.clean(limits.CLEAN_LIVE_SHARE_MAX, self._room())
            self.keep_reserve()
            return cleaned
        self._lend_reserve(limits.LOG_LEFT_BYTES_MIN)
        self._end_open_segment(limits.CLEAN_LIVE_SHARE_SHORT_MAX, 0)
        return self._cleaner.clean(limits.CLEAN_LIVE_SHARE_SHORT_MAX, self._room())

    def _end_open_segment(self, live_share_max: float, dead_bytes_min: int) -> None:
        """End the active segment if enough of it is dead.

        The next segment must have room: a log that cannot go on in it is dead.
        """
        looked_at = self._log.end_position, live_share_max
        if looked_at == self._not_worth_it:
            return
        held = self._cleaner.weigh_active()
        snapshot_bytes = self._log.snapshot_bytes()
        dead_bytes = held.held_bytes - held.live_bytes
        is_worth_it = held.live_bytes < live_share_max * held.held_bytes
        if not is_worth_it or dead_bytes < max(2 * snapshot_bytes, dead_bytes_min):
            self._not_worth_it = looked_at
            return
        self._lend_reserve(self._disk_space.floor_bytes + limits.LOG_RESERVE_BYTES)
        wanted_bytes = 2 * snapshot_bytes + limits.LOG_LEFT_BYTES_MIN
        room_bytes = self._room()
        if room_bytes < wanted_bytes:
            if not self.is_stuck:
                _LOG.error(
                    "space not freed folder=%s dead_bytes=%d wanted_bytes=%d room_bytes=%d: to free"
                    " what was trimmed and deleted takes some room; make it on the disk",
                    *(self._log.directory, dead_bytes, wanted_bytes, room_bytes),
                )
            self.is_stuck = True
            return
        self.is_stuck = False
        self._log.end_segment()
        _LOG.info(
            "segment ended early folder=%s dead_bytes=%d held_bytes=%d: that much of it was trimmed"
            " or deleted",
            *(self._log.directory, dead_bytes, held.held_bytes),
        )

    def _lend_reserve(self, below_bytes: int) -> None:
        """Release the reserve for the cleaner if less than `below_bytes` is left."""
        if self._room() < below_bytes:
            self._disk_space.lent_bytes = limits.LOG_RESERVE_BYTES
            self._reserve.release()

    def _room(self) -> int:
        with translate_os_error(LogError, "reading the free space of", self._log.directory):
            return self._free_bytes()
