"""The batches that a consumer fetched, and how it hands out their records, for asyncio."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Final, Literal, Self

from sbp_core.app import defaults
from sbp_core.app.decoding import decode_fetched, fingerprints_of, pieces_of, records_of
from sbp_core.app.positions import Position, Positions
from sbp_core.app.record import Batch, Record
from sbp_core.client import AsyncClient, FetchOutcome
from sbp_core.errors import DeadlineExceededError, OffsetOutOfRangeError, SbpError
from sbp_core.records import StreamSchema, split_envelopes

OnTrimmed = Literal["error", "earliest", "latest"]
"""Where a consumer goes on if records were trimmed before it has read them."""

_LOG: Final = logging.getLogger("sbp_core.app")


class AsyncFetcher:
    """Fetches from the positions of a consumer, and keeps the batches until they are handed out.

    `is_member`: the consumer shares the streams of its `group` with others. If unread records of a
    stream were trimmed, a member gives the stream up and goes on; `given_up` has the ids of these
    streams.
    """

    def __init__(
        self,
        client: AsyncClient,
        positions: Positions,
        *,
        is_following: bool,
        fetch_bytes: int,
        on_trimmed: OnTrimmed,
        group: str | None,
        is_member: bool,
    ) -> None:
        self.given_up: set[int] = set()
        self._client = client
        self._positions = positions
        self._is_following = is_following
        self._fetch_bytes = fetch_bytes
        self._on_trimmed = on_trimmed
        self._group = group
        self._is_member = is_member
        self._is_idle = False
        self._schemas: dict[int, dict[str, StreamSchema]] = {}
        self._ready: deque[tuple[Position, int, Iterator[Batch]]] = deque()
        """Positions, their seek counts when they were fetched from, and the batches left."""

    def clear(self) -> None:
        """Forget the fetched batches; the next fetch starts at the positions again."""
        self._ready = deque()  # not cleared: another thread may be in `maybe_next`

    def maybe_next(self) -> tuple[Position, Batch] | None:
        """Return the next batch that is here, with its position. Raises DamagedBatchError."""
        ready = self._ready
        while ready:
            at, seek_count, batches = ready[0]
            batch = next(batches, None) if at.seek_count == seek_count else None
            if batch is not None:
                return at, batch
            ready.popleft()
        return None

    async def fetch(self, until: float | None) -> None:
        """Fetch what all streams have now, or the first records that come before a time.

        A cancelled call changes nothing. Raises SbpError.
        """
        for outcome in await self._fetch(until):
            at = self._positions.maybe_at(outcome.stream_id)
            if at is not None and outcome.payload:
                self._ready.append((at, at.seek_count, await self._decode(at, outcome)))

    async def _fetch(self, until: float | None) -> list[FetchOutcome]:
        items = self._positions.next_items(self._fetch_bytes)
        wait_ms = defaults.FETCH_WAIT_MS
        if until is not None:
            wait_ms = max(0, min(wait_ms, int(1000 * (until - time.monotonic()))))
        if not items:
            await asyncio.sleep(wait_ms / 1000)
            return []
        if not self._is_idle:
            wait_ms = 0
        if not self._is_following:
            wait_ms = defaults.END_WAIT_MS
        found: list[FetchOutcome] = []
        is_moved = False
        async with aclosing(self._client.fetch(items, max_wait_ms=wait_ms)) as outcomes:
            async for outcome in outcomes:
                if outcome.error is not None:
                    await self._skip_trimmed(outcome.stream_id, outcome.error)
                    is_moved = True
                    continue
                found.append(outcome)
                if outcome.payload and self._is_idle:
                    break  # other streams may have no records for as long as the fetch waits
        self._is_idle = self._is_following and not any(each.payload for each in found)
        if not self._is_following and not is_moved and not any(each.payload for each in found):
            missing = items[0]
            raise DeadlineExceededError(
                f"no records of stream {missing.stream_id} at offset {missing.fetch_offset} within"
                f" {wait_ms} ms, although it has them up to {missing.end_offset}; try again, then"
                " run `sbp log check` on its range server"
            )
        return found

    async def _skip_trimmed(self, stream_id: int, error: SbpError) -> None:
        """Go on behind records that were trimmed before they were read, as `on_trimmed` says.

        Raises every other error, and also this one if `on_trimmed` is "error". A member of a group
        reports the trimmed records in its log instead, and gives the stream up.
        """
        at = self._positions.maybe_at(stream_id)
        if at is None or not isinstance(error, OffsetOutOfRangeError):
            raise error
        (bound,) = await self._client.stream_bounds([stream_id])
        if at.next_offset >= bound.start_offset:
            raise error
        text = f"records {at.next_offset} to {bound.start_offset - 1} of stream {at.stream} were"
        text += " trimmed before they were read"
        if self._on_trimmed != "error":
            is_latest = self._on_trimmed == "latest"
            to = bound.next_offset if is_latest else bound.start_offset
            self._positions.seek(at, to)
            _LOG.warning("records trimmed stream=%s next_offset=%d: %s", at.stream, to, text)
            return
        text += "; set on_trimmed to 'earliest' or 'latest' to go on"
        if self._group is not None:
            text += (
                f", or stop the group's consumers and run `sbp groups reset {self._group} --stream"
                f" {at.stream} --to earliest --yes`"
            )
        if not self._is_member:
            raise OffsetOutOfRangeError.of(text) from error
        self.given_up.add(stream_id)
        self._positions.drop([stream_id])
        _LOG.error("stream given up group=%s stream=%s: %s", self._group, at.stream, text)

    async def _decode(self, at: Position, outcome: FetchOutcome) -> Iterator[Batch]:
        """Return an iterator that decodes a batch when it is asked for, up to a damaged one."""
        envelopes = list(split_envelopes(outcome.payload))
        known = self._schemas.setdefault(at.stream_id, {})
        if fingerprints_of(envelopes) - known.keys():
            versions = await self._client.describe_schemas([at.stream_id])
            known.update((each.schema.fingerprint, each.schema) for each in versions[at.stream_id])
        return decode_fetched(at.stream, envelopes, at.next_offset, at.end_offset, known)


if TYPE_CHECKING:
    from sbp_core.app.aio.consumer import AsyncConsumer


class Hand:
    """The records left in the batch that a consumer hands out now, and its position.

    Records before the `next_offset` of the position were handed out. At `duty_at` the consumer has
    to commit or to ask for its streams.
    """

    def __init__(self, consumer: AsyncConsumer, duty_at: float) -> None:
        self.duty_at = duty_at
        self.has_records = False
        """Whether a batch is handed out."""
        self.are_several = False
        """Whether the last call has returned several records. None of them is done yet."""
        self._consumer = consumer
        self._pieces: Iterator[Batch] = iter(())
        self._records: Iterator[Record] = iter(())
        self._at = Position(-1, "", 0, 0, None, None)
        self._seek_count = 0

    def turn_to(self, found: tuple[Position, Batch] | None) -> None:
        """Hand out the records of this batch next; None stands for no batch."""
        self.has_records = found is not None
        self._records = iter(())
        self._pieces = iter(())
        if found is not None:
            self._at, batch = found
            self._seek_count = self._at.seek_count
            self._pieces = pieces_of(batch)

    def maybe_next(self) -> Record | None:
        """Return the next record of the batch; None behind the last one, and after a seek."""
        at = self._at
        if at.seek_count != self._seek_count:
            return None
        record = next(self._records, None)
        if record is None and (piece := next(self._pieces, None)) is not None:
            self._records = records_of(piece)
            record = next(self._records)
        if record is not None:
            at.next_offset = record.offset + 1
        return record

    def mark_done(self) -> None:
        """Mark all records that were handed out as done, except the last one."""
        at = self._at
        if self.has_records and not self.are_several and at.seek_count == self._seek_count:
            at.done_offset = max(at.done_offset, at.next_offset - 1)


def hand_out_whole(found: tuple[Position, Batch] | None) -> Batch | None:
    """Return a batch, all records of which are handed out now."""
    if found is None:
        return None
    at, batch = found
    at.next_offset = batch.end_offset
    return batch


class AsyncRecordIterator(Hand):
    """The records of a consumer. A cancelled wait takes no record, and may be repeated."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        at = self._at  # as `maybe_next` does, without a call: this is the hot path of loops
        if at.seek_count == self._seek_count and time.monotonic() < self.duty_at:
            record = next(self._records, None)
            if record is not None:
                at.next_offset = record.offset + 1
                return record
        record = await self._consumer.take_record(self)
        if record is None:
            raise StopAsyncIteration
        return record


class AsyncBatchIterator:
    """The batches of a consumer. A cancelled wait takes no batch, and may be repeated."""

    def __init__(self, consumer: AsyncConsumer, hand: Hand) -> None:
        self._consumer = consumer
        self._hand = hand

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Batch:
        batch = await self._consumer.take_batch(self._hand)
        if batch is None:
            raise StopAsyncIteration
        return batch
