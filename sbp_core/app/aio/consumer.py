"""Reading records, for asyncio."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final, Self, cast, get_args

from sbp_core.app import defaults
from sbp_core.app.aio.assignment import AsyncAssignment, locate
from sbp_core.app.aio.fetched import (
    AsyncBatchIterator,
    AsyncFetcher,
    AsyncRecordIterator,
    Hand,
    OnTrimmed,
    hand_out_whole,
)
from sbp_core.app.positions import NO_SPANS, Position, Positions, Selection, Span, Start
from sbp_core.app.process import OfProcess, use_here
from sbp_core.app.record import Batch, Record
from sbp_core.client import AsyncClient, StreamInfo
from sbp_core.client.facades import internal
from sbp_core.errors import ConfigurationError, DeadlineExceededError, MemberUnknownError, SbpError

_LOG: Final = logging.getLogger("sbp_core.app")


class AsyncConsumer(OfProcess):
    """Reads streams, record by record or in batches. Made by `AsyncConnection.consumer`.

    For one task. Records of a stream come in the order of their offsets, each once. With a group
    the consumer begins at the group's cursors, and commits how far it has come: every
    `commit_interval_ms` and at the end, or, if the interval is None, when `commit` is called.
    Records that were not committed when a process was killed are read again: at least once.

    `spans`, by stream id, are the parts of streams to read, wherever the cursor of a group is.

    Consumers that share a group divide its streams: one of them reads a stream at a time. If its
    caller works on a record for longer than `max_poll_interval_ms`, a consumer loses its streams.
    """

    def __init__(
        self,
        client: AsyncClient,
        streams: Sequence[str] | Selection,
        *,
        start: Start = "earliest",
        spans: Mapping[int, Span] = NO_SPANS,
        follow: bool = False,
        commit_interval_ms: int | None = defaults.COMMIT_INTERVAL_MS,
        refresh_interval_ms: int = defaults.REFRESH_INTERVAL_MS,
        fetch_bytes: int = defaults.FETCH_BYTES,
        assignment: AsyncAssignment,
        group: str | None = None,
        on_trimmed: OnTrimmed = "error",
        on_close: Callable[[AsyncConsumer], None] | None = None,
        hand: type[Hand] = AsyncRecordIterator,
    ) -> None:
        self._client = client
        self._selection = streams if isinstance(streams, Selection) else Selection.of(streams)
        if on_trimmed not in get_args(OnTrimmed):
            raise ConfigurationError(
                f"on_trimmed {on_trimmed!r} is not one of {', '.join(get_args(OnTrimmed))}"
            )
        self._assignment = assignment
        self._start = start
        self._spans = spans
        self._is_following = follow
        self._commit_seconds = commit_interval_ms and commit_interval_ms / 1000
        self._refresh_seconds = refresh_interval_ms / 1000
        self._on_close = on_close
        self._positions = Positions()
        self._fetcher = AsyncFetcher(
            client,
            self._positions,
            is_following=follow,
            fetch_bytes=fetch_bytes,
            on_trimmed=on_trimmed,
            group=group,
            is_member=assignment.own_interval_ms is not None,
        )
        self._selected: dict[int, StreamInfo] = {}
        self._found_first: frozenset[int] = frozenset()
        self._is_begun = self._is_closed = self._is_over = False
        self._refusal: ConfigurationError | None = None
        """The error of every use in the child of a fork."""
        self._is_taking = False
        self._make_hand = hand
        self._hand = hand(self, math.inf)
        """The records that are handed out now, by an iterator or by `poll`."""
        self._refresh_at = 0.0
        self._patience_ms = defaults.POLL_PATIENCE_MS
        self._commit_at = self._own_at = math.inf
        """When to commit, and when to ask the assignment for the consumer's streams."""

    def __aiter__(self) -> AsyncRecordIterator:
        """Return an iterator over records, each done when the next one is asked for.

        A consumer has one iterator at a time: an older one raises ConfigurationError. Raises
        ConfigurationError if the consumer is closed.
        """
        return cast("AsyncRecordIterator", self.begin_iteration())

    def batches(self) -> AsyncBatchIterator:
        """Return an iterator over Arrow batches, in place of one over records."""
        return AsyncBatchIterator(self, self.begin_iteration())

    async def poll(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as pollers have
    ) -> Record | None:
        """Return the next record, None if there is none within `timeout` seconds, or at the end.

        The records that were handed out before are done. While servers do not answer, a poll takes
        up to 5 s longer, later up to 30 s, and logs a warning. Raises SbpError.
        """
        self._check_open()
        if timeout is None:
            return await self._take_record(None)
        try:
            async with asyncio.timeout(timeout + self._patience_ms / 1000):
                record = await self._take_record(time.monotonic() + timeout)
            self._patience_ms = defaults.POLL_PATIENCE_MS
            return record
        except TimeoutError:
            # The next poll starts the fetch of this one again, so it needs more time.
            self._patience_ms = min(2 * self._patience_ms, defaults.POLL_PATIENCE_MS_MAX)
            _LOG.warning("poll without an answer streams=%s: a server is down", self._selection)
            return None

    @internal
    def maybe_ready(self) -> Record | None:
        """Return the next record, as `poll` does, if it is in memory and no duty is due."""
        self._check_open()
        if self._is_taking or time.monotonic() >= self._hand.duty_at:
            return None
        self._positions.finish()
        self._hand.are_several = False
        return self._hand.maybe_next()

    async def getone(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - as pollers have
    ) -> Record:
        """Return the next record, as `poll` does. Raises DeadlineExceededError if there is none."""
        record = await self.poll(timeout)
        if record is None:
            raise DeadlineExceededError(
                "the streams are read to their ends"
                if timeout is None
                else f"there was no record within {timeout} s; call again"
            )
        return record

    async def getmany(
        self,
        timeout: float | None = 0,  # noqa: ASYNC109 - as pollers have
        max_records: int = defaults.MANY_RECORDS,
    ) -> list[Record]:
        """Return the next records: all that are in memory once the first one has arrived.

        The list is empty if no record arrives within `timeout` seconds, and at the end. The records
        that were handed out before are done. Raises SbpError.
        """
        first = await self.poll(timeout)
        if first is None:
            return []
        records = [first]
        self._hand.are_several = True
        while len(records) < max_records:
            found = self._hand.maybe_next()
            if found is not None:
                records.append(found)
                continue
            with suppress(SbpError):  # of the next batch: the next call raises the error
                self._hand.turn_to(self._fetcher.maybe_next())
                if self._hand.has_records:
                    continue
            break
        return records

    @property
    def is_waiting(self) -> bool:
        """Whether the caller waits for a record now, and does not work on one."""
        return self._is_taking

    async def commit(
        self,
        offsets: Mapping[str, int] | None = None,
        *,
        expected: Mapping[str, int | None] | None = None,
    ) -> None:
        """Commit all records that were handed out, the last one included. Raises SbpError.

        `offsets`, by stream name, commit only the records before an offset: up to and including the
        record `r` it is `r.offset + 1`. Offsets need a `commit_interval_ms` of None. Raises
        ConfigurationError without a group, with an interval, for a stream that is not being read,
        and for records that were not handed out. Raises MemberUnknownError if the consumer was
        expelled from a shared group: nothing is committed, and others read the records again.

        `expected`, by stream name, are the cursors that the group has to have now; None stands for
        no cursor. Raises ConditionFailedError, with the `current_offset`, for a stream with another
        cursor, which is not committed. If the answer is lost the outcome of the error is UNKNOWN.
        """
        self._check_process()
        if not self._assignment.has_cursors:
            raise ConfigurationError("this consumer has no group to commit for; pass group=...")
        if offsets is not None:
            if self._commit_seconds is not None:
                raise ConfigurationError(
                    "chosen offsets would be overtaken by the commits of commit_interval_ms, of all"
                    " records that were handed out: pass commit_interval_ms=None"
                )
            await self._begin()
            positions = self._positions
            cursors = positions.checked_cursors(expected or {}, offsets)
            await self._commit(positions.checked(offsets), cursors)
            return
        if expected is not None:
            raise ConfigurationError("expected goes with offsets: commit(offsets, expected=...)")
        self._positions.finish()
        await self._commit(self._positions.to_commit())

    async def positions(self) -> dict[str, int]:
        """Return the offset of the next record of each stream, by name."""
        await self._begin()
        return {each.stream: each.next_offset for each in self._positions.all}

    async def lag(self) -> dict[str, int]:
        """Return how many records of each stream, by name, are not handed out yet."""
        await self._begin()
        known = self._positions.all
        bounds = await self._client.stream_bounds([each.stream_id for each in known])
        return {
            at.stream: held.next_offset - max(at.next_offset, held.start_offset)
            for at, held in zip(known, bounds, strict=True)
        }

    async def seek(self, stream: str, to: Start) -> None:
        """Read on elsewhere in a stream. The next commit moves the cursor, too.

        Raises ConfigurationError for a stream that is not being read, OffsetOutOfRangeError for an
        offset that the stream does not have, SbpError.
        """
        await self._begin()
        at = self._positions.of(stream)
        offsets = await locate(self._client, {at.stream_id: at.stream}, to)
        self._positions.seek(at, offsets[at.stream_id])

    async def close(self) -> None:
        """Commit the records that are done, and end. Idempotent. Raises SbpError.

        Nothing is committed if `commit_interval_ms` is None. If the call is cancelled, another call
        goes on with it.
        """
        if self._is_over:
            return
        self._is_closed = self._is_over = True
        self._hand.mark_done()
        self._forget_fetched()
        try:
            if self._refusal is None:
                await self._leave()
        except asyncio.CancelledError:
            self._is_over = False
            raise
        finally:
            if self._is_over and self._on_close is not None:
                self._on_close(self)

    async def _leave(self) -> None:
        try:
            await self._commit_done()
        finally:
            await self._assignment.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @internal
    async def take_record(self, iterator: Hand) -> Record | None:
        """Return the next record for an iterator; None at the end."""
        self._check_current(iterator)
        return await self._take_record(None)

    @internal
    def maybe_batch(self, iterator: Hand) -> Batch | None:
        """Return the next batch, as `take_batch` does, if it is in memory and no duty is due."""
        self._check_current(iterator)
        if self._is_taking or self._hand.has_records or time.monotonic() >= self._hand.duty_at:
            return None
        self._positions.finish()
        return hand_out_whole(self._fetcher.maybe_next())

    @internal
    async def take_batch(self, iterator: Hand) -> Batch | None:
        """Return the next batch for an iterator; None at the end."""
        self._check_current(iterator)
        if self._hand.has_records:  # `poll` took some records of a batch: the rest is read again
            self._forget_fetched()
        async with self._taking():
            return hand_out_whole(await self._next_batch(None))

    @internal
    def begin_iteration(self) -> Hand:
        """Hand out records to another iterator. Raises ConfigurationError if it is closed."""
        self._check_open()
        self._forget_fetched()
        duty_at, self._hand.duty_at = self._hand.duty_at, -math.inf
        self._hand = self._make_hand(self, duty_at)
        return self._hand

    def _check_current(self, iterator: Hand) -> None:
        if iterator is not self._hand:
            raise ConfigurationError(
                "a later iterator of the same consumer replaced this one; make a consumer for each"
            )

    def _forget_fetched(self) -> None:
        self._hand.turn_to(None)
        self._fetcher.clear()

    async def _take_record(self, until: float | None) -> Record | None:
        async with self._taking():
            while (record := self._hand.maybe_next()) is None:
                self._hand.turn_to(await self._next_batch(until))
                if not self._hand.has_records:
                    return None
            return record

    @asynccontextmanager
    async def _taking(self) -> AsyncGenerator[None]:
        """Mark records that were handed out as done, and do the duties, before taking more."""
        if self._is_taking:
            raise ConfigurationError("another caller waits for this consumer; make one for each")
        self._is_taking = True
        try:
            await asyncio.sleep(0)  # decoding may hold the loop for some ms: let other tasks run
            self._positions.finish()
            self._hand.are_several = False
            if time.monotonic() >= self._hand.duty_at and not self._is_closed:
                await self._do_duties()
            yield
        finally:
            self._is_taking = False

    async def _next_batch(self, until: float | None) -> tuple[Position, Batch] | None:
        """Return the next batch, with the position that moves while it is handed out.

        Returns None at the end, and if no batch has come at the time `until` of the monotonic
        clock. A cancelled call has taken nothing.
        """
        if not self._is_begun:
            await self._begin()
        while not self._is_closed:
            found = self._fetcher.maybe_next()
            if found is not None:
                return found
            await self._refresh_when_due()
            if time.monotonic() >= self._hand.duty_at:  # also while no record comes
                await self._do_duties()
            if not self._is_following and self._positions.is_over:
                await self._commit_done()
                return None
            await self._fetcher.fetch(until)
            found = self._fetcher.maybe_next()
            if found is not None or (until is not None and time.monotonic() >= until):
                return found
        return None

    @internal
    def on_fork(self, error: ConfigurationError) -> None:
        """Hand out nothing: this is the copy in the child of a fork."""
        self._refusal = error
        self._hand.duty_at = -math.inf

    def _check_process(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise ConfigurationError("this consumer is closed; make another one")

    async def _begin(self) -> None:
        self._check_open()
        if not self._is_begun:
            use_here(self)
            await self._refresh()
            self._is_begun = True
            await self._commit_done()

    async def _refresh_when_due(self) -> None:
        """Find new streams that match a pattern, and follow changes of the assignment."""
        if self._is_following and self._selection.prefixes and time.monotonic() >= self._refresh_at:
            await self._refresh()
            return
        await self._take_own()

    async def _refresh(self) -> None:
        selection = self._selection
        if selection.has_ids_only:
            there = await self._client.describe_streams([*selection.ids])
        else:
            there = await self._client.list_streams()
        self._selected = {each.stream_id: each for each in selection.of_streams(there)}
        if not self._is_begun:
            self._found_first = frozenset(self._selected)
        self._refresh_at = time.monotonic() + self._refresh_seconds
        await self._take_own()

    async def _take_own(self) -> None:
        """Begin to read the streams that were assigned, and give up the others."""
        own = await self._assignment.own(frozenset(self._selected)) & self._selected.keys()
        own -= self._fetcher.given_up
        interval_ms = self._assignment.own_interval_ms
        if interval_ms is not None:
            self._own_at = time.monotonic() + interval_ms / 1000
            self._hand.duty_at = min(self._commit_at, self._own_at)
        lost = self._positions.stream_ids - own
        if lost:
            try:
                await self._commit_done()
            finally:  # the streams are lost, whatever becomes of the commit
                self._positions.drop(lost)
        fresh = sorted(own - self._positions.stream_ids)
        if fresh:
            await self._add(fresh)

    async def _add(self, stream_ids: Sequence[int]) -> None:
        cursors = await self._assignment.cursors(stream_ids)
        spans = {each: self._spans[each] for each in stream_ids if each in self._spans}
        rest = [each for each in stream_ids if each not in cursors and each not in spans]
        labels = {each: self._selected[each].label for each in stream_ids}
        old = {each: labels[each] for each in rest if each in self._found_first}
        new = {each: labels[each] for each in rest if each not in self._found_first}
        # A stream that is found later is new as a whole: the consumer reads it from its beginning.
        offsets = {
            **(await locate(self._client, old, self._start)),
            **(await locate(self._client, new, "earliest")),
            **cursors,
            **{stream_id: span.start_offset for stream_id, span in spans.items()},
        }
        ends: dict[int, int | None] = dict.fromkeys(stream_ids)
        if not self._is_following:
            ends.update((stream_id, span.end_offset) for stream_id, span in spans.items())
            endless = [stream_id for stream_id, end in ends.items() if end is None]
            bounds = await self._client.stream_bounds(endless) if endless else []
            ends.update((each.stream_id, each.next_offset) for each in bounds)
        for stream_id in stream_ids:
            self._positions.add(
                stream_id,
                labels[stream_id],
                offsets[stream_id],
                end_offset=ends[stream_id],
                committed_offset=cursors.get(stream_id),
            )

    async def _do_duties(self) -> None:
        """Commit, and ask the assignment for the consumer's streams, if either is due."""
        self._check_process()
        now = time.monotonic()
        if now >= self._commit_at:
            await self._commit_done()
        if now >= self._own_at:
            await self._take_own()

    async def _commit_done(self) -> None:
        if self._commit_seconds is not None and self._assignment.has_cursors:
            self._hand.mark_done()
            with suppress(MemberUnknownError):  # which the member has logged
                await self._commit(self._positions.to_commit())
            self._commit_at = time.monotonic() + self._commit_seconds
            self._hand.duty_at = min(self._commit_at, self._own_at)

    async def _commit(
        self, offsets: Mapping[int, int], expected: Mapping[int, int] | None = None
    ) -> None:
        if offsets:
            await self._assignment.commit(offsets, *((expected,) if expected else ()))
            self._positions.on_committed(offsets)
