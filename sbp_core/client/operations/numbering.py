"""How the batches of an append are numbered: not at all, by a writer, or in a transaction.

The numbers decide to which ranges batches go, and which may be retried.
"""

from __future__ import annotations

import heapq
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sbp_core import limits
from sbp_core.client.operations.router import Router
from sbp_core.client.types import AppendItem, AppendOutcome, RangeInfo, TxnPart
from sbp_core.errors import (
    ConfigurationError,
    NotFoundError,
    RangeSealedError,
    SbpError,
    StatusCode,
)
from sbp_core.records import peek_batch
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.txn_id import is_txn_id, is_writer_id


class Marks(NamedTuple):
    """The marks of a batch on the wire: its writer or transaction, and its number there."""

    writer_id: str | None = None
    sequence: int = -1
    txn_id: str | None = None


UNMARKED: Final = Marks()


class Numbering:
    """The numbering of plain appends: batches have no numbers, and go to the open range.

    Servers must have agreed to `feature`. At most `stream_batches_max` batches of a stream are in
    flight. The batches are in one frame unless their numbers keep the order (`is_ordered`).
    """

    feature: FeatureName | None = None
    is_ordered = False
    stream_batches_max = sys.maxsize
    known: Mapping[int, AppendOutcome] = {}
    """Outcomes by index of batches that a failed append, which this one repeats, appended."""

    def add(self, items: Sequence[AppendItem]) -> Collection[int]:
        """Accept the next batches; return the indexes of batches that may be appended already.

        Raises SbpError, and accepts none, if a batch is unusable.
        """
        return ()

    def range_for(self, index: int, stream_id: int, router: Router) -> RangeInfo:
        """Return the range that a batch goes to. Raises SbpError if there is none at the moment."""
        piece = router.maybe_open_range(stream_id)
        if piece is None:
            raise RangeSealedError(
                StatusCode.RANGE_ALREADY_SEALED,
                f"stream {stream_id} has no open range at the moment",
            )
        return piece

    def marks(self, index: int, piece: RangeInfo) -> Marks:
        """Return the marks of a batch that is being sent to a range."""
        return UNMARKED

    def on_appended(self, index: int, outcome: AppendOutcome) -> None:
        """Record that a server has a batch."""

    def on_refused(self, index: int, error: SbpError) -> None:
        """Record that a server has refused a try of a batch."""

    def end(self, in_doubt: Collection[int], *, is_complete: bool) -> None:
        """Record the end of the append: `is_complete` if all batches are appended."""


class Writer:
    """Makes appends idempotent: each batch is appended once, however often it is sent.

    Pass the same writer to each append::

        writer = Writer()
        client.append(items, writer=writer)

    A writer numbers the batches of each stream from 0, and servers append each number once (SPEC
    "APPEND", extension), so an append of unknown outcome is retried. If an append raises an error,
    make the same call again next: it appends the batches that the failed call did not. A call with
    other batches has to begin, in each stream, with the batches in doubt; otherwise it raises
    ConfigurationError, and batches that were appended before are appended again. After an error,
    `unacknowledged` of an appender has the batches to go on with.

    A writer serves one append at a time, with any client. Without `writer_id` the writer gets a new
    id. Use an id in one process only, and never again, because numbers begin at 0, or at
    `first_sequence` if the caller knows how far an earlier writer of that id came. Raises
    ConfigurationError for an id that is not 1 to WRITER_ID_LENGTH_MAX letters, digits, `.`, `_` and
    `-`.
    """

    def __init__(self, writer_id: str | None = None, *, first_sequence: int = 0) -> None:
        self.writer_id: Final = uuid.uuid4().hex if writer_id is None else writer_id
        if not is_writer_id(self.writer_id):
            raise ConfigurationError(
                f"{self.writer_id!a} cannot name a writer: expected 1 to"
                f" {limits.WRITER_ID_LENGTH_MAX} letters, digits, '.', '_' or '-'"
            )
        self._first_sequence = first_sequence
        self._streams: dict[int, _Stream] = {}
        self._failed = _FailedCall()
        self._at_work = threading.Lock()

    def _begin(self) -> Numbering:
        if not self._at_work.acquire(blocking=False):
            raise ConfigurationError(
                f"writer {self.writer_id} is at work: one append at a time, or another writer"
            )
        return _WriterNumbering(
            self.writer_id, self._first_sequence, self._streams, self._failed, self._at_work
        )


@dataclass(slots=True)
class _FailedCall:
    """The batches of the last append, if it failed, and their outcomes.

    The next append repeats the failed one if it has exactly the same batches. Equal batches of any
    later append are new batches.
    """

    items: Sequence[AppendItem] = ()
    outcomes: Mapping[int, AppendOutcome] = field(default_factory=dict)
    """By index: outcomes of batches whose numbers are used up. Batches behind one in doubt keep
    their numbers."""


@dataclass(slots=True)
class _Stream:
    """The batches of a stream from the first one in doubt on; `first` is the number of that batch.

    The batches in `done` are appended, although an earlier batch is in doubt. An append has to
    begin with the batches that the last append left in doubt, with numbers below `doubted_end`. The
    next batch gets the number `next`.
    """

    first: int = 0
    batches: list[bytes] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    next: int = 0
    doubted_end: int = 0

    def begin(self) -> None:
        self.next = self.first
        self.doubted_end = self.first + len(self.batches)

    def is_doubted(self, sequence: int) -> bool:
        return sequence < self.doubted_end

    def give(self, batch: bytes) -> int:
        sequence = self.next
        self.next += 1
        if not self.is_doubted(sequence):
            self.batches.append(batch)
        return sequence

    def on_appended(self, sequence: int) -> None:
        self.done.add(sequence)
        while self.first in self.done:
            self.done.remove(self.first)
            del self.batches[0]
            self.first += 1

    def end(self, doubted: Collection[int]) -> None:
        """Keep the batches that may be appended. The numbers of later batches are free again."""
        end = self.first
        while end in doubted or end in self.done or self.is_doubted(end):
            end += 1
        del self.batches[end - self.first :]
        self.done.clear()


class _WriterNumbering(Numbering):
    """The numbering of one append of a writer: batches get the next numbers of their streams.

    The first batches of a stream are compared with the batches that the last append left in doubt.
    """

    feature = FeatureName.IDEMPOTENT_APPEND
    is_ordered = True
    stream_batches_max = limits.WRITER_BATCHES_KEPT

    def __init__(
        self,
        writer_id: str,
        first_sequence: int,
        streams: dict[int, _Stream],
        failed: _FailedCall,
        at_work: threading.Lock,
    ) -> None:
        self._writer_id = writer_id
        self._first_sequence = first_sequence
        self._all_streams = streams
        self._failed = failed
        self._at_work = at_work
        self._only_items: Sequence[AppendItem] = ()
        """All batches of the append, if they were given at once."""
        self._appended: dict[int, tuple[_Stream, int, AppendOutcome]] = {}
        """By index: the batches that this append has appended."""
        self._count = 0
        self._streams: dict[int, _Stream] = {}
        """The streams of this append."""
        self._numbers: dict[int, tuple[_Stream, int]] = {}
        """By index: the stream and number of each batch that is not appended yet."""

    def add(self, items: Sequence[AppendItem]) -> Collection[int]:
        """Give batches their numbers; return the batches that the last append left in doubt.

        Raises ConfigurationError if other batches are in doubt.
        """
        known: Mapping[int, AppendOutcome] = {}
        if not self._count and list(items) == list(self._failed.items):
            known = self._failed.outcomes
        self._check_doubted([item for index, item in enumerate(items) if index not in known])
        self.known = known
        self._failed.items, self._failed.outcomes = (), {}
        self._only_items = () if self._count else items
        self._appended.clear()
        doubted = []
        for index, item in enumerate(items, self._count):
            if index in known:
                continue
            stream = self._streams[item.stream_id]
            sequence = stream.give(item.batch)
            self._numbers[index] = stream, sequence
            if stream.is_doubted(sequence):
                doubted.append(index)
        self._count += len(items)
        return doubted

    def marks(self, index: int, piece: RangeInfo) -> Marks:
        """Return the writer's id and number."""
        return Marks(self._writer_id, self._numbers[index][1])

    def on_appended(self, index: int, outcome: AppendOutcome) -> None:
        """Count a batch as appended in its stream."""
        stream, sequence = self._numbers.pop(index)
        stream.on_appended(sequence)
        if self._only_items:
            self._appended[index] = stream, sequence, outcome

    def end(self, in_doubt: Collection[int], *, is_complete: bool) -> None:
        """Keep the batches in doubt for the next append. All other batches were not appended."""
        doubted: dict[int, set[int]] = {}
        for index in in_doubt:
            stream, sequence = self._numbers[index]
            doubted.setdefault(id(stream), set()).add(sequence)
        for stream in self._streams.values():
            stream.end(doubted.get(id(stream), set()))
        if self._only_items and not is_complete:
            self._failed.items = self._only_items
            self._failed.outcomes = {**self.known} | {
                index: outcome
                for index, (stream, sequence, outcome) in self._appended.items()
                if sequence < stream.first
            }
        self._at_work.release()

    def _check_doubted(self, items: Sequence[AppendItem]) -> None:
        counts: Counter[int] = Counter()
        for item in items:
            if item.stream_id not in self._streams:
                stream = self._all_streams.setdefault(item.stream_id, _Stream(self._first_sequence))
                self._streams[item.stream_id] = stream
                stream.begin()
            stream = self._streams[item.stream_id]
            sequence = stream.next + counts[item.stream_id]
            counts[item.stream_id] += 1
            if stream.is_doubted(sequence) and (
                stream.batches[sequence - stream.first] != item.batch
            ):
                raise ConfigurationError(
                    f"an earlier append of writer {self._writer_id} to stream {item.stream_id} is"
                    " in doubt: append the same batches again, or go on with another writer"
                )


_RangeKey = tuple[int, int]
"""(stream id, range index)."""


class _Staged:
    """The staged batches of a transaction, and their numbers in each range."""

    def __init__(self) -> None:
        self.has_failed = False
        self.at_work = threading.Lock()
        self._streams: dict[int, int] = {}
        """Stream ids with their rank in the order of first use."""
        self._numbered: dict[_RangeKey, int] = {}
        """By range: how many numbers were given to batches."""
        self._unused: dict[_RangeKey, list[int]] = {}
        """By range: the numbers that were taken back, as a heap."""
        self._counts: dict[_RangeKey, tuple[int, int]] = {}
        """By range: how many records and batches are known to be staged."""

    def parts(self, txn_id: str) -> tuple[TxnPart, ...]:
        used = self._numbered if self.has_failed else self._counts
        return tuple(
            TxnPart(txn_id, *key, *self._counts.get(key, (0, 0)))
            for key in sorted(used, key=lambda key: (self._streams[key[0]], key[1]))
        )

    def use(self, stream_id: int) -> None:
        """Record the first use of a stream."""
        self._streams.setdefault(stream_id, len(self._streams))

    def number(self, key: _RangeKey) -> int:
        """Return the number for the next batch that is sent to a range."""
        if self._unused.get(key):
            return heapq.heappop(self._unused[key])
        sequence = self._numbered.get(key, 0)
        self._numbered[key] = sequence + 1
        return sequence

    def take_back(self, key: _RangeKey, sequence: int) -> None:
        """Free a number for another batch, as the range has no batch with it."""
        # The lowest number is used first, because a server refuses a batch behind a gap.
        heapq.heappush(self._unused.setdefault(key, []), sequence)

    def on_staged(self, key: _RangeKey, record_count: int) -> None:
        """Count a batch that is staged in a range."""
        records, batches = self._counts.get(key, (0, 0))
        self._counts[key] = records + record_count, batches + 1


class Transaction:
    """A set of batches that become visible together, or not at all (SPEC "APPEND", extension).

    `txn_id` must be new: 1 to TXN_ID_LENGTH_MAX letters, digits, `.`, `_`, `~` and `-`; `txn_id_of`
    makes an id that names its producer. Raises ConfigurationError for another text.

        transaction = Transaction(txn_id_of("orders", 17, uuid4().hex))
        client.append(items, transaction=transaction)
        client.commit_txn("orders", 17, transaction.parts(), record_count=20, digest=digest)

    Appended batches are staged: they are durable, have no offsets and are not visible before
    `commit_txn`. The commit gives the batches of a stream offsets in the order of staging. Staging
    is idempotent, so an append is retried whatever its outcome. A transaction serves one append at
    a time, with any client. If an append raised an error, do not commit: pass `parts` to
    `abort_txns`, and begin another transaction.
    """

    def __init__(self, txn_id: str) -> None:
        if not is_txn_id(txn_id):
            raise ConfigurationError(
                f"{txn_id!a} cannot name a transaction: expected 1 to {limits.TXN_ID_LENGTH_MAX}"
                " letters, digits, '.', '_', '~' or '-'"
            )
        self.txn_id: Final = txn_id
        self._staged = _Staged()

    @property
    def has_failed(self) -> bool:
        """Whether an append failed: some of its batches may be staged, and others not."""
        return self._staged.has_failed

    def parts(self) -> tuple[TxnPart, ...]:
        """Return the parts to commit or to abort, one for each range with staged batches.

        Streams are in the order of first use, the ranges of a stream in their order. After a failed
        append, ranges where a batch may be staged without a confirmation are included.
        """
        return self._staged.parts(self.txn_id)

    def _begin(self) -> Numbering:
        if not self._staged.at_work.acquire(blocking=False):
            raise ConfigurationError(
                f"transaction {self.txn_id} is at work: one append at a time, or another one"
            )
        if self.has_failed:
            self._staged.at_work.release()
            raise ConfigurationError(
                f"an append of transaction {self.txn_id} has failed: abort its parts, and"
                " begin another one"
            )
        return _Staging(self.txn_id, self._staged)


class _Staging(Numbering):
    """The numbering of one append of a transaction: a sent batch keeps its range and number.

    So a server recognises a batch that is sent again. A batch goes to another range only if its
    server answers that the range is sealed and the batch is not staged there.
    """

    feature = FeatureName.TRANSACTIONS
    is_ordered = True

    def __init__(self, txn_id: str, staged: _Staged) -> None:
        self._txn_id = txn_id
        self._staged = staged
        self._record_counts: list[int] = []
        self._numbers: dict[int, tuple[_RangeKey, int]] = {}

    def add(self, items: Sequence[AppendItem]) -> Collection[int]:
        """Accept batches, none of which is staged yet. Raises RecordBatchError for other bytes."""
        self._record_counts += [peek_batch(item.batch).record_count for item in items]
        for item in items:
            self._staged.use(item.stream_id)
        return ()

    def range_for(self, index: int, stream_id: int, router: Router) -> RangeInfo:
        """Return the range that a batch was sent to before, or else the open range.

        Raises NotFoundError if the former range was trimmed, RangeSealedError while the placement
        of the stream is being looked up.
        """
        if index not in self._numbers:
            return super().range_for(index, stream_id, router)
        (_, range_index), _ = self._numbers[index]
        ranges = router.maybe_ranges(stream_id)
        if ranges is None:
            raise RangeSealedError(
                StatusCode.RANGE_ALREADY_SEALED,
                f"range {range_index} of stream {stream_id} has to be looked up again",
            )
        for piece in ranges:
            if piece.range_index == range_index:
                return piece
        raise NotFoundError(
            StatusCode.NOT_FOUND,
            f"range {range_index} of stream {stream_id}, where a batch may be staged, was trimmed",
        )

    def marks(self, index: int, piece: RangeInfo) -> Marks:
        """Return the transaction's id and number in the range."""
        if index not in self._numbers:
            key = (piece.stream_id, piece.range_index)
            self._numbers[index] = key, self._staged.number(key)
        _, sequence = self._numbers[index]
        return Marks(None, sequence, self._txn_id)

    def on_appended(self, index: int, outcome: AppendOutcome) -> None:
        """Count a staged batch."""
        key, _ = self._numbers.pop(index)
        self._staged.on_staged(key, self._record_counts[index])

    def on_refused(self, index: int, error: SbpError) -> None:
        """Free the number of a batch that a sealed range refused, so that it goes elsewhere.

        It may go to the same range again: a server that reported a seal may crash before the seal
        is on disk.
        """
        if isinstance(error, RangeSealedError):
            self._staged.take_back(*self._numbers.pop(index))

    def end(self, in_doubt: Collection[int], *, is_complete: bool) -> None:
        """End the append. The transaction has failed unless all batches are staged."""
        self._staged.has_failed = bool(self._record_counts) and not is_complete
        self._staged.at_work.release()


def begin_numbering(writer: Writer | None, transaction: Transaction | None) -> Numbering:
    """Return the numbering of a new append; the caller has to call its `end`.

    Raises ConfigurationError if the writer or transaction is at work, or the transaction failed.
    """
    if writer is not None:
        return writer._begin()  # noqa: SLF001 - users have no use for it
    return Numbering() if transaction is None else transaction._begin()  # noqa: SLF001
