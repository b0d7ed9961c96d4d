"""Streams: tables `streams` and `stream_properties`, and changes of a stream with its ranges.

Each method is one transaction. Deleting a stream deletes everything that refers to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Final

from sqlalchemy import BigInteger, BindParameter, Text, bindparam, case, delete, func, update

from sbp_core.errors import (
    AlreadyExistsError,
    ConditionFailedError,
    InvalidRequestError,
    NotFoundError,
    SbpError,
    invalid,
)
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.range_tables import RangeTables
from sbp_core.pd.metadata.server_tables import ServerTables
from sbp_core.pd.metadata.tables import cluster, ranges, stream_properties, streams
from sbp_core.pd.metadata.txn_tables import TransactionTables
from sbp_core.pd.model import NewStream, RangeRecord, StreamChange, StreamRecord, no_stream
from sbp_core.properties import PROPERTIES_MAX
from sbp_core.wire.status import shown

_REFUSALS: Final = (NotFoundError, AlreadyExistsError, ConditionFailedError, InvalidRequestError)
"""Errors of one change: the store itself raises others, which end the transaction."""
_STREAM_ID: Final[BindParameter[int]] = bindparam("stream_id")
_OF_STREAM: Final[BindParameter[int]] = bindparam("of_stream_id")
_SET_LAST_STREAM_ID: Final = update(cluster)
_CHANGE_STREAM: Final = (
    update(streams)
    .where(streams.c.stream_id == _OF_STREAM)
    .values(
        name=func.coalesce(bindparam("new_name", type_=Text()), streams.c.name),
        retention_period_ms=func.coalesce(
            bindparam("new_period_ms", type_=BigInteger()), streams.c.retention_period_ms
        ),
        retention_bytes=func.coalesce(
            bindparam("new_bytes", type_=BigInteger()), streams.c.retention_bytes
        ),
        replica_count=func.coalesce(
            bindparam("new_replicas", type_=BigInteger()), streams.c.replica_count
        ),
        ack_count=func.coalesce(bindparam("new_acks", type_=BigInteger()), streams.c.ack_count),
    )
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
    .where(ranges.c.stream_id == _OF_STREAM, ranges.c.start_offset < _TRIMMED_START)
    .values(start_offset=_TRIMMED_START)
)


class PropertyTable:
    """The properties of streams, by key; a deleted stream deletes its properties."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def of_stream(self, stream_id: int) -> dict[str, str]:
        """Return the properties of a stream, ordered by key."""
        rows = self._database.rows(stream_properties, stream_id=stream_id)
        return {key: value for _, key, value in rows}

    def all(self) -> dict[int, dict[str, str]]:
        """Return the properties of all streams that have some, by stream id."""
        found: dict[int, dict[str, str]] = {}
        for stream_id, key, value in self._database.rows(stream_properties):
            found.setdefault(stream_id, {})[key] = value
        return found

    def check(self, stream_id: int, expected: Mapping[str, str | None]) -> None:
        """Raise ConditionFailedError unless properties are as expected; None expects none."""
        present = self.of_stream(stream_id) if expected else {}
        for key, value in expected.items():
            if present.get(key) != value:
                raise ConditionFailedError.of(
                    f"property {key} is {_shown(present.get(key), 'not there')}, and"
                    f" {_shown(value, 'none')} was expected. Nothing of this stream was changed"
                )

    def change(self, stream_id: int, changes: Mapping[str, str | None]) -> None:
        """Set properties, or remove them where None, within a transaction of the caller."""
        for key, value in changes.items():
            if value is None:
                self._database.remove(stream_properties, stream_id=stream_id, key=key)
            else:
                self._database.put(stream_properties, stream_id, key, value)


class StreamTables(RangeTables):
    """The streams of a cluster and their ranges."""

    def __init__(
        self,
        database: Database,
        servers: ServerTables,
        transactions: TransactionTables,
        properties: PropertyTable,
    ) -> None:
        super().__init__(database, servers)
        self._transactions = transactions
        self._properties = properties

    def create_streams(
        self, news: Sequence[NewStream], created_at_ms: int
    ) -> list[tuple[StreamRecord, RangeRecord] | None]:
        """Create streams, each with an open range from offset 0; None where the name is taken."""
        with self._transaction():
            last_id = self._servers.last_stream_id()
            created: list[tuple[StreamRecord, RangeRecord] | None] = []
            added = []
            names: set[str | None] = set()
            for new in news:
                if new.name is not None and (new.name in names or self._is_taken(new.name)):
                    created.append(None)
                    continue
                names.add(new.name)
                last_id += 1
                made = _new_stream(last_id, new, created_at_ms)
                created.append(made)
                added.append((*made, new.properties))
            if added:
                self._add_streams(added)
                self._change(_SET_LAST_STREAM_ID, last_stream_id=last_id)
                self._servers.bump_revision([stream.stream_id for stream, *_ in added])
            return created

    def restore_streams(
        self, news: Sequence[tuple[StreamRecord, RangeRecord, Mapping[str, str]]]
    ) -> None:
        """Add streams of a backup that are not there, with their first ranges and properties."""
        with self._transaction():
            added = [new for new in news if self.maybe_stream(new[0].stream_id) is None]
            self._add_streams(added)
            for _, first, _ in added:
                self._begin_without_writers(first)
            self._servers.bump_revision([stream.stream_id for stream, *_ in news])

    def delete_streams(self, stream_ids: Sequence[int]) -> list[StreamRecord | None]:
        """Delete streams with their ranges and cursors; None for a stream that does not exist."""
        with self._transaction():
            deleted = []
            for stream_id in stream_ids:
                deleted.append(self.maybe_stream(stream_id))
                self._database.remove(streams, stream_id=stream_id)
            if any(deleted):
                self._servers.bump_revision(stream_ids)
            return deleted

    def update_streams(self, changes: Sequence[StreamChange]) -> list[StreamRecord | SbpError]:
        """Change streams in this order; return each as it is then, or why it was left alone."""
        with self._transaction():
            results: list[StreamRecord | SbpError] = []
            for change in changes:
                try:
                    results.append(self._update_stream(change))
                except _REFUSALS as error:
                    results.append(error)
            if any(isinstance(result, StreamRecord) for result in results):
                self._servers.bump_revision([change.stream_id for change in changes])
            return results

    def trim_streams(
        self, trims: Sequence[tuple[int, int]]
    ) -> list[tuple[StreamRecord, RangeRecord] | None]:
        """Forget what each (stream id, offset) has below the offset; None where there is no stream.

        Returns the stream and its smallest range afterwards. The last range is never removed, and
        no range begins beyond its end, or earlier than before.
        """
        with self._transaction():
            changed_count, trimmed = 0, []
            for stream_id, offset in trims:
                changed_count += self._trim_stream(stream_id, offset)
                trimmed.append(self._maybe_smallest_range(stream_id))
            if changed_count:
                self._servers.bump_revision([stream_id for stream_id, _ in trims])
            return trimmed

    def maybe_stream(self, stream_id: int) -> StreamRecord | None:
        """Return a stream."""
        row = self._database.maybe_row(streams, stream_id=stream_id)
        return row and StreamRecord(*row)

    def streams_by_id(self, stream_ids: Sequence[int]) -> list[StreamRecord | None]:
        """Return streams in the order asked for, None for a stream that does not exist."""
        return list(map(self.maybe_stream, stream_ids))

    def streams_by_name(self, names: Sequence[str]) -> list[StreamRecord | None]:
        """Return streams in the order asked for, None for a stream that does not exist."""
        return list(map(self._maybe_stream_of_name, names))

    def streams_after(self, stream_id: int, count_max: int) -> list[StreamRecord]:
        """Return up to `count_max` streams with ids greater than `stream_id`, by id."""
        rows = self._database.page(streams, (stream_id,), count_max)
        return [StreamRecord(*row) for row in rows]

    def _is_taken(self, name: str) -> bool:
        return self._maybe_stream_of_name(name) is not None

    def _add_streams(
        self, news: Sequence[tuple[StreamRecord, RangeRecord, Mapping[str, str]]]
    ) -> None:
        self._database.add(streams, [astuple(stream) for stream, *_ in news])
        self._insert_ranges([first for _, first, _ in news])
        for stream, _, properties in news:
            self._properties.change(stream.stream_id, properties)

    def _update_stream(self, change: StreamChange) -> StreamRecord:
        """Change a stream. Raises one of _REFUSALS before anything is changed."""
        if self.maybe_stream(change.stream_id) is None:
            raise no_stream(change.stream_id)
        if change.name is not None:
            named = self._maybe_stream_of_name(change.name)
            if named is not None and named.stream_id != change.stream_id:
                raise AlreadyExistsError.of(
                    f"another stream is named {shown(change.name)}; choose another name, or rename"
                    " or delete that stream first. Nothing of this stream was changed"
                )
        self._properties.check(change.stream_id, change.expected)
        if change.properties:
            wanted = {**self._properties.of_stream(change.stream_id), **change.properties}
            if sum(value is not None for value in wanted.values()) > PROPERTIES_MAX:
                raise invalid(
                    f"stream {change.stream_id} would have more than {PROPERTIES_MAX} properties:"
                    " remove some. Nothing of this stream was changed"
                )
            self._properties.change(change.stream_id, change.properties)
        self._change(
            _CHANGE_STREAM,
            of_stream_id=change.stream_id,
            new_name=change.name,
            new_period_ms=change.retention_period_ms,
            new_bytes=change.retention_bytes,
            new_replicas=change.replica_count,
            new_acks=change.ack_count,
        )
        changed = self.maybe_stream(change.stream_id)
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
        ) + self._change(_TRIM_STARTS, of_stream_id=stream_id, offset=offset)

    def _maybe_smallest_range(self, stream_id: int) -> tuple[StreamRecord, RangeRecord] | None:
        stream, first = self.maybe_stream(stream_id), self.maybe_first_range(stream_id)
        return None if stream is None or first is None else (stream, first)

    def _maybe_stream_of_name(self, name: str) -> StreamRecord | None:
        row = self._database.maybe_row(streams, name=name)
        return row and StreamRecord(*row)


def _shown(value: str | None, absent: str) -> str:
    return absent if value is None else shown(value)


def _new_stream(
    stream_id: int, new: NewStream, created_at_ms: int
) -> tuple[StreamRecord, RangeRecord]:
    """Return a stream to be added, with an open range from offset 0."""
    stream = StreamRecord(
        stream_id,
        new.name,
        new.replica_count,
        new.ack_count,
        new.retention_period_ms,
        created_at_ms,
        new.retention_bytes,
    )
    return stream, RangeRecord(stream_id, 0, 0, None, new.ack_count, new.server_ids, created_at_ms)
