"""The schemas of streams in the metadata file, statement by statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sbp_core.pd.metadata.sqlite_file import Query, Transaction
from sbp_core.pd.model import SchemaRecord

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
