"""The tables of a metadata file: opened, made, brought up to date, and accepted as they are."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from sqlalchemy import Connection, create_engine, insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from sbp_core.pd.metadata.checksums import add_checksums, declare_checksums, take_stock
from sbp_core.pd.metadata.history import CommitId, begin_epoch
from sbp_core.pd.metadata.tables import (
    SCHEMA_VERSION,
    SQLITE,
    create_tables,
    last_commit,
    migrate_tables,
    schema_version,
)

BEGIN: Final = text("BEGIN IMMEDIATE")


def connect(database: Path) -> sqlite3.Connection:
    """Open a metadata file as all its users do. Raises sqlite3.Error."""
    file = sqlite3.connect(database, isolation_level=None)
    try:
        for pragma in (
            "locking_mode = EXCLUSIVE",
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            # Some builds of SQLite else forbid `row_checksum` in declarations.
            "trusted_schema = ON",
            # The whole file stays in memory once it was read and checked: what happens to the file
            # below a running server is not served. Nothing bounds that but the limits on rows.
            "cache_size = -2147483647",
            "mmap_size = 0",
        ):
            file.execute(f"PRAGMA {pragma}")
        declare_checksums(file)
    except BaseException:
        file.close()
        raise
    return file


def connection_on(file: sqlite3.Connection) -> Connection:
    """Return SQLAlchemy's connection on an open file; closing it leaves the file open."""
    return create_engine(
        "sqlite://",
        creator=lambda: file,
        poolclass=StaticPool,
        isolation_level="AUTOCOMMIT",
        hide_parameters=True,
    ).connect()


def update_tables(file: sqlite3.Connection, version: int) -> None:
    """Make the tables, or migrate the tables of an earlier version; all or nothing.

    Raises sqlite3.Error.
    """
    with _changing_tables(file) as connection:
        if version:
            migrate_tables(connection)
        else:
            create_tables(connection, SQLITE)
            connection.execute(insert(schema_version).values(version=SCHEMA_VERSION))
        add_checksums(file)


def accept_tables(file: sqlite3.Connection, version: int, above: int) -> CommitId:
    """Accept what is in a file, all or nothing; return the commit. Raises sqlite3.Error."""
    with _changing_tables(file) as connection:
        number = commit_number_of(file)
        if version < SCHEMA_VERSION:
            migrate_tables(connection)
        add_checksums(file)
        return begin_epoch(connection, number, above)


def commit_number_of(file: sqlite3.Connection) -> int:
    """Return the number of the last commit; of damaged metadata the highest that is known."""
    tables = {name for (name,) in file.execute("SELECT name FROM sqlite_master")}
    numbers = file.execute(
        "SELECT number FROM last_commit UNION SELECT first_commit FROM lives"
        if last_commit.name in tables
        else "SELECT commit_number FROM content UNION SELECT first_commit FROM lives"
    )
    return max([0, *(number for (number,) in numbers if isinstance(number, int))])


@contextmanager
def _changing_tables(file: sqlite3.Connection) -> Iterator[Connection]:
    """Run one transaction in which tables may be replaced, whatever refers to them."""
    file.execute("PRAGMA foreign_keys = OFF")
    try:
        with closing(connection_on(file)) as connection:
            connection.execute(BEGIN)
            yield connection
            take_stock(file)
            connection.commit()
    except DBAPIError as error:
        raise sqlite3.DatabaseError(str(error.orig)) from error
    finally:
        file.execute("PRAGMA foreign_keys = ON")
