"""Handing out what a consumer has fetched, for asyncio."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Self

from sbp_core.app.decoding import pieces_of, records_of
from sbp_core.app.positions import Position
from sbp_core.app.record import Batch, Record

if TYPE_CHECKING:
    from sbp_core.app.aio.consumer import AsyncConsumer


class Hand:
    """The rest of the batch that a consumer hands out now, and its position.

    Records before the `next_offset` of the position were handed out. At `duty_at` the consumer has
    other work.
    """

    def __init__(self, consumer: AsyncConsumer, duty_at: float) -> None:
        self.duty_at = duty_at
        self.has_records = False
        """Whether a batch is handed out."""
        self.are_several = False
        """Whether the last call has returned several records: none of them is done."""
        self._consumer = consumer
        self._pieces: Iterator[Batch] = iter(())
        self._records: Iterator[Record] = iter(())
        self._at = Position(-1, "", 0, 0, None, None)
        self._seek_count = 0

    def turn_to(self, found: tuple[Position, Batch] | None) -> None:
        """Hand out the records of a batch next, or none."""
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
        """Let all records be done that were handed out, except the last one."""
        at = self._at
        if self.has_records and not self.are_several and at.seek_count == self._seek_count:
            at.done_offset = max(at.done_offset, at.next_offset - 1)


class AsyncRecordIterator(Hand):
    """The records of a consumer. A wait that is cancelled takes no record, and may be repeated."""

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
    """The batches of a consumer. A wait that is cancelled takes no batch, and may be repeated."""

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
