"""The cluster and its range servers: tables `cluster`, `servers`, `server_secrets`, `log_marks`.

`cluster` has one row: the cluster's id, its revision, and the last ids of streams and servers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.pd.metadata.history import SERVER_ID_MAX
from sbp_core.pd.metadata.sqlite_file import SqliteFile
from sbp_core.pd.model import LogMark, RangeServerRecord


class ServerTables:
    """The range servers that ever got an id, and the identity of the cluster."""

    def __init__(self, file: SqliteFile) -> None:
        self._query = file.query
        self._transaction = file.transaction
        self.cluster_id: Final = str(self._query("SELECT id FROM cluster")[0][0])
        """Identity of the cluster, made with the store and never changed."""

    def revision(self) -> int:
        """Return the number of changes of streams, ranges or their addresses."""
        return int(self._query("SELECT revision FROM cluster")[0][0])

    def bump_revision(self) -> None:
        """Note a change of streams, ranges or addresses, within a transaction."""
        self._query("UPDATE cluster SET revision = revision + 1")

    def allocate_id(self) -> int:
        """Return an id for a range server, never issued before."""
        with self._transaction():
            if self._query("SELECT last_server_id FROM cluster") == [(SERVER_ID_MAX,)]:
                raise InvalidRequestError(
                    StatusCode.INVALID_REQUEST,
                    f"all ids of range servers up to {SERVER_ID_MAX} were given out",
                )
            self._query("UPDATE cluster SET last_server_id = last_server_id + 1")
            return int(self._query("SELECT last_server_id FROM cluster")[0][0])

    def register(self, server: RangeServerRecord) -> bool:
        """Remember the server's address; False when its id was never allocated here."""
        with self._transaction():
            ((last_id,),) = self._query("SELECT last_server_id FROM cluster")
            if not 0 < server.server_id <= last_id:
                return False
            known = self._query("SELECT address FROM servers WHERE server_id = ?", server.server_id)
            if known != [(server.address,)]:
                self._query(
                    "INSERT OR REPLACE INTO servers VALUES (?, ?)", server.server_id, server.address
                )
                self.bump_revision()
            return True

    def addresses(self) -> Mapping[int, str]:
        """Return the address of each server that was ever registered."""
        return dict(self._query("SELECT server_id, address FROM servers"))

    def maybe_secret(self, server_id: int) -> str | None:
        """Return a server's secret; None where it has none."""
        rows = self._query("SELECT secret FROM server_secrets WHERE server_id = ?", server_id)
        return str(rows[0][0]) if rows else None

    def claim_secret(self, server_id: int, secret: str) -> str:
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

    def maybe_log_mark(self, server_id: int) -> LogMark | None:
        """Return what a server said last of its log; None if it said nothing."""
        rows = self._query("SELECT log_id, position FROM log_marks WHERE server_id = ?", server_id)
        return LogMark(server_id, *rows[0]) if rows else None

    def keep_log_mark(self, mark: LogMark) -> None:
        """Remember what a server says of its log."""
        with self._transaction():
            self._query(
                "INSERT OR REPLACE INTO log_marks VALUES (?, ?, ?)",
                mark.server_id,
                mark.log_id,
                mark.position,
            )
