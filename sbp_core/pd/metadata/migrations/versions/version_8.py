"""Version 8, from the versions 2 to 7, which only SQLite files have.

They number themselves in the table `schema_version`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from alembic import op

revision: Final = "8"
down_revision: Final = None

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

_CONTENT: Final = (
    """CREATE TABLE lives (
        life_number INTEGER PRIMARY KEY,
        life_id TEXT NOT NULL UNIQUE,
        first_commit INTEGER NOT NULL
    )""",
    """CREATE TABLE content (
        commit_number INTEGER NOT NULL,
        sums TEXT NOT NULL,
        checksum BLOB NOT NULL
    )""",
)
"""Each start of the store, and what all tables hold."""

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
    7: (*_SERVER_SECRETS, *_LOG_MARKS, *_CONTENT),
}
"""Statements that lead from each version to the next."""


def upgrade() -> None:
    """Run the steps that the file lacks."""
    connection = op.get_bind()
    version = connection.exec_driver_sql("SELECT version FROM schema_version").scalar_one()
    for step in range(version, int(revision)):
        for statement in _STEPS[step]:
            connection.exec_driver_sql(statement)
