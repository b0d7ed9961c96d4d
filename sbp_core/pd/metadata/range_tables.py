"""Ranges: tables `ranges` with `replicas`, and `writers`.

Each method is one transaction.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Select,
    Table,
    and_,
    bindparam,
    case,
    exists,
    func,
    not_,
    or_,
    select,
    tuple_,
    update,
)

from sbp_core.log.states.writer_states import NO_WRITERS
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.server_tables import ServerTables
from sbp_core.pd.metadata.tables import COUNT_MAX, ONE, ranges, replicas, streams, writers
from sbp_core.pd.model import NO_SEQ, Copies, HostedCounts, RangeKey, RangeRecord, SealedRange
from sbp_core.wire.headers import RangeId

_STREAM_ID: Final[BindParameter[int]] = bindparam("stream_id")


def _ranges_of(keys: Select[Any]) -> Select[Any]:
    """Return the ranges of the keys that are selected: a row for each of their servers."""
    key = keys.subquery("keys")

    def is_same(table: Table) -> ColumnElement[bool]:
        return and_(table.c.stream_id == key.c.stream_id, table.c.range_index == key.c.range_index)

    return (
        select(
            streams.c.created_at_ms,
            ranges.c.stream_id,
            ranges.c.range_index,
            ranges.c.start_offset,
            ranges.c.end_offset,
            ranges.c.ack_count,
            ranges.c.end_seq,
            ranges.c.end_digest,
            replicas.c.server_id,
        )
        .select_from(key)
        .join(ranges, is_same(ranges))
        .join(streams, streams.c.stream_id == key.c.stream_id)
        .join(replicas, is_same(replicas))
        .order_by(key.c.stream_id, key.c.range_index, replicas.c.position)
    )


_AFTER: Final = (
    bindparam("after_stream", type_=BigInteger()),
    bindparam("after_index", type_=BigInteger()),
)


def _ranges_after(table: Table, *which: ColumnElement[bool]) -> Select[Any]:
    key = (table.c.stream_id, table.c.range_index)
    return _ranges_of(
        select(*key).where(*which, tuple_(*key) > tuple_(*_AFTER)).order_by(*key).limit(COUNT_MAX)
    )


def _ranges_of_stream(table: Table, *which: ColumnElement[bool]) -> Select[Any]:
    """The same for one stream: a pair that is compared hides from SQLite which index is best."""
    key = (table.c.stream_id, table.c.range_index)
    of_stream = table.c.stream_id == _STREAM_ID, table.c.range_index > _AFTER[1]
    return _ranges_of(select(*key).where(*which, *of_stream).order_by(*key).limit(COUNT_MAX))


_REPLICATED_SEALED: Final = _ranges_after(ranges, ranges.c.end_seq.is_not(None))
_ON_SERVER: Final = replicas.c.server_id == bindparam("server_id")
_RANGES_AFTER: Final = {
    (False, False): _ranges_after(ranges),
    (True, False): _ranges_of_stream(ranges),
    (False, True): _ranges_after(replicas, _ON_SERVER),
    (True, True): _ranges_of_stream(replicas, _ON_SERVER),
}
"""By (stream_id is given, server_id is given)."""
_OF_STREAMS: Final = _ranges_of(
    select(ranges.c.stream_id, ranges.c.range_index)
    .where(ranges.c.stream_id.in_(bindparam("stream_ids", expanding=True)))
    .order_by(ranges.c.stream_id, ranges.c.range_index)
    .limit(COUNT_MAX)
)
_LAST_RANGE: Final = _ranges_of(
    select(ranges.c.stream_id, ranges.c.range_index)
    .where(ranges.c.stream_id == _STREAM_ID)
    .order_by(ranges.c.range_index.desc())
    .limit(ONE)
)
_RANGE_AT: Final = _ranges_of(
    select(ranges.c.stream_id, ranges.c.range_index)
    .where(ranges.c.stream_id == _STREAM_ID, ranges.c.start_offset <= bindparam("offset"))
    .order_by(ranges.c.range_index.desc())
    .limit(ONE)
)
_MOST_RANGES: Final = (
    select(streams.c.stream_id, streams.c.name, func.count())
    .join(ranges, ranges.c.stream_id == streams.c.stream_id)
    .group_by(streams.c.stream_id, streams.c.name)
    .order_by(func.count().desc(), streams.c.stream_id)
    .limit(COUNT_MAX)
)
_RANGE_COUNT: Final = (
    select(func.count()).select_from(ranges).where(ranges.c.stream_id == _STREAM_ID)
)
_IN_RANGE: Final = and_(
    ranges.c.stream_id == replicas.c.stream_id, ranges.c.range_index == replicas.c.range_index
)
_IS_OPEN: Final = ranges.c.end_offset.is_(None)
_IS_PRIMARY: Final = replicas.c.position == 0
_OPEN_RANGE_COUNTS: Final = (
    select(replicas.c.server_id, func.count())
    .join(ranges, _IN_RANGE)
    .where(_IS_OPEN)
    .group_by(replicas.c.server_id)
)
_OPEN_ON_SERVER: Final = _ranges_of(
    select(replicas.c.stream_id, replicas.c.range_index)
    .join(ranges, _IN_RANGE)
    .where(_ON_SERVER, _IS_OPEN)
    .order_by(replicas.c.stream_id)
    .limit(COUNT_MAX)
)
_PRIMARY_COUNTS: Final = _OPEN_RANGE_COUNTS.where(_IS_PRIMARY)
_HAS_ONE_REPLICA: Final = ranges.c.end_seq.is_(None)
_HOSTED_COUNTS: Final = (
    select(
        replicas.c.server_id,
        *(
            func.count(case((which, ONE)))
            for which in (
                and_(_IS_OPEN, _IS_PRIMARY),
                and_(_IS_OPEN, not_(_IS_PRIMARY)),
                not_(_IS_OPEN),
                and_(not_(_IS_OPEN), _HAS_ONE_REPLICA),
            )
        ),
    )
    .join(ranges, _IN_RANGE)
    .group_by(replicas.c.server_id)
)
_SECONDARIES: Final = replicas.alias("secondaries")
_REPLICATED_RANGES: Final = (
    select(replicas.c.stream_id, replicas.c.range_index)
    .join(ranges, _IN_RANGE)
    .where(
        _ON_SERVER,
        tuple_(replicas.c.stream_id, replicas.c.range_index) > tuple_(*_AFTER),
        _IS_PRIMARY,
        _IS_OPEN,
        exists()
        .where(
            _SECONDARIES.c.stream_id == replicas.c.stream_id,
            _SECONDARIES.c.range_index == replicas.c.range_index,
            _SECONDARIES.c.position == 1,
        )
        .correlate(replicas),
    )
    .order_by(replicas.c.stream_id, replicas.c.range_index)
    .limit(COUNT_MAX)
)
_PLACED_COUNT: Final = func.count(replicas.c.server_id)
_WRONG_COPIES: Final = (
    select(
        streams.c.stream_id,
        streams.c.replica_count,
        _PLACED_COUNT,
        func.coalesce(func.max(ranges.c.range_index), -1),
    )
    .outerjoin(ranges, and_(ranges.c.stream_id == streams.c.stream_id, _IS_OPEN))
    .outerjoin(replicas, _IN_RANGE)
    .group_by(streams.c.stream_id, streams.c.replica_count, streams.c.ack_count)
    .having(
        or_(streams.c.replica_count > 1, _PLACED_COUNT > 1),
        or_(
            streams.c.replica_count != _PLACED_COUNT,
            func.max(ranges.c.ack_count) != streams.c.ack_count,
        ),
    )
    .order_by(streams.c.stream_id)
)
_SEALED_COPIES: Final = (
    select(streams.c.replica_count.label("wanted"), _PLACED_COUNT.label("placed"))
    .join(ranges, ranges.c.stream_id == streams.c.stream_id)
    .join(replicas, _IN_RANGE)
    .where(ranges.c.end_seq.is_not(None))
    .group_by(streams.c.replica_count, ranges.c.stream_id, ranges.c.range_index)
    .having(streams.c.replica_count > _PLACED_COUNT)
    .subquery()
)
_MISSING_SEALED: Final = select(
    func.coalesce(func.sum(_SEALED_COPIES.c.wanted - _SEALED_COPIES.c.placed), 0)
)
_REPLICAS: Final = (
    select(replicas.c.position, replicas.c.server_id)
    .join(ranges, _IN_RANGE)
    .where(
        ranges.c.stream_id == _STREAM_ID,
        ranges.c.range_index == bindparam("range_index"),
        ranges.c.end_seq.is_not(None),
    )
    .order_by(replicas.c.position)
)
_SEAL: Final = update(ranges).where(
    ranges.c.stream_id == bindparam("of_stream_id"),
    ranges.c.range_index == bindparam("of_range_index"),
    ranges.c.end_offset.is_(None),
)


class RangeTables:
    """The ranges of all streams."""

    def __init__(self, database: Database, servers: ServerTables) -> None:
        self._database = database
        self._query = database.query
        self._change = database.change
        self._transaction = database.transaction
        self._servers = servers

    def open_range_counts(self) -> Mapping[int, int]:
        """Return how many open ranges each server hosts; servers without one are absent."""
        return dict(self._query(_OPEN_RANGE_COUNTS))

    def primary_counts(self) -> Mapping[int, int]:
        """Return of how many open ranges each server is the primary; it is absent if of none."""
        return dict(self._query(_PRIMARY_COUNTS))

    def hosted_counts(self) -> Mapping[int, HostedCounts]:
        """Return how many ranges each server has; servers without any are absent."""
        rows = self._query(_HOSTED_COUNTS)
        return {server_id: HostedCounts(*counts) for server_id, *counts in rows}

    def replicated_ranges(self, primary_id: int, after: RangeKey, count_max: int) -> list[RangeId]:
        """Return up to `count_max` open ranges with several replicas of which this is the primary.

        Those beyond `after` = (stream id, range index), in that order.
        """
        rows = self._query(
            _REPLICATED_RANGES,
            server_id=primary_id,
            after_stream=after[0],
            after_index=after[1],
            count_max=count_max,
        )
        return [RangeId(*row) for row in rows]

    def open_ranges_on(self, server_id: int, count_max: int) -> list[RangeRecord]:
        """Return up to `count_max` open ranges of which a server has a replica."""
        return self._ranges(_OPEN_ON_SERVER, server_id=server_id, count_max=count_max)

    def missing_sealed_count(self) -> int:
        """Return how many replicas the sealed ranges with several have less than they are to."""
        return int(self._query(_MISSING_SEALED)[0][0])

    def wrong_copies(self) -> list[Copies]:
        """Return the streams whose open range has other replicas than the stream asks for.

        A stream that asks for one replica is left out while its range has one, or is not open.
        """
        return [Copies(*row) for row in self._query(_WRONG_COPIES)]

    def ranges_after(
        self,
        after: RangeKey,
        count_max: int,
        *,
        stream_id: int | None = None,
        server_id: int | None = None,
    ) -> list[RangeRecord]:
        """Return up to `count_max` ranges beyond `after` = (stream id, range index), in that order.

        `stream_id` and `server_id` restrict them, each where it is not None.
        """
        values = {"server_id": server_id, "after_index": after[1], "count_max": count_max}
        if stream_id is None:
            values["after_stream"] = after[0]
        else:
            values["stream_id"] = stream_id
            values["after_index"] = after[1] if after[0] == stream_id else -1
        return self._ranges(_RANGES_AFTER[stream_id is not None, server_id is not None], **values)

    def ranges_of(self, stream_ids: Sequence[int], count_max: int) -> dict[int, list[RangeRecord]]:
        """Return all ranges of streams, as far as `count_max` ranges go, by stream id.

        A stream is missing if it is not there, or if not all of its ranges were read.
        """
        found = self._ranges(_OF_STREAMS, stream_ids=[*stream_ids], count_max=count_max)
        by_stream = {
            stream_id: [*records]
            for stream_id, records in itertools.groupby(found, lambda each: each.stream_id)
        }
        if len(found) == count_max:
            del by_stream[found[-1].stream_id]
        return by_stream

    def sealed_replicated_ranges(self, after: RangeKey, count_max: int) -> list[RangeRecord]:
        """Return up to `count_max` sealed ranges with several replicas, as `ranges_after` does."""
        return self._ranges(
            _REPLICATED_SEALED, after_stream=after[0], after_index=after[1], count_max=count_max
        )

    def change_replicas(
        self, stream_id: int, range_index: int, *, added: Sequence[int], removed: Sequence[int]
    ) -> bool:
        """Add and remove servers of a sealed range with several replicas.

        False, and nothing is changed, if it is not one, or would have no server.
        """
        with self._transaction():
            key = {"stream_id": stream_id, "range_index": range_index}
            rows = self._query(_REPLICAS, **key)
            news = [each for each in added if each not in {server_id for _, server_id in rows}]
            olds = [position for position, server_id in rows if server_id in removed]
            if not rows or len(rows) + len(news) <= len(olds):
                return False
            placed = enumerate(news, rows[-1][0] + 1)
            self._database.add(replicas, [(*key.values(), *each) for each in placed])
            for position in olds:
                self._database.remove(replicas, **key, position=position)
            self._servers.bump_revision([stream_id])
            return True

    def maybe_first_range(self, stream_id: int) -> RangeRecord | None:
        """Return the range with the lowest index of a stream."""
        return next(iter(self.ranges_after((stream_id, -1), 1, stream_id=stream_id)), None)

    def maybe_range(self, stream_id: int, range_index: int) -> RangeRecord | None:
        """Return the range of this index of a stream."""
        found = self.ranges_after((stream_id, range_index - 1), 1, stream_id=stream_id)
        return next((each for each in found if each.range_index == range_index), None)

    def maybe_last_range(self, stream_id: int) -> RangeRecord | None:
        """Return the range with the highest index of a stream."""
        return next(iter(self._ranges(_LAST_RANGE, stream_id=stream_id)), None)

    def maybe_range_at(self, stream_id: int, offset: int) -> RangeRecord | None:
        """Return the range of a stream that has an offset, or would; None if it was trimmed."""
        return next(iter(self._ranges(_RANGE_AT, stream_id=stream_id, offset=offset)), None)

    def most_ranges(self, count_max: int) -> tuple[int, list[tuple[str, int]]]:
        """Return the count of all ranges, and the streams with the most ranges.

        (name, or id of a stream without one, ranges) each.
        """
        rows = self._query(_MOST_RANGES, count_max=count_max)
        counts = [(name or str(stream_id), count) for stream_id, name, count in rows]
        return self._database.count(ranges.name), counts

    def range_count(self, stream_id: int) -> int:
        """Return how many ranges a stream has."""
        return int(self._query(_RANGE_COUNT, stream_id=stream_id)[0][0])

    def create_ranges(self, news: Sequence[RangeRecord]) -> list[bool]:
        """Add ranges; False where the stream has one of that index already, or was deleted."""
        with self._transaction():
            made = [self._create_range(new) for new in news]
            if any(made):
                self._servers.bump_revision([new.stream_id for new in news])
            return made

    def writers_before(self, stream_id: int, range_index: int) -> bytes:
        """Return the writers at the end of the range before, empty if that is not known."""
        with self._database.reading_blobs():
            return self._writers_before(stream_id, range_index)

    def seal_ranges(self, ends: Sequence[SealedRange]) -> list[bool]:
        """Record where ranges end, and the writers there; False where it is sealed, or deleted."""
        with self._transaction():
            sealed = [self._seal_range(end) for end in ends]
            if any(sealed):
                self._servers.bump_revision([end.stream_id for end in ends])
            return sealed

    def _create_range(self, new: RangeRecord) -> bool:
        database, (stream_id, range_index) = self._database, new.key
        is_taken = database.has(ranges, stream_id=stream_id, range_index=range_index)
        if is_taken or not database.has(streams, stream_id=stream_id):
            return False
        self._insert_ranges([new])
        return True

    def _seal_range(self, end: SealedRange) -> bool:
        is_replicated = end.end_seq != NO_SEQ
        sealed = self._change(
            _SEAL,
            of_stream_id=end.stream_id,
            of_range_index=end.range_index,
            end_offset=end.end_offset,
            end_seq=end.end_seq if is_replicated else None,
            end_digest=end.end_digest if is_replicated else None,
        )
        if sealed:
            self._record_writers(end)
        return bool(sealed)

    def _insert_ranges(self, news: Sequence[RangeRecord]) -> None:
        rows = [
            (*new.key, new.start_offset, new.end_offset, new.ack_count, None, None) for new in news
        ]
        self._database.add(ranges, rows)
        placed = [(*new.key, *each) for new in news for each in enumerate(new.server_ids)]
        self._database.add(replicas, placed)

    def _ranges(self, which: Select[Any], **values: int | list[int] | None) -> list[RangeRecord]:
        """Return the ranges that a query selects, with all their servers."""
        rows = self._query(which, **values)
        return [
            RangeRecord(
                stream_id,
                index,
                start,
                end,
                ack_count,
                tuple(row[-1] for row in placed),
                created_at_ms,
                NO_SEQ if seq is None else seq,
                b"" if digest is None else bytes(digest),
            )
            for (created_at_ms, stream_id, index, start, end, ack_count, seq, digest), placed in (
                itertools.groupby(rows, lambda row: row[:-1])
            )
        ]

    def _record_writers(self, sealed: SealedRange) -> None:
        """Keep the writers at the end of a range that was sealed; for each stream the last ones.

        If a server reports no writers, the writers before the range count.
        """
        stream_id, range_index, _, reported, *_ = sealed
        before = NO_WRITERS if range_index == 0 else self._writers_before(stream_id, range_index)
        if reported or before:
            self._database.put(writers, stream_id, range_index, reported or before)

    def _begin_without_writers(self, first: RangeRecord) -> None:
        """Note that no writer numbered batches before the first range of a stream, if it is not 0.

        Else its server would wait for the writers of the range before.
        """
        if first.range_index:
            self._database.put(writers, first.stream_id, first.range_index - 1, NO_WRITERS)

    def _writers_before(self, stream_id: int, range_index: int) -> bytes:
        row = self._database.maybe_row(writers, stream_id=stream_id, range_index=range_index - 1)
        return b"" if row is None else bytes(row.writers)
