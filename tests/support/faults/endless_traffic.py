"""Clients at work for any length of time, whose streams are checked while they are read.

Each writer numbers its records in each stream: 0, 1, 2, ... So what a reader needs to know of a
stream is small, however long that gets: the next offset, the next number of each writer, and a
digest of all before. A record that is lost, doubled or out of order has a number that is not the
next one.

A history (history.py) keeps everything instead, and finds out more.
"""

from __future__ import annotations

import itertools
import struct
import threading
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import gt
from random import Random
from typing import Any, TypeVar

from sbp_core.client import AppendItem, Client, FetchItem, RangeInfo, Transaction, TxnPart, Writer
from sbp_core.client.operations.replicas import Replicas
from sbp_core.errors import SbpError
from sbp_core.wire.txn_id import txn_id_of
from tests.support.client import PROGRESS_SECONDS, ClientThreads
from tests.support.clock import until
from tests.support.cluster import rows_batch, values_of

BATCH_RECORDS = 50
FETCH_BYTES = 1 << 18
WAIT_MS = 50
TIMEOUT_MS = 2_000
FAILURE_PAUSE_SECONDS = 0.05
PAUSE_SECONDS = 0.02
"""Between the appends of a writer."""
DIGEST_EVERY = 1_000
"""Offsets between the places where the digests of readers are compared."""
DIGEST = b"8 bytes!"
RESTAGED_SHARE = 0.3
"""How often a committer whose commit failed stages once more, as a task that is retried does."""

_RECORD = struct.Struct(">HQ6x")
"""Writer, number."""

T = TypeVar("T")

Counts = Mapping[tuple[int, int], int]
"""By stream and writer: the number of its records."""


class Ledger:
    """The acknowledgements of the writers, and what the readers have found. Threads share it."""

    def __init__(self) -> None:
        self.worst_append_seconds = self.worst_commit_seconds = 0.0
        """How long the longest of those took that were acknowledged since this was set to 0."""
        self._lock = threading.Lock()
        self._acknowledged: Counter[tuple[int, int]] = Counter()
        self._places: dict[tuple[int, int, int], int] = {}
        self._digests: dict[tuple[int, int], int] = {}

    @property
    def acknowledged(self) -> Counts:
        """How many records of each writer are acknowledged in each stream."""
        with self._lock:
            return dict(self._acknowledged)

    def on_acknowledged(
        self, writer: int, stream: int, base_offset: int | None, began_at: float
    ) -> None:
        """Note that the next batch of a writer is in a stream, at an offset if that is known."""
        with self._lock:
            number = self._acknowledged[stream, writer]
            if base_offset is not None:
                self._match(self._places, (stream, writer, number), base_offset)
            self._acknowledged[stream, writer] += BATCH_RECORDS
            seconds = time.monotonic() - began_at
            if base_offset is None:
                self.worst_commit_seconds = max(self.worst_commit_seconds, seconds)
            else:
                self.worst_append_seconds = max(self.worst_append_seconds, seconds)

    def on_batch(self, writer: int, stream: int, number: int, offset: int) -> None:
        """Note where a reader found the first record of a batch of an appender."""
        with self._lock:
            self._match(self._places, (stream, writer, number), offset)

    def on_digest(self, stream: int, offset: int, digest: int) -> None:
        """Note the digest of all records before an offset, for the other reader."""
        with self._lock:
            self._match(self._digests, (stream, offset), digest)

    def _match(self, waiting: dict[Any, int], key: object, value: int) -> None:
        """Compare with the other party's value, whichever comes first."""
        if key in waiting:
            other = waiting.pop(key)
            assert other == value, f"{key}: one has {other}, the other {value}"
        else:
            waiting[key] = value


class Cursor:
    """How far one reader is in one stream."""

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.position = 0
        self.digest = 0
        self.next_numbers: Counter[int] = Counter()

    def read(self, payload: memoryview) -> list[tuple[int, int, int, int]]:
        """Go on behind these batches; return offset, writer, number, digest of the new records."""
        found = []
        for offset, value in values_of(payload):
            if offset < self.position:
                continue
            assert value is not None
            writer, number = _RECORD.unpack(value)
            expected = self.next_numbers[writer]
            place = f"stream {self.stream_id}, offset {offset}, writer {writer}"
            assert offset == self.position, f"gap: {place}, expected offset {self.position}"
            assert number <= expected, f"lost or reordered: {place}: {number} before {expected}"
            assert number >= expected, f"doubled or reordered: {place}: {number}, not {expected}"
            self.position = offset + 1
            self.next_numbers[writer] = number + 1
            self.digest = zlib.crc32(value, self.digest)
            found.append((offset, writer, number, self.digest))
        return found


class OnlyFrom(Replicas):
    """Has each range read from one server, those that it does not have from any."""

    def __init__(self, server: str) -> None:
        super().__init__()
        self._server = server

    def readers(self, piece: RangeInfo, now_ms: float) -> list[str]:
        """Return that server, or all of the range."""
        return [self._server] if self._server in piece.servers else list(piece.servers)


class OtherCopies(Replicas):
    """Has each range read from its secondaries, another one after each failure."""

    turn = 0

    def readers(self, piece: RangeInfo, now_ms: float) -> list[str]:
        """Return the secondaries, in turn, then the primary."""
        primary, *others = piece.servers
        at = self.turn % max(len(others), 1)
        return [*others[at:], *others[:at], primary]


class Traffic(ClientThreads):
    """Appenders and committers of numbered records, and two readers. Starts and stops once.

    One reader takes the replicas that clients take by themselves, the other one the secondaries.
    Each operation is retried until it is acknowledged.
    """

    def __init__(
        self,
        endpoint: str,
        stream_ids: Sequence[int],
        rng: Random,
        *,
        appenders: int = 3,
        committers: int = 1,
    ) -> None:
        super().__init__(appenders + committers)
        self.ledger = Ledger()
        self.cursors = [{each: Cursor(each) for each in stream_ids} for _ in range(2)]
        """The positions of each reader, by stream."""
        self._endpoint = endpoint
        self._stream_ids = list(stream_ids)
        self._appenders = appenders
        self._is_over = threading.Event()
        """Set when readers stop, and writers give up what is not acknowledged."""
        roles = [partial(self._append, each) for each in range(appenders)]
        roles += [partial(self._commit, appenders + each) for each in range(committers)]
        self._writers = [self._thread(partial(each, Random(rng.random()))) for each in roles]
        self.threads = [
            *self._writers,
            *(self._thread(partial(self._read, each)) for each in range(2)),
        ]

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        super().__exit__(*error)

    @property
    def count(self) -> int:
        """How many records are acknowledged."""
        return sum(self.ledger.acknowledged.values())

    def go_on(self) -> None:
        """Wait until each writer was acknowledged what it began now, and something in each stream.

        Raises AssertionError if that takes too long.
        """
        before = self.by_stream()
        for _ in range(2):
            self.wait_for_progress()
        self.wait_for(lambda: all(map(gt, self.by_stream(), before)))

    def by_stream(self) -> list[int]:
        """Return how many records are acknowledged in each stream."""
        counts = Counter[int]()
        for (stream, _), count in self.ledger.acknowledged.items():
            counts[stream] += count
        return [counts[each] for each in self._stream_ids]

    def wait_until_read(self) -> None:
        """Wait until both readers have read all that is acknowledged now."""
        wanted = self.ledger.acknowledged
        self.wait_for(lambda: not self.unread(wanted))

    def wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is so, or a client has failed: that is raised."""
        until(lambda: self.failures or is_so(), PROGRESS_SECONDS)
        assert not self.failures, self.failures

    def unread(self, wanted: Counts) -> list[tuple[int, int]]:
        """Return the streams and writers of which a reader has not read so much yet."""
        return [
            (stream, writer)
            for (stream, writer), count in wanted.items()
            if any(each[stream].next_numbers[writer] < count for each in self.cursors)
        ]

    def finish(self) -> None:
        """Let the writers end what they are at, and the readers read all of it."""
        self.stopping.set()
        for each in self._writers:
            each.join(PROGRESS_SECONDS)
            assert not each.is_alive(), "a writer is not acknowledged"
        self.wait_until_read()

    def _thread(self, role: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                role()
            except BaseException as error:
                self.failures.append(error)
                raise

        return threading.Thread(target=run)

    def _client(self, **options: Any) -> Client:
        return Client(self._endpoint, timeout_ms=TIMEOUT_MS, **options)

    def _until_done(self, do: Callable[[], T]) -> T | None:
        """Return the result as soon as there is one; None if all is over before that."""
        while not self._is_over.is_set():
            try:
                return do()
            except SbpError as error:
                if not error.retriable:
                    raise
                self._is_over.wait(FAILURE_PAUSE_SECONDS)
        return None

    def _append(self, index: int, rng: Random) -> None:
        """Append numbered batches, one after the other: a call that failed is repeated."""
        writer, numbers = Writer(), dict.fromkeys(self._stream_ids, 0)
        with self._client() as client:
            while not self.stopping.wait(PAUSE_SECONDS):
                item = self._next_batch(index, rng.choice(self._stream_ids), numbers)
                began_at = time.monotonic()
                outcomes = self._until_done(partial(client.append, [item], writer=writer))
                if outcomes is None:
                    return
                self.ledger.on_acknowledged(
                    index, item.stream_id, outcomes[0].base_offset, began_at
                )
                self.acknowledged[index] += 1

    def _next_batch(self, index: int, stream: int, numbers: dict[int, int]) -> AppendItem:
        first = numbers[stream]
        numbers[stream] += BATCH_RECORDS
        return AppendItem(stream, batch_of(index, first, stream))

    def _commit(self, index: int, rng: Random) -> None:
        """Commit numbered batches of some streams, as an exactly-once sink does."""
        producer, numbers = f"producer-{uuid.uuid4().hex}", dict.fromkeys(self._stream_ids, 0)
        with self._client() as client:
            for number in itertools.count():
                if self.stopping.wait(PAUSE_SECONDS):
                    return
                streams = rng.sample(self._stream_ids, rng.randint(1, len(self._stream_ids)))
                items = [self._next_batch(index, each, numbers) for each in streams]
                began_at = time.monotonic()
                if not self._commit_once(client, rng, producer, number, items):
                    return
                for each in streams:
                    self.ledger.on_acknowledged(index, each, None, began_at)
                self.acknowledged[index] += 1

    def _commit_once(
        self, client: Client, rng: Random, producer: str, number: int, items: list[AppendItem]
    ) -> bool:
        """Decide a batch; whether it is. It may be staged again at any time, also afterwards."""
        record_count = BATCH_RECORDS * len(items)

        def stage() -> tuple[TxnPart, ...]:
            staged = Transaction(txn_id_of(producer, number, uuid.uuid4().hex))
            client.append(items, transaction=staged)
            return staged.parts()

        decision = None
        while decision is None and not self._is_over.is_set():
            parts = self._until_done(stage)
            while parts and decision is None and not self._is_over.is_set():
                try:
                    decision = client.commit_txn(
                        producer, number, parts, record_count=record_count, digest=DIGEST
                    )
                except SbpError as error:
                    if not error.retriable:
                        raise
                    if rng.random() < RESTAGED_SHARE:
                        break
        assert decision is None or decision.record_count == record_count, decision
        return decision is not None

    def _read(self, index: int) -> None:
        copies = OtherCopies()
        with self._client() as client:
            if index:
                on_loop = client.on_loop
                on_loop._context = replace(on_loop._context, replicas=copies)
            while not self._is_over.is_set():
                cursors = list(self.cursors[index].values())
                items = [
                    FetchItem(each.stream_id, each.position, None, FETCH_BYTES) for each in cursors
                ]
                for outcome in client.fetch(items, max_wait_ms=WAIT_MS):
                    if outcome.error is None:
                        self._take(index, cursors[outcome.item_index], outcome.payload)
                    else:
                        copies.turn += 1
                        self._is_over.wait(FAILURE_PAUSE_SECONDS)

    def _take(self, index: int, cursor: Cursor, payload: memoryview) -> None:
        for offset, writer, number, digest in cursor.read(payload):
            if offset % DIGEST_EVERY == 0:
                self.ledger.on_digest(cursor.stream_id, offset, digest)
            is_first = number % BATCH_RECORDS == 0
            if not index and is_first and writer < self._appenders:
                self.ledger.on_batch(writer, cursor.stream_id, number, offset)


def batch_of(writer: int, first_number: int, stream_id: int) -> bytes:
    """The encoded records of a writer from a number on."""
    numbers = range(first_number, first_number + BATCH_RECORDS)
    return rows_batch([_RECORD.pack(writer, each) for each in numbers], stream_id)
