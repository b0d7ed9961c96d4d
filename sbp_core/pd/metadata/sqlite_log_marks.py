"""How far the logs of range servers are synced, in the metadata file."""

from __future__ import annotations

from sbp_core.pd.metadata.sqlite_file import Query, Transaction
from sbp_core.pd.model import LogMark


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
