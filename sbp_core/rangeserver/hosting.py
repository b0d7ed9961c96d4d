"""The ranges of this server: look them up at the placement driver, log them, serve them.

A range that the table does not know is looked up at the placement driver (LIST_RANGES for this
server) and written to the log before it is used. Requests for the same stream share one look-up. An
announcement (SYNC_RANGES) only starts a look-up early: any peer can send one, so it is not trusted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from math import inf
from typing import Final, Protocol

from sbp_core.errors import (
    LogCorruptionError,
    OffsetOutOfRangeError,
    RangeSealedError,
    SbpError,
    invalid,
)
from sbp_core.failpoints import failpoint
from sbp_core.log.entry import Entry
from sbp_core.log.states.range_states import LoggedRange, RangeKey, RangeState, range_created
from sbp_core.log.states.replicated_entries import fenced_entry
from sbp_core.log.states.writer_states import WriterStates, decode_writers, encode_writers
from sbp_core.rangeserver.appending.commit import GroupCommitter
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput, RangeTable
from sbp_core.rangeserver.housekeeping.retention import Retention
from sbp_core.rangeserver.replicating.primary import PrimaryRanges, RangeMembers
from sbp_core.rangeserver.replicating.settled_ranges import SettledRanges
from sbp_core.segment_format import EntryKind
from sbp_core.tls import Tls
from sbp_core.wire.headers import SealCause, StreamRange, TxnPart


class StreamWaiters:
    """Waiting FETCHes by stream. A commit to the stream wakes them."""

    def __init__(self) -> None:
        self._events: dict[int, set[asyncio.Event]] = {}
        self.is_closing = False
        """Whether the server drains, so that no call may wait any longer."""

    @contextmanager
    def watch(self, stream_ids: Iterable[int]) -> Iterator[asyncio.Event]:
        """Yield an event that `notify` of these streams and `close` set."""
        event = asyncio.Event()
        watched = set(stream_ids)
        for stream_id in watched:
            self._events.setdefault(stream_id, set()).add(event)
        try:
            yield event
        finally:
            for stream_id in watched:
                events = self._events[stream_id]
                events.discard(event)
                if not events:
                    del self._events[stream_id]

    def notify(self, stream_id: int) -> None:
        """Wake the FETCHes that wait for a stream."""
        for event in self._events.get(stream_id, ()):
            event.set()

    def close(self) -> None:
        """Wake all FETCHes, now and later: they are answered with what there is."""
        self.is_closing = True
        for event in chain.from_iterable(self._events.values()):
            event.set()


_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PlacedRange:
    """A range placed on this server, and the writers before it, empty if unknown."""

    stream_range: StreamRange
    writers: bytes = b""


class DriverPort(Protocol):
    """The requests of a range server to the placement driver. All methods raise SbpError."""

    async def list_hosted_ranges(self, stream_ids: Sequence[int]) -> dict[RangeKey, PlacedRange]:
        """Return the ranges of these streams that are placed on this server."""

    async def list_ranges(self, stream_id: int) -> list[StreamRange]:
        """Return all ranges of a stream, in order."""

    async def find_retentions(self, stream_ids: Sequence[int]) -> dict[int, Retention]:
        """Return the retention of these streams; unknown streams are left out."""

    async def report_trims(self, offsets: Mapping[int, int]) -> None:
        """Record that streams begin at these offsets."""

    async def find_dead(self, parts: Sequence[TxnPart]) -> list[TxnPart]:
        """Return the parts that will never be published."""

    async def announce_leaving(self) -> None:
        """Ask for no new ranges on this server, which is about to stop."""

    async def ask_to_seal(self, ranges: Sequence[RangeKey], cause: SealCause) -> set[int]:
        """Ask to seal ranges, so that streams go on in new ones; return the streams that do not."""

    @property
    def server_id(self) -> int:
        """The id of this server."""


class RangeHost:
    """The ranges of this server."""

    def __init__(
        self,
        table: RangeTable,
        committer: GroupCommitter,
        waiters: StreamWaiters,
        placement: DriverPort,
        writers: WriterStates,
        *,
        tls: Tls | None = None,
    ) -> None:
        self._settled = SettledRanges(placement, tls)
        self.primary = PrimaryRanges(
            self._show, lambda: placement.server_id, self._find_servers, self._settled, tls
        )
        """The replicated ranges that this process leads."""
        self.on_ended: Callable[[Sequence[StreamRange]], None] = lambda _: None
        """Called with replicated ranges whose ends are decided."""
        self.half_sealed: set[RangeKey] = set()
        """Ranges that are sealed here and open at the placement driver, which was stopped in
        between. Their streams have no range that accepts appends."""
        self._to_lead: dict[RangeKey, PlacedRange] = {}
        """Ranges that this process leads when the log has them."""
        self.table = table
        self.removal_count = 0
        """Number of trims and deletions since the start."""
        self.writers = writers
        self._committer = committer
        self._waiters = waiters
        self._placement = placement
        self._lookups: dict[int, asyncio.Task[None]] = {}
        self._known_before: dict[int, int] = {}
        """The last range of each stream whose writers are known. They stay known."""

    def publish(self, ranges: Iterable[LoggedRange]) -> None:
        """Make the changes of a durable group visible, as far as they are committed."""
        for logged in ranges:
            placed = self._to_lead.pop(logged.key, None)
            self.primary.on_durable(logged)
            if placed is not None and logged.state is RangeState.OPEN:
                self._lead(logged, placed)

    def note_committed(self, hosted: HostedRange, offset: int) -> None:
        """Make records of a copy readable that its primary reports as committed."""
        if self.table.note_committed(hosted, offset):
            self._waiters.notify(hosted.stream_id)

    def check_secondary(self, hosted: HostedRange) -> None:
        """Raise RangeSealedError or InvalidRequestError unless another server may send entries.

        The range must be open, and led by another server.
        """
        if hosted.state is not RangeState.OPEN:
            raise RangeSealedError.of(
                f"range {hosted.range_index} of stream {hosted.stream_id} is"
                f" {hosted.state.value} here; its primary accepts no entries any more"
            )
        if not hosted.is_replicated or hosted.is_led:
            raise invalid(
                f"range {hosted.range_index} of stream {hosted.stream_id} is not a copy of another"
                " server's"
            )

    def may_drop(self, stream_id: int, range_index: int) -> bool:
        """Whether staged batches of a range may be dropped here.

        While a replicated range is open only its primary may drop, afterwards each server.
        """
        hosted = self.table.maybe_range((stream_id, range_index))
        if hosted is None or not hosted.is_replicated:
            return True
        is_led = hosted.is_led and hosted.state is RangeState.OPEN
        return is_led or hosted.end_offset is not None

    def _show(self, logged: LoggedRange) -> None:
        """Make the state of a range visible, and wake the FETCHes that wait for it."""
        self.table.publish(logged)
        self._waiters.notify(logged.stream_id)

    def _lead(self, logged: LoggedRange, placed: PlacedRange) -> None:
        """Become the primary of a range. Its first entry has the writers before it."""
        where = placed.stream_range
        members = RangeMembers(self._others_of(where), where.ack_count)
        hosted = self.table.maybe_range(logged.key)
        assert hosted is not None
        hosted.is_led = True
        self.primary.lead(logged, members)
        writers = placed.writers
        if logged.range_index > 0 and self.knows_writers(*logged.key):
            writers = encode_writers(self.writers.writers_of(logged.stream_id))
        if writers:
            self._committer.submit(self._writers_entry(where, writers))

    def _others_of(self, where: StreamRange) -> tuple[str, ...]:
        """Return the addresses of the other servers of a range."""
        return tuple(
            replica.server.advertise_addr or ""
            for replica in where.servers
            if replica.server is not None and replica.server.server_id != self._placement.server_id
        )

    async def _find_servers(self, key: RangeKey) -> tuple[str, ...]:
        """Return the addresses of the other servers that have a range now."""
        placed = (await self._placement.list_hosted_ranges([key[0]])).get(key)
        return () if placed is None else self._others_of(placed.stream_range)

    async def learn(self, wanted: Iterable[RangeKey], *, is_append: bool = False) -> None:
        """Look up the ranges among `wanted` that are not known here.

        Range index -1 means any range of the stream; `is_append` asks for an open range. Returns
        without a turn of the event loop if all are known. Raises nothing for a range that stays
        unknown: the request for it is refused.
        """

        def lacking(keys: Iterable[RangeKey]) -> list[RangeKey]:
            return [each for each in keys if self.table.lacks(*each, is_append=is_append)]

        unknown = lacking(wanted)
        if not unknown:
            return
        stream_ids = {stream_id for stream_id, _ in unknown}
        pending = self._lookups_of(stream_ids)
        # A look-up may be for many streams, and its commit publishes ranges before its task ends:
        # so wait for changes as well.
        with self._waiters.watch(stream_ids) as changed:
            while pending and lacking(unknown):
                changed.clear()
                announced = asyncio.create_task(changed.wait())
                try:
                    done, _ = await asyncio.wait(
                        {*pending, announced}, return_when=asyncio.FIRST_COMPLETED
                    )
                finally:
                    announced.cancel()
                pending = {task for task in pending if task not in done}

    def look_up_soon(self, stream_id: int) -> None:
        """Look up a stream in the background."""
        self._lookups_of([stream_id])

    def look_up_ended(self, announced: Iterable[StreamRange]) -> None:
        """Look up copies in the background that are announced as ended."""
        for where in announced:
            if self._is_ended(where):
                self.look_up_soon(where.stream_id)

    def knows_writers(self, stream_id: int, range_index: int) -> bool:
        """Whether the writers before a range of a stream are known here.

        There are none before the first range. For another range the range before must be here with
        known writers, or the placement driver has sent them.
        """
        first = max(self.writers.known_from(stream_id), self._known_before.get(stream_id, 0))
        if not self.writers.is_known(stream_id):
            return False
        is_known = self.table.has_whole_ranges(stream_id, range(first, range_index))
        if is_known and range_index > first:
            self._known_before[stream_id] = range_index
        return is_known

    def final_below(self, latest: HostedRange, *, has_writers: bool) -> float:
        """Return the offset below which no logged batch of a stream can be truncated any more.

        A copy that is not settled may have entries that were never committed. With `has_writers`
        the ranges before `latest` are settled here, or do not matter.
        """
        ranges = [latest] if has_writers else self.table.ranges_of(latest.stream_id)
        return min((each.next_offset for each in ranges if each.is_incomplete_copy), default=inf)

    def may_acknowledge(
        self, stream_id: int, *, range_index: int | None = None, offset: int = -1
    ) -> bool:
        """Whether the repeat of an entry in a range, or at an offset, may be acknowledged.

        Entries of an open range here are committed. Entries of an ended range may be on too few
        disks. If that is unknown, it is looked up in the background.
        """
        ranges = self.table.ranges_of(stream_id)
        if not ranges[-1].is_replicated:
            return True
        for each in ranges:
            if each.range_index == range_index or each.start_offset <= offset < each.next_offset:
                is_open = each is ranges[-1] and each.state is RangeState.OPEN
                if is_open or not each.is_replicated:
                    return True
        return self._settled.has(stream_id, range_index=range_index, offset=offset)

    def writers_at_end(self, sealed: HostedRange) -> bytes:
        """Return the bytes of the writers at the end of a sealed range.

        Empty if they are unknown, or if the range is not the last range here.
        """
        is_last = self.table.range_at(sealed.stream_id, -1) is sealed
        if not is_last or not self.knows_writers(*sealed.key):
            return b""
        return encode_writers(self.writers.writers_of(sealed.stream_id))

    async def seal(self, stream_id: int, range_index: int) -> HostedRange:
        """Seal a known range; return it when the seal is durable. A seal is final.

        A replicated range is fenced instead: it accepts nothing more, and is sealed when it is
        settled. Raises RangeNotFoundError, NotFoundError, LogWriteError.
        """
        hosted = self.table.range_at(stream_id, range_index)
        if hosted.is_replicated:
            await self._fence(hosted)
            return hosted
        self.table.move(hosted, RangeInput.SEAL)
        failpoint("range.before_seal")
        seal = Entry(EntryKind.SEAL, stream_id, hosted.range_index, hosted.assigned_offset, 0)
        await self._committer.submit([seal])
        failpoint("range.after_seal")
        return hosted

    async def _fence(self, hosted: HostedRange) -> None:
        """Fence a range; return when the fence, and everything accepted before, is durable."""
        if hosted.state is RangeState.OPEN:
            self.table.move(hosted, RangeInput.FENCE)
            failpoint("range.before_fence")
            await self._committer.submit([fenced_entry(hosted.key)])
            failpoint("range.after_fence")
        else:
            await self._committer.submit([])  # done behind everything that was submitted before

    async def delete(self, stream_id: int) -> None:
        """Delete a stream durably, and refuse it from now on. Raises RangeNotFoundError."""
        self.removal_count += 1
        for hosted in self.table.ranges_of(stream_id):
            self.table.move(hosted, RangeInput.DELETE)
        self._waiters.notify(stream_id)
        await self._committer.submit([Entry(EntryKind.STREAM_DELETED, stream_id, -1, 0, 0)])

    async def trim(self, stream_id: int, offset: int) -> HostedRange:
        """Trim a stream to `offset`, durably; return the first range with records.

        All known ranges of the stream are trimmed. The cleaner frees their batches later. Raises
        RangeNotFoundError, NotFoundError, LogWriteError, OffsetOutOfRangeError for an offset beyond
        the tail of the open range.
        """
        ranges = self.table.ranges_of(stream_id)
        last = ranges[-1]
        last.receive(RangeInput.TRIM)
        is_copy = last.is_replicated and not last.is_led
        if last.end_offset is None and not is_copy and offset > last.next_offset:
            start_offset, next_offset = self.table.bounds_of(stream_id)
            raise OffsetOutOfRangeError.of(
                f"trim_offset {offset} of stream {stream_id} is beyond its tail, {next_offset};"
                " nothing of this stream was trimmed",
                OffsetOutOfRangeError.encode_bounds(start_offset, next_offset),
            )
        if any(each.start_offset < min(offset, each.next_offset) for each in ranges):
            self.removal_count += 1
            await self._committer.submit([Entry(EntryKind.TRIM, stream_id, -1, offset, 0)])
        return next((each for each in ranges if each.start_offset < each.next_offset), last)

    async def confirm(self, announced: Iterable[StreamRange]) -> None:
        """Look up announced streams whose ids may belong to other streams here; wait for that."""
        doubtful = {
            each.stream_id
            for each in announced
            if self.table.may_be_another(each.stream_id, each.created_at_ms)
        }
        if doubtful:
            await asyncio.wait(self._lookups_of(doubtful))

    def _lookups_of(self, stream_ids: Collection[int]) -> set[asyncio.Task[None]]:
        """Return the look-ups of streams. Begins one for streams that are not looked up already."""
        fresh = [stream_id for stream_id in stream_ids if stream_id not in self._lookups]
        if fresh:
            task = asyncio.create_task(self._look_up(fresh))
            self._lookups.update(dict.fromkeys(fresh, task))
        return {self._lookups[stream_id] for stream_id in stream_ids}

    async def _look_up(self, stream_ids: Sequence[int]) -> None:
        try:
            listed = await self._placement.list_hosted_ranges(stream_ids)
            found = {key: each for key, each in listed.items() if self._is_own(each.stream_range)}
            entries = [
                entry
                for each in found.values()
                if self._continues(each.stream_range, found)
                for entry in self._news_of(each)
            ]
            if entries:
                await self._committer.submit(entries)
            ranges = [each.stream_range for each in found.values()]
            self._note_half_sealed(ranges)
            self.on_ended(list(filter(self._is_ended, ranges)))
        except SbpError as error:
            _LOG.warning("range look-up failed streams=%d error=%s", len(stream_ids), error)
        finally:
            for stream_id in stream_ids:
                self._lookups.pop(stream_id, None)

    def _is_own(self, where: StreamRange) -> bool:
        return self.table.is_own(where.stream_id, where.created_at_ms)

    def _note_half_sealed(self, listed: Iterable[StreamRange]) -> None:
        for where in listed:
            hosted = self.table.maybe_range((where.stream_id, where.range_index))
            if hosted is not None:
                is_half = where.end_offset < 0 and hosted.state is RangeState.SEALED
                (self.half_sealed.add if is_half else self.half_sealed.discard)(hosted.key)

    def _continues(self, where: StreamRange, listed: Mapping[RangeKey, PlacedRange]) -> bool:
        """Whether a new range starts where the range before it ends, if that end is known.

        The log here has precedence over what is `listed`. A range that starts elsewhere is not
        hosted: records would be lost, or offsets assigned twice.
        """
        if where.end_offset >= 0 or self.table.has_range(where.stream_id, where.range_index):
            return True
        before = (where.stream_id, where.range_index - 1)
        end_offset = listed[before].stream_range.end_offset if before in listed else -1
        here = self.table.maybe_range(before)
        if here is not None and here.end_offset is not None:
            end_offset = here.end_offset
        if end_offset in {-1, where.start_offset}:
            return True
        _LOG.error(
            "range not hosted stream=%d range=%d start=%d: range %d before it ends at %d; the"
            " metadata of the placement driver and this server's log contradict each other",
            *(where.stream_id, where.range_index, where.start_offset, before[1], end_offset),
        )
        return False

    def _is_ended(self, where: StreamRange) -> bool:
        """Whether a replicated range has ended, and is not settled here."""
        hosted = self.table.maybe_range((where.stream_id, where.range_index))
        return where.end_seq >= 0 and hosted is not None and hosted.end_offset is None

    def _news_of(self, placed: PlacedRange) -> Iterator[Entry]:
        """Yield the entries that the log lacks of a range: its creation, and the writers before it.

        An ended range is new here if this server is to get a copy. A replicated range gets the
        writers from its primary. This process is the primary if this server is listed first and the
        range is new here. A range that is in the log since before the start has no primary.
        """
        where = placed.stream_range
        is_copy = where.end_seq >= 0
        if where.end_offset >= 0 and not is_copy:
            return
        key = (where.stream_id, where.range_index)
        is_replicated = is_copy or len(where.servers) > 1
        if not self.table.has_range(*key):
            if is_replicated and not is_copy and self.is_first(where):
                self._to_lead[key] = placed
            yield range_created(
                *key, where.start_offset, where.created_at_ms, is_replicated=is_replicated
            )
        hosted = self.table.maybe_range(key)
        is_led = hosted is not None and hosted.is_led and hosted.state is RangeState.OPEN
        is_here = not is_replicated or is_led
        if placed.writers and is_here and not is_copy and not self.knows_writers(*key):
            yield from self._writers_entry(where, placed.writers)

    def is_first(self, where: StreamRange) -> bool:
        """Whether this server is listed first of a range: its primary, if it has one."""
        first = where.servers[0].server
        return first is not None and first.server_id == self._placement.server_id

    def _writers_entry(self, where: StreamRange, writers: bytes) -> list[Entry]:
        """Return the entry with the writers before a range, none if their bytes are invalid."""
        key = (where.stream_id, where.range_index)
        try:
            count = len(decode_writers(writers))
        except LogCorruptionError as error:
            _LOG.error(
                "writers from the placement driver ignored stream=%d error=%s", key[0], error
            )
            return []
        return [Entry(EntryKind.RANGE_WRITERS, *key, where.start_offset, count, writers)]
