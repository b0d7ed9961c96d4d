"""The checksum of all rows of the metadata file, so that no damaged one is ever served.

SQLite has checksums in its write-ahead log only. So each row has a hash here, of the name of its
table and all its columns, and the file keeps for each table the number of its rows and the sum of
their hashes modulo 2**128, which does not depend on their order. Temporary triggers keep the sums
up to date: they see every change, those of cascades too, and need nothing of the statements.

The sums, and the number of the commit, are one row with a checksum of its own. It changes in every
transaction that changes something else.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from sbp_core.pd.metadata.history import (
    CommitId,
    History,
    Life,
    epoch_of_stream_id,
    new_life_id,
    next_epoch,
)

UNREADABLE: Final = (sqlite3.Error, UnicodeDecodeError)
"""Errors of reading a damaged file: the text of an error of SQLite may come from the file."""

_HASH_BYTES: Final = 16
_MODULUS: Final = 1 << 8 * _HASH_BYTES
_CONTENT: Final = "content"
_SCHEMA: Final = "sqlite_schema"
_ROWS_OF_SCHEMA: Final = "SELECT type, name, tbl_name, sql FROM sqlite_master"


@dataclass(slots=True)
class Sum:
    """The number of rows of a table, and the sum of their hashes."""

    row_count: int = 0
    total: int = 0

    def add(self, sign: int, values: tuple[Any, ...]) -> None:
        """Count a row of (table, columns ...) in (1) or out (-1)."""
        # ascii() of a tuple is a canonical form of integers, strings, bytes and None.
        row = ascii(values).encode("ascii")
        hashed = int.from_bytes(blake2b(row, digest_size=_HASH_BYTES).digest(), "big")
        self.row_count += sign
        self.total = (self.total + sign * hashed) % _MODULUS

    def plus(self, other: Sum) -> Sum:
        """Return the sum of both."""
        return Sum(self.row_count + other.row_count, (self.total + other.total) % _MODULUS)


Sums = dict[str, Sum]
"""By table."""


class Content:
    """Keeps the sums of an open file whose content was found right.

    Changes between `begin` and `seal` count once `adopt` is called.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        number, text, self.checksum = _read(connection)
        self._sums = _decode(text)
        self._number: int = number
        self._changes: Sums = {}
        self._sealed: tuple[int, Sums, bytes] | None = None
        self._life_id = ""
        connection.create_function("note_row", -1, self._note, deterministic=False)
        for table in _tables(connection):
            _watch(connection, table)

    @property
    def commit(self) -> CommitId:
        """The last commit."""
        return CommitId(self._number, self._life_id)

    def count(self, table: str) -> int:
        """Return how many rows a table has, with what is changed right now."""
        return self._sums[table].row_count + self._changes.get(table, Sum()).row_count

    def begin_life(self, epoch: int) -> None:
        """Note that the store was opened, within a transaction."""
        self._life_id = new_life_id(epoch)
        add_life(self._connection, self._life_id, self._number + 1)

    def begin(self) -> None:
        """Forget what a transaction changed that was rolled back."""
        self._changes, self._sealed = {}, None

    def seal(self) -> bool:
        """Write the sums at the end of a transaction; return whether it changed anything."""
        if not self._changes:
            return False
        changed = {table: self._sums[table].plus(each) for table, each in self._changes.items()}
        sums = self._sums | changed
        number = self._number + 1
        self._sealed = number, sums, _write(self._connection, number, sums)
        return True

    def adopt(self) -> None:
        """Continue from what `seal` wrote: it is committed."""
        assert self._sealed is not None
        self._number, self._sums, self.checksum = self._sealed
        self.begin()

    def _note(self, table: str, sign: int, *values: Any) -> None:
        if not self._connection.in_transaction:
            raise RuntimeError("a row was changed outside of a transaction of the store")
        self._changes.setdefault(table, Sum()).add(sign, (table, *values))


def take_stock(connection: sqlite3.Connection, commit_number: int) -> None:
    """Write the sums of the rows that are there, within a transaction, in place of any others."""
    sums = {table: _sum_of(connection, table) for table in (_SCHEMA, *_tables(connection))}
    connection.execute("DELETE FROM content")
    connection.execute("INSERT INTO content VALUES (?, '', x'')", (commit_number,))
    _write(connection, commit_number, sums)


def find_content_faults(connection: sqlite3.Connection) -> list[str]:
    """Read every row; return what is not as it was committed, in words."""
    try:
        number, text, checksum = _read(connection)
    except UNREADABLE as error:
        return [f"table {_CONTENT}: {error}"]
    if checksum != _checksum(number, text):
        return [f"table {_CONTENT}: its row is damaged, which has the checksums of all others"]
    committed = _decode(text)
    faults = []
    tables = {_SCHEMA, *_tables(connection)}
    for table in sorted(tables | committed.keys()):
        if table not in tables or table not in committed:
            there = "is there, but was never committed" if table in tables else "is missing"
            faults.append(f"table {table}: it {there}")
            continue
        expected = committed[table]
        try:
            found = _sum_of(connection, table)
        except UNREADABLE as error:
            faults.append(f"table {table}: {error}")
            continue
        if found.row_count != expected.row_count:
            faults.append(
                f"table {table}: {expected.row_count} rows were committed, {found.row_count} are"
                " there"
            )
        elif found != expected:
            faults.append(
                f"table {table}: one or more of its {found.row_count} rows are not as they were"
                " committed"
            )
    return faults


def committed_row_counts(connection: sqlite3.Connection) -> dict[str, int]:
    """Return how many rows each table has, of a content that was found right."""
    _, text, _ = _read(connection)
    return {table: each.row_count for table, each in _decode(text).items()}


def content_checksum_of(connection: sqlite3.Connection) -> bytes:
    """Return the checksum of the row that has all others."""
    _, _, checksum = _read(connection)
    return bytes(checksum)


def commit_number_of(connection: sqlite3.Connection) -> int:
    """Return the number of the last commit; of damaged content the highest that is known."""
    numbers = [life.first_commit for life in lives_of(connection)]
    rows = connection.execute("SELECT commit_number FROM content").fetchall()
    return max([0, *numbers, *(number for (number,) in rows if isinstance(number, int))])


def has_commit(connection: sqlite3.Connection, commit: CommitId) -> bool:
    """Whether a store, whose content is right, has had a commit."""
    return History(lives_of(connection), commit_number_of(connection)).has(commit)


def lives_of(connection: sqlite3.Connection) -> list[Life]:
    """Return the lives of the store, the oldest first."""
    rows = connection.execute("SELECT life_id, first_commit FROM lives ORDER BY life_number")
    return [Life(*row) for row in rows]


def current_epoch(connection: sqlite3.Connection) -> int:
    """Return the number of the epoch, 0 for the first one."""
    ((last_stream_id,),) = connection.execute("SELECT last_stream_id FROM cluster")
    return epoch_of_stream_id(last_stream_id)


def begin_epoch(connection: sqlite3.Connection, above: int) -> int:
    """Begin a new epoch, above a known one, within a transaction; return its number."""
    ((stream_id, server_id),) = connection.execute(
        "SELECT last_stream_id, last_server_id FROM cluster"
    )
    start = next_epoch(stream_id, server_id, above)
    connection.execute(
        "UPDATE cluster SET last_stream_id = ?, revision = ?, last_server_id = ?",
        (start.last_stream_id, start.last_stream_id, start.last_server_id),
    )
    return start.epoch


def add_life(connection: sqlite3.Connection, life_id: str, first_commit: int) -> None:
    """Add a life, within a transaction."""
    connection.execute(
        "INSERT INTO lives (life_id, first_commit) VALUES (?, ?)", (life_id, first_commit)
    )


def _tables(connection: sqlite3.Connection) -> list[str]:
    """Return the tables whose rows are summed up."""
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table'"
        " AND name NOT LIKE 'sqlite~_%' ESCAPE '~' AND name <> ? ORDER BY name",
        (_CONTENT,),
    )
    return [name for (name,) in rows]


def _watch(connection: sqlite3.Connection, table: str) -> None:
    """Note each row of a table that is added, changed or deleted from now on."""
    columns = [row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(table)})")]

    def note(sign: int, row: str) -> str:
        values = "".join(f", {row}.{_quoted(column)}" for column in columns)
        return f"note_row('{table}', {sign}{values})"

    for event, notes in (
        ("INSERT", note(1, "NEW")),
        ("UPDATE", f"{note(-1, 'OLD')}, {note(1, 'NEW')}"),
        ("DELETE", note(-1, "OLD")),
    ):
        connection.execute(
            f"CREATE TEMP TRIGGER {_quoted(f'{table}_{event}')} AFTER {event}"
            f" ON main.{_quoted(table)} BEGIN SELECT {notes}; END"
        )


def _sum_of(connection: sqlite3.Connection, table: str) -> Sum:
    found = Sum()
    statement = f"SELECT * FROM {_quoted(table)} NOT INDEXED"  # noqa: S608 - a quoted name
    for row in connection.execute(_ROWS_OF_SCHEMA if table == _SCHEMA else statement):
        found.add(1, (table, *row))
    return found


def _read(connection: sqlite3.Connection) -> tuple[Any, Any, Any]:
    rows = connection.execute("SELECT commit_number, sums, checksum FROM content").fetchall()
    if len(rows) != 1:
        raise sqlite3.DatabaseError(f"it has {len(rows)} rows, not 1")
    number, text, checksum = rows[0]
    return number, text, checksum


def _write(connection: sqlite3.Connection, number: int, sums: Sums) -> bytes:
    """Set the one row; return its checksum."""
    text = json.dumps({table: [each.row_count, f"{each.total:x}"] for table, each in sums.items()})
    checksum = _checksum(number, text)
    connection.execute(
        "UPDATE content SET commit_number = ?, sums = ?, checksum = ?", (number, text, checksum)
    )
    return checksum


def _decode(text: str) -> Sums:
    return {table: Sum(count, int(total, 16)) for table, (count, total) in json.loads(text).items()}


def _checksum(number: object, text: object) -> bytes:
    return blake2b(ascii((number, text)).encode("ascii"), digest_size=_HASH_BYTES).digest()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
