"""The tables of the metadata file that belong to one story each, statement by statement.

Secrets and log marks of range servers, schemas of streams, cursors of consumer groups, and the
writers at the end of ranges. Streams and ranges are in sqlite_store.py, transactions in
sqlite_transactions.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sbp_core.log.states.writer_states import NO_WRITERS
from sbp_core.pd.metadata.sqlite_file import Query, Transaction
from sbp_core.pd.model import (
    NO_CURSOR,
    CursorRecord,
    GroupRecord,
    LogMark,
    SchemaRecord,
    SealedRange,
)


class SqliteSecrets:
    """A SecretStore in the metadata file."""

    def __init__(self, query: Query, transaction: Transaction) -> None:
        self._query = query
        self._transaction = transaction

    def maybe_secret(self, server_id: int) -> str | None:
        """Return a server's secret; None where it has none."""
        rows = self._query("SELECT secret FROM server_secrets WHERE server_id = ?", server_id)
        return str(rows[0][0]) if rows else None

    def claim(self, server_id: int, secret: str) -> str:
        """Give a server this secret unless it has one; return the one that it has then."""
        with self._transaction():
            self._query("INSERT OR IGNORE INTO server_secrets VALUES (?, ?)", server_id, secret)
        claimed = self.maybe_secret(server_id)
        assert claimed is not None
        return claimed

    def secrets_at(self, address: str) -> list[str]:
        """Return the secrets of the servers that announced an address last, the newest first."""
        rows = self._query(
            "SELECT secret FROM servers JOIN server_secrets USING (server_id) WHERE address = ?"
            " ORDER BY server_id DESC",
            address,
        )
        return [str(secret) for (secret,) in rows]


class SqliteLogMarks:
    """A LogMarkStore, by means of the metadata store's statements and transactions."""

    def __init__(self, query: Query, transaction: Transaction) -> None:
        self._query = query
        self._transaction = transaction

    def maybe_mark(self, server_id: int) -> LogMark | None:
        """Return what a server said last of its log; None if it said nothing."""
        rows = self._query("SELECT log_id, position FROM log_marks WHERE server_id = ?", server_id)
        return LogMark(server_id, *rows[0]) if rows else None

    def keep(self, mark: LogMark) -> None:
        """Remember what a server says of its log."""
        with self._transaction():
            self._query(
                "INSERT OR REPLACE INTO log_marks VALUES (?, ?, ?)",
                mark.server_id,
                mark.log_id,
                mark.position,
            )


_SCHEMA: Final = (
    "SELECT stream_id, version, fingerprint, schema, registered_at_ms FROM schemas"
    " WHERE stream_id = ?"
)


class SqliteSchemas:
    """A SchemaStore in the metadata file."""

    def __init__(
        self,
        query: Query,
        transaction: Transaction,
        reading_blobs: Transaction,
    ) -> None:
        self._query = query
        self._transaction = transaction
        self._reading_blobs = reading_blobs

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


_CURSOR: Final = "SELECT stream_id, next_offset, committed_at_ms FROM cursors WHERE group_name = ?"


def commit_cursor(
    query: Query, group: str, stream_id: int, next_offset: int, committed_at_ms: int
) -> bool:
    """Set a cursor, or forget it; False where there is no stream to set it for."""
    if next_offset == NO_CURSOR:
        query("DELETE FROM cursors WHERE group_name = ? AND stream_id = ?", group, stream_id)
        return True
    if not query("SELECT 1 FROM streams WHERE stream_id = ?", stream_id):
        return False
    query(
        "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)",
        group,
        stream_id,
        next_offset,
        committed_at_ms,
    )
    return True


def cursors_of(query: Query, group: str, stream_ids: Sequence[int]) -> list[CursorRecord | None]:
    """Return a group's cursors in the order asked for; None where there is none."""
    found = (query(f"{_CURSOR} AND stream_id = ?", group, each) for each in stream_ids)
    return [CursorRecord(*rows[0]) if rows else None for rows in found]


def cursors_after(query: Query, group: str, stream_id: int, count_max: int) -> list[CursorRecord]:
    """Return up to `count_max` cursors of a group beyond a stream id, by id."""
    rows = query(
        f"{_CURSOR} AND stream_id > ? ORDER BY stream_id LIMIT ?", group, stream_id, count_max
    )
    return [CursorRecord(*row) for row in rows]


def groups_after(query: Query, group: str, count_max: int) -> list[GroupRecord]:
    """Return up to `count_max` groups whose names come after `group`, by name."""
    rows = query(
        "SELECT group_name, max(committed_at_ms) FROM cursors WHERE group_name > ?"
        " GROUP BY group_name ORDER BY group_name LIMIT ?",
        group,
        count_max,
    )
    return [GroupRecord(*row) for row in rows]


def record_writers(query: Query, sealed: SealedRange) -> None:
    """Keep the writers at the end of a range that was sealed; of each stream the last ones only.

    A server that tells none took none: then it is those before the range.
    """
    stream_id, range_index, _, writers = sealed
    before = NO_WRITERS if range_index == 0 else writers_before(query, stream_id, range_index)
    if writers or before:
        query(
            "INSERT OR REPLACE INTO writers VALUES (?, ?, ?)",
            stream_id,
            range_index,
            writers or before,
        )


def writers_before(query: Query, stream_id: int, range_index: int) -> bytes:
    """Return the writers at the end of the range before, empty if that is not known."""
    rows = query(
        "SELECT writers FROM writers WHERE stream_id = ? AND range_index = ?",
        stream_id,
        range_index - 1,
    )
    return bytes(rows[0][0]) if rows else b""
