"""The checksums of the rows of a metadata file, so that no damaged one is ever served.

SQLite has checksums in its write-ahead log only. So each table has a stored generated column
`checksum`: SQLite calls `row_checksum` for each row that it writes, whatever the statement. The row
of `last_commit` has, as JSON, a hash of the declarations of all tables, and how many rows each has:
so a row that is lost is noticed, too.

A file of version 11 is checked before it is migrated. The one row of its table `content` has the
number of the last commit and, for each table, the number of its rows and the sum of their hashes
modulo 2**128, as JSON with a checksum of its own.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file: the text of an error of SQLite may come from the file."""

_CHECKSUM_BYTES: Final = 8
_SUM_BYTES: Final = 16
_CHECKSUMS_SINCE: Final = 16
"""The version whose rows have checksums."""
_LAST_COMMIT: Final = "last_commit"
_CLAUSE: Final = re.compile(r"checksum BLOB AS \(row_checksum\([^)]*\)\) STORED, ")


def row_checksum(*values: Any) -> bytes:
    """Return the checksum of (name of the table, columns ...)."""
    return _hash(values, _CHECKSUM_BYTES)


def _hash(row: tuple[object, ...], size: int) -> bytes:
    # ascii() of a tuple is a canonical form of integers, strings, bytes and None.
    return blake2b(ascii(row).encode("ascii"), digest_size=size).digest()


def declare_checksums(file: sqlite3.Connection) -> None:
    """Let SQLite compute checksums; without them it can change no row."""
    file.create_function("row_checksum", -1, row_checksum, deterministic=True)


def add_checksums(file: sqlite3.Connection) -> None:
    """Build each table again that has no checksum of all its columns, within a transaction.

    Foreign keys are off: else the rows that refer to a table would go with it.
    """
    for name, declaration in _tables(file):
        clause = f"checksum BLOB AS ({_checksum_of(file, name)}) STORED, "
        if clause in declaration:
            continue
        columns = ", ".join(_columns(file, name))
        indexes = file.execute(
            "SELECT sql FROM sqlite_master WHERE type = 'index' AND tbl_name = ? AND sql NOT NULL",
            (name,),
        ).fetchall()
        rest = _CLAUSE.sub("", declaration).partition("(")[2]
        file.execute(f'CREATE TABLE "new_{name}" ({clause}{rest}')
        file.execute(f'INSERT INTO "new_{name}" ({columns}) SELECT {columns} FROM "{name}"')  # noqa: S608 - names of ours
        file.execute(f'DROP TABLE "{name}"')
        file.execute(f'ALTER TABLE "new_{name}" RENAME TO "{name}"')
        for (index,) in indexes:
            file.execute(index)


def take_stock(file: sqlite3.Connection) -> None:
    """Accept all rows as they are, within a transaction: compute their checksums, count them."""
    for name, _ in _tables(file):
        column = _columns(file, name)[-1]
        file.execute(f'UPDATE "{name}" SET {column} = {column}')  # noqa: S608 - names of ours
    text = content_of(schema_hash(file), row_counts(file))
    file.execute("UPDATE last_commit SET content = ?", (text,))


def content_of(schema: str, counts: Mapping[str, int]) -> str:
    """Return the text that the row of the last commit has."""
    return json.dumps({"schema": schema, "rows": counts})


def row_counts(file: sqlite3.Connection) -> dict[str, int]:
    """Return how many rows each table has, in a file of any version."""
    names = [name for name, _ in _tables(file)]
    return {name: file.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}  # noqa: S608 - names of ours


def schema_hash(file: sqlite3.Connection) -> str:
    """Return a hash of the declarations of all tables and indexes."""
    rows = file.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name")
    return row_checksum(*rows).hex()


def find_content_faults(file: sqlite3.Connection, version: int) -> list[str]:
    """Read every row; return a sentence for each difference to the commits."""
    return _find_faults(file) if version >= _CHECKSUMS_SINCE else _find_faults_of_sums(file)


def _find_faults(file: sqlite3.Connection) -> list[str]:
    faults, counts = [], {}
    for name, _ in _tables(file):
        try:
            counts[name], damaged_count = _count(file, name)
        except UNREADABLE as error:
            faults.append(f"table {name}: {error}")
            continue
        if damaged_count:
            faults.append(
                f"table {name}: {damaged_count} of its {counts[name]} rows are not as they were"
                " committed"
            )
    if counts.get(_LAST_COMMIT) != 1 or any(_LAST_COMMIT in fault for fault in faults):
        return [*faults, f"table {_LAST_COMMIT}: its row is damaged or missing"]
    ((text,),) = file.execute("SELECT content FROM last_commit")
    committed = json.loads(text)
    if committed["schema"] != schema_hash(file):
        faults.append("the tables are not declared as they were committed")
    for name, count in committed["rows"].items():
        if counts.get(name, count) != count:
            faults.append(f"table {name}: {count} rows were committed, {counts[name]} are there")
    return faults


def _tables(file: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the name and the declaration of each table."""
    return file.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
        " AND name NOT LIKE 'sqlite~_%' ESCAPE '~' ORDER BY name"
    ).fetchall()


def _columns(file: sqlite3.Connection, table: str) -> list[str]:
    """Return the columns of a table, in quotes, without generated columns."""
    return [f'"{row[1]}"' for row in file.execute(f'PRAGMA table_info("{table}")')]


def _checksum_of(file: sqlite3.Connection, table: str) -> str:
    return f"row_checksum('{table}', {', '.join(_columns(file, table))})"


def _count(file: sqlite3.Connection, table: str) -> tuple[int, int]:
    """Read a table; return how many rows it has, and how many of them are damaged."""
    is_damaged = f"checksum IS NOT {_checksum_of(file, table)}"
    ((count, damaged_count),) = file.execute(
        f'SELECT count(*), count(*) FILTER (WHERE {is_damaged}) FROM "{table}" NOT INDEXED'  # noqa: S608 - names of ours
    )
    return count, damaged_count


def _find_faults_of_sums(file: sqlite3.Connection) -> list[str]:
    try:
        rows = file.execute("SELECT commit_number, sums, checksum FROM content").fetchall()
    except UNREADABLE as error:
        return [f"table content: {error}"]
    if len(rows) != 1 or _hash(rows[0][:2], _SUM_BYTES) != rows[0][2]:
        return ["table content: its row is damaged or missing"]
    names = [name for name, _ in _tables(file) if name != "content"]
    found = {name: _sum_of(file, name, f'SELECT * FROM "{name}" NOT INDEXED') for name in names}  # noqa: S608 - names of ours
    found["sqlite_schema"] = _sum_of(
        file, "sqlite_schema", "SELECT type, name, tbl_name, sql FROM sqlite_master"
    )
    committed = json.loads(rows[0][1])
    return [
        f"table {table}: it is not as it was committed"
        for table in sorted(found.keys() | committed.keys())
        if found.get(table) != committed.get(table)
    ]


def _sum_of(file: sqlite3.Connection, table: str, rows: str) -> list[int | str] | None:
    """Return the number of rows of a table, and the sum of their hashes; None if unreadable."""
    count = total = 0
    try:
        for row in file.execute(rows):
            count += 1
            total += int.from_bytes(_hash((table, *row), _SUM_BYTES), "big")
    except UNREADABLE:
        return None
    return [count, f"{total % (1 << 8 * _SUM_BYTES):x}"]
