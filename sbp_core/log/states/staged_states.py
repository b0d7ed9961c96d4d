"""The states of transactions, staged and ended: fold entries into states.

A *staging* has the batches staged under one id in one range: without offsets, numbered 0, 1, 2, ...
One TXN_END entry publishes or drops them. The last ends of every stream are remembered, so that a
repeated request gets the same answer: at most TXN_ENDS_KEPT of each kind with TXN_ENDED_IDS_MAX ids
together, and always the last published end. The states follow from the entries alone, beginning
with the snapshot at the start of a segment.

The position of a damaged staged batch is known, but not its transaction. The next intact batch of a
transaction tells how many batches are missing before it. If exactly that many damaged batches of
the range are there, they belong to the transaction.

Snapshots have the states as records one after the other, big-endian. A record begins

    0     kind         u8   0 a staging, 1 an end that dropped, 2 an end that published
    1-8   stream_id    i64
    9-12  range_index  i32

A staging goes on with the time of the first batch (u64, ms since the epoch), the number of batches
(u32), the id (its length u8 in front), and the batches as in a TXN_END. An end goes on with its
time (u64), the number of ids (u32), base_offset i64, record count u32, and the ids.
"""

from __future__ import annotations

import struct
from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from threading import Lock
from typing import Final

from sbp_core import limits
from sbp_core.errors import LogCorruptionError, invalid
from sbp_core.log.entry import Entry, Location, unpack_at
from sbp_core.log.states.replicated_entries import decode_settled
from sbp_core.log.states.staged_entries import (
    STAGED_BATCH_BYTES,
    BatchColumns,
    EndedBatches,
    StagedRows,
    decode_columns,
    decode_end,
    decode_prefix,
    decode_txn_id,
    encode_end,
    encode_prefix,
    encode_txn_id,
    prefix_length,
)
from sbp_core.segment_format import EntryKind
from sbp_core.wire.checksum import Buffer

_RECORD: Final = struct.Struct(">BqiQI")
_TXN_END: Final = struct.Struct(">qI")
_STAGING, _DROP, _COMMIT = range(3)


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """A staged batch: its range, the location of its first write, its records and time."""

    range_index: int
    born_at: Location
    record_count: int
    time_ms: int


@dataclass(frozen=True, slots=True)
class Staging:
    """The batches staged under an id in a range; `staged_at_ms` is the time of the first batch.

    It may grow while a thread reads it.
    """

    stream_id: int
    range_index: int
    txn_id: str
    staged_at_ms: int
    batches: BatchColumns = field(default_factory=BatchColumns)

    @property
    def batch_count(self) -> int:
        """Number of staged batches, which is the sequence of the next batch."""
        return len(self.batches)

    @property
    def record_count(self) -> int:
        """Number of staged records."""
        return sum(self.batches.record_counts[: len(self.batches)])

    @property
    def prefix_bytes(self) -> int:
        """Bytes in front of each batch in its entry."""
        return prefix_length(self.txn_id)


@dataclass(frozen=True, slots=True)
class LoggedTxnEnd:
    """The end of transactions in a range: published from `base_offset` on, or dropped.

    `base_offset` is -1 if they were dropped, `range_index` is -1 if they were dropped in all ranges
    of the stream. `time_ms` is the time of the entry, since the epoch, UTC.
    """

    txn_ids: tuple[str, ...]
    is_commit: bool
    range_index: int
    base_offset: int
    record_count: int
    time_ms: int


@dataclass(slots=True)
class _StreamTxns:
    """The transactions of a stream; `ended` are the ids in `ends`.

    `ends` are sorted by range, because entries of an earlier range may be copied later. `lost` are
    damaged batches of unknown transactions, in the order of the log.
    """

    stagings: dict[tuple[int, str], Staging] = field(default_factory=dict)
    ends: list[LoggedTxnEnd] = field(default_factory=list)
    ended: frozenset[str] = frozenset()
    lost: list[StagedBatch] = field(default_factory=list)
    ended_ids_max: int = limits.TXN_ENDED_IDS_MAX

    def stage(self, stream_id: int, txn_id: str, sequence: int, batch: StagedBatch) -> None:
        place = (batch.range_index, txn_id)
        staging = self.stagings.get(place)
        known = staging.batches.positions if staging else ()
        batches = [batch]
        if sequence > len(known):
            behind = known[-1] + 1 if known else 0
            batches[:0] = self._claim(batch.range_index, behind, sequence - len(known))
        if len(known) + len(batches) != sequence + 1:
            return
        if staging is None:
            staging = Staging(stream_id, batch.range_index, txn_id, batches[0].time_ms)
            self.stagings[place] = staging
        for each in batches:
            staging.batches.append(each.born_at.position, each.born_at.length, each.record_count)

    def _claim(self, range_index: int, position: int, count: int) -> list[StagedBatch]:
        """Take the lost batches of a range from `position` on; none unless there are `count`."""
        found = [
            each
            for each in self.lost
            if each.range_index == range_index and each.born_at.position >= position
        ]
        if len(found) != count:
            return []
        self.forget({each.born_at.position for each in found})
        return found

    def forget(self, positions: Collection[int]) -> None:
        """Forget lost batches at `positions`, because their transaction is known now."""
        if self.lost:
            self.lost = [each for each in self.lost if each.born_at.position not in positions]

    def add_end(self, end: LoggedTxnEnd) -> None:
        insort(self.ends, end, key=lambda each: each.range_index)
        same_kind = [each for each in self.ends if each.is_commit == end.is_commit]
        id_count = sum(len(each.txn_ids) for each in same_kind)
        kept_min = 1 if end.is_commit else 0
        while len(same_kind) > limits.TXN_ENDS_KEPT or (
            id_count > self.ended_ids_max and len(same_kind) > kept_min
        ):
            oldest = same_kind.pop(0)
            id_count -= len(oldest.txn_ids)
            self.ends.remove(oldest)
        self._remember_ids()

    def begin_copy(self, range_index: int, ends: Iterable[LoggedTxnEnd]) -> None:
        """Drop what is staged in a range, and replace its ends."""
        self.lost = [each for each in self.lost if each.range_index != range_index]
        for place in [each for each in self.stagings if each[0] == range_index]:
            del self.stagings[place]
        self.ends = [each for each in self.ends if each.range_index != range_index]
        for end in ends:
            self.add_end(end)
        self._remember_ids()

    def settle(self, range_index: int, truncated: StagedStates) -> None:
        """Undo the truncated entries of a range, by the records of its SETTLED entry."""
        self.lost = [each for each in self.lost if each.range_index != range_index]
        for staging in truncated.stagings():
            self.stagings.pop((range_index, staging.txn_id), None)
            if staging.batch_count:
                self.stagings[range_index, staging.txn_id] = staging
        # The oldest first again, as `stagings_of` promises.
        self.stagings = dict(sorted(self.stagings.items(), key=lambda at: at[1].staged_at_ms))
        for stream_id in truncated.stream_ids():
            for end in truncated.ends(stream_id):
                if end in self.ends:  # else the limits removed it
                    # The last of equal ends: the truncated entries were the last ones.
                    del self.ends[len(self.ends) - 1 - self.ends[::-1].index(end)]
        self._remember_ids()

    def _remember_ids(self) -> None:
        self.ended = frozenset(chain.from_iterable(each.txn_ids for each in self.ends))


_NONE: Final = _StreamTxns()
"""The transactions of an unknown stream; never changed."""


class StagedStates:
    """The staged batches of all ranges, and the last ends, at one position of the log.

    One thread changes it, any thread may read it.
    """

    def __init__(self, *, ended_ids_max: int = limits.TXN_ENDED_IDS_MAX) -> None:
        self._ended_ids_max = ended_ids_max
        self._streams: dict[int, _StreamTxns] = {}
        self._lock = Lock()

    def maybe_staging(self, stream_id: int, range_index: int, txn_id: str) -> Staging | None:
        """Return the staging of an id in a range."""
        with self._lock:
            return self._streams.get(stream_id, _NONE).stagings.get((range_index, txn_id))

    def stagings_of(self, stream_id: int) -> list[Staging]:
        """Return the stagings of a stream, the oldest first."""
        with self._lock:
            return list(self._streams.get(stream_id, _NONE).stagings.values())

    def stagings(self) -> list[Staging]:
        """Return all stagings."""
        with self._lock:
            return [
                staging for txns in self._streams.values() for staging in txns.stagings.values()
            ]

    def ends(self, stream_id: int) -> tuple[LoggedTxnEnd, ...]:
        """Return the last ends of a stream, by range, the oldest first."""
        with self._lock:
            return tuple(self._streams.get(stream_id, _NONE).ends)

    def is_ended(self, stream_id: int, txn_id: str) -> bool:
        """Whether a transaction is among the last ends of a stream."""
        with self._lock:
            return txn_id in self._streams.get(stream_id, _NONE).ended

    def stream_ids(self) -> list[int]:
        """Return the streams with stagings or ends."""
        with self._lock:
            return list(self._streams)

    def rows(self) -> StagedRows:
        """Return the locations of all batches that are staged now."""
        return StagedRows.together([staging.batches.rows() for staging in self.stagings()])

    def apply(self, entry: Entry, location: Location, time_ms: int) -> None:
        """Apply an entry. Raises LogCorruptionError, and changes nothing, for an invalid entry.

        The transaction of a damaged STAGED entry, which has no body, is unknown until a later batch
        reveals it. Otherwise later batches have a gap before them, and do not count.
        """
        match entry.kind:
            case EntryKind.STAGED:
                position = location.position if entry.base_offset < 0 else entry.base_offset
                born_at = Location(position, location.length)
                batch = StagedBatch(entry.range_index, born_at, entry.count, time_ms)
                prefix = decode_prefix(entry.front) if entry.front else None
                with self._lock:
                    txns = self._txns(entry.stream_id)
                    if prefix is None:
                        txns.lost.append(batch)
                    else:
                        txns.stage(entry.stream_id, *prefix, batch)
            case EntryKind.TXN_END:
                ended = decode_end(entry)
                with self._lock:
                    self._end(entry, ended, time_ms)
            case EntryKind.SETTLED:
                truncation = decode_settled(entry).truncation
                truncated = decode_staged(b"" if truncation is None else truncation.staged)
                with self._lock:
                    if entry.stream_id in self._streams or truncated.stream_ids():
                        txns = self._txns(entry.stream_id)
                        txns.settle(entry.range_index, truncated)
            case EntryKind.COPY_BEGUN:
                copied = decode_staged(entry.body)
                with self._lock:
                    if entry.stream_id in self._streams or copied.stream_ids():
                        txns = self._txns(entry.stream_id)
                        txns.begin_copy(entry.range_index, copied.ends(entry.stream_id))
            case EntryKind.STREAM_DELETED:
                self.forget(entry.stream_id)

    def forget(self, stream_id: int) -> None:
        """Forget a stream."""
        with self._lock:
            self._streams.pop(stream_id, None)

    def restore(self, staging: Staging) -> None:
        """Add a staging from a snapshot."""
        with self._lock:
            txns = self._txns(staging.stream_id)
            txns.stagings[staging.range_index, staging.txn_id] = staging

    def encode_ends(self, stream_id: int, range_index: int) -> bytes:
        """Return the records of the last ends in a range."""
        ends = [each for each in self.ends(stream_id) if each.range_index == range_index]
        return b"".join([_encode_end(stream_id, end) for end in ends])

    def encode(self) -> bytes:
        """Return the records of all stagings and of the last ends."""
        records = [_encode_staging(staging) for staging in self.stagings()]
        for stream_id in self.stream_ids():
            records += [_encode_end(stream_id, end) for end in self.ends(stream_id)]
        return b"".join(records)

    def restore_end(self, stream_id: int, end: LoggedTxnEnd) -> None:
        """Add an end from a snapshot."""
        with self._lock:
            self._txns(stream_id).add_end(end)

    def _txns(self, stream_id: int) -> _StreamTxns:
        """Return the transactions of a stream to change them. The lock is held."""
        txns = self._streams.get(stream_id)
        if txns is None:
            txns = self._streams[stream_id] = _StreamTxns(ended_ids_max=self._ended_ids_max)
        return txns

    def _end(self, entry: Entry, ended: EndedBatches, time_ms: int) -> None:
        txns = self._txns(entry.stream_id)
        ranges = {entry.range_index}
        if entry.range_index < 0:
            ranges = {range_index for range_index, _ in txns.stagings}
        for place in product(ranges, ended.txn_ids):
            txns.stagings.pop(place, None)
        txns.forget(ended.batches.positions)
        what = (entry.range_index, entry.base_offset, entry.count)
        txns.add_end(LoggedTxnEnd(ended.txn_ids, ended.is_commit, *what, time_ms))


def staged_entry(  # noqa: PLR0917 - the fields of an entry, in its order
    stream_id: int, range_index: int, txn_id: str, sequence: int, record_count: int, batch: Buffer
) -> Entry:
    """Return the STAGED entry for a batch."""
    prefix = encode_prefix(txn_id, sequence)
    return Entry(EntryKind.STAGED, stream_id, range_index, -1, record_count, batch, prefix)


def commit_entry(
    stream_id: int,
    range_index: int,
    base_offset: int,
    stagings: Iterable[Staging],
    *,
    batches_max: int = limits.TXN_BATCHES_MAX,
) -> Entry:
    """Return the TXN_END entry that publishes stagings from `base_offset` on.

    The log must have all batches of the stagings. Raises InvalidRequestError for more than
    `batches_max` batches, or more than one entry can name.
    """
    stagings = list(stagings)
    batch_count = sum(staging.batch_count for staging in stagings)
    record_count = sum(staging.record_count for staging in stagings)
    if batch_count > batches_max or record_count > limits.TXN_RECORDS_MAX:
        raise invalid(
            f"{batch_count} batches with {record_count} records are staged for stream {stream_id};"
            f" at most {batches_max} with {limits.TXN_RECORDS_MAX} can be published at"
            " once. Stage larger batches, or fewer of them"
        )
    txn_ids = [staging.txn_id for staging in stagings]
    body = encode_end(txn_ids, [staging.batches for staging in stagings], is_commit=True)
    return _checked(
        Entry(EntryKind.TXN_END, stream_id, range_index, base_offset, record_count, body)
    )


def drop_entry(stream_id: int, range_index: int, txn_ids: Sequence[str]) -> Entry:
    """Return the TXN_END entry that drops stagings; in all ranges if `range_index` is -1.

    Raises InvalidRequestError for more ids than an entry has room for.
    """
    body = encode_end(txn_ids, [BatchColumns()] * len(txn_ids), is_commit=False)
    return _checked(Entry(EntryKind.TXN_END, stream_id, range_index, -1, 0, body))


def _checked(end: Entry) -> Entry:
    if end.length > limits.ENTRY_BYTES_MAX:
        raise invalid(
            f"the end of transactions in stream {end.stream_id} takes {end.length} bytes, over"
            f" the limit of {limits.ENTRY_BYTES_MAX}: name fewer of them"
        )
    return end


def decode_staged(encoded: Buffer) -> StagedStates:
    """Return the stagings and ends from their records. Raises LogCorruptionError."""
    states = StagedStates()
    data, position = memoryview(encoded), 0
    while position < len(data):
        kind, stream_id, range_index, time_ms, count = unpack_at(_RECORD, data, position)
        position += _RECORD.size
        if kind == _STAGING:
            txn_id, position = decode_txn_id(data, position)
            end = position + count * STAGED_BATCH_BYTES
            batches = decode_columns(data[position:end], count)
            states.restore(Staging(stream_id, range_index, txn_id, time_ms, batches))
            position = end
        elif kind in (_DROP, _COMMIT):
            base_offset, record_count = unpack_at(_TXN_END, data, position)
            position += _TXN_END.size
            txn_ids = []
            for _ in range(count):
                txn_id, position = decode_txn_id(data, position)
                txn_ids.append(txn_id)
            ended = (tuple(txn_ids), kind == _COMMIT, range_index)
            states.restore_end(stream_id, LoggedTxnEnd(*ended, base_offset, record_count, time_ms))
        else:
            raise LogCorruptionError(f"a snapshot has a record of kind {kind} of transactions")
    return states


def _encode_staging(staging: Staging) -> bytes:
    place = (staging.stream_id, staging.range_index)
    head = _RECORD.pack(_STAGING, *place, staging.staged_at_ms, staging.batch_count)
    return head + encode_txn_id(staging.txn_id) + staging.batches.encode()


def _encode_end(stream_id: int, end: LoggedTxnEnd) -> bytes:
    kind = _COMMIT if end.is_commit else _DROP
    head = _RECORD.pack(kind, stream_id, end.range_index, end.time_ms, len(end.txn_ids))
    place = _TXN_END.pack(end.base_offset, end.record_count)
    return head + place + b"".join(map(encode_txn_id, end.txn_ids))
