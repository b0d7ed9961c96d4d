"""The cluster and its range servers: tables `cluster`, `servers`, `server_secrets`, `log_marks`.

`cluster` has one row: the cluster's id, its revision, and the last ids of streams and servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from sqlalchemy import BindParameter, bindparam, delete, insert, select, update

from sbp_core.errors import InvalidRequestError, StatusCode
from sbp_core.pd.metadata.change_log import ChangeLog
from sbp_core.pd.metadata.database import Database, Put
from sbp_core.pd.metadata.history import SERVER_ID_MAX
from sbp_core.pd.metadata.tables import cluster, draining, log_marks, server_secrets, servers
from sbp_core.pd.model import LogMark, RangeServerRecord

_SERVER_ID: Final[BindParameter[int]] = bindparam("server_id")
_CLUSTER_ID: Final = select(cluster.c.id)
_REVISION: Final = select(cluster.c.revision)
_BUMP_REVISION: Final = (
    update(cluster).values(revision=cluster.c.revision + 1).returning(cluster.c.revision)
)
_LAST_ID: Final = select(cluster.c.last_server_id)
_NEXT_ID: Final = (
    update(cluster)
    .values(last_server_id=cluster.c.last_server_id + 1)
    .returning(cluster.c.last_server_id)
)
_LAST_STREAM_ID: Final = select(cluster.c.last_stream_id)
_SET_NUMBERS: Final = update(cluster)
_ADDRESSES: Final = select(servers.c.server_id, servers.c.address)
_ADDRESS: Final = select(servers.c.address).where(servers.c.server_id == _SERVER_ID)
_PUT_SERVER: Final = Put(servers)
_SECRET: Final = select(server_secrets.c.secret).where(server_secrets.c.server_id == _SERVER_ID)
_ADD_SECRET: Final = insert(server_secrets)
_SECRETS_AT: Final = (
    select(server_secrets.c.secret)
    .join(servers, servers.c.server_id == server_secrets.c.server_id)
    .where(servers.c.address == bindparam("address"))
    .order_by(servers.c.server_id.desc())
)
_DRAINING: Final = select(draining.c.server_id)
_DRAIN: Final = insert(draining)
_END_DRAIN: Final = delete(draining).where(draining.c.server_id == _SERVER_ID)
_LOG_MARK: Final = select(log_marks.c.log_id, log_marks.c.position).where(
    log_marks.c.server_id == _SERVER_ID
)
_PUT_LOG_MARK: Final = Put(log_marks)


class ServerTables:
    """The range servers that ever got an id, and the identity of the cluster."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._query = database.query
        self._transaction = database.transaction
        self._changes = ChangeLog()
        self.cluster_id: Final = str(self._query(_CLUSTER_ID)[0][0])
        """Identity of the cluster, made with the store and never changed."""

    def revision(self) -> int:
        """Return the number of changes of streams, ranges or their addresses."""
        return int(self._query(_REVISION)[0][0])

    def bump_revision(self, stream_ids: Iterable[int] | None) -> None:
        """Note a change of streams or their ranges, within a transaction; None: of an address."""
        ((revision,),) = self._query(_BUMP_REVISION)
        self._changes.note(revision, stream_ids)

    def forget_changes(self) -> None:
        """Forget which streams changed: another placement driver may have changed others."""
        self._changes = ChangeLog()

    def maybe_changed_since(self, revision: int) -> list[int] | None:
        """Return the streams that changed since a revision; None if that is not known."""
        return self._changes.maybe_since(revision, self.revision())

    def last_stream_id(self) -> int:
        """Return the id that a stream got last."""
        return int(self._query(_LAST_STREAM_ID)[0][0])

    def count_on_from(self, last_stream_id: int, revision: int) -> None:
        """Let ids of streams and revisions go on after these, within a transaction."""
        self._database.change(_SET_NUMBERS, last_stream_id=last_stream_id, revision=revision)

    def allocate_id(self) -> int:
        """Return an id for a range server, never issued before."""
        with self._transaction():
            ((server_id,),) = self._query(_NEXT_ID)
            if server_id > SERVER_ID_MAX:
                raise InvalidRequestError(
                    StatusCode.INVALID_REQUEST,
                    f"all ids of range servers up to {SERVER_ID_MAX} were given out",
                )
            return int(server_id)

    def register(self, server: RangeServerRecord) -> bool:
        """Remember the server's address; False when its id was never allocated here."""
        with self._transaction():
            ((last_id,),) = self._query(_LAST_ID)
            if not 0 < server.server_id <= last_id:
                return False
            known = self._query(_ADDRESS, server_id=server.server_id)
            if known != [(server.address,)]:
                self._database.put(_PUT_SERVER, server_id=server.server_id, address=server.address)
                self.bump_revision(None)
            return True

    def addresses(self) -> Mapping[int, str]:
        """Return the address of each server that was ever registered."""
        return dict(self._query(_ADDRESSES))

    def maybe_secret(self, server_id: int) -> str | None:
        """Return a server's secret; None where it has none."""
        rows = self._query(_SECRET, server_id=server_id)
        return str(rows[0][0]) if rows else None

    def claim_secret(self, server_id: int, secret: str) -> str:
        """Give a server this secret unless it has one; return the one that it has then."""
        with self._transaction():
            claimed = self.maybe_secret(server_id)
            if claimed is None:
                self._database.change(_ADD_SECRET, server_id=server_id, secret=secret)
        return secret if claimed is None else claimed

    def secrets_at(self, address: str) -> list[str]:
        """Return the secrets of the servers that announced an address last, the newest first."""
        rows = self._query(_SECRETS_AT, address=address)
        return [str(secret) for (secret,) in rows]

    def draining(self) -> frozenset[int]:
        """Return the servers that are being drained."""
        return frozenset(server_id for (server_id,) in self._query(_DRAINING))

    def drain(self, server_ids: Iterable[int], *, is_cancelled: bool) -> None:
        """Note that servers are to have no ranges any more, or that they may have some again."""
        with self._transaction():
            known = self.draining()
            for server_id in {*server_ids}:
                if is_cancelled is (server_id in known):
                    self._database.change(
                        _END_DRAIN if is_cancelled else _DRAIN, server_id=server_id
                    )

    def maybe_log_mark(self, server_id: int) -> LogMark | None:
        """Return what a server said last of its log; None if it said nothing."""
        rows = self._query(_LOG_MARK, server_id=server_id)
        return LogMark(server_id, *rows[0]) if rows else None

    def keep_log_mark(self, mark: LogMark) -> None:
        """Remember what a server says of its log."""
        with self._transaction():
            self._database.put(
                _PUT_LOG_MARK,
                server_id=mark.server_id,
                log_id=mark.log_id,
                position=mark.position,
            )
