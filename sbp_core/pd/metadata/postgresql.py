"""The home of the metadata that is a PostgreSQL database, which several placement drivers share.

One of them leads, see `leadership`. Every transaction begins by reading the term of the leader with
FOR SHARE: while it runs no other one can take over, and it ends with NotLeaderError if one has. A
leader that was paused or cut off can therefore decide nothing. Reads outside of transactions are
confirmed before their results are used: `confirm` finds the term unchanged after them, so nobody
else can have written before. A session that is silent within a transaction for as long as a lease
is ended by the database: a leader that is paused there does not keep others from taking over. These
timeouts belong to the session, so connections through a pooler, which drops them, are refused.

Connections are made to a server that accepts writes (`target_session_attrs`). A primary that turns
read-only is left, and the hosts of the URL are tried for the new primary.

The database answers for what it stores, so there are no checksums and no mark here. Lives and
numbers of commits are kept as in SQLite: by them range servers notice a database that was restored
from an earlier backup.

A placement driver of a newer release migrates the tables when it starts, also while one of an older
release leads. That raises the term, so the older one stops, and `Leadership.hold` lets no older
one lead again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final

from sqlalchemy import (
    URL,
    Connection,
    Engine,
    Executable,
    create_engine,
    func,
    insert,
    inspect,
    make_url,
    select,
    text,
    update,
)
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError
from sqlalchemy.pool import NullPool, Pool

from sbp_core import limits
from sbp_core.errors import (
    ConfigurationError,
    NotLeaderError,
    StatusCode,
    StatusError,
    StoreUnavailableError,
)
from sbp_core.pd.metadata.database import Database, Value
from sbp_core.pd.metadata.history import CommitId
from sbp_core.pd.metadata.tables import (
    COMMON,
    POSTGRESQL,
    SCHEMA_VERSION,
    alembic_version,
    check_version,
    cluster,
    create_tables,
    leader,
    migrate_tables,
)

_LOG: Final = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S: Final = 5
_STATEMENT_TIMEOUT_MS: Final = 30_000
_SCHEMA_LOCK: Final = 0x5342504D
"""Key of the advisory lock that is held while tables are made or migrated."""

_IDLE_TIMEOUT_MS: Final = text(
    "SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'"
)
_DIRECTLY: Final = "connect to PostgreSQL directly, not through a pooler such as pgbouncer"
_READ_ONLY_STATE: Final = "25006"
"""SQLSTATE read_only_sql_transaction."""

_TERM: Final = select(leader.c.term)
_GUARD: Final = _TERM.with_for_update(read=True)


def engine_of(
    url: str,
    pool: type[Pool],
    *,
    statement_timeout_ms: int = _STATEMENT_TIMEOUT_MS,
    is_autocommit: bool = False,
) -> Engine:
    """Return an engine for a database. Raises ConfigurationError if there can be none."""
    settings = {
        "statement_timeout": statement_timeout_ms,
        "idle_in_transaction_session_timeout": limits.DRIVER_LEASE_MS,
    }
    parsed = _psycopg_url(url)
    try:
        return create_engine(
            parsed.set(query={"target_session_attrs": "read-write", **parsed.query}),
            poolclass=pool,
            isolation_level="AUTOCOMMIT" if is_autocommit else None,
            hide_parameters=True,
            connect_args={
                "connect_timeout": _CONNECT_TIMEOUT_S,
                "options": " ".join(f"-c {name}={each}" for name, each in settings.items()),
            },
        )
    except ImportError as error:
        raise ConfigurationError(
            "store: PostgreSQL needs psycopg; install `sbp-spark[postgresql]`"
        ) from error


def shown_url(url: str) -> str:
    """Return a URL without its password."""
    return make_url(url).render_as_string(hide_password=True)


class PostgresqlDatabase(Database):
    """One connection to the database, opened again after it was lost."""

    def __init__(self, url: str) -> None:
        """Connect, and make or migrate the tables.

        Raises ConfigurationError when the database cannot be used, or must not be.
        """
        with begun(engine_of(url, NullPool), url) as connection:
            _prepare(connection, url)
            own = engine_of(url, NullPool, is_autocommit=True).connect()
            super().__init__(own, shown_url(url))
        self._term = 0
        self._is_unconfirmed = False

    def lead(self, term: int) -> None:
        """Write in a term from now on, which `Leadership` gave; 0: no longer.

        Raises NotLeaderError if the term has ended already.
        """
        self._term, self._life_id, self._is_unconfirmed = term, "", False
        self._counts.clear()
        if term:
            self._begin_life()

    def confirm(self) -> None:
        """Raise NotLeaderError unless all reads since the last call saw the newest commit."""
        if self._is_unconfirmed:
            self._check_term(self.query(_TERM))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _execute(
        self, statement: Executable, values: Mapping[str, Value] | Sequence[Mapping[str, Value]]
    ) -> tuple[Sequence[Any], int]:
        found = super()._execute(statement, values)
        self._is_unconfirmed |= not self._is_in_transaction
        return found

    def _begin_changes(self) -> None:
        self._check_term(self.query(_GUARD))

    def _note_outside(self, commit: CommitId, *, is_missing: bool = False) -> None:
        """Do nothing: the database lasts, and range servers know if it was restored."""

    def _roll_back(self) -> None:
        super()._roll_back()
        self._counts.clear()  # the commit may have been made, or another one leads by now

    def _error_of(self, error: DBAPIError) -> StatusError:
        _LOG.error("metadata failed store=%s: %s", self._home, error.orig, exc_info=error)
        message = f"the placement driver's metadata store failed: {error.orig}"
        if is_read_only(error.orig):  # the next transaction looks for the new primary
            self._connection.invalidate()
        if isinstance(error, OperationalError) or is_read_only(error.orig):
            return StoreUnavailableError.of(message)
        return StatusError(StatusCode.PD_INTERNAL, message)

    def _check_term(self, rows: Sequence[Any]) -> None:
        ((term,),) = rows
        if not self._term or term != self._term:
            self._life_id = ""
            raise NotLeaderError(
                StatusCode.PD_NOT_LEADER,
                f"this placement driver does not lead in term {term}; ask the one that does",
            )
        self._is_unconfirmed = False


@contextmanager
def begun(engine: Engine, url: str) -> Iterator[Connection]:
    """Run one transaction before a placement driver serves. Raises ConfigurationError."""
    try:
        with engine.begin() as connection:
            if connection.execute(_IDLE_TIMEOUT_MS).scalar_one() != limits.DRIVER_LEASE_MS:
                raise ConfigurationError(
                    f"store: {shown_url(url)} has lost idle_in_transaction_session_timeout of the"
                    f" session; {_DIRECTLY}"
                )
            yield connection
    except DBAPIError as error:
        cause = " ".join(str(error.orig).split())
        raise ConfigurationError(
            f"store: {shown_url(url)} cannot be used: {cause}; {_remedy(error.orig, cause)}"
        ) from error


def is_read_only(error: BaseException | None) -> bool:
    """Whether an error of the driver says that the session cannot write.

    The server is a standby, and may have been the primary when the session began.
    """
    return getattr(error, "sqlstate", None) == _READ_ONLY_STATE


def _remedy(error: BaseException | None, cause: str) -> str:
    state = getattr(error, "sqlstate", None)
    if "startup parameter" in cause:
        return _DIRECTLY
    if "session is read-only" in cause or is_read_only(error):
        return "name the primary, or several servers with ?host=HOST:PORT&host=HOST:PORT"
    if state is None:  # the connection was refused
        return "let the server accept this connection, or correct the URL"
    if state.startswith("42"):
        return "name a PostgreSQL database in which this user can create tables"
    return "remove the cause at the database, and start again"


def _psycopg_url(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigurationError(
            "store: it is no URL of a database; use postgresql://USER@HOST:PORT/DATABASE, or"
            " postgresql://USER@/DATABASE?host=HOST:PORT&host=HOST:PORT"
        ) from error
    return parsed.set(drivername="postgresql+psycopg")


def _prepare(connection: Connection, url: str) -> None:
    """Make the tables, or bring them up to date, one placement driver at a time."""
    connection.execute(select(func.pg_advisory_xact_lock(_SCHEMA_LOCK)))
    version = schema_version_of(connection, url)
    if not version:
        make_database(connection)
    elif version < SCHEMA_VERSION:
        # One of the release before that leads finds the term changed, and stops.
        connection.execute(
            update(leader).values(term=leader.c.term + 1, lease_end=func.clock_timestamp())
        )
        migrate_tables(connection)


def make_database(connection: Connection, last_number: int = 0) -> None:
    """Make the tables. A cluster that moves here has had `last_number` commits elsewhere."""
    create_tables(connection, POSTGRESQL, last_number)
    connection.execute(
        insert(leader).values(term=0, name="", address="", lease_end=datetime.fromtimestamp(0, UTC))
    )


def schema_version_of(connection: Connection, url: str) -> int:
    """Return the version of the tables, 0 if there are none. Raises ConfigurationError."""
    tables = set(inspect(connection).get_table_names())
    if not tables & COMMON.tables.keys():
        return 0
    if not {alembic_version.name, cluster.name, *POSTGRESQL.tables} <= tables:  # of any version
        raise ConfigurationError(
            f"store: {shown_url(url)} holds other data; name an empty database"
        )
    return check_version(stored_version(connection), f"store: {shown_url(url)}")


def stored_version(connection: Connection) -> int:
    """Return the version of the tables, which are there."""
    return int(connection.execute(select(alembic_version.c.version_num)).scalar_one())
