"""Streams: tables `streams`, `ranges` with `replicas`, `writers`, and `schemas`.

Each method is one transaction. Deleting a stream deletes everything that refers to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from sbp_core.log.states.writer_states import NO_WRITERS
from sbp_core.pd.metadata.sqlite_file import SqliteFile
from sbp_core.pd.metadata.sqlite_servers import ServerTables
from sbp_core.pd.metadata.sqlite_transactions import TransactionTables
from sbp_core.pd.model import (
    ChangeRefusal,
    NewStream,
    RangeRecord,
    SchemaRecord,
    SealedRange,
    StreamChange,
    StreamRecord,
)

_STREAM: Final = (
    "SELECT stream_id, name, replica_count, ack_count, retention_period_ms, created_at_ms,"
    " retention_bytes FROM streams"
)
_RANGES: Final = (
    "SELECT created_at_ms, stream_id, range_index, start_offset, end_offset, ranges.ack_count,"
    " server_id FROM ({keys}) JOIN ranges USING (stream_id, range_index)"
    " JOIN streams USING (stream_id) JOIN replicas USING (stream_id, range_index)"
    " ORDER BY stream_id, range_index, position"
)
_RANGE_KEYS: Final = {
    (False, False): "SELECT stream_id, range_index FROM ranges WHERE true",
    (True, False): "SELECT stream_id, range_index FROM ranges WHERE stream_id = :stream_id",
    (False, True): "SELECT stream_id, range_index FROM replicas WHERE server_id = :server_id",
    (True, True): "SELECT stream_id, range_index FROM replicas"
    " WHERE server_id = :server_id AND stream_id = :stream_id",
}
"""By (stream_id is given, server_id is given)."""
_SCHEMA: Final = (
    "SELECT stream_id, version, fingerprint, schema, registered_at_ms FROM schemas"
    " WHERE stream_id = ?"
)


class StreamTables:
    """The streams of a cluster and their ranges."""

    def __init__(
        self, file: SqliteFile, servers: ServerTables, transactions: TransactionTables
    ) -> None:
        self._file = file
        self._query = file.query
        self._transaction = file.transaction
        self._servers = servers
        self._transactions = transactions

    def open_range_counts(self) -> Mapping[int, int]:
        """Return how many open ranges each server hosts; servers without one are absent."""
        return dict(
            self._query(
                "SELECT server_id, count(*)"
                " FROM ranges JOIN replicas USING (stream_id, range_index)"
                " WHERE end_offset IS NULL GROUP BY server_id"
            )
        )

    def create_streams(
        self, streams: Sequence[NewStream], created_at_ms: int
    ) -> list[tuple[StreamRecord, RangeRecord] | None]:
        """Create streams, each with an open range from offset 0; None where the name is taken."""
        with self._transaction():
            ((last_id,),) = self._query("SELECT last_stream_id FROM cluster")
            created = []
            for stream in streams:
                created.append(self._maybe_create_stream(last_id + 1, stream, created_at_ms))
                last_id += created[-1] is not None
            if any(created):
                self._query("UPDATE cluster SET last_stream_id = ?", last_id)
                self._servers.bump_revision()
            return created

    def delete_streams(self, stream_ids: Sequence[int]) -> list[StreamRecord | None]:
        """Delete streams with their ranges and cursors; None where there is none."""
        with self._transaction():
            deleted = []
            for stream_id in stream_ids:
                deleted.append(self._maybe_stream("stream_id", stream_id))
                self._query("DELETE FROM streams WHERE stream_id = ?", stream_id)
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
            changes_before = self._file.total_changes
            trimmed = [self._maybe_trim_stream(*trim) for trim in trims]
            if self._file.total_changes > changes_before:
                self._servers.bump_revision()
            return trimmed

    def streams_by_id(self, stream_ids: Sequence[int]) -> list[StreamRecord | None]:
        """Return streams in the order asked for; None where there is none."""
        return [self._maybe_stream("stream_id", stream_id) for stream_id in stream_ids]

    def streams_by_name(self, names: Sequence[str]) -> list[StreamRecord | None]:
        """Return streams in the order asked for; None where there is none."""
        return [self._maybe_stream("name", name) for name in names]

    def streams_after(self, stream_id: int, count_max: int) -> list[StreamRecord]:
        """Return up to `count_max` streams with ids greater than `stream_id`, by id."""
        rows = self._query(
            f"{_STREAM} WHERE stream_id > ? ORDER BY stream_id LIMIT ?", stream_id, count_max
        )
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
        keys = _RANGE_KEYS[stream_id is not None, server_id is not None]
        return self._ranges(
            f"{keys} AND (stream_id, range_index) > (:after_stream, :after_index)"
            " ORDER BY stream_id, range_index LIMIT :count_max",
            {
                "stream_id": stream_id,
                "server_id": server_id,
                "after_stream": after[0],
                "after_index": after[1],
                "count_max": count_max,
            },
        )

    def maybe_last_range(self, stream_id: int) -> RangeRecord | None:
        """Return the range with the highest index of a stream."""
        found = self._ranges(
            "SELECT stream_id, range_index FROM ranges WHERE stream_id = :stream_id"
            " ORDER BY range_index DESC LIMIT 1",
            {"stream_id": stream_id},
        )
        return found[0] if found else None

    def range_count(self, stream_id: int) -> int:
        """Return how many ranges a stream has."""
        query = "SELECT count(*) FROM ranges WHERE stream_id = ?"
        return int(self._query(query, stream_id)[0][0])

    def create_ranges(self, news: Sequence[RangeRecord]) -> list[bool]:
        """Add ranges; False where the stream has one of that index already, or was deleted."""
        with self._transaction():
            made = [self._create_range(new) for new in news]
            if any(made):
                self._servers.bump_revision()
            return made

    def writers_before(self, stream_id: int, range_index: int) -> bytes:
        """Return the writers at the end of the range before, empty if that is not known."""
        with self._file.reading_blobs():
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
        if new.name is not None and self._maybe_stream("name", new.name) is not None:
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
        self._query(
            "INSERT INTO streams VALUES (?, ?, ?, ?, ?, ?, ?)",
            stream.stream_id,
            stream.name,
            stream.replica_count,
            stream.ack_count,
            stream.retention_period_ms,
            stream.created_at_ms,
            stream.retention_bytes,
        )
        first = RangeRecord(
            stream.stream_id, 0, 0, None, new.ack_count, new.server_ids, created_at_ms
        )
        self._insert_range(first)
        return stream, first

    def _create_range(self, new: RangeRecord) -> bool:
        key = (new.stream_id, new.range_index)
        taken = "SELECT 1 FROM ranges WHERE stream_id = ? AND range_index = ?"
        if self._maybe_stream("stream_id", new.stream_id) is None or self._query(taken, *key):
            return False
        self._insert_range(new)
        return True

    def _seal_range(self, end: SealedRange) -> bool:
        sealed = self._query(
            "UPDATE ranges SET end_offset = ? WHERE stream_id = ? AND range_index = ?"
            " AND end_offset IS NULL RETURNING 1",
            end.end_offset,
            end.stream_id,
            end.range_index,
        )
        if sealed:
            self._record_writers(end)
        return bool(sealed)

    def _update_stream(self, change: StreamChange) -> StreamRecord | ChangeRefusal:
        if self._maybe_stream("stream_id", change.stream_id) is None:
            return ChangeRefusal.NO_STREAM
        if change.name is not None:
            named = self._maybe_stream("name", change.name)
            if named is not None and named.stream_id != change.stream_id:
                return ChangeRefusal.NAME_TAKEN
        self._query(
            "UPDATE streams SET name = coalesce(?, name), retention_period_ms = ?,"
            " retention_bytes = coalesce(?, retention_bytes) WHERE stream_id = ?",
            change.name,
            change.retention_period_ms,
            change.retention_bytes,
            change.stream_id,
        )
        changed = self._maybe_stream("stream_id", change.stream_id)
        assert changed is not None
        return changed

    def _maybe_trim_stream(
        self, stream_id: int, offset: int
    ) -> tuple[StreamRecord, RangeRecord] | None:
        stream = self._maybe_stream("stream_id", stream_id)
        last = self.maybe_last_range(stream_id)
        if stream is None or last is None:
            return None
        self._query(
            "DELETE FROM ranges WHERE stream_id = ? AND range_index < ? AND end_offset <= ?",
            stream_id,
            self._transactions.first_needed_range(stream_id, last.range_index),
            offset,
        )
        self._query(
            "UPDATE ranges SET start_offset = min(?, coalesce(end_offset, ?))"
            " WHERE stream_id = ? AND start_offset < min(?, coalesce(end_offset, ?))",
            offset,
            offset,
            stream_id,
            offset,
            offset,
        )
        (smallest,) = self.ranges_after((stream_id, -1), 1, stream_id=stream_id, server_id=None)
        return stream, smallest

    def _insert_range(self, new: RangeRecord) -> None:
        self._query(
            "INSERT INTO ranges VALUES (?, ?, ?, ?, ?)",
            new.stream_id,
            new.range_index,
            new.start_offset,
            new.end_offset,
            new.ack_count,
        )
        for position, server_id in enumerate(new.server_ids):
            self._query(
                "INSERT INTO replicas VALUES (?, ?, ?, ?)",
                new.stream_id,
                new.range_index,
                position,
                server_id,
            )

    def _maybe_stream(self, column: str, value: int | str) -> StreamRecord | None:
        rows = self._query(f"{_STREAM} WHERE {column} = ?", value)
        return StreamRecord(*rows[0]) if rows else None

    def _ranges(self, keys: str, parameters: Mapping[str, int | None]) -> list[RangeRecord]:
        """Return the ranges of the keys that a query selects, with all their servers."""
        rows = self._query(_RANGES.format(keys=keys), named=parameters)
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
            self._query(
                "INSERT OR REPLACE INTO writers VALUES (?, ?, ?)",
                stream_id,
                range_index,
                writers or before,
            )

    def _writers_before(self, stream_id: int, range_index: int) -> bytes:
        rows = self._query(
            "SELECT writers FROM writers WHERE stream_id = ? AND range_index = ?",
            stream_id,
            range_index - 1,
        )
        return bytes(rows[0][0]) if rows else b""


class SchemaTable:
    """The versions of the schemas of streams."""

    def __init__(self, file: SqliteFile) -> None:
        self._query = file.query
        self._transaction = file.transaction
        self._reading_blobs = file.reading_blobs

    def register(self, news: Sequence[SchemaRecord]) -> None:
        """Add versions, all or none; their streams are there, and do not have them yet."""
        with self._transaction():
            for new in news:
                self._query(
                    "INSERT INTO schemas VALUES (?, ?, ?, ?, ?)",
                    new.stream_id,
                    new.version,
                    new.fingerprint,
                    new.schema,
                    new.registered_at_ms,
                )

    def maybe_newest(self, stream_id: int) -> SchemaRecord | None:
        """Return the last version of a stream's schema; None where it has none."""
        with self._reading_blobs():
            rows = self._query(f"{_SCHEMA} ORDER BY version DESC LIMIT 1", stream_id)
        return SchemaRecord(*rows[0]) if rows else None

    def maybe_next(self, stream_id: int, version: int) -> SchemaRecord | None:
        """Return the version of a stream's schema that comes after one, 0: the first one."""
        with self._reading_blobs():
            rows = self._query(
                f"{_SCHEMA} AND version > ? ORDER BY version LIMIT 1", stream_id, version
            )
        return SchemaRecord(*rows[0]) if rows else None
