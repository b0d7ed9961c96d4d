"""Idempotent producers: their sequence numbers, which count records, as numbers of a writer.

A producer id with its epoch is a writer in each stream, whose numbers count batches. The gateway
that has served a producer knows how both go on. Another one, or one that was restarted, asks the
stream: a number that cannot be the next is refused with the one that is. The batch may be one of
the last that the stream has: as a batch names its sequence, only itself is the same, so it is
compared with these and found. Otherwise it is appended if its sequence follows the last one in the
stream, which is read there: earlier batches may be under way through another gateway. So a batch is
appended once and in order whichever gateways it comes through, and none of them keeps anything.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from contextlib import aclosing
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Final

from sbp_core.client.async_client import AsyncClient
from sbp_core.client.operations.numbering import Writer
from sbp_core.client.types import AppendItem, FetchItem
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    PermissionDeniedError,
    WriterGapError,
    WriterRepeatError,
    WriterUnknownError,
)
from sbp_core.records.envelope import read_head

BATCHES_KEPT: Final = 5
"""Batches that a producer may have in flight, and send again: Kafka's own limit."""
PRODUCERS_MAX: Final = 20_000
"""Producers that are known, one for each stream. The stream tells how a forgotten one goes on."""
EPOCH_MAX: Final = 2**15 - 2
_SEQUENCES: Final = 2**31
_NEVER_NEXT: Final = 2**62
_LOOK_MS: Final = 5_000
"""How long to wait for a batch that its server has and the other replicas still lack."""
_RANDOM: Final = SystemRandom()


@dataclass(frozen=True, slots=True)
class Sequence:
    """The sequence number of a batch: of its first record, and how many records it has."""

    first: int
    count: int

    @property
    def next(self) -> int:
        """The sequence number of the batch that follows."""
        return (self.first + self.count) % _SEQUENCES


def new_producer_id() -> int:
    """Return an id that no producer has."""
    return _RANDOM.getrandbits(62)


def origin_of(producer_id: int, epoch: int, sequence: Sequence) -> str:
    """Return the name of a batch, which makes it differ from any other of the producer."""
    return f"{producer_id:x}-{epoch}-{sequence.first}"


@dataclass(slots=True)
class Producer:
    """A producer with its epoch in one stream. Its batches are appended one after the other.

    `next_number` is the number of the batch with `next_sequence`, as far as this gateway knows: the
    stream may have got that batch, and further ones, since. Each is None if it is unknown.
    """

    writer_id: str
    writer: Writer | None = None
    next_number: int | None = None
    next_sequence: int | None = None
    behind_failed: int | None = None
    """The sequence that follows the batch that has failed last."""
    recent: deque[tuple[Sequence, int]] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))
    """The last batches, and their offsets."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def append(self, client: AsyncClient, item: AppendItem, sequence: Sequence) -> int:
        """Append a batch, unless the stream has it already; return its offset.

        Raises WriterGapError if an earlier batch is missing, WriterRepeatError if the batch was
        appended too long ago for its offset to be known, WriterUnknownError if the stream does not
        know the producer any more.
        """
        async with self.lock:
            for known, offset in self.recent:
                if known == sequence:
                    return offset
            try:
                appended = await self._next_appended(client, item, sequence)
                if appended is None:
                    appended = await self._catch_up(client, item, sequence)
            except BaseException:
                self.behind_failed = sequence.next
                raise
            self.behind_failed = None
            self.recent.append((sequence, appended))
            return appended

    async def _next_appended(
        self, client: AsyncClient, item: AppendItem, sequence: Sequence
    ) -> int | None:
        """Append the batch that is surely the next one; return its offset, None for any other."""
        if self.writer is None or self.next_number is None or sequence.first != self.next_sequence:
            return None
        try:
            return await self._append_as(self.next_number, client, item, sequence, self.writer)
        except ConfigurationError:  # another batch is in doubt, as the schema has changed since
            self.writer = None
            return None

    async def _catch_up(self, client: AsyncClient, item: AppendItem, sequence: Sequence) -> int:
        """Append a batch after a look at the stream, or find it there; return its offset."""
        known, number = self.next_number, await self._number_of(client, item, sequence)
        following = self.next_sequence if number == known else None
        for earlier in range(number - 1, max(number - BATCHES_KEPT, 0) - 1, -1):
            try:
                return await self._append_as(earlier, client, item, sequence)
            except InvalidRequestError as error:  # another batch has that number
                if following is None and earlier == number - 1 and error.detail:
                    following = await self._sequence_after(error.detail, client, item, sequence)
            except WriterRepeatError:  # so have all earlier ones, too long ago
                break
        if number != known:
            following = sequence.first if following is None else following
            self.writer, self.next_number, self.next_sequence = None, number, following
        if sequence.first == following:
            return await self._append_as(number, client, item, sequence)
        raise WriterGapError.of(f"sequence {sequence.first} is not the next one, {following}")

    async def _number_of(self, client: AsyncClient, item: AppendItem, sequence: Sequence) -> int:
        """Return the number that the stream expects next."""
        if self.next_number is None and not sequence.first:
            return 0
        writer = Writer(self.writer_id, first_sequence=_NEVER_NEXT)
        try:
            await client.append([item], writer=writer)
        except WriterGapError as error:
            if error.expected is None:
                raise
            return error.expected
        except WriterUnknownError:
            if self.next_number != 0:
                raise
            return 0  # the first batch has failed
        raise AssertionError("a batch with a number that is never next was appended")

    async def _sequence_after(
        self, last_offset: bytes, client: AsyncClient, item: AppendItem, sequence: Sequence
    ) -> int:
        """Return the sequence that follows the last batch of the stream, from what that batch says.

        A client that may not read is taken at its word, and so is any client if the batch was
        trimmed, or merged with others. But not for a batch behind one that has failed here: clients
        send both again, the earlier one first.
        """
        start = int.from_bytes(last_offset, "big")
        look = FetchItem(item.stream_id, start, start + 1, max_bytes=1)
        async with aclosing(client.fetch([look], max_wait_ms=_LOOK_MS)) as outcomes:
            (found,) = [each async for each in outcomes]
        if found.payload:
            meta, _, _ = read_head(found.payload, 0)
            origin, _, first = (meta.origin or "").rpartition("-")
            if f"kafka-{origin}" == self.writer_id:
                return Sequence(int(first), meta.record_count).next
        elif not isinstance(found.error, PermissionDeniedError | OffsetOutOfRangeError):
            raise found.error or ConnectError("the batch before this one cannot be read yet")
        if sequence.first == self.behind_failed:
            raise ConnectError("a batch before this one has failed: send both again")
        return sequence.first

    async def _append_as(
        self,
        number: int,
        client: AsyncClient,
        item: AppendItem,
        sequence: Sequence,
        writer: Writer | None = None,
    ) -> int:
        """Append a batch with a number, unless the stream has it there; return its offset."""
        writer = writer or Writer(self.writer_id, first_sequence=number)
        (outcome,) = await client.append([item], writer=writer)
        self.writer = writer
        self.next_number, self.next_sequence = number + 1, sequence.next
        return outcome.base_offset


class Producers:
    """The producers that this gateway has served last, by stream."""

    def __init__(self, producers_max: int = PRODUCERS_MAX) -> None:
        self._max = producers_max
        self._known: OrderedDict[tuple[int, int, int], Producer] = OrderedDict()

    def get(self, stream_id: int, producer_id: int, epoch: int) -> Producer:
        """Return a producer in a stream."""
        key = (stream_id, producer_id, epoch)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._max:
                idle = next(
                    (each for each, of in self._known.items() if not of.lock.locked()), None
                )
                if idle is not None:
                    del self._known[idle]
            found = self._known[key] = Producer(f"kafka-{producer_id:x}-{epoch}")
        self._known.move_to_end(key)
        return found
