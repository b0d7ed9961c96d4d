"""Metadata files as earlier versions left them."""

import sqlite3

SINCE = {
    3: ("TABLE cursors",),
    4: ("TABLE writers",),
    5: ("TABLE txn_parts", "TABLE txns", "TABLE aborted_txns"),
    6: ("INDEX IF EXISTS txns_one_shot",),
    7: ("TABLE schemas", "TABLE given_up_parts"),
    8: ("TABLE server_secrets",),
}
"""What there is by the version that it came with."""


def make_older(path, version):
    """Take away from the store in a directory what came after a version."""
    with sqlite3.connect(path / "metadata.sqlite") as connection:
        for since, parts in SINCE.items():
            for part in parts if since > version else ():
                connection.execute(f"DROP {part}")
        connection.execute("UPDATE schema_version SET version = ?", (version,))
    connection.close()
