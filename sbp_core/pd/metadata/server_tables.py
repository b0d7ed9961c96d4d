"""The cluster and its range servers: tables `cluster`, `restores`, `servers`, `log_marks` etc.

`cluster` has one row: the cluster's id, its revision, and the last ids of streams and servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple
from typing import Final, NamedTuple

from sqlalchemy import bindparam, select, update

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.history import SERVER_ID_MAX
from sbp_core.pd.metadata.tables import (
    cluster,
    draining,
    log_marks,
    restores,
    server_secrets,
    servers,
)
from sbp_core.pd.model import LogMark, RangeServerRecord

CHANGES_KEPT: Final = 100_000
"""Streams whose last change is kept: 10 MB at most."""
CHANGES_LISTED_MAX: Final = 1_000
"""Streams in one answer: a client with more looks everything up."""
_BUMP_REVISION: Final = (
    update(cluster).values(revision=cluster.c.revision + 1).returning(cluster.c.revision)
)
_NEXT_ID: Final = (
    update(cluster)
    .values(last_server_id=cluster.c.last_server_id + 1)
    .returning(cluster.c.last_server_id)
)
_SET_NUMBERS: Final = update(cluster)
_COMPLETE_RESTORE: Final = update(restores)
_SECRETS_AT: Final = (
    select(server_secrets.c.secret)
    .join(servers, servers.c.server_id == server_secrets.c.server_id)
    .where(servers.c.address == bindparam("address"))
    .order_by(servers.c.server_id.desc())
)


class ChangeLog:
    """The last change of each stream, the latest last: clients look up only what changed.

    The log is in memory. A placement driver knows the changes that it made since it leads.

    The caller reports each revision after it was written. A revision that was rolled back, or that
    another placement driver wrote, leaves a gap, and the log begins again behind the gap.
    """

    def __init__(self, *, kept_max: int = CHANGES_KEPT) -> None:
        self._kept_max = kept_max
        self._changed_at: dict[int, int] = {}
        self._first = self._last = -1
        """The changes after the first of these revisions, up to the last, are known."""

    def note(self, revision: int, stream_ids: Iterable[int] | None) -> None:
        """Add a revision and the streams that it changed. None: any stream may have changed."""
        if revision != self._last + 1 or stream_ids is None:
            self._changed_at.clear()
            self._first = revision if stream_ids is None else revision - 1
        for stream_id in stream_ids or ():
            self._changed_at.pop(stream_id, None)
            self._changed_at[stream_id] = revision
        while len(self._changed_at) > self._kept_max:
            self._first = self._changed_at.pop(next(iter(self._changed_at)))
        self._last = revision

    def maybe_since(self, revision: int, now: int) -> list[int] | None:
        """Return the streams that changed after a revision, up to the one of now, the latest first.

        None if the log has a gap there, or if more than CHANGES_LISTED_MAX changed.
        """
        if revision == now:
            return []
        if not self._first <= revision or now != self._last:
            return None
        found = []
        for stream_id, changed_at in reversed(self._changed_at.items()):
            if changed_at <= revision:
                break
            found.append(stream_id)
            if len(found) > CHANGES_LISTED_MAX:
                return None
        return found


class ServerTables:
    """The range servers that ever got an id, and the identity of the cluster."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changes = ChangeLog()
        self.cluster_id: Final = str(database.rows(cluster)[0].id)
        """Identity of the cluster, made with the store and never changed."""

    def revision(self) -> int:
        """Return the number of changes of streams, ranges or their addresses."""
        return int(self._database.rows(cluster)[0].revision)

    def bump_revision(self, stream_ids: Iterable[int] | None) -> None:
        """Note a change of streams or their ranges, within a transaction; None: of an address."""
        ((revision,),) = self._database.query(_BUMP_REVISION)
        self._changes.note(revision, stream_ids)

    def forget_changes(self) -> None:
        """Forget which streams changed: another placement driver may have changed others."""
        self._changes = ChangeLog()

    def maybe_changed_since(self, revision: int) -> list[int] | None:
        """Return the streams that changed since a revision; None if that is not known."""
        return self._changes.maybe_since(revision, self.revision())

    def last_stream_id(self) -> int:
        """Return the id that a stream got last."""
        return int(self._database.rows(cluster)[0].last_stream_id)

    def count_on_from(self, last_stream_id: int, revision: int) -> None:
        """Let ids of streams and revisions go on after these, within a transaction."""
        self._database.change(_SET_NUMBERS, last_stream_id=last_stream_id, revision=revision)

    def allocate_id(self) -> int:
        """Return an id for a range server, never issued before."""
        with self._database.transaction():
            ((server_id,),) = self._database.query(_NEXT_ID)
            if server_id > SERVER_ID_MAX:
                raise InvalidRequestError(
                    StatusCode.INVALID_REQUEST,
                    f"all ids of range servers up to {SERVER_ID_MAX} were given out",
                )
            return int(server_id)

    def register(self, server: RangeServerRecord) -> bool:
        """Remember the server's address; False when its id was never allocated here."""
        with self._database.transaction():
            last_id = self._database.rows(cluster)[0].last_server_id
            if not 0 < server.server_id <= last_id:
                return False
            row = (server.server_id, server.address)
            if self._database.maybe_row(servers, server_id=server.server_id) != row:
                self._database.put(servers, *row)
                self.bump_revision(None)
            return True

    def addresses(self) -> Mapping[int, str]:
        """Return the address of each server that was ever registered."""
        return dict(self._database.rows(servers))

    def maybe_secret(self, server_id: int) -> str | None:
        """Return a server's secret; None where it has none."""
        row = self._database.maybe_row(server_secrets, server_id=server_id)
        return row and str(row.secret)

    def claim_secret(self, server_id: int, secret: str) -> str:
        """Give a server this secret unless it has a secret; return the secret that it has then."""
        with self._database.transaction():
            claimed = self.maybe_secret(server_id)
            if claimed is None:
                self._database.add(server_secrets, [(server_id, secret)])
        return secret if claimed is None else claimed

    def secrets_at(self, address: str) -> list[str]:
        """Return the secrets of the servers that announced an address last, the newest first."""
        rows = self._database.query(_SECRETS_AT, address=address)
        return [str(secret) for (secret,) in rows]

    def draining(self) -> frozenset[int]:
        """Return the servers that are being drained."""
        return frozenset(server_id for (server_id,) in self._database.rows(draining))

    def drain(self, server_ids: Iterable[int], *, is_cancelled: bool) -> None:
        """Note that servers are drained, or with `is_cancelled` that they may have ranges again."""
        with self._database.transaction():
            known, asked = self.draining(), {*server_ids}
            for server_id in asked & known if is_cancelled else ():
                self._database.remove(draining, server_id=server_id)
            if not is_cancelled:
                self._database.add(draining, [(each,) for each in asked - known])

    def maybe_log_mark(self, server_id: int) -> LogMark | None:
        """Return what a server said last of its log; None if it said nothing."""
        row = self._database.maybe_row(log_marks, server_id=server_id)
        return row and LogMark(*row)

    def keep_log_mark(self, mark: LogMark) -> None:
        """Remember what a server says of its log."""
        with self._database.transaction():
            self._database.put(log_marks, *astuple(mark))


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
        row = self._database.maybe_row(restores)
        return row and Restore(row.backup_id, row.completed_at_ms)

    def begin(self, backup_id: str, began_at_ms: int) -> None:
        """Note that the cluster is restored from a backup from now on."""
        with self._database.transaction():
            self._database.add(restores, [(backup_id, began_at_ms, None)])

    def complete(self, completed_at_ms: int, *, last_stream_id: int, revision: int) -> None:
        """Note that everything is restored, and which numbers are not to be used again."""
        with self._database.transaction():
            self._servers.count_on_from(last_stream_id, revision)
            self._database.change(_COMPLETE_RESTORE, completed_at_ms=completed_at_ms)
