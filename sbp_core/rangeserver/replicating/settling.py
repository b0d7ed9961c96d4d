"""Settle the copies of ended ranges, and end ranges without a primary.

A range ends when the placement driver has decided its entries: their number and digest. A copy with
other entries is settled here: a shorter copy reads what it lacks from another server (copying.py),
a longer copy is truncated, because its last entries were never committed. Then the range is sealed
here, and all of it becomes readable.

The decision is looked up when the placement driver announces it, and at intervals while there are
fenced ranges. If this server was the primary of a replicated range that is open in the log at the
start, the range has no primary any more: the placement driver is asked to end it. It is also asked
to end a range that was sealed here, if it was stopped before it stored the seal.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from sbp_core import limits
from sbp_core.errors import DeadlineExceededError, SbpError, TransportError
from sbp_core.log.durable_log import Log
from sbp_core.log.states.range_states import LoggedRange, RangeKey, RangeState
from sbp_core.log.states.replicated_entries import copied_entry, copy_begun_entry
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.hosted_ranges import HostedRange
from sbp_core.rangeserver.hosting import DriverPort, RangeHost
from sbp_core.rangeserver.housekeeping.disk_space import DiskSpace
from sbp_core.rangeserver.replicating.copying import Copier
from sbp_core.rangeserver.replicating.scrubbing import Scrubber
from sbp_core.rangeserver.replicating.secondary import Secondary
from sbp_core.replication import Prefix
from sbp_core.server.runtime import cancel_all
from sbp_core.tls import Tls
from sbp_core.wire.headers import SealCause, StreamRange

_LOG: Final = logging.getLogger(__name__)
_ROUND_SECONDS: Final = 10
"""Pause between look-ups of open copies, because an isolated server may miss an end."""
_HAND_OVER_SECONDS: Final = 3
"""Longest wait of a stopping server until its streams go on at other servers."""
_HAND_OVER_STEP_SECONDS: Final = 0.02
_UNREACHABLE_MS_MAX: Final = 2_000
"""The longest backoff while the server that has the entries is down. It is short, because appends
and commits may wait for them."""
_NEVER: Final = (0.0, 0.0)
"""The retry time of what never failed."""


class Settler:
    """Settles the ended ranges of this server, from its construction until `stop`."""

    def __init__(
        self,
        host: RangeHost,
        log: Log,
        committer: GroupCommitter,
        secondary: Secondary,
        driver: DriverPort,
        *,
        disk_space: DiskSpace,
        readers: ThreadPoolExecutor,
        scrub_bytes_per_s: int,
        tls: Tls | None = None,
    ) -> None:
        self._host = host
        self._log = log
        self._committer = committer
        self._copier = Copier(
            *(log, committer, secondary, lambda: driver.server_id, tls), admit=disk_space.admit
        )
        self.scrubber = Scrubber(host, log, self._copier, driver, bytes_per_s=scrub_bytes_per_s)
        self._driver = driver
        self._disk_space = disk_space
        self._readers = readers
        self._loop = asyncio.get_running_loop()
        self._at_work: dict[RangeKey, asyncio.Task[None]] = {}
        self._failures: dict[RangeKey, tuple[float, float]] = {}
        """Next attempt and last backoff in seconds, by range that could not be settled."""
        self._next_round = 0.0
        self._unlisted: dict[RangeKey, tuple[float, float]] = {}
        """The same for ranges that the placement driver does not list: they were trimmed."""
        self._asked_at: dict[RangeKey, float] = {}
        """Time of the last request to end a range."""
        self._inherited = {each.key for each in host.table.replicated() if not each.is_led}
        """Ranges in the log since before the start that this server may have led."""
        self._damaged = {
            each.key
            for each in log.ranges()
            if each.state is RangeState.SEALED and not each.is_whole
        }
        """Settled copies with damaged entries at the start. They are settled again."""
        self._polling = self._loop.create_task(self._keep_polling())
        host.on_ended = self.settle_soon

    def settle_soon(self, ended: Sequence[StreamRange]) -> None:
        """Settle ended ranges in the background."""
        for where in ended:
            key = (where.stream_id, where.range_index)
            try_at, _ = self._failures.get(key, _NEVER)
            if key not in self._at_work and self._loop.time() >= try_at:
                task = self._loop.create_task(self._try_to_settle(where))
                self._at_work[key] = task
                task.add_done_callback(partial(self._on_done, key))

    def _on_done(self, key: RangeKey, task: asyncio.Task[None]) -> None:
        del self._at_work[key]
        if not task.cancelled():
            task.exception()

    async def hand_over(self) -> None:
        """Let streams go on at other servers before this server stops.

        Waiting appends are acknowledged when the ends of their ranges are decided, and enough other
        servers have settled. The timeout is for a single server, or a placement driver that is
        down.
        """
        primary = self._host.primary
        if not self._host.table.replicated() and not primary.unsettled_count:
            return
        # The next poll would find the ranges fenced, and ask to end them before the other servers
        # have all entries.
        await cancel_all([self._polling])
        try:
            async with asyncio.timeout(_HAND_OVER_SECONDS):
                await self._driver.announce_leaving()
                led = primary.led()
                await self._complete_others(led)
                refused = await self._driver.ask_to_seal(led, SealCause.REQUESTED) if led else set()
                while primary.unsettled_count or any(
                    stream_id not in refused for stream_id, _ in primary.led()
                ):
                    await self._poll()
                    await asyncio.sleep(_HAND_OVER_STEP_SECONDS)
        except (SbpError, TimeoutError) as error:
            left = len(primary.led()) + primary.unsettled_count
            _LOG.warning("ranges not handed over ranges=%d: %s", left, error or "timeout")
        else:
            if count := len(led) - len(refused):
                _LOG.info("ranges handed over ranges=%d", count)

    async def _complete_others(self, led: Sequence[RangeKey]) -> None:
        """Fence the ranges led here, and wait until the other servers have all their entries.

        Otherwise a range could end with entries that only this server has, until it is back. Or
        with less than is here: then appends would wait until the log is read to truncate the rest.
        """
        await asyncio.gather(*(self._host.seal(*key) for key in led))
        await self._host.primary.complete(led, self._host.primary.is_everywhere)

    async def stop(self) -> None:
        """Stop; the next start settles the rest."""
        await cancel_all([self._polling, *self._at_work.values()])
        await self.scrubber.stop()
        await self._copier.stop()

    async def _keep_polling(self) -> None:
        """Look up decided ends, and ask to end ranges, until cancelled."""
        while True:
            try:
                await self._poll()
            except SbpError as error:
                _LOG.warning("ends of ranges cannot be looked up now: %s", error)
            except Exception:  # noqa: BLE001 - copies must be settled after the next poll
                _LOG.exception("ends of ranges not looked up: unexpected error")
            await asyncio.sleep(limits.REPLICA_CHECK_INTERVAL_MS / 1000)

    async def _poll(self) -> None:
        troubled = set(self._host.primary.troubled(is_full=self._disk_space.is_refusing))
        now = self._loop.time()
        is_round = now >= self._next_round
        if is_round:
            self._next_round = now + _ROUND_SECONDS
        undecided = [
            hosted
            for hosted in self._host.table.replicated()
            if (self._has_no_primary(hosted) and now >= self._unlisted.get(hosted.key, _NEVER)[0])
            or is_round
            or hosted.key in troubled
        ]
        if is_round:
            damaged = (self._host.table.maybe_range(key) for key in self._damaged)
            undecided += [hosted for hosted in damaged if hosted is not None]
        asked = {
            key for key, at in self._asked_at.items() if 1000 * (now - at) < limits.SEAL_AGAIN_MS
        }
        wanted = dict.fromkeys(self._host.half_sealed, SealCause.REQUESTED)
        if undecided:
            wanted |= await self._without_primary(undecided, troubled, now)
        for cause in SealCause:
            left = sorted(key for key in wanted if wanted[key] is cause and key not in asked)
            self._asked_at |= dict.fromkeys(left, now)
            if left:
                refused = await self._driver.ask_to_seal(left, cause)
                self._host.half_sealed -= {key for key in left if key[0] not in refused}

    async def _without_primary(
        self, undecided: Sequence[HostedRange], troubled: Collection[RangeKey], now: float
    ) -> dict[RangeKey, SealCause]:
        """Settle ended ranges; return the ranges to end for this server, with the cause."""
        placed = await self._driver.list_hosted_ranges(
            list(dict.fromkeys(each.stream_id for each in undecided))
        )
        known = [
            (hosted, placed[hosted.key].stream_range)
            for hosted in undecided
            if hosted.key in placed
        ]
        missing = [hosted for hosted in undecided if hosted.key not in placed]
        kept = {hosted.key for hosted in self._host.table.replicated()} - placed.keys()
        self._unlisted = {key: at for key, at in self._unlisted.items() if key in kept} | {
            each.key: _later(now, self._unlisted.get(each.key, _NEVER)[1]) for each in missing
        }
        self._inherited &= {hosted.key for hosted, each in known if self._host.is_first(each)}
        self.settle_soon([each for _, each in known if each.end_seq >= 0])
        led = [hosted for hosted, each in known if each.end_seq < 0 and self._host.is_first(each)]
        causes: dict[RangeKey, SealCause] = {}
        for hosted in led:
            if self._has_no_primary(hosted):
                causes[hosted.key] = SealCause.PRIMARY_SILENT
            elif hosted.key in troubled:
                causes[hosted.key] = SealCause.REPLICA_LACKING
        await self._end_unlisted([each for each in missing if each.end_offset is None])
        return causes

    async def _end_unlisted(self, missing: Sequence[HostedRange]) -> None:
        """End the copies of ranges that are not listed because they were trimmed away."""
        for stream_id in {each.stream_id: None for each in missing}:
            try:
                first = next(iter(await self._driver.list_ranges(stream_id)), None)
                if first is None or not self._host.table.is_own(stream_id, first.created_at_ms):
                    continue
                for hosted in missing:
                    if hosted.stream_id == stream_id and hosted.range_index < first.range_index:
                        await self._end_trimmed(hosted, first.start_offset)
            except SbpError as error:
                _LOG.warning("copies of trimmed ranges not ended stream=%d: %s", stream_id, error)

    async def _end_trimmed(self, hosted: HostedRange, start_offset: int) -> None:
        """End a copy of a range that was trimmed away before it was settled here. Raises SbpError.

        The placement driver has forgotten where the range ended, and no replica needs the entries
        any more. Unsettled they would stay in the log for good. The copy ends without entries, as
        if its records had been copied after the trim (copying.py). Records behind the trim were
        never committed. Whether an append that waits here was in the range is not known any more.
        """
        if hosted.key in self._at_work:
            return
        await self._host.seal(*hosted.key)
        self._host.primary.give_up(hosted.key)
        logged = self._log.maybe_range(hosted.key)
        if logged is None or not logged.is_whole:
            return
        await self._host.trim(hosted.stream_id, start_offset)
        begun = copy_begun_entry(hosted.key, start_offset)
        ended = copied_entry(hosted.key, start_offset, Prefix())
        await self._committer.submit([begun, ended], copied=hosted.key)
        _LOG.info("copy of a trimmed range ended stream=%d range=%d", *hosted.key)

    def _has_no_primary(self, hosted: HostedRange) -> bool:
        return hosted.state is RangeState.FENCED or hosted.key in self._inherited

    async def _try_to_settle(self, where: StreamRange) -> None:
        hosted = self._host.table.maybe_range((where.stream_id, where.range_index))
        assert hosted is not None
        if hosted.end_offset is not None and hosted.key not in self._damaged:
            return
        try:
            await self._settle(hosted, where)
            if hosted.start_offset < min(where.start_offset, where.end_offset):
                await self._host.trim(where.stream_id, where.start_offset)
        except (SbpError, OSError) as error:
            _, last = self._failures.get(hosted.key, _NEVER)
            is_unreachable = isinstance(error, TransportError | DeadlineExceededError)
            longest_ms = _UNREACHABLE_MS_MAX if is_unreachable else limits.SETTLE_BACKOFF_MS_MAX
            self._failures[hosted.key] = _, wait = _later(self._loop.time(), last, longest_ms)
            _LOG.log(
                logging.WARNING if wait > last else logging.DEBUG,
                "copy not settled stream=%d range=%d retry_in_s=%.1f: %s",
                *(*hosted.key, wait, error),
            )
        else:
            self._damaged.discard(hosted.key)
            self._failures.pop(hosted.key, None)
            self._asked_at.pop(hosted.key, None)
            _LOG.info(
                "copy settled stream=%d range=%d end_offset=%d", *hosted.key, where.end_offset
            )

    async def _settle(self, hosted: HostedRange, where: StreamRange) -> None:
        """Give a copy the entries with which its range ended. Raises SbpError."""
        end = Prefix(where.end_seq, bytes(where.end_digest))
        await self._host.seal(*hosted.key)  # fences it, so that nothing else is appended
        logged = self._log.maybe_range(hosted.key)
        assert logged is not None
        if not logged.is_whole:
            await self._mend(logged, end.seq)
        if logged.seq > end.seq or not logged.is_whole:
            truncation = await self._loop.run_in_executor(
                self._readers, self._log.truncation, hosted.key, where.end_offset, end
            )
            await self._committer.submit([truncation])
            return
        await self._committer.submit([await self._copier.complete(hosted, where)])

    async def _mend(self, logged: LoggedRange, end_seq: int) -> None:
        """Mend the damaged entries of a copy, as far as another replica has them."""
        first = await self._loop.run_in_executor(
            self._readers, self._log.segment_before, logged.key, logged.seq
        )
        extent = self._log.extent
        bases = [each.base for each in (*extent.sealed, extent.active.segment)]
        later = [each for each in bases if each >= first]
        await self.scrubber.mend_range(logged.key, end_seq, later)


def _later(
    now: float, last: float, longest_ms: int = limits.SETTLE_BACKOFF_MS_MAX
) -> tuple[float, float]:
    """Return the next attempt, and the backoff in seconds, which doubles each time."""
    wait = min(max(2 * last, limits.REPLICA_CHECK_INTERVAL_MS / 1000), longest_ms / 1000)
    return now + wait, wait
