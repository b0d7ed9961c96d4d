"""Metadata of earlier versions are brought up to date, and then have the declared tables."""

import contextlib
import sqlite3

import psycopg
import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from sbp_core.cli.main import main
from sbp_core.errors import ConfigurationError
from sbp_core.pd.metadata import sqlite_file, sqlite_tables, tables
from sbp_core.pd.metadata.history import CommitMark
from sbp_core.pd.metadata.sqlite_tables import connect
from sbp_core.pd.metadata.store import open_store
from sbp_core.pd.metadata.tables import SCHEMA_VERSION
from sbp_core.pd.model import NO_SEQ, NewStream
from tests.support.metadata import (
    TO_FIRST_RELEASE,
    contents,
    extract_first_release,
    fill,
    next_term,
    schema_of,
)

FIRST_RELEASED = 11
"""The version of the metadata of release 0.1.0."""


def create(store, *names):
    news = [NewStream(name, 1, 1, 0, (1,)) for name in names]
    return [stream.stream_id for stream, _ in store.create_streams(news, 5)]


def fresh_schema(tmp_path):
    open_store(tmp_path / "fresh").close()
    return schema_of(tmp_path / "fresh")


def test_the_newest_migration_is_the_version_of_the_tables():
    config = Config()
    config.set_main_option("script_location", "sbp_core.pd.metadata:migrations")
    assert ScriptDirectory.from_config(config).get_heads() == [str(SCHEMA_VERSION)]


def test_a_store_that_a_release_before_wrote_is_brought_up_to_date(tmp_path):
    extract_first_release(tmp_path / "old")
    with contextlib.closing(CommitMark.maybe_open(tmp_path / "old")) as mark:
        known = mark.last.commit
    store, expected = open_store(tmp_path / "old"), open_store(tmp_path / "filled")
    fill(expected)
    (rows, *found), (expected_rows, *others) = contents(store), contents(expected)
    assert found == others
    left_out = {"cluster": None, "grants": None}
    assert rows | left_out == expected_rows | left_out
    assert store.database.has_commit(known)
    assert store.last_commit.number > known.number
    (more,) = create(store, "more")
    store.close()
    expected.close()
    assert schema_of(tmp_path / "old") == fresh_schema(tmp_path)
    again = open_store(tmp_path / "old")
    assert again.streams_by_name(["more"])[0].stream_id == more
    again.close()


def test_a_start_that_ends_right_after_the_migration_is_repeated(tmp_path, monkeypatch):
    extract_first_release(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_file, "schema_hash", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_store(tmp_path)
    open_store(tmp_path).close()


def test_a_release_before_refuses_what_was_migrated_by_its_version(tmp_path):
    extract_first_release(tmp_path / "old")
    for name in ("old", "new"):
        open_store(tmp_path / name).close()
        with contextlib.closing(sqlite3.connect(tmp_path / name / "metadata.sqlite")) as connection:
            assert connection.execute("SELECT version FROM schema_version").fetchall() == [
                (SCHEMA_VERSION,)
            ]


@pytest.mark.parametrize("table", ["alembic_version", "schema_version"])
def test_a_version_from_before_the_first_release_is_refused(tmp_path, table):
    """Files before version 9 had the table `schema_version` only."""
    open_store(tmp_path).close()
    with contextlib.closing(connect(tmp_path / "metadata.sqlite")) as connection:
        connection.executescript(
            "UPDATE schema_version SET version = 8; DROP TABLE alembic_version"
            if table == "schema_version"
            else "UPDATE alembic_version SET version_num = '8'"
        )
    before = (tmp_path / "metadata.sqlite").read_bytes()
    refused = rf"schema version 8, this release reads 11 and {SCHEMA_VERSION}; start release 0.1.0"
    with pytest.raises(ConfigurationError, match=refused):
        open_store(tmp_path)
    assert (tmp_path / "metadata.sqlite").read_bytes() == before


def test_a_postgresql_database_from_before_the_first_release_is_refused(postgresql):
    url = postgresql.new_database()
    open_store(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '10'")
    with pytest.raises(ConfigurationError, match="schema version 10, this release reads 11 and"):
        open_store(url)


def test_a_damaged_store_that_a_release_before_wrote_is_refused_until_it_is_accepted(tmp_path):
    extract_first_release(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection:
        connection.execute("UPDATE streams SET retention_bytes = 1 WHERE stream_id = 7")
        connection.execute("DELETE FROM cursors WHERE stream_id = 7")
        connection.commit()
    with pytest.raises(ConfigurationError, match=r"table cursors: it is not as.*; table streams"):
        open_store(tmp_path)
    assert main(["pd", "accept", str(tmp_path)]) == 0
    store = open_store(tmp_path)
    assert store.streams_by_id([7])[0].retention_bytes == 1
    store.close()


def test_a_migration_that_fails_leaves_the_old_version(tmp_path, monkeypatch):
    extract_first_release(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(sqlite_tables, "take_stock", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            open_store(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "metadata.sqlite")) as connection:
        for table, column in (("schema_version", "version"), ("alembic_version", "version_num")):
            ((found,),) = connection.execute(f"SELECT {column} FROM {table}").fetchall()
            assert int(found) == FIRST_RELEASED
        names = connection.execute("SELECT name FROM sqlite_master").fetchall()
        assert ("grants",) not in names


def test_a_postgresql_database_of_a_version_before_is_brought_up_to_date(postgresql):
    url = postgresql.new_database()
    open_store(url).close()
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in TO_FIRST_RELEASE:
            connection.execute(statement)
    store = open_store(url)
    store.lead(next_term(url))
    (stream_id,) = create(store, "a")
    assert store.maybe_last_range(stream_id).end_seq == NO_SEQ
    store.close()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [
            (str(SCHEMA_VERSION),)
        ]


def test_a_postgresql_database_has_the_tables_that_are_declared(postgresql):
    url = postgresql.new_database()
    for _ in range(2):
        open_store(url).close()
    engine = sqlalchemy.create_engine(url.replace("postgresql", "postgresql+psycopg", 1))
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, [tables.COMMON, tables.POSTGRESQL]) == []
    engine.dispose()
