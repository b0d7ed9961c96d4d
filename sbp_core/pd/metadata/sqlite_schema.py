"""The tables of the metadata file, by version: how they are made, and brought up to date.

A version's statements never change once it was released; what is new goes into the next one.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

from sbp_core.pd.metadata.sqlite_content import CONTENT_TABLES, take_stock

SCHEMA_VERSION: Final = 8
SCHEMA_VERSION_MIN: Final = 2
"""The oldest version that is brought up to date."""
CONTENT_VERSION: Final = 8
"""The first version with checksums of its rows."""

_CURSORS: Final = (
    """CREATE TABLE cursors (
        group_name TEXT NOT NULL,
        stream_id INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE,
        next_offset INTEGER NOT NULL,
        committed_at_ms INTEGER NOT NULL,
        PRIMARY KEY (group_name, stream_id)
    ) WITHOUT ROWID""",
    """CREATE INDEX cursors_by_stream ON cursors (stream_id)""",
)

_WRITERS: Final = (
    """CREATE TABLE writers (
        stream_id INTEGER PRIMARY KEY REFERENCES streams ON DELETE CASCADE,
        range_index INTEGER NOT NULL,
        writers BLOB NOT NULL
    )""",
)
"""The writers at the end of the last sealed range of each stream."""

_TRANSACTIONS: Final = (
    """CREATE TABLE txns (
        txn_number INTEGER PRIMARY KEY,
        producer TEXT NOT NULL,
        batch_number INTEGER NOT NULL,
        record_count INTEGER NOT NULL,
        digest BLOB NOT NULL,
        decided_at_ms INTEGER NOT NULL,
        UNIQUE (producer, batch_number)
    )""",
    """CREATE TABLE txn_parts (
        txn_number INTEGER NOT NULL REFERENCES txns ON DELETE CASCADE,
        position INTEGER NOT NULL,
        txn_id TEXT NOT NULL,
        stream_id INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE,
        range_index INTEGER NOT NULL,
        record_count INTEGER NOT NULL,
        PRIMARY KEY (txn_number, position)
    ) WITHOUT ROWID""",
    """CREATE INDEX txn_parts_by_id ON txn_parts (txn_id, stream_id)""",
    """CREATE INDEX txn_parts_by_stream ON txn_parts (stream_id, txn_number)""",
    """CREATE TABLE aborted_txns (
        txn_id TEXT PRIMARY KEY,
        producer TEXT,
        aborted_at_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    """CREATE INDEX aborted_txns_by_time ON aborted_txns (aborted_at_ms)""",
)
"""A decision has a row in `txn_parts` for each part that is not published yet."""

_ONE_SHOT: Final = (
    """CREATE INDEX txns_one_shot ON txns (decided_at_ms) WHERE producer GLOB 'once-*'""",
)
"""When the decisions of producers with a single batch were made."""

_STREAM_SCHEMAS: Final = (
    """CREATE TABLE schemas (
        stream_id INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE,
        version INTEGER NOT NULL,
        fingerprint TEXT NOT NULL,
        schema BLOB NOT NULL,
        registered_at_ms INTEGER NOT NULL,
        PRIMARY KEY (stream_id, version)
    )""",
)
"""The versions of the schema of each stream that has one, from 1 on."""

_GIVEN_UP: Final = (
    """CREATE TABLE given_up_parts (
        txn_number INTEGER NOT NULL REFERENCES txns ON DELETE CASCADE,
        position INTEGER NOT NULL,
        txn_id TEXT NOT NULL,
        stream_id INTEGER NOT NULL,
        range_index INTEGER NOT NULL,
        record_count INTEGER NOT NULL,
        given_up_at_ms INTEGER NOT NULL,
        PRIMARY KEY (txn_number, position)
    ) WITHOUT ROWID""",
    """CREATE INDEX given_up_parts_by_id ON given_up_parts (txn_id)""",
)
"""Parts of decisions that are lost and were given up."""

_SERVER_SECRETS: Final = (
    """CREATE TABLE server_secrets (
        server_id INTEGER PRIMARY KEY,
        secret TEXT NOT NULL
    )""",
)
"""By which the placement driver and a range server know each other."""
_LOG_MARKS: Final = (
    """CREATE TABLE log_marks (
        server_id INTEGER PRIMARY KEY,
        log_id TEXT NOT NULL,
        position INTEGER NOT NULL
    )""",
)
"""How far each range server reported that its log is synced."""

_SCHEMA: Final = (
    """CREATE TABLE schema_version (version INTEGER NOT NULL)""",
    """CREATE TABLE cluster (
        id TEXT NOT NULL,
        revision INTEGER NOT NULL,
        last_stream_id INTEGER NOT NULL,
        last_server_id INTEGER NOT NULL
    )""",
    """CREATE TABLE streams (
        stream_id INTEGER PRIMARY KEY,
        name TEXT UNIQUE,
        replica_count INTEGER NOT NULL,
        ack_count INTEGER NOT NULL,
        retention_period_ms INTEGER NOT NULL,
        created_at_ms INTEGER NOT NULL,
        retention_bytes INTEGER NOT NULL
    )""",
    """CREATE TABLE ranges (
        stream_id INTEGER NOT NULL REFERENCES streams ON DELETE CASCADE,
        range_index INTEGER NOT NULL,
        start_offset INTEGER NOT NULL,
        end_offset INTEGER,
        ack_count INTEGER NOT NULL,
        PRIMARY KEY (stream_id, range_index)
    ) WITHOUT ROWID""",
    """CREATE TABLE replicas (
        stream_id INTEGER NOT NULL,
        range_index INTEGER NOT NULL,
        position INTEGER NOT NULL,
        server_id INTEGER NOT NULL,
        PRIMARY KEY (stream_id, range_index, position),
        FOREIGN KEY (stream_id, range_index) REFERENCES ranges ON DELETE CASCADE
    ) WITHOUT ROWID""",
    """CREATE INDEX replicas_by_server ON replicas (server_id, stream_id, range_index)""",
    """CREATE TABLE servers (
        server_id INTEGER PRIMARY KEY,
        address TEXT NOT NULL
    )""",
    *_CURSORS,
    *_WRITERS,
    *_TRANSACTIONS,
    *_ONE_SHOT,
    *_STREAM_SCHEMAS,
    *_GIVEN_UP,
    *_SERVER_SECRETS,
    *CONTENT_TABLES,
    *_LOG_MARKS,
)

_STEPS: Final[Mapping[int, Sequence[str]]] = {
    2: _CURSORS,
    3: (
        *_WRITERS,
        # max() chooses the row. Range servers of that time took nothing of writers.
        """INSERT INTO writers
            SELECT stream_id, max(range_index) - (end_offset IS NULL) AS sealed, x'01'
            FROM ranges GROUP BY stream_id HAVING sealed >= 0""",
    ),
    4: _TRANSACTIONS,
    5: _ONE_SHOT,
    6: (*_STREAM_SCHEMAS, *_GIVEN_UP),
    7: (*_SERVER_SECRETS, *_LOG_MARKS, *CONTENT_TABLES),
}
"""Statements that lead from each version to the next."""


def create_schema(connection: sqlite3.Connection) -> None:
    """Make the tables of a new cluster, all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA:
        connection.execute(statement)
    connection.execute("INSERT INTO schema_version VALUES (?)", (SCHEMA_VERSION,))
    connection.execute("INSERT INTO cluster VALUES (?, 0, 0, 0)", (str(uuid.uuid4()),))
    take_stock(connection, commit_number=0)
    connection.execute("COMMIT")


def migrate_schema(connection: sqlite3.Connection, version: int) -> None:
    """Bring the tables of `version`, SCHEMA_VERSION_MIN or later, up to date, all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    for step in range(version, SCHEMA_VERSION):
        for statement in _STEPS[step]:
            connection.execute(statement)
    connection.execute("UPDATE schema_version SET version = ?", (SCHEMA_VERSION,))
    take_stock(connection, commit_number=0)
    connection.execute("COMMIT")
