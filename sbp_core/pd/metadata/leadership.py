"""Which placement driver of several on one PostgreSQL database leads: a lease with a term.

The table `placement_drivers` has all of them. The table `leader` has one row: the term, the name
and address of the leader, and the end of its lease by the clock of the database. The leader renews
the lease each second. Once it has ended, another placement driver may take over, which raises the
term. The lease decides which one may try to write; that no other one can is guaranteed by the term,
which every transaction of the store reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from sqlalchemy import Connection, DateTime, and_, case, delete, func, or_, select, true, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import QueuePool

from sbp_core import limits
from sbp_core.errors import StatusCode, StatusError, StoreUnavailableError
from sbp_core.pd.metadata.postgresql import engine_of, is_read_only, stored_version
from sbp_core.pd.metadata.tables import SCHEMA_VERSION, leader, placement_drivers

_STATEMENT_TIMEOUT_MS: Final = 2 * limits.DRIVER_LEASE_MS
"""The leader may be silent in a transaction for DRIVER_LEASE_MS."""
_NONE: Final = -1
"""No term."""
_NOW: Final = func.clock_timestamp(type_=DateTime(timezone=True))
_CURRENT: Final = select(leader.c.term, leader.c.name, leader.c.address, leader.c.lease_end > _NOW)
_FORGOTTEN: Final = placement_drivers.c.seen_at <= _NOW - timedelta(
    milliseconds=limits.DRIVER_FORGOTTEN_MS
)
"""It was replaced by one at another address, or would be asked in vain."""
_CLUSTER: Final = (
    select(
        placement_drivers.c.name,
        placement_drivers.c.address,
        and_(leader.c.address == placement_drivers.c.address, leader.c.lease_end > _NOW),
    )
    .join(leader, true())
    .where(~_FORGOTTEN)
    .order_by(placement_drivers.c.address)
)


@dataclass(frozen=True, slots=True)
class Leader:
    """The placement driver that led last; `is_leading` while its lease lasts."""

    term: int
    name: str
    address: str
    is_leading: bool


@dataclass(frozen=True, slots=True)
class Node:
    """A placement driver that announced itself within DRIVER_FORGOTTEN_MS."""

    name: str
    address: str
    is_leader: bool


class Leadership:
    """The claim of one placement driver to lead, on a connection of its own.

    May be used by another thread than the store. Every method raises StatusError when the database
    cannot be reached: then the lease runs out. So it does, and none is given, once a newer release
    has migrated the tables.
    """

    def __init__(
        self, url: str, name: str, address: str, lease_ms: int = limits.DRIVER_LEASE_MS
    ) -> None:
        """Claim nothing yet; the tables were made by the store.

        Raises ConfigurationError when the URL cannot be used.
        """
        self._engine = engine_of(url, QueuePool, statement_timeout_ms=_STATEMENT_TIMEOUT_MS)
        self._name, self._address = name, address
        self._lease = timedelta(milliseconds=lease_ms)
        self._term = _NONE

    def hold(self) -> int | None:
        """Announce this placement driver; renew the lease, or take over if nobody leads.

        Returns the term, None if another one leads. A new term is higher than all before. A lease
        that ran out is renewed if nobody took over.
        """
        is_own = leader.c.term == self._term
        statement = (
            update(leader)
            .where(or_(is_own, leader.c.lease_end <= _NOW))
            .values(
                term=case((is_own, leader.c.term), else_=leader.c.term + 1),
                name=self._name,
                address=self._address,
                lease_end=_NOW + self._lease,
            )
            .returning(leader.c.term)
        )
        node = {"name": self._name, "seen_at": _NOW}
        announcement = insert(placement_drivers).values(address=self._address, **node)
        with self._connected() as connection:
            connection.execute(
                announcement.on_conflict_do_update(index_elements=["address"], set_=node)
            )
            term = connection.execute(statement).scalar_one_or_none()
            if term is not None:  # so the row is locked, and no migration can begin
                _check_version(stored_version(connection))
            if term is not None and term != self._term:
                connection.execute(delete(placement_drivers).where(_FORGOTTEN))
        self._term = term or _NONE
        return term

    def resign(self) -> None:
        """End the lease now, if it is held: another placement driver need not wait for its end."""
        with self._connected() as connection:
            connection.execute(
                update(leader).where(leader.c.term == self._term).values(lease_end=_NOW)
            )
        self._term = _NONE

    def current(self) -> Leader:
        """Return the last leader; its term is 0 before the first leader."""
        with self._connected() as connection:
            return current_leader(connection)

    def nodes(self) -> tuple[Node, ...]:
        """Return the placement drivers that announced themselves lately, by address."""
        with self._connected() as connection:
            return tuple(Node(*row) for row in connection.execute(_CLUSTER))

    def close(self) -> None:
        """Close the connection; a lease that is held runs out."""
        self._engine.dispose()

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        """Run one transaction."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            message = f"the leader cannot be read: {str(error.orig).strip()}"
            if is_read_only(error.orig):
                self._engine.dispose()  # the next claim looks for the new primary
            if isinstance(error, OperationalError) or is_read_only(error.orig):
                raise StoreUnavailableError.of(message) from error
            raise StatusError(StatusCode.PD_INTERNAL, message) from error


def _check_version(version: int) -> None:
    if version != SCHEMA_VERSION:
        raise StatusError(
            StatusCode.PD_INTERNAL,
            f"a newer release has migrated the metadata to schema version {version}, and this one"
            f" knows {SCHEMA_VERSION}: this placement driver cannot lead; upgrade it",
        )


def current_leader(connection: Connection) -> Leader:
    """Return which placement driver led last; its term is 0 if none ever did."""
    return Leader(*connection.execute(_CURRENT).one())
