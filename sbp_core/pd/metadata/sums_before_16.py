"""The checksums of metadata files of versions 11 to 15, which are checked before they are migrated.

The one row of the table `content` has the number of the last commit and, for each table, the number
of its rows and the sum of their hashes modulo 2**128, as JSON with a checksum of its own.
"""

from __future__ import annotations

import json
import sqlite3
from hashlib import blake2b
from typing import Final

from sbp_core.pd.metadata.checksums import UNREADABLE

_HASH_BYTES: Final = 16
_SCHEMA: Final = "sqlite_schema"
_ROWS: Final = {_SCHEMA: "SELECT type, name, tbl_name, sql FROM sqlite_master"}


def find_faults_of_sums(file: sqlite3.Connection) -> list[str]:
    """Read every row; return what is not as it was committed, in words."""
    try:
        rows = file.execute("SELECT commit_number, sums, checksum FROM content").fetchall()
    except UNREADABLE as error:
        return [f"table content: {error}"]
    if len(rows) != 1 or _hash(rows[0][:2]) != rows[0][2]:
        return ["table content: its row is damaged or missing"]
    found = {table: _sum_of(file, table) for table in (_SCHEMA, *_tables(file))}
    committed = json.loads(rows[0][1])
    return [
        f"table {table}: it is not as it was committed"
        for table in sorted(found.keys() | committed.keys())
        if found.get(table) != committed.get(table)
    ]


def _tables(file: sqlite3.Connection) -> list[str]:
    rows = file.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        " AND name NOT LIKE 'sqlite~_%' ESCAPE '~' AND name <> 'content'"
    )
    return [name for (name,) in rows]


def _sum_of(file: sqlite3.Connection, table: str) -> list[int | str] | None:
    """Return the number of rows of a table, and the sum of their hashes; None if unreadable."""
    count = total = 0
    try:
        for row in file.execute(_ROWS.get(table, f'SELECT * FROM "{table}" NOT INDEXED')):  # noqa: S608 - a name of ours
            count += 1
            total += int.from_bytes(_hash((table, *row)), "big")
    except UNREADABLE:
        return None
    return [count, f"{total % (1 << 8 * _HASH_BYTES):x}"]


def _hash(row: tuple[object, ...]) -> bytes:
    return blake2b(ascii(row).encode("ascii"), digest_size=_HASH_BYTES).digest()
