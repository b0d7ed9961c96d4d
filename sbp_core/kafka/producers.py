"""Idempotent producers: their sequence numbers, which count records, as numbers of a writer.

A producer id with its epoch is a writer in each stream, whose numbers count batches. The gateway
that has served a producer knows how both go on. Another one, or one that was restarted, asks the
stream: a number that cannot be the next is refused with the one that is. The batch may be one of
the last that the stream has: as a batch names its sequence, only itself is the same, so it is
compared with these and found, or else appended as the next. So a batch is appended once whichever
gateways it comes through, and none of them keeps anything.

Between batches that are under way at a time, a gateway keeps the order: a batch behind one that
failed is refused, unless the stream has got batches through another gateway since.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from random import SystemRandom
from typing import Final

from sbp_core.client.async_client import AsyncClient
from sbp_core.client.operations.numbering import Writer
from sbp_core.client.types import AppendItem
from sbp_core.errors import (
    ConfigurationError,
    ConnectError,
    InvalidRequestError,
    WriterGapError,
    WriterRepeatError,
    WriterUnknownError,
)

BATCHES_KEPT: Final = 5
"""Batches that a producer may have in flight, and send again: Kafka's own limit."""
PRODUCERS_MAX: Final = 20_000
"""Producers that are known, one for each stream. The stream tells how a forgotten one goes on."""
EPOCH_MAX: Final = 2**15 - 2
_SEQUENCES: Final = 2**31
_NEVER_NEXT: Final = 2**62
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

    `next_number` is the number of the batch with `next_sequence`; each is None if it is unknown.
    `waiting` has batches of clients that send several at a time: the one that failed, which comes
    next, and those behind it, in order. They tell a batch behind a gap from one that follows
    batches which the stream has got through other gateways.
    """

    writer_id: str
    writer: Writer | None = None
    next_number: int | None = None
    next_sequence: int | None = None
    waiting: list[Sequence] = field(default_factory=list)
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
            appended = await self._next_appended(client, item, sequence)
            if appended is None:
                appended = await self._catch_up(client, item, sequence)
            self.recent.append((sequence, appended))
            return appended

    async def _next_appended(
        self, client: AsyncClient, item: AppendItem, sequence: Sequence
    ) -> int | None:
        """Append the batch that is surely the next one; return its offset, None for any other."""
        if self.writer is None or self.next_number is None or sequence.first != self.next_sequence:
            return None
        self.waiting = [sequence]
        try:
            return await self._append_as(self.next_number, client, item, sequence, self.writer)
        except ConfigurationError:  # another batch is in doubt, as the schema has changed since
            self.writer = None
            return None

    async def _catch_up(self, client: AsyncClient, item: AppendItem, sequence: Sequence) -> int:
        """Append a batch after a look at the stream, or find it there; return its offset."""
        number = await self._number_of(client, item, sequence)
        if self.next_sequence is None:
            self.next_sequence = sequence.first
        if self.next_sequence == sequence.first:
            self.waiting = [sequence]
        for earlier in range(number - 1, max(number - BATCHES_KEPT, 0) - 1, -1):
            try:
                return await self._append_as(earlier, client, item, sequence)
            except InvalidRequestError:  # another batch has that number
                continue
            except WriterRepeatError:  # so have all earlier ones, too long ago
                break
        if sequence.first == self.next_sequence:
            return await self._append_as(number, client, item, sequence)
        self._await_turn(sequence)
        raise WriterGapError.of(
            f"sequence {sequence.first} is not the next one, {self.next_sequence}"
        )

    async def _number_of(self, client: AsyncClient, item: AppendItem, sequence: Sequence) -> int:
        """Return the number that the stream expects next; learn the sequence that goes with it."""
        known = self.next_number
        if known is None and not sequence.first:
            number = 0
        else:
            try:
                number = await self._number_expected(client, item)
            except WriterUnknownError:
                self._check_turn(sequence)
                if known != 0:
                    raise
                number = 0  # the first batch has failed
            except BaseException:
                if self.waiting[:1] == [sequence]:
                    self.waiting = [sequence]
                elif not self._await_turn(sequence):
                    self.writer = self.next_number = self.next_sequence = None
                    self.waiting = [sequence]
                raise
        self._check_turn(sequence)
        if known != number:
            self._pass(-1 if known is None else number - known)
        self.next_number = number
        return number

    def _pass(self, count: int) -> None:
        """Note that the stream has got batches through other gateways; how many, -1 if unknown."""
        self.writer = self.next_sequence = None
        if 0 < count < len(self.waiting):
            self.next_sequence = self.waiting[count].first
        elif count == len(self.waiting):
            self.next_sequence = self.waiting[-1].next
        self.waiting = self.waiting[count:] if count > 0 else []

    def _check_turn(self, sequence: Sequence) -> None:
        """Raise ConnectError for a batch behind one of which is unknown whether the stream has it.

        Clients send both again, the earlier one first.
        """
        if self.next_number is None and self._await_turn(sequence):
            raise ConnectError("a batch before this one has failed: send both again")

    def _await_turn(self, sequence: Sequence) -> bool:
        """Note a batch that was sent behind the ones that wait; return whether it is new there."""
        is_behind = bool(self.waiting) and self.waiting[-1].next == sequence.first
        if is_behind:
            self.waiting.append(sequence)
        return is_behind

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
        self.writer, self.waiting = writer, []
        self.next_number, self.next_sequence = number + 1, sequence.next
        return outcome.base_offset

    async def _number_expected(self, client: AsyncClient, item: AppendItem) -> int:
        try:
            await client.append([item], writer=Writer(self.writer_id, first_sequence=_NEVER_NEXT))
        except WriterGapError as error:
            if error.expected is None:
                raise
            return error.expected
        raise AssertionError("a batch with a number that is never next was appended")


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
