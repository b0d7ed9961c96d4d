"""Stage batches under transactions: accept the next batch, answer a repeat like the original.

Staged batches are on this server's disk until their transaction ends, so no digest of them is kept:
a repeat is compared with the bytes on the disk.

When END_TXN begins, nothing more is accepted for the transaction, and batches in flight are waited
for. Then the log has the whole transaction.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from sbp_core import limits
from sbp_core.errors import (
    InvalidRequestError,
    LogError,
    SbpError,
    ThrottledError,
    TxnEndedError,
    WriterGapError,
    invalid,
)
from sbp_core.log.bodies import read_bodies
from sbp_core.log.durable_log import Log
from sbp_core.log.entry import Entry
from sbp_core.log.states.staged_states import StagedStates, Staging, staged_entry
from sbp_core.log.states.writer_states import NumberedBatch
from sbp_core.rangeserver.appending.append_items import InFlight, Item, PendingAppend
from sbp_core.rangeserver.appending.commit import Written
from sbp_core.rangeserver.hosted_ranges import HostedRange, RangeInput, check_latest
from sbp_core.records import are_same
from sbp_core.wire.status import shown
from sbp_core.wire.txn_id import is_txn_id, original_of
from sbp_core.wording import counted

NO_OFFSET: Final = -1
"""The base offset of a staged batch."""


@dataclass(frozen=True, slots=True)
class StagedNumber:
    """The number of a staged batch: range, transaction and sequence."""

    stream_id: int
    range_index: int
    txn_id: str
    sequence: int

    def __str__(self) -> str:
        return (
            f"batch {self.sequence} of transaction {self.txn_id} in range {self.range_index} of"
            f" stream {self.stream_id}"
        )

    @property
    def numberer(self) -> tuple[int, int, str]:
        """The transaction in the range, as a `Numberer`."""
        return self.stream_id, self.range_index, self.txn_id


@dataclass(slots=True, eq=False)
class StagedRepeat:
    """A batch with the number of a staged batch, which `staging` has on the disk.

    After the comparison `refusal` says why it is not a repeat.
    """

    number: StagedNumber
    staging: Staging
    record_count: int
    batch: memoryview
    refusal: SbpError | None = None

    def placed(self) -> NumberedBatch:
        """Return the answer to a repeat."""
        return NumberedBatch(NO_OFFSET, self.record_count, self.staging.staged_at_ms)


def compare(log: Log, repeats: Iterable[StagedRepeat]) -> None:
    """Compare repeats with the staged batches; set the `refusal` if they differ.

    May wait for the disk.
    """
    for repeat in repeats:
        number = repeat.number
        try:
            slot = next(log.staged_from(repeat.staging, number.sequence))
            found = read_bodies((number.stream_id, number.range_index), [slot], log.recent)
        except LogError as error:
            repeat.refusal = error
            continue
        if found.error is not None:
            repeat.refusal = found.error
        elif not are_same(found.data[0], repeat.batch):
            repeat.refusal = other_content(number)


def other_content(number: StagedNumber) -> InvalidRequestError:
    """Return the error of a batch whose number another batch has."""
    return invalid(
        f"{number} was staged before with other content, so this one was not stored: a retry must"
        " send the same bytes, and two transactions must not have the same id"
    )


def check_txn_ids(txn_ids: Collection[str]) -> None:
    """Raise InvalidRequestError unless these are valid, distinct ids, at least one."""
    for txn_id in txn_ids:
        if not is_txn_id(txn_id):
            raise invalid(
                f"{shown(txn_id)} cannot name a transaction: use 1 to {limits.TXN_ID_LENGTH_MAX} of"
                " A-Z a-z 0-9 . _ ~ -"
            )
    if not txn_ids or len(set(txn_ids)) < len(txn_ids):
        raise invalid("txn_ids must name at least one transaction, and each only once")


def _number_of(item: Item) -> StagedNumber:
    """Return the number of a batch to stage. Raises InvalidRequestError."""
    info = item.info
    number = StagedNumber(item.stream_id, item.range_index, info.txn_id or "", info.sequence)
    check_txn_ids((number.txn_id,))
    if info.writer_id is not None:
        raise invalid("a transaction numbers its batches itself; stage them without writer_id")
    if number.range_index < 0:
        raise invalid(f"{number}: a staged batch must name its range, by range_index")
    if number.sequence < 0:
        raise invalid(
            f"transaction {number.txn_id} gave sequence {number.sequence}: its first batch in a"
            " range must have sequence 0, each next one 1 more"
        )
    return number


class Stagings:
    """The staged batches of all ranges, in the log and in flight."""

    def __init__(
        self,
        known: StagedStates,
        in_flight: InFlight,
        *,
        stagings_max: int = limits.STAGINGS_MAX,
    ) -> None:
        self.known = known
        self._stagings_max = stagings_max
        self._in_flight = in_flight
        self._closing: Counter[tuple[int, str]] = Counter()
        self._count_max = len(known.stagings())
        """An upper bound of the number of stagings: some have ended since the count."""
        self._ends: dict[tuple[int, str], asyncio.Future[Written]] = {}
        """The ends in flight, by stream and transaction."""

    def accept(
        self,
        item: Item,
        latest: HostedRange,
        record_count: int,
        incomplete: HostedRange | None = None,
    ) -> tuple[PendingAppend | StagedRepeat, Sequence[Entry]]:
        """Accept a batch; return it, or the repeat to compare, and the entries that stage it.

        A repeat has no entries. Repeats are looked for first, because a batch stays staged when its
        range is sealed. `latest` is the stream's latest range. `incomplete` is the range of the
        batch if it is a copy that may lack entries, or have entries that will be truncated: then
        only another server knows whether the batch is staged. Raises SbpError for a refusal.
        """
        number = _number_of(item)
        repeated = self._maybe_repeat(number, record_count, item.batch)
        if isinstance(repeated, PendingAppend):
            return repeated, ()
        if incomplete is not None:
            raise incomplete.unknown(f"whether it has {number}")
        if repeated is not None:
            return repeated, ()
        check_latest(latest, number.range_index)
        latest.receive(RangeInput.APPEND)
        self._check_next(number)
        self._count_max += number.sequence == 0
        entry = staged_entry(*number.numberer, number.sequence, record_count, item.batch)
        pending = PendingAppend(
            number.numberer,
            number.sequence,
            NO_OFFSET,
            record_count,
            item.batch,
            number.range_index,
        )
        self._in_flight.begin(pending)
        return pending, (entry,)

    @contextmanager
    def closing(self, stream_id: int, txn_ids: Iterable[str]) -> Iterator[None]:
        """Accept nothing for these transactions inside the block."""
        places = [(stream_id, txn_id) for txn_id in txn_ids]
        self._closing.update(places)
        try:
            yield
        finally:
            for place in places:
                self._closing[place] -= 1
                if not self._closing[place]:
                    del self._closing[place]

    async def settle(
        self, stream_id: int, range_indexes: Sequence[int], txn_ids: Sequence[str]
    ) -> None:
        """Wait until the log has all accepted batches of transactions, and their ends.

        The transactions are `closing`, so nothing is added. Failed writes do not count.
        """
        while waiting := self._waiting(stream_id, range_indexes, txn_ids):
            await asyncio.wait(waiting)

    def follow_end(
        self, stream_id: int, txn_ids: Iterable[str], written: asyncio.Future[Written]
    ) -> None:
        """Let later ends of these transactions wait for `written`."""
        for txn_id in txn_ids:
            place = (stream_id, txn_id)
            self._ends[place] = written
            written.add_done_callback(partial(self._on_ended, place))

    def _maybe_repeat(
        self, number: StagedNumber, record_count: int, batch: memoryview
    ) -> PendingAppend | StagedRepeat | None:
        """Return the original of a repeat; None if the batch was not accepted before.

        Raises TxnEndedError if the transaction ended, InvalidRequestError if the original has other
        content.
        """
        place = (number.stream_id, number.txn_id)
        if place in self._closing or self.known.is_ended(*place):
            raise TxnEndedError.of(
                f"{number} was not staged: the transaction was published or dropped, or is about"
                " to be"
            )
        found: PendingAppend | StagedRepeat | None
        found = self._in_flight.maybe_batch(number.numberer, number.range_index, number.sequence)
        if found is None:
            staging = self.known.maybe_staging(*number.numberer)
            if staging is None or number.sequence >= staging.batch_count:
                return None
            count = staging.batches.record_counts[number.sequence]
            found = StagedRepeat(number, staging, count, batch)
        if found.record_count != record_count:
            raise invalid(
                f"{number} had {counted(found.record_count, 'record')}, this one has"
                f" {record_count}: two transactions must not have the same id"
            )
        if isinstance(found, PendingAppend) and not are_same(found.batch, batch):
            raise other_content(number)
        return found

    def _check_next(self, number: StagedNumber) -> None:
        """Raise WriterGapError unless a batch that is not a repeat is the next one.

        Raises InvalidRequestError if a transaction may have no more batches, ThrottledError for the
        first batch of a transaction while too many others are open.
        """
        expected = self._next_sequence(number)
        if expected == 0 and original_of(number.txn_id) == number.txn_id:
            self._check_room()  # not for a copy: its original is decided and must be published
        if number.sequence != expected:
            raise WriterGapError.of(
                f"{number} was not staged: batch {expected} comes next",
                WriterGapError.encode_expected(expected),
            )
        if expected >= limits.TXN_BATCHES_MAX:
            raise invalid(
                f"{number} was not staged: one stream takes {limits.TXN_BATCHES_MAX} batches of a"
                " transaction; stage larger ones"
            )

    def _check_room(self) -> None:
        if self._count_max >= self._stagings_max:  # count only when the bound is reached
            self._count_max = len(self.known.stagings())
        if self._count_max >= self._stagings_max:
            raise ThrottledError.of(
                f"{self._count_max} transactions have something staged at this server already; try"
                " again when some of them are decided"
            )

    def _on_ended(self, place: tuple[int, str], written: asyncio.Future[Written]) -> None:
        if self._ends.get(place) is written:
            del self._ends[place]

    def _waiting(
        self, stream_id: int, range_indexes: Sequence[int], txn_ids: Sequence[str]
    ) -> set[asyncio.Future[Written]]:
        waiting = {
            append.written
            for txn_id in txn_ids
            for range_index in range_indexes
            for append in self._in_flight.of((stream_id, range_index, txn_id))
            if append.written is not None
        }
        ends = (self._ends.get((stream_id, txn_id)) for txn_id in txn_ids)
        waiting.update(end for end in ends if end is not None)
        return {each for each in waiting if not each.done()}

    def _next_sequence(self, number: StagedNumber) -> int:
        last = self._in_flight.maybe_last(number.numberer, number.range_index)
        if last is not None:
            return last + 1
        staging = self.known.maybe_staging(*number.numberer)
        return 0 if staging is None else staging.batch_count
