"""An open home of the metadata: runs statements, in one transaction at a time.

The statements are SQLAlchemy's, on one connection in AUTOCOMMIT mode: a read outside of a
transaction begins none, and `transaction` begins and commits by statements of its own.

A `Database` counts the rows of tables as it changes them. Rows that a foreign key deletes with
another row are not reported, so the tables that may have had some are counted again.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from shlex import quote
from typing import Any, ClassVar, Final, cast

from sqlalchemy import (
    ColumnElement,
    Connection,
    Delete,
    Executable,
    Insert,
    Select,
    Table,
    Update,
    bindparam,
    delete,
    func,
    insert,
    select,
    text,
    tuple_,
    update,
)
from sqlalchemy.exc import DBAPIError

from sbp_core.errors import StatusCode, StatusError
from sbp_core.failpoints import failpoint
from sbp_core.pd.metadata.history import (
    ADD_LIFE,
    LAST_NUMBER,
    LAST_STREAM_ID,
    LIVES,
    NEXT_NUMBER,
    CommitId,
    History,
    Life,
    epoch_of_stream_id,
    new_life_id,
)
from sbp_core.pd.metadata.tables import COMMON, COUNT_MAX, ONE

_LOG: Final = logging.getLogger(__name__)

Value = int | str | bytes | list[int] | None

_COMMIT: Final = text("COMMIT")


def _dependents(parent: Table) -> frozenset[str]:
    """Return the tables whose rows go with the rows of a table."""
    own = [
        table
        for table in COMMON.tables.values()
        if any(key.column.table is parent for key in table.foreign_keys)
    ]
    return frozenset(name for each in own for name in (each.name, *_dependents(each)))


_DEPENDENTS: Final = {table.name: _dependents(table) for table in COMMON.tables.values()}
_COUNTS: Final = {
    table.name: select(func.count()).select_from(table) for table in COMMON.tables.values()
}


@cache
def _rows(table: Table, names: Sequence[str]) -> Select[Any]:
    """Return a query of the rows in which the columns of these names have given values, by key."""
    return select(table).where(*_are_equal(table, names)).order_by(*table.primary_key)


@cache
def _first(table: Table, names: Sequence[str]) -> Select[Any]:
    # Without an order: SQLite could read all rows in the order of the key to find the first one.
    return select(table).where(*_are_equal(table, names)).limit(ONE)


@cache
def _page(table: Table, names: Sequence[str]) -> Select[Any]:
    """Return a query of the rows with given values, beyond the key in `after_0`, `after_1` ..."""
    key = [each for each in table.primary_key if each.name not in names]
    after = [bindparam(f"after_{index}", type_=each.type) for index, each in enumerate(key)]
    is_beyond = key[0] > after[0] if len(key) == 1 else tuple_(*key) > tuple_(*after)
    return _rows(table, names).where(is_beyond).limit(COUNT_MAX)


@cache
def _removal(table: Table, names: Sequence[str]) -> Delete:
    return delete(table).where(*_are_equal(table, names))


@cache
def _replacement(table: Table) -> Update:
    """Return an update by key.

    An UPDATE takes each parameter that has the name of a column for its new value, so the
    parameters of its WHERE begin with `of_`.
    """
    return update(table).where(*_are_equal(table, table.primary_key.columns.keys(), "of_"))


@cache
def _addition(table: Table) -> Insert:
    return insert(table)


def _are_equal(table: Table, names: Sequence[str], prefix: str = "") -> list[ColumnElement[bool]]:
    return [
        table.c[name] == bindparam(f"{prefix}{name}", type_=table.c[name].type) for name in names
    ]


class Database(ABC):
    """A home of the metadata. Must be used by the thread that opened it."""

    _BEGIN: ClassVar = text("BEGIN")

    def __init__(self, connection: Connection, home: str) -> None:
        """Run statements on a connection in AUTOCOMMIT mode; `home` is its folder or URL."""
        # The drivers know no count of inserted rows once SQLAlchemy has closed the cursor.
        self._connection = connection.execution_options(preserve_rowcount=True)
        self._home = home
        self._is_in_transaction = self._has_failed = False
        self._changed_count = 0
        self._counts: dict[str, int] = {}
        self._life_id = ""
        self._lives: list[Life] = []
        self._last_number = 0
        self.failure: StatusError | None = None
        """Why the store can no longer be read or written; None while it can."""
        self.commits_tried = 0
        """Commits of changes that may have been made."""

    def query(self, statement: Executable, **values: Value) -> Sequence[Any]:
        """Return the rows of a statement with these values.

        Raises StatusError when the database fails. After an I/O error nothing more is run.
        """
        return self._execute(statement, values)[0]

    def change(self, statement: Executable, **values: Value) -> int:
        """Change rows, within a transaction; return how many. Raises StatusError as `query`."""
        return self._execute(statement, values)[1]

    def rows(self, table: Table, **equal: Value) -> Sequence[Any]:
        """Return the rows of a table that have these values, by key. Raises StatusError."""
        return self.query(_rows(table, (*equal,)), **equal)

    def maybe_row(self, table: Table, **equal: Value) -> Any:
        """Return a row that has these values, None without one. Raises StatusError."""
        return next(iter(self.query(_first(table, (*equal,)), **equal)), None)

    def has(self, table: Table, **equal: Value) -> bool:
        """Whether a table has a row with these values. Raises StatusError."""
        return self.maybe_row(table, **equal) is not None

    def page(
        self, table: Table, after: Sequence[Value], count_max: int, **equal: Value
    ) -> Sequence[Any]:
        """Return up to `count_max` rows that have these values, beyond a key. Raises StatusError.

        `after` are the columns of the key that are not among the values.
        """
        key = {f"after_{index}": each for index, each in enumerate(after)}
        return self.query(_page(table, (*equal,)), count_max=count_max, **key, **equal)

    def add(self, table: Table, rows: Iterable[Sequence[Value]]) -> None:
        """Add rows at once, within a transaction. Raises StatusError as `query`.

        Each has the values of all columns of the table, in the order of their declaration.
        """
        names = table.columns.keys()
        added = [dict(zip(names, row, strict=True)) for row in rows]
        if added:
            self._execute(_addition(table), added)

    def put(self, table: Table, *row: Value) -> None:
        """Set the row of a key, within a transaction; its columns are in order as in `add`."""
        values = dict(zip(table.columns.keys(), row, strict=True))
        keys = table.primary_key.columns.keys()
        found = {f"of_{name}" if name in keys else name: each for name, each in values.items()}
        if not self.change(_replacement(table), **found):
            self.change(_addition(table), **values)

    def remove(self, table: Table, **equal: Value) -> int:
        """Delete the rows that have these values, within a transaction; return how many."""
        return self.change(_removal(table, (*equal,)), **equal)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit the changes of the body, all or nothing; they are on disk at the end.

        Raises NotLeaderError unless this placement driver leads.
        """
        with self._begun():
            self._changed_count, number = 0, self._last_number
            self._begin_changes()
            yield
            is_changed = self._changed_count > 0
            if is_changed:
                ((number,),) = self.query(NEXT_NUMBER, content=self._content())
            failpoint("pd.before_commit")
            self.commits_tried += is_changed
            self._execute(_COMMIT, {})
            self._is_in_transaction, self._last_number = False, number
            if is_changed:
                self._note_outside(self.last_commit)
            failpoint("pd.after_commit")

    def reading_blobs(self) -> AbstractContextManager[None]:
        """Read values that are longer than a page of the database."""
        return nullcontext()

    def count(self, table: str) -> int:
        """Return the number of rows of a table, including changes of the open transaction."""
        if table not in self._counts:
            ((self._counts[table],),) = self.query(_COUNTS[table])
        return self._counts[table]

    @property
    def last_commit(self) -> CommitId:
        """The last commit that is known to be made here."""
        if self._life_id:
            return CommitId(self._last_number, self._life_id)
        return self._history().last

    def has_commit(self, claimed: CommitId) -> bool:
        """Whether the store has had a commit, or one of an epoch that was closed."""
        return self._history().has(claimed)

    def check_history(self, claimed: CommitId) -> None:
        """Raise StatusError, now and for everything else, if a commit is missing here.

        A peer has proof of it: then this store is older than it was, or another one.
        """
        history = self._history()
        if history.has(claimed):
            return
        message = (
            "the placement driver's metadata are an older copy, or of another cluster: a range"
            f" server knows {claimed}, and they end at {history.last}. Nothing is read or changed"
            " from now on. Stop all placement drivers and restore the newest copy of the metadata,"
            " or, without a copy, accept that commits are missing: `sbp pd accept"
            f" {quote(self._home)}`"
        )
        _LOG.critical("metadata refused store=%s: %s", self._home, message)
        self._note_outside(claimed, is_missing=True)
        self.failure = StatusError(StatusCode.PD_INTERNAL, message)
        raise self.failure

    @abstractmethod
    def lead(self, term: int) -> None:
        """Write in a term from now on, which `Leadership` gave; 0: no longer.

        Raises NotLeaderError if the term has ended already.
        """

    @abstractmethod
    def confirm(self) -> None:
        """Raise NotLeaderError unless all reads since the last call saw the newest commit."""

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    # Inside

    @abstractmethod
    def _begin_changes(self) -> None:
        """Prepare a transaction that has begun. Raises NotLeaderError, StatusError."""

    def _content(self) -> str | None:
        """Return the counts of all rows, which each commit notes; None if the home notes none."""
        return None

    @abstractmethod
    def _note_outside(self, commit: CommitId, *, is_missing: bool = False) -> None:
        """Note a commit outside of the database; `is_missing` says that the database lacks it."""

    @abstractmethod
    def _error_of(self, error: DBAPIError) -> StatusError:
        """Return what an error means; the store may be of no use from now on."""

    def _begin_life(self) -> None:
        """Begin a life, in which the store can be changed."""
        with self.transaction():
            ((last_stream_id,),) = self.query(LAST_STREAM_ID)
            ((number,),) = self.query(LAST_NUMBER)
            self._life_id, self._lives = new_life_id(epoch_of_stream_id(last_stream_id)), []
            self.change(ADD_LIFE, life_id=self._life_id, first_commit=number + 1)

    def _history(self) -> History:
        if not self._life_id or not self._lives:  # nobody else begins a life during this one
            self._lives = [Life(*row) for row in self.query(LIVES)]
        ((number,),) = self.query(LAST_NUMBER)
        return History(self._lives, number)

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """Begin a transaction; roll it back unless `_COMMIT` has ended it."""
        self._execute(self._BEGIN, {})
        self._is_in_transaction, counts_before = True, dict(self._counts)
        try:
            yield
        finally:
            if self._is_in_transaction:
                self._is_in_transaction = self._has_failed = False
                self._counts = counts_before
                self._roll_back()

    def _execute(
        self, statement: Executable, values: Mapping[str, Value] | Sequence[Mapping[str, Value]]
    ) -> tuple[Sequence[Any], int]:
        """Run one statement; return its rows, and how many it changed. Raises StatusError."""
        if self.failure is not None:
            raise self.failure
        if self._has_failed:
            raise StatusError(StatusCode.PD_INTERNAL, "a statement of this transaction failed")
        is_change = isinstance(statement, Insert | Update | Delete)
        if is_change and not self._is_in_transaction:
            raise RuntimeError("a change of rows is not part of a transaction of the store")
        try:
            result = self._connection.execute(statement, values)
            rows = result.all() if result.returns_rows else ()
            # SQLite counts the rows of RETURNING only when they are read: after `rowcount`.
            changed = max(result.rowcount, len(rows))
        except DBAPIError as error:
            if self._is_in_transaction:
                self._has_failed = True
            else:
                self._roll_back()
            raise self._error_of(error) from error
        if isinstance(statement, Insert | Update | Delete):
            self._count_changes(statement, changed)
        return rows, changed

    def _count_changes(self, statement: Insert | Update | Delete, changed: int) -> None:
        self._changed_count += changed
        table = cast("Table", statement.table).name
        if table in self._counts and not isinstance(statement, Update):
            self._counts[table] += changed if isinstance(statement, Insert) else -changed
        if changed and isinstance(statement, Delete):
            for dependent in _DEPENDENTS[table]:
                if self._counts.get(dependent):
                    del self._counts[dependent]

    def _roll_back(self) -> None:
        """End a transaction of the connection; if that fails the connection is of no use."""
        try:
            self._connection.rollback()
        except DBAPIError:
            self._connection.invalidate()
