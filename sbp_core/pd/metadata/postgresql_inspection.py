"""The metadata in a PostgreSQL database, looked at from outside: shown, or accepted as they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import func, select, update
from sqlalchemy.pool import NullPool

from sbp_core.errors import ConfigurationError
from sbp_core.pd.metadata.commits import begin_epoch, history_of
from sbp_core.pd.metadata.history import CommitId
from sbp_core.pd.metadata.leadership import Leader, current_leader
from sbp_core.pd.metadata.postgresql import (
    begun,
    engine_of,
    schema_version_of,
    shown_url,
)
from sbp_core.pd.metadata.tables import COMMON, leader


@dataclass(frozen=True, slots=True)
class DatabaseReport:
    """The content of a database with metadata; `version` 0 is that of an empty one."""

    version: int
    row_counts: Mapping[str, int]
    commit: CommitId
    leader: Leader


def check_database(url: str) -> DatabaseReport:
    """Return what is in a database. Nothing is changed.

    Raises ConfigurationError when no placement driver would start with it.
    """
    with begun(engine_of(url, NullPool), url) as connection:
        version = schema_version_of(connection, url)
        if not version:
            return DatabaseReport(0, {}, CommitId(), Leader(0, "", "", is_leading=False))
        counts = {
            name: connection.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in COMMON.tables.items()
        }
        return DatabaseReport(
            version, counts, history_of(connection).last, current_leader(connection)
        )


def accept_database(url: str) -> CommitId:
    """Let placement drivers start with a database that lacks commits; return the last it has.

    Missing commits are no longer asked for, and no id is assigned twice: a new epoch begins. Raises
    ConfigurationError when the database cannot be used, and while a placement driver leads.
    """
    with begun(engine_of(url, NullPool), url) as connection:
        term, lease_end, now = connection.execute(
            select(leader.c.term, leader.c.lease_end, func.clock_timestamp()).with_for_update()
        ).one()
        if lease_end > now:
            raise ConfigurationError(
                f"store: a placement driver leads on {shown_url(url)}; stop all of them first"
            )
        last = history_of(connection).last
        connection.execute(update(leader).values(term=term + 1))
        begin_epoch(connection, last.number, 0)
    return last
