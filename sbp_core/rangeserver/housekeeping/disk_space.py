"""Whether the disk has room for appends. A log that meets the end of its disk dies of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from sbp_core import limits
from sbp_core.errors import DiskFullError, StatusCode
from sbp_core.rangeserver.probe import HostProbe
from sbp_core.server.runtime import Clock

_LOG: Final = logging.getLogger(__name__)


class DiskSpace:
    """Refuses appends while there would be less than `floor_bytes` left of the disk of `folder`.

    What is free is looked at by `measure`, for the metrics, and every DISK_LOOK_INTERVAL_MS while
    appends come; nothing waits for that. In between the octets that were let in are subtracted, and
    so are those of `pending_bytes`, which the log has not written yet. The first refusal is logged,
    and so is the look that finds room again for an append of any size.
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
    ) -> None:
        self._folder = folder
        self.floor_bytes = floor_bytes
        self.lent_bytes = 0
        """Of what is free, what was given back to free more with it: it is not for appends."""
        self._probe = probe
        self._clock = clock
        self._threads = threads
        self._pending_bytes = pending_bytes
        self._free_bytes: int | None = None
        self._let_in_bytes = 0
        self._written_bytes = 0
        """Of those that were let in, what was on the disk when it was looked at."""
        self._refusing = False
        self._looked_at = clock.monotonic()
        self._look: asyncio.Task[None] | None = None

    @property
    def is_short(self) -> bool:
        """Whether an append may be refused that is as long as one may be."""
        left = self._maybe_left_bytes
        return left is not None and left < self.floor_bytes + limits.FRAME_BYTES_MAX

    @property
    def _maybe_left_bytes(self) -> int | None:
        """What was free at the last look, without what was admitted since."""
        if self._free_bytes is None:
            return None
        return self._free_bytes - (self._let_in_bytes - self._written_bytes)

    async def measure(self) -> int:
        """Return the free space in octets. Raises OSError when the machine does not tell."""
        self._looked_at = self._clock.monotonic()
        written = self._let_in_bytes - self._pending_bytes()
        loop = asyncio.get_running_loop()
        free = await loop.run_in_executor(self._threads, self._probe.disk_free_bytes, self._folder)
        self._free_bytes, self._written_bytes = free, written
        if self._refusing and not self.is_short:
            self._refusing = False
            _LOG.warning(
                "appends to the log in %s are taken again: its disk has room", self._folder
            )
        return free

    async def refresh(self) -> None:
        """Look at the disk; what was known of it stays when the machine does not tell."""
        try:
            await self.measure()
        except OSError as error:
            _LOG.warning("the free space of %s is not known: %s", self._folder, error)

    def let_in(self, length: int) -> None:
        """Take note of an append of so many octets. Raises DiskFullError if there is no room."""
        age_ms = 1000 * (self._clock.monotonic() - self._looked_at)
        if age_ms >= limits.DISK_LOOK_INTERVAL_MS and (self._look is None or self._look.done()):
            self._look = asyncio.create_task(self.refresh())
        left = self._maybe_left_bytes
        if left is not None:
            floor = self.floor_bytes + self.lent_bytes
            if left - length < floor:
                raise self._refusal(max(left, 0), floor)
        self._let_in_bytes += length

    def _refusal(self, left_bytes: int, floor_bytes: int) -> DiskFullError:
        error = DiskFullError(
            StatusCode.RS_DISK_FULL,
            f"the server's disk has {left_bytes} bytes left, of which {floor_bytes} are kept"
            " free: make room on it, or trim and delete streams",
        )
        if not self._refusing:
            self._refusing = True
            _LOG.warning("appends to the log in %s are refused: %s", self._folder, error)
        return error
