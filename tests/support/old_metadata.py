"""Metadata files as earlier versions left them, and ones that a test changed as it needs them."""

import contextlib
import sqlite3

from sbp_core.pd.metadata.history import MARK_NAME, CommitMark
from sbp_core.pd.metadata.sqlite_content import commit_number_of, take_stock

SINCE = {
    3: ("TABLE cursors",),
    4: ("TABLE writers",),
    5: ("TABLE txn_parts", "TABLE txns", "TABLE aborted_txns"),
    6: ("INDEX IF EXISTS txns_one_shot",),
    7: ("TABLE schemas", "TABLE given_up_parts"),
    8: ("TABLE server_secrets", "TABLE log_marks", "TABLE lives", "TABLE content"),
}
"""The tables and indexes added by each version."""


def make_older(path, version):
    """Take away from the store in a directory what came after a version."""
    with sqlite3.connect(path / "metadata.sqlite") as connection:
        for since, parts in SINCE.items():
            for part in parts if since > version else ():
                connection.execute(f"DROP {part}")
        connection.execute("UPDATE schema_version SET version = ?", (version,))
    connection.close()
    (path / MARK_NAME).unlink()


@contextlib.contextmanager
def altered_metadata(path):
    """A connection to a store that is closed; its changes look as if they had been committed."""
    with contextlib.closing(sqlite3.connect(path / "metadata.sqlite")) as connection, connection:
        yield connection
        take_stock(connection, commit_number_of(connection))
    CommitMark.create(path).close()
