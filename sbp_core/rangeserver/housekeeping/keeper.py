"""Periodic work: trim by retention, drop dead transactions, free disk space.

The placement driver knows the retention of a stream, the log the age of its batches. A trim is
durable here before it is reported to the placement driver, and is reported again until the
placement driver has recorded it. A stream that the placement driver does not know is left alone.
`StagedSweep` (appending/end_txn.py) drops dead transactions.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogError, LogWriteError, SbpError
from sbp_core.log.boundaries import HighWaterKeeper
from sbp_core.log.cleaning import Cleaned
from sbp_core.log.durable_log import Log
from sbp_core.rangeserver.appending.end_txn import StagedSweep
from sbp_core.rangeserver.bounds import DEFAULT_BOUNDS, Bounds
from sbp_core.rangeserver.hosted_ranges import HostedRange
from sbp_core.rangeserver.hosting import DriverPort, RangeHost
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace, SpaceFreer
from sbp_core.rangeserver.housekeeping.retention import (
    ClockNote,
    Held,
    Retention,
    SteadyTime,
    expired_below,
)
from sbp_core.server.runtime import Clock, LogTally, cancel_all

_LOG: Final = logging.getLogger(__name__)
_LOG_INTERVAL_MS: Final = 1_800_000
"""Pause between two log lines about retention, or about the cleaner."""


class Housekeeping:
    """Runs from its construction until `stop`, one round every `interval_ms`.

    A round comes sooner after a trim or deletion, and while the disk is short of space.
    """

    def __init__(
        self,
        host: RangeHost,
        log: Log,
        source: DriverPort,
        freer: SpaceFreer,
        sweep: StagedSweep,
        *,
        disk_space: DiskSpace,
        clock: Clock,
        interval_ms: int,
        clock_note: ClockNote,
        measured: Callable[[], Iterable[int]],
        bounds: Bounds = DEFAULT_BOUNDS,
    ) -> None:
        self._host = host
        self._log = log
        self._source = source
        self.freer = freer
        self.cleaned = Cleaned()
        """The sum of all rounds since the start."""
        self.trim_count = 0
        """Number of trims by retention since the start."""
        self._clock = clock
        self._retained_at = clock.monotonic()
        """Time of the last successful round of retention by age and size, or of the start."""
        self.stream_bytes: dict[int, int] = {}
        """Bytes in the log of the streams that `measured` returned in the last round."""
        self._measured = measured
        self._measure_at = 0.0
        self._disk_space = disk_space
        self._sweep = sweep
        self._time = SteadyTime(
            clock, log.recovery.newest_ms, even_ms=bounds.clock_even_ms, note=clock_note
        )
        self._interval_ms = interval_ms
        self._bounds = bounds
        self._cleaned_count = -1
        """`RangeHost.removal_count` at the last cleaning."""
        self._trims = LogTally(clock, _LOG_INTERVAL_MS)
        self._cleanings = LogTally(clock, _LOG_INTERVAL_MS)
        self._thread: Final = ThreadPoolExecutor(1, thread_name_prefix="sbp-log-cleaner")
        self._task = asyncio.create_task(self._run())

    @property
    def overdue_seconds(self) -> float:
        """How long a round of retention by age has been overdue, or 0."""
        due_at = self._retained_at + self._interval_ms / 1000
        return max(0.0, self._clock.monotonic() - due_at)

    async def stop(self) -> None:
        """Stop; a segment that is being cleaned stays as it was."""
        self.freer.stop()
        await cancel_all([self._task])
        await asyncio.to_thread(self._thread.shutdown)

    async def _run(self) -> None:
        await self._look_at_clock()
        if not self._disk_space.is_short:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._thread, self.freer.keep_reserve)
            await self._disk_space.refresh()
        try:
            await self._find_retentions()
        except SbpError as error:
            _LOG.warning("streams not compared with the placement driver: %s", error)
        while True:
            await self._pause()
            now_ms = await self._look_at_clock()
            try:
                await self._retain(now_ms)
            except SbpError as error:
                _LOG.warning("retention not applied: %s", error)
            await self._measure()
            try:
                if now_ms is not None:
                    await self._sweep.sweep(now_ms)
            except SbpError as error:
                _LOG.warning("dead transactions not dropped: %s", error)
            try:
                await self._clean()
            except LogError as error:
                _LOG.error("disk space not freed: %s", error)
            except Exception:  # noqa: BLE001 - records must be trimmed and freed in the next round
                _LOG.exception("disk space not freed: unexpected error")

    async def _pause(self) -> None:
        """Wait for the next round: only briefly while the disk is short of space.

        Each step reads the clock, so that its time is remembered even if rounds are rare.
        """
        waited_ms = 0
        while waited_ms < self._interval_ms:
            step_ms = min(self._interval_ms - waited_ms, self._bounds.short_check_interval_ms)
            await asyncio.sleep(step_ms / 1000)
            waited_ms += step_ms
            is_due = self._has_removals and waited_ms >= self._bounds.removal_interval_ms
            if is_due or self._disk_space.is_short:
                return
            await self._look_at_clock()

    async def _look_at_clock(self) -> int | None:
        """Read the clock as `SteadyTime` does, on the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._time.maybe_now_ms)

    async def _retain(self, now_ms: int | None) -> None:
        table = self._host.table
        found = await self._find_retentions()
        limited = {each: kept for each, kept in found.items() if not kept.is_for_ever}
        if not limited:
            self._retained_at = self._clock.monotonic()
            return
        streams = [(table.ranges_of(stream_id), kept) for stream_id, kept in limited.items()]
        offsets = await asyncio.get_running_loop().run_in_executor(
            self._thread, self._expired, streams, now_ms
        )
        trimmed = await asyncio.gather(*(self._trim(*each) for each in offsets.items()))
        if any(trimmed) and (counts := self._trims.add(sum(trimmed))):
            _LOG.info("streams trimmed by retention count=%d", *counts)
        if all(trimmed) and now_ms is not None:
            self._retained_at = self._clock.monotonic()
        await self._report(list(limited))

    async def _measure(self) -> None:
        """Measure the bytes of streams; a stream that cannot be read is left out."""
        now = self._clock.monotonic()
        if now < self._measure_at:  # rounds that come early are about disk space
            return
        self._measure_at = now + self._interval_ms / 1000
        ranges: dict[int, list[HostedRange]] = {}
        for each in self._measured():
            with suppress(SbpError):
                ranges[each] = self._host.table.ranges_of(each)

        def sizes() -> Iterator[tuple[int, int]]:
            for stream_id, held in ranges.items():
                with suppress(LogError):
                    yield stream_id, self._size_of(held)

        loop = asyncio.get_running_loop()
        self.stream_bytes = await loop.run_in_executor(self._thread, lambda: dict(sizes()))

    def _size_of(self, ranges: Iterable[HostedRange]) -> int:
        return sum(self._log.bytes_from(each.key, each.start_offset) for each in ranges)

    async def _find_retentions(self) -> dict[int, Retention]:
        """Return the retention of streams; streams whose ids the PD gave to others are refused."""
        table = self._host.table
        live = table.live_streams()
        found = await self._source.find_retentions(live) if live else {}
        return {
            each: kept for each, kept in found.items() if table.is_own(each, kept.created_at_ms)
        }

    def _expired(
        self,
        streams: Sequence[tuple[list[HostedRange], Retention]],
        now_ms: int | None,
    ) -> dict[int, int]:
        """Return the new start of each stream that must be trimmed. Runs on the thread.

        While the clock is not believed, nothing is trimmed for its age.
        """
        offsets: dict[int, int] = {}
        for ranges, retention in streams:
            kept = replace(retention, period_ms=0) if now_ms is None else retention
            try:
                offset = self._expired_below(ranges, kept, now_ms or 0)
            except LogError as error:
                _LOG.error("stream not trimmed stream=%d: %s", ranges[0].stream_id, error)
                continue
            if offset > ranges[0].start_offset:
                offsets[ranges[0].stream_id] = offset
        return offsets

    def _expired_below(
        self, ranges: Sequence[HostedRange], retention: Retention, now_ms: int
    ) -> int:
        size_bytes = 0
        if retention.size_bytes:
            size_bytes = self._size_of(ranges)
        held = Held(ranges[0].start_offset, ranges[-1].next_offset, size_bytes)
        batches = itertools.chain.from_iterable(
            self._log.batches_from(each.key, each.start_offset) for each in ranges
        )
        return expired_below(held, batches, retention, now_ms)

    async def _trim(self, stream_id: int, offset: int) -> bool:
        """Trim a stream; return whether that succeeded."""
        try:
            await self._host.trim(stream_id, offset)
        except SbpError as error:
            _LOG.warning("stream not trimmed stream=%d offset=%d: %s", stream_id, offset, error)
        else:
            self.trim_count += 1
            _LOG.debug("stream trimmed by retention stream=%d start_offset=%d", stream_id, offset)
            return True
        return False

    async def _report(self, stream_ids: Sequence[int]) -> None:
        """Report the starts of streams that are higher than the placement driver knows."""
        offsets: dict[int, int] = {}
        for key, placed in (await self._source.list_hosted_ranges(stream_ids)).items():
            hosted = self._host.table.maybe_range(key)
            if hosted is not None and hosted.start_offset > placed.stream_range.start_offset:
                offsets[key[0]] = max(offsets.get(key[0], 0), hosted.start_offset)
        if offsets:
            await self._source.report_trims(offsets)

    @property
    def _has_removals(self) -> bool:
        """Whether something was trimmed or deleted since the last cleaning."""
        return self._host.removal_count != self._cleaned_count

    async def _clean(self) -> None:
        loop = asyncio.get_running_loop()
        await self._disk_space.refresh()
        free = partial(
            self.freer.free,
            is_short=self._disk_space.is_short,
            has_removals=self._has_removals,
        )
        removal_count = self._host.removal_count  # read first: removals from here on count later
        cleaned = await loop.run_in_executor(self._thread, free)
        self._cleaned_count = removal_count
        await self._disk_space.refresh()
        self.cleaned += cleaned
        done = cleaned.freed_bytes, cleaned.removed_count, cleaned.rewritten_count
        if any(done) and (sums := self._cleanings.add(*done)):
            _LOG.info("log cleaned freed_bytes=%d removed_segments=%d rewritten_segments=%d", *sums)


class LogNotes:
    """Writes the high-water mark of the log at intervals (log/boundaries.py), until `stop`.

    Appends never wait for it.
    """

    def __init__(self, high_water: HighWaterKeeper) -> None:
        self._high_water = high_water
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop after the mark that is being written."""
        await cancel_all([self._task])

    async def _run(self) -> None:
        is_failing = False
        while True:
            await asyncio.sleep(limits.HIGH_WATER_INTERVAL_MS / 1000)
            if not self._high_water.is_due:
                continue
            try:
                await asyncio.to_thread(self._high_water.note)
                is_failing = False
            except LogWriteError as error:
                if not is_failing:
                    _LOG.warning("synced position not noted: %s", error)
                is_failing = True
