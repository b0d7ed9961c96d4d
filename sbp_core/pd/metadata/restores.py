"""The backup that a cluster is, or was, restored from: table `restores`."""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlalchemy import insert, select, update

from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.servers import ServerTables
from sbp_core.pd.metadata.tables import restores

_ALL: Final = select(restores.c.backup_id, restores.c.completed_at_ms)
_BEGIN: Final = insert(restores)
_COMPLETE: Final = update(restores)


class Restore(NamedTuple):
    """A restore: the id of its backup, and when it was complete, None before."""

    backup_id: str
    completed_at_ms: int | None

    @property
    def is_complete(self) -> bool:
        """Whether everything is restored."""
        return self.completed_at_ms is not None


class RestoreTable:
    """Which backup a cluster is restored from, and whether that is complete."""

    def __init__(self, database: Database, servers: ServerTables) -> None:
        self._database = database
        self._servers = servers

    def maybe_restore(self) -> Restore | None:
        """Return the restore of the cluster, None if it was never restored."""
        rows = self._database.query(_ALL)
        return Restore(*rows[0]) if rows else None

    def begin(self, backup_id: str, began_at_ms: int) -> None:
        """Note that the cluster is restored from a backup from now on."""
        with self._database.transaction():
            self._database.change(
                _BEGIN, backup_id=backup_id, began_at_ms=began_at_ms, completed_at_ms=None
            )

    def complete(self, completed_at_ms: int, *, last_stream_id: int, revision: int) -> None:
        """Note that everything is restored, and which numbers are not to be used again."""
        with self._database.transaction():
            self._servers.count_on_from(last_stream_id, revision)
            self._database.change(_COMPLETE, completed_at_ms=completed_at_ms)
