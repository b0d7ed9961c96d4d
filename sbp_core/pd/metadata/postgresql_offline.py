"""The metadata in a PostgreSQL database without a placement driver: shown, accepted, moved there.

`move_to_database` copies the SQLite file of a stopped placement driver. The database gets its rows,
lives and commits as they are, in one transaction, and they are read back and compared. The file is
not changed: until a placement driver has started with the database, the old one may be started
again. Afterwards range servers know newer commits, and the file is refused as an older copy.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, Table, delete, func, insert, select, update
from sqlalchemy.pool import NullPool

from sbp_core.errors import ConfigurationError
from sbp_core.pd.metadata.data_dir import DATABASE_NAME
from sbp_core.pd.metadata.history import CommitId, begin_epoch, history_of
from sbp_core.pd.metadata.leadership import Leader, current_leader
from sbp_core.pd.metadata.postgresql import (
    begun,
    engine_of,
    make_database,
    schema_version_of,
    shown_url,
)
from sbp_core.pd.metadata.sqlite_inspection import Witness, check_store, copied
from sbp_core.pd.metadata.sqlite_tables import commit_number_of, connect, connection_on
from sbp_core.pd.metadata.tables import COMMON, SCHEMA_VERSION, cluster, last_commit, leader

_ROWS_AT_ONCE: Final = 5_000


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


def move_to_database(directory: Path, url: str, witnesses: list[Witness]) -> Mapping[str, int]:
    """Copy the metadata in a directory to an empty database; return the rows of each table.

    Raises ConfigurationError while a placement driver runs on them, for metadata that are damaged
    or of another version, and for a database that cannot be used or is not empty.
    """
    report = check_store(directory, witnesses)
    if report.faults:
        raise ConfigurationError(f"{'; '.join(report.faults)}. {report.remedy}")
    if report.version != SCHEMA_VERSION:
        raise ConfigurationError(
            f"{report.database} has schema version {report.version}, and this release"
            f" {SCHEMA_VERSION}: start and stop a placement driver of this release with it first"
        )
    with (
        copied(directory) as copy,
        closing(connect(copy / DATABASE_NAME)) as file,
        connection_on(file) as given,
        begun(engine_of(url, NullPool), url) as made,
    ):
        if schema_version_of(made, url):
            raise ConfigurationError(
                f"store: {shown_url(url)} has the metadata of a cluster; name an empty database"
            )
        make_database(made, commit_number_of(file))
        made.execute(delete(cluster))
        copied_tables = [each for each in COMMON.sorted_tables if each is not last_commit]
        return {each.name: _copy(given, made, each) for each in copied_tables}


def _copy(given: Connection, made: Connection, table: Table) -> int:
    """Copy a table; return how many rows it has. Raises ConfigurationError if any differ."""
    count = 0
    for rows in given.execute(select(table)).partitions(_ROWS_AT_ONCE):
        made.execute(insert(table), [each._asdict() for each in rows])
        count += len(rows)
    key = list(table.primary_key.columns)
    if count and table.autoincrement_column is not None:
        last = select(func.max(table.autoincrement_column)).scalar_subquery()
        sequence = func.pg_get_serial_sequence(table.name, table.autoincrement_column.name)
        made.execute(select(func.setval(sequence, last)))
    wanted, found = (each.execute(select(table).order_by(*key)) for each in (given, made))
    if any(tuple(one) != tuple(other) for one, other in zip(wanted, found, strict=True)):
        raise ConfigurationError(
            f"table {table.name} does not read back as it was written: nothing was moved"
        )
    return count
