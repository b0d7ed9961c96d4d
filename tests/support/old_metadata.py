"""Metadata files as earlier versions left them."""

import sqlite3

SINCE = {3: ("cursors",), 4: ("writers",), 5: ("txn_parts", "txns", "aborted_txns")}
"""Tables by the version that they came with."""


def make_older(path, version):
    """Take away from the store in a directory what came after a version."""
    with sqlite3.connect(path / "metadata.sqlite") as connection:
        for since, tables in SINCE.items():
            for table in tables if since > version else ():
                connection.execute(f"DROP TABLE {table}")
        connection.execute("UPDATE schema_version SET version = ?", (version,))
    connection.close()
