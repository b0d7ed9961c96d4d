"""Scrub the log of this server: find damage, and mend it from other replicas.

A client that reads a damaged batch gets an error, and asks another replica. The segment is then
read as a whole. Besides, all full segments are read again and again at a bounded rate
(`scrub_bytes_per_s`), so that damage is found while other replicas are whole.

A damaged entry of a replicated range is mended in place (log/mending.py) by the body of another
replica. Damage that is left is logged, and its range is reported as lacking a replica.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogError, SbpError
from sbp_core.log.disk import Disk
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import BATCH_KINDS
from sbp_core.log.mending import DamagedEntry, SegmentCheck, mend
from sbp_core.log.segment import SegmentView
from sbp_core.log.states.range_states import RangeKey, RangeState
from sbp_core.log.states.replicated_entries import NUMBERED_KINDS
from sbp_core.rangeserver.hosting import DriverPort, RangeHost
from sbp_core.rangeserver.replicating.copying import Copier
from sbp_core.segment_format import EntryKind
from sbp_core.server.runtime import cancel_all

_LOG: Final = logging.getLogger(__name__)
_INTERVAL_SECONDS: Final = 1
_PASS_SECONDS: Final = 86_400
"""Minimum time between two passes over the log."""
_RETRY_SECONDS: Final = 600
"""Pause before damage that could not be mended is tried again."""


class Scrubber:
    """Reads and mends the log of one server, from its construction until `stop`."""

    def __init__(
        self,
        host: RangeHost,
        log: Log,
        copier: Copier,
        driver: DriverPort,
        *,
        bytes_per_s: int,
    ) -> None:
        self._host = host
        self._log = log
        self._disk: Disk = log.disk
        self._copier = copier
        self._driver = driver
        self._bytes_per_s = bytes_per_s
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="sbp-log-scrub")
        self._loop = asyncio.get_running_loop()
        self._damaged: dict[int, list[RangeKey | None]] = {}
        """The ranges with damage that was not mended, by base of the segment."""
        self._retry_at: dict[int, float] = {}
        self._bases: list[int] = []
        """The segments left in this pass, the last segment first."""
        self._check: tuple[SegmentView, SegmentCheck] | None = None
        self._next_pass = 0.0
        self._is_stopping = False
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop; the next start begins with a new pass."""
        self._is_stopping = True
        await cancel_all([self._task])
        await asyncio.to_thread(self._thread.shutdown)

    @property
    def damaged_count(self) -> int:
        """Number of ranges with damage that was not mended."""
        return len({key for keys in self._damaged.values() for key in keys})

    async def mend_range(self, key: RangeKey, end_seq: int, bases: Iterable[int]) -> None:
        """Mend the first `end_seq` entries of a range in the segments at `bases`.

        Raises LogError if damage is left.
        """
        for base in bases:
            for damaged in await self._read_segment(base):
                is_other = damaged.key not in {key, None} or damaged.seq > end_seq
                if not is_other and not await self._try_to_mend(damaged):
                    raise LogError(
                        f"entries of range {key[1]} of stream {key[0]} are damaged here, and cannot"
                        f" be mended now: {damaged.path}, log position {damaged.position}"
                    )

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_INTERVAL_SECONDS)
            try:
                await self._mend_suspects()
                await self._read_on()
            except SbpError as error:
                _LOG.warning("log cannot be scrubbed now: %s", error)
            except Exception:  # noqa: BLE001 - damage must be found in the next round
                _LOG.exception("log not scrubbed: unexpected error")

    async def _mend_suspects(self) -> None:
        """Mend the segments in which damage was found; damage that is left is tried again later."""
        now = self._loop.time()
        due = [base for base in self._log.suspects if self._retry_at.get(base, now) <= now]
        for base in due:
            self._log.suspects.discard(base)  # before it is read: a reader may add it again
            self._retry_at.pop(base, None)
            await self._mend_all(base, await self._read_segment(base))
            if base in self._damaged:
                self._log.suspects.add(base)
                self._retry_at[base] = now + _RETRY_SECONDS

    async def _read_on(self) -> None:
        """Read the next bytes of the full segments, unless a pass ended a short time ago."""
        if not self._bytes_per_s:
            return
        if self._check is None:
            view = self._next_segment()
            if view is None:
                return
            self._check = (view, SegmentCheck(view, self._log.end_position))
        view, check = self._check
        slice_bytes = self._bytes_per_s * _INTERVAL_SECONDS
        try:
            found = await self._loop.run_in_executor(
                self._thread, lambda: list(check.read(slice_bytes))
            )
        except LogError:  # such as a block that the disk cannot read
            self._check = None
            self._damaged[view.segment.base] = [None]
            raise
        if found:  # `_mend_suspects` reads the whole segment, and mends its damaged entries
            self._log.suspects.add(view.segment.base)
        if check.is_done:
            self._check = None
            # The scrub must not evict what readers use, and the next pass must read the disk.
            await self._loop.run_in_executor(self._thread, view.file.drop_cache)

    def _next_segment(self) -> SegmentView | None:
        now = self._loop.time()
        if not self._bases and now >= self._next_pass and self._log.extent.sealed:
            self._next_pass = now + _PASS_SECONDS
            self._bases = [each.base for each in reversed(self._log.extent.sealed)]
            self._damaged = {
                base: self._damaged[base] for base in self._bases if base in self._damaged
            }
        while self._bases:
            view = self._log.segment_view(self._bases.pop())
            if view is not None:
                return view
        return None

    async def _read_segment(self, base: int) -> list[DamagedEntry]:
        """Return the damaged entries of a segment. Raises LogError when the disk fails."""
        view, end = self._log.segment_view(base), self._log.end_position
        if view is None:
            return []

        def read() -> list[DamagedEntry]:
            check, found = SegmentCheck(view, end), []
            while not check.is_done and not self._is_stopping:
                found += list(check.read(limits.LOG_SCAN_BYTES))
            return found

        return await self._loop.run_in_executor(self._thread, read)

    async def _mend_all(self, base: int, found: Iterable[DamagedEntry]) -> None:
        """Mend the entries of a segment that matter; remember damage that is left."""
        left = [each for each in found if self._matters(each) and not await self._try_to_mend(each)]
        self._damaged.pop(base, None)
        if left:
            self._damaged[base] = [each.key for each in left]

    def _matters(self, damaged: DamagedEntry) -> bool:
        """Whether a damaged entry is needed: its records are not trimmed, or not decided."""
        header = damaged.header
        if header is None:
            return True
        logged = self._log.maybe_range((header.stream_id, header.range_index))
        if logged is None or logged.state is RangeState.DELETED:
            return False
        if header.kind is EntryKind.BATCH:
            return header.base_offset + header.record_count > logged.start_offset
        return header.kind in BATCH_KINDS or logged.state is not RangeState.SEALED

    async def _try_to_mend(self, damaged: DamagedEntry) -> bool:
        """Mend an entry; return whether that succeeded."""
        place = (damaged.path, damaged.position, *(damaged.key or (-1, -1)))
        try:
            await self._mend(damaged)
        except SbpError as error:
            _LOG.error(
                "log damaged file=%s position=%d stream=%d range=%d: %s; not mended: %s",
                *(*place, damaged.reason, error),
            )
            return False
        _LOG.warning(
            "log mended from another replica file=%s position=%d stream=%d range=%d: %s",
            *(*place, damaged.reason),
        )
        return True

    async def _mend(self, damaged: DamagedEntry) -> None:
        header, key = damaged.header, damaged.key
        hosted = None if key is None else self._host.table.maybe_range(key)
        if header is None or hosted is None or header.kind not in NUMBERED_KINDS:
            raise LogError("the lost records are unknown: see `sbp log check`")
        if not hosted.is_replicated:
            raise LogError("the range has no other replica: restore the file from a backup")
        placed = (await self._driver.list_hosted_ranges([hosted.stream_id])).get(hosted.key)
        if placed is None:
            raise LogError("the placement driver does not list the range for this server")
        body = await self._copier.find_body(damaged, placed.stream_range)
        await self._loop.run_in_executor(
            self._thread, mend, self._disk, self._log.directory, damaged, *body
        )
