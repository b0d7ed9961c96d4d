"""Metadata files as earlier versions left them, and ones that a test changed as it needs them."""

import contextlib
import sqlite3
import tarfile
from pathlib import Path

from sbp_core.pd.metadata.history import MARK_NAME, CommitMark
from sbp_core.pd.metadata.sqlite_content import commit_number_of, take_stock

SINCE = {
    3: ("DROP TABLE cursors",),
    4: ("DROP TABLE writers",),
    5: ("DROP TABLE txn_parts", "DROP TABLE txns", "DROP TABLE aborted_txns"),
    6: ("DROP INDEX IF EXISTS txns_one_shot",),
    7: ("DROP TABLE schemas", "DROP TABLE given_up_parts"),
    8: (
        "DROP TABLE server_secrets",
        "DROP TABLE log_marks",
        "DROP TABLE lives",
        "DROP TABLE content",
    ),
    9: ("DROP TABLE alembic_version",),
    10: ("ALTER TABLE ranges DROP COLUMN end_seq", "ALTER TABLE ranges DROP COLUMN end_digest"),
    11: ("DROP TABLE draining",),
    12: ("DROP TABLE grants", "ALTER TABLE txns DROP COLUMN subject"),
    13: ("DROP TABLE restores",),
    14: ("DROP TABLE group_streams", "DROP TABLE group_members", "DROP TABLE consumer_groups"),
}
"""The statements that take away what each version added."""


def extract_version(version, folder):
    """Make the store that the last release of a version wrote with `filled_metadata.fill`."""
    name = f"metadata-version-{version}.tar.gz"
    with tarfile.open(Path(__file__).with_name(name)) as archive:
        archive.extractall(folder, filter="data")


def make_older(path, version):
    """Take away from the store in a directory what came after a version before 8."""
    with sqlite3.connect(path / "metadata.sqlite") as connection:
        for since, parts in reversed(SINCE.items()):
            for part in parts if since > version else ():
                connection.execute(part)
        connection.execute("UPDATE schema_version SET version = ?", (version,))
    connection.close()
    (path / MARK_NAME).unlink()


def schema_of(path):
    """Return what the tables of a closed store are like, however they were made."""
    with contextlib.closing(sqlite3.connect(path / "metadata.sqlite")) as connection:
        tables = connection.execute(
            "SELECT name, wr FROM pragma_table_list WHERE type = 'table'"
            " AND name NOT LIKE 'sqlite_%' ORDER BY name"
        ).fetchall()
        return {
            table: (has_no_rowid, *_parts_of(connection, table)) for table, has_no_rowid in tables
        }


def _parts_of(connection, table):
    columns = [
        (name, kind, is_required or bool(key), default, key)
        for _, name, kind, is_required, default, key in connection.execute(
            f"PRAGMA table_info({table})"
        )
    ]
    keys = connection.execute(f"PRAGMA foreign_key_list({table})").fetchall()
    indexes = [
        (
            is_unique,
            None if origin == "u" else name,
            origin,
            connection.execute(f"PRAGMA index_xinfo({name})").fetchall(),
            connection.execute(
                "SELECT substr(sql, instr(sql, 'WHERE')) FROM sqlite_master WHERE name = ? AND ?",
                (name, is_partial),
            ).fetchall(),
        )
        for _, name, is_unique, origin, is_partial in connection.execute(
            f"PRAGMA index_list({table})"
        )
        if origin != "pk"
    ]
    return columns, [_key(each) for each in sorted(keys)], sorted(indexes, key=repr)


def _key(row):
    _, position, parent, column, parent_column, on_update, on_delete, match = row
    return position, parent, column, parent_column or column, on_update, on_delete, match


@contextlib.contextmanager
def altered_metadata(path):
    """A connection to a store that is closed; its changes look as if they had been committed."""
    with contextlib.closing(sqlite3.connect(path / "metadata.sqlite")) as connection, connection:
        yield connection
        take_stock(connection, commit_number_of(connection))
    CommitMark.create(path).close()
