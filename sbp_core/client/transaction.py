"""Transactions: batches that are staged now, and appended together when that is decided."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Collection, Sequence
from typing import Final

from sbp_core import limits
from sbp_core.client.appends.numbering import Marks, Numbering
from sbp_core.client.programs.router import Router
from sbp_core.client.types import AppendItem, RangeInfo, TxnPart
from sbp_core.errors import (
    ConfigurationError,
    NotFoundError,
    RangeSealedError,
    SbpError,
    StatusCode,
)
from sbp_core.records import peek_batch
from sbp_core.session.negotiation import FeatureName
from sbp_core.wire.txn_id import is_txn_id

_RangeKey = tuple[int, int]
"""(stream id, range index)."""


class Transaction:
    """Stages batches under an id, which is nobody else's (SPEC "APPEND", extension).

    What is staged has no offset and nobody reads it, until `parts` are committed: then all of it is
    appended, of each stream in the order in which it was staged. It may be tried again without
    harm, so an append with a transaction does that whatever became of it. A range that is sealed
    meanwhile keeps what is staged in it; what follows goes to the next one.

    A transaction is for one append at a time, with any client. One of which an append failed must
    not be committed: drop its `parts`, and begin another under another id. Raises
    ConfigurationError for an id that is not 1 to TXN_ID_LENGTH_MAX letters, digits, `.`, `_`, `~`
    and `-`; `txn_id_of` makes one that tells whose it is.
    """

    def __init__(self, txn_id: str) -> None:
        if not is_txn_id(txn_id):
            raise ConfigurationError(
                f"{txn_id!a} cannot name a transaction: expected 1 to {limits.TXN_ID_LENGTH_MAX}"
                " letters, digits, '.', '_', '~' or '-'"
            )
        self.txn_id: Final = txn_id
        self.has_failed = False
        """Whether an append failed: then less may be staged than was to be, or more."""
        self._streams: dict[int, int] = {}
        """Streams by their place in the order of first use."""
        self._numbered: dict[_RangeKey, int] = {}
        """Of each range how many numbers were given to batches."""
        self._unused: dict[_RangeKey, list[int]] = {}
        """Of each range the numbers that came back, as a heap."""
        self._staged: dict[_RangeKey, tuple[int, int]] = {}
        """Of each range how many records are staged for sure, and batches."""
        self._at_work = threading.Lock()

    def parts(self) -> tuple[TxnPart, ...]:
        """Return what is staged: to commit, or to drop.

        Streams are in the order of first use, and of each its ranges. After a failure also where
        something may be staged, though nobody said so.
        """
        used = self._numbered if self.has_failed else self._staged
        return tuple(
            TxnPart(self.txn_id, *key, *self._staged.get(key, (0, 0)))
            for key in sorted(used, key=lambda key: (self._streams[key[0]], key[1]))
        )

    def begin(self) -> Numbering:
        """Return how an append numbers what it stages; `end` of that comes next.

        Raises ConfigurationError if the transaction is at work, or has failed.
        """
        if not self._at_work.acquire(blocking=False):
            raise ConfigurationError(
                f"transaction {self.txn_id} is at work: one append at a time, or another one"
            )
        if self.has_failed:
            self._at_work.release()
            raise ConfigurationError(
                f"an append of transaction {self.txn_id} has failed: drop what is staged, and"
                " begin another one"
            )
        return _Staging(self)

    def end(self, *, has_failed: bool) -> None:
        """End an append: with one that failed the transaction has."""
        self.has_failed = has_failed
        self._at_work.release()

    def use(self, stream_id: int) -> None:
        """Give a stream its place in the order of first use."""
        self._streams.setdefault(stream_id, len(self._streams))

    def number(self, key: _RangeKey) -> int:
        """Return the number of the next batch that is sent to a range."""
        if self._unused.get(key):
            return heapq.heappop(self._unused[key])
        sequence = self._numbered.get(key, 0)
        self._numbered[key] = sequence + 1
        return sequence

    def take_back(self, key: _RangeKey, sequence: int) -> None:
        """Let another batch have a number: the range has none under it."""
        heapq.heappush(self._unused.setdefault(key, []), sequence)

    def on_staged(self, key: _RangeKey, record_count: int) -> None:
        """Take note of a batch that is staged in a range."""
        records, batches = self._staged.get(key, (0, 0))
        self._staged[key] = records + record_count, batches + 1


class _Staging(Numbering):
    """One append: a batch gets its number when it is sent, and keeps range and number.

    So one that is sent again is known where it may be staged already. Only a server that says that
    its range is sealed, and that it is not staged there, lets it go elsewhere.
    """

    feature = FeatureName.TRANSACTIONS
    is_ordered = True

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction
        self._record_counts: list[int] = []
        self._numbers: dict[int, tuple[_RangeKey, int]] = {}

    def add(self, items: Sequence[AppendItem]) -> Collection[int]:
        """Take batches, none of which is staged yet. Raises RecordBatchError if one is none."""
        self._record_counts += [peek_batch(item.batch).record_count for item in items]
        for item in items:
            self._transaction.use(item.stream_id)
        return ()

    def range_for(self, index: int, stream_id: int, router: Router) -> RangeInfo:
        """Return the range that a batch was sent to before, else the open one.

        Raises NotFoundError if that one was trimmed away meanwhile, RangeSealedError while it is
        not known where it is: another thread may look the stream up.
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
            f"range {range_index} of stream {stream_id}, where a batch may be staged, is no more",
        )

    def marks(self, index: int, piece: RangeInfo) -> Marks:
        """Return the transaction's id and number in the range."""
        if index not in self._numbers:
            key = (piece.stream_id, piece.range_index)
            self._numbers[index] = key, self._transaction.number(key)
        _, sequence = self._numbers[index]
        return Marks(None, sequence, self._transaction.txn_id)

    def on_appended(self, index: int) -> None:
        """Count what is staged now."""
        key, _ = self._numbers.pop(index)
        self._transaction.on_staged(key, self._record_counts[index])

    def on_refused(self, index: int, error: SbpError) -> None:
        """Let a batch go on in the next range.

        Or in this one: a server that told of a seal may die before that is on disk.
        """
        if isinstance(error, RangeSealedError):
            self._transaction.take_back(*self._numbers.pop(index))

    def end(self, in_doubt: Collection[int], *, is_complete: bool) -> None:
        """End the append: if not all of it is staged, the transaction has failed."""
        self._transaction.end(has_failed=bool(self._record_counts) and not is_complete)
