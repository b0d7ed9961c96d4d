"""The secrets of range servers in the metadata file, statement by statement."""

from __future__ import annotations

from sbp_core.pd.metadata.sqlite_file import Query, Transaction


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
