"""Streams: tables `streams`, `ranges` with `replicas`, and `writers`.

Each method is one transaction. Deleting a stream deletes everything that refers to it.
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
    Text,
    and_,
    bindparam,
    case,
    delete,
    func,
    insert,
    select,
    tuple_,
    update,
)

from sbp_core.log.states.writer_states import NO_WRITERS
from sbp_core.pd.metadata.database import Database, Put
from sbp_core.pd.metadata.servers import ServerTables
from sbp_core.pd.metadata.tables import (
    COUNT_MAX,
    ONE,
    cluster,
    ranges,
    replicas,
    streams,
    writers,
)
from sbp_core.pd.metadata.transactions import TransactionTables
from sbp_core.pd.model import (
    ChangeRefusal,
    NewStream,
    RangeRecord,
    SealedRange,
    StreamChange,
    StreamRecord,
)

_STREAM_ID: Final[BindParameter[int]] = bindparam("stream_id")
_STREAMS: Final = select(*streams.columns)
_STREAM: Final = _STREAMS.where(streams.c.stream_id == _STREAM_ID)
_STREAM_OF_NAME: Final = _STREAMS.where(streams.c.name == bindparam("name"))
_STREAMS_AFTER: Final = (
    _STREAMS.where(streams.c.stream_id > bindparam("after"))
    .order_by(streams.c.stream_id)
    .limit(COUNT_MAX)
)
_LAST_STREAM_ID: Final = select(cluster.c.last_stream_id)
_SET_LAST_STREAM_ID: Final = update(cluster).values(last_stream_id=bindparam("last_id"))
_ADD_STREAM: Final = insert(streams)
_DELETE_STREAM: Final = delete(streams).where(streams.c.stream_id == _STREAM_ID)
_CHANGE_STREAM: Final = (
    update(streams)
    .where(streams.c.stream_id == _STREAM_ID)
    .values(
        name=func.coalesce(bindparam("new_name", type_=Text()), streams.c.name),
        retention_period_ms=bindparam("new_period_ms"),
        retention_bytes=func.coalesce(
            bindparam("new_bytes", type_=BigInteger()), streams.c.retention_bytes
        ),
    )
)


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
            replicas.c.server_id,
        )
        .select_from(key)
        .join(ranges, is_same(ranges))
        .join(streams, streams.c.stream_id == key.c.stream_id)
        .join(replicas, is_same(replicas))
        .order_by(key.c.stream_id, key.c.range_index, replicas.c.position)
    )


def _ranges_after(table: Table, *which: ColumnElement[bool]) -> Select[Any]:
    key = (table.c.stream_id, table.c.range_index)
    after = (
        bindparam("after_stream", type_=BigInteger()),
        bindparam("after_index", type_=BigInteger()),
    )
    return _ranges_of(
        select(*key).where(*which, tuple_(*key) > tuple_(*after)).order_by(*key).limit(COUNT_MAX)
    )


_ON_SERVER: Final = replicas.c.server_id == bindparam("server_id")
_RANGES_AFTER: Final = {
    (False, False): _ranges_after(ranges),
    (True, False): _ranges_after(ranges, ranges.c.stream_id == _STREAM_ID),
    (False, True): _ranges_after(replicas, _ON_SERVER),
    (True, True): _ranges_after(replicas, _ON_SERVER, replicas.c.stream_id == _STREAM_ID),
}
"""By (stream_id is given, server_id is given)."""
_LAST_RANGE: Final = _ranges_of(
    select(ranges.c.stream_id, ranges.c.range_index)
    .where(ranges.c.stream_id == _STREAM_ID)
    .order_by(ranges.c.range_index.desc())
    .limit(ONE)
)
_IS_RANGE: Final = (
    ranges.c.stream_id == _STREAM_ID,
    ranges.c.range_index == bindparam("range_index"),
)
_RANGE: Final = select(ranges.c.stream_id).where(*_IS_RANGE)
_RANGE_COUNT: Final = (
    select(func.count()).select_from(ranges).where(ranges.c.stream_id == _STREAM_ID)
)
_OPEN_RANGE_COUNTS: Final = (
    select(replicas.c.server_id, func.count())
    .join(
        ranges,
        and_(
            ranges.c.stream_id == replicas.c.stream_id,
            ranges.c.range_index == replicas.c.range_index,
        ),
    )
    .where(ranges.c.end_offset.is_(None))
    .group_by(replicas.c.server_id)
)
_ADD_RANGE: Final = insert(ranges)
_ADD_REPLICA: Final = insert(replicas)
_SEAL: Final = (
    update(ranges)
    .where(*_IS_RANGE, ranges.c.end_offset.is_(None))
    .values(end_offset=bindparam("end"))
)
_OFFSET: Final = bindparam("offset", type_=BigInteger())
_TRIMMED_START: Final = case((ranges.c.end_offset < _OFFSET, ranges.c.end_offset), else_=_OFFSET)
_TRIM_RANGES: Final = delete(ranges).where(
    ranges.c.stream_id == _STREAM_ID,
    ranges.c.range_index < bindparam("first_needed"),
    ranges.c.end_offset <= _OFFSET,
)
_TRIM_STARTS: Final = (
    update(ranges)
    .where(ranges.c.stream_id == _STREAM_ID, ranges.c.start_offset < _TRIMMED_START)
    .values(start_offset=_TRIMMED_START)
)
_WRITERS: Final = select(writers.c.writers).where(
    writers.c.stream_id == _STREAM_ID, writers.c.range_index == bindparam("range_index")
)
_PUT_WRITERS: Final = Put(writers)


class StreamTables:
    """The streams of a cluster and their ranges."""

    def __init__(
        self, database: Database, servers: ServerTables, transactions: TransactionTables
    ) -> None:
        self._database = database
        self._query = database.query
        self._change = database.change
        self._transaction = database.transaction
        self._servers = servers
        self._transactions = transactions

    def open_range_counts(self) -> Mapping[int, int]:
        """Return how many open ranges each server hosts; servers without one are absent."""
        return dict(self._query(_OPEN_RANGE_COUNTS))

    def create_streams(
        self, streams: Sequence[NewStream], created_at_ms: int
    ) -> list[tuple[StreamRecord, RangeRecord] | None]:
        """Create streams, each with an open range from offset 0; None where the name is taken."""
        with self._transaction():
            ((last_id,),) = self._query(_LAST_STREAM_ID)
            created = []
            for stream in streams:
                created.append(self._maybe_create_stream(last_id + 1, stream, created_at_ms))
                last_id += created[-1] is not None
            if any(created):
                self._change(_SET_LAST_STREAM_ID, last_id=last_id)
                self._servers.bump_revision()
            return created

    def delete_streams(self, stream_ids: Sequence[int]) -> list[StreamRecord | None]:
        """Delete streams with their ranges and cursors; None where there is none."""
        with self._transaction():
            deleted = []
            for stream_id in stream_ids:
                deleted.append(self._maybe_stream(stream_id))
                self._change(_DELETE_STREAM, stream_id=stream_id)
            if any(deleted):
                self._servers.bump_revision()
            return deleted

    def update_streams(self, changes: Sequence[StreamChange]) -> list[StreamRecord | ChangeRefusal]:
        """Change streams in this order; return each as it is then, or why it was left alone."""
        with self._transaction():
            results = [self._update_stream(change) for change in changes]
            if any(isinstance(result, StreamRecord) for result in results):
                self._servers.bump_revision()
            return results

    def trim_streams(
        self, trims: Sequence[tuple[int, int]]
    ) -> list[tuple[StreamRecord, RangeRecord] | None]:
        """Forget what each (stream id, offset) has below the offset; None where there is no stream.

        Returns the stream and its smallest range afterwards: the last one is never removed, and
        no range begins beyond its end or goes back.
        """
        with self._transaction():
            changed_count, trimmed = 0, []
            for stream_id, offset in trims:
                changed_count += self._trim_stream(stream_id, offset)
                trimmed.append(self._maybe_smallest_range(stream_id))
            if changed_count:
                self._servers.bump_revision()
            return trimmed

    def streams_by_id(self, stream_ids: Sequence[int]) -> list[StreamRecord | None]:
        """Return streams in the order asked for; None where there is none."""
        return [self._maybe_stream(stream_id) for stream_id in stream_ids]

    def streams_by_name(self, names: Sequence[str]) -> list[StreamRecord | None]:
        """Return streams in the order asked for; None where there is none."""
        return [self._maybe_stream_of_name(name) for name in names]

    def streams_after(self, stream_id: int, count_max: int) -> list[StreamRecord]:
        """Return up to `count_max` streams with ids greater than `stream_id`, by id."""
        rows = self._query(_STREAMS_AFTER, after=stream_id, count_max=count_max)
        return [StreamRecord(*row) for row in rows]

    def ranges_after(
        self,
        after: tuple[int, int],
        count_max: int,
        *,
        stream_id: int | None,
        server_id: int | None,
    ) -> list[RangeRecord]:
        """Return up to `count_max` ranges beyond `after` = (stream id, range index), in that order.

        `stream_id` and `server_id` restrict them, each where it is not None.
        """
        return self._ranges(
            _RANGES_AFTER[stream_id is not None, server_id is not None],
            stream_id=stream_id,
            server_id=server_id,
            after_stream=after[0],
            after_index=after[1],
            count_max=count_max,
        )

    def maybe_last_range(self, stream_id: int) -> RangeRecord | None:
        """Return the range with the highest index of a stream."""
        found = self._ranges(_LAST_RANGE, stream_id=stream_id)
        return found[0] if found else None

    def range_count(self, stream_id: int) -> int:
        """Return how many ranges a stream has."""
        return int(self._query(_RANGE_COUNT, stream_id=stream_id)[0][0])

    def create_ranges(self, news: Sequence[RangeRecord]) -> list[bool]:
        """Add ranges; False where the stream has one of that index already, or was deleted."""
        with self._transaction():
            made = [self._create_range(new) for new in news]
            if any(made):
                self._servers.bump_revision()
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
                self._servers.bump_revision()
            return sealed

    def _maybe_create_stream(
        self, stream_id: int, new: NewStream, created_at_ms: int
    ) -> tuple[StreamRecord, RangeRecord] | None:
        if new.name is not None and self._maybe_stream_of_name(new.name) is not None:
            return None
        stream = StreamRecord(
            stream_id,
            new.name,
            new.replica_count,
            new.ack_count,
            new.retention_period_ms,
            created_at_ms,
            new.retention_bytes,
        )
        self._change(
            _ADD_STREAM,
            stream_id=stream.stream_id,
            name=stream.name,
            replica_count=stream.replica_count,
            ack_count=stream.ack_count,
            retention_period_ms=stream.retention_period_ms,
            created_at_ms=stream.created_at_ms,
            retention_bytes=stream.retention_bytes,
        )
        first = RangeRecord(
            stream.stream_id, 0, 0, None, new.ack_count, new.server_ids, created_at_ms
        )
        self._insert_range(first)
        return stream, first

    def _create_range(self, new: RangeRecord) -> bool:
        is_taken = self._query(_RANGE, stream_id=new.stream_id, range_index=new.range_index)
        if is_taken or self._maybe_stream(new.stream_id) is None:
            return False
        self._insert_range(new)
        return True

    def _seal_range(self, end: SealedRange) -> bool:
        sealed = self._change(
            _SEAL, stream_id=end.stream_id, range_index=end.range_index, end=end.end_offset
        )
        if sealed:
            self._record_writers(end)
        return bool(sealed)

    def _update_stream(self, change: StreamChange) -> StreamRecord | ChangeRefusal:
        if self._maybe_stream(change.stream_id) is None:
            return ChangeRefusal.NO_STREAM
        if change.name is not None:
            named = self._maybe_stream_of_name(change.name)
            if named is not None and named.stream_id != change.stream_id:
                return ChangeRefusal.NAME_TAKEN
        self._change(
            _CHANGE_STREAM,
            stream_id=change.stream_id,
            new_name=change.name,
            new_period_ms=change.retention_period_ms,
            new_bytes=change.retention_bytes,
        )
        changed = self._maybe_stream(change.stream_id)
        assert changed is not None
        return changed

    def _trim_stream(self, stream_id: int, offset: int) -> int:
        """Trim a stream; return how many of its ranges that changed."""
        last = self.maybe_last_range(stream_id)
        if last is None:
            return 0
        first_needed = self._transactions.first_needed_range(stream_id, last.range_index)
        return self._change(
            _TRIM_RANGES, stream_id=stream_id, first_needed=first_needed, offset=offset
        ) + self._change(_TRIM_STARTS, stream_id=stream_id, offset=offset)

    def _maybe_smallest_range(self, stream_id: int) -> tuple[StreamRecord, RangeRecord] | None:
        stream = self._maybe_stream(stream_id)
        found = self.ranges_after((stream_id, -1), 1, stream_id=stream_id, server_id=None)
        return None if stream is None or not found else (stream, found[0])

    def _insert_range(self, new: RangeRecord) -> None:
        self._change(
            _ADD_RANGE,
            stream_id=new.stream_id,
            range_index=new.range_index,
            start_offset=new.start_offset,
            end_offset=new.end_offset,
            ack_count=new.ack_count,
        )
        for position, server_id in enumerate(new.server_ids):
            self._change(
                _ADD_REPLICA,
                stream_id=new.stream_id,
                range_index=new.range_index,
                position=position,
                server_id=server_id,
            )

    def _maybe_stream(self, stream_id: int) -> StreamRecord | None:
        rows = self._query(_STREAM, stream_id=stream_id)
        return StreamRecord(*rows[0]) if rows else None

    def _maybe_stream_of_name(self, name: str) -> StreamRecord | None:
        rows = self._query(_STREAM_OF_NAME, name=name)
        return StreamRecord(*rows[0]) if rows else None

    def _ranges(self, which: Select[Any], **values: int | None) -> list[RangeRecord]:
        """Return the ranges that a query selects, with all their servers."""
        rows = self._query(which, **values)
        return [
            RangeRecord(
                stream_id,
                index,
                start,
                end,
                ack_count,
                tuple(row[-1] for row in replicas),
                created_at_ms,
            )
            for (created_at_ms, stream_id, index, start, end, ack_count), replicas in (
                itertools.groupby(rows, lambda row: row[:-1])
            )
        ]

    def _record_writers(self, sealed: SealedRange) -> None:
        """Keep the writers at the end of a range that was sealed; for each stream the last ones.

        A server that reports none had none: then they are those before the range.
        """
        stream_id, range_index, _, writers = sealed
        before = NO_WRITERS if range_index == 0 else self._writers_before(stream_id, range_index)
        if writers or before:
            self._database.put(
                _PUT_WRITERS,
                stream_id=stream_id,
                range_index=range_index,
                writers=writers or before,
            )

    def _writers_before(self, stream_id: int, range_index: int) -> bytes:
        rows = self._query(_WRITERS, stream_id=stream_id, range_index=range_index - 1)
        return bytes(rows[0][0]) if rows else b""
