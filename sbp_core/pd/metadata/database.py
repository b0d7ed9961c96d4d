"""An open home of the metadata: runs statements, in one transaction at a time.

The statements are SQLAlchemy's, compiled once for the dialect and run by the driver itself:
SQLAlchemy's execution takes ten times as long as a read by key of SQLite does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from sqlalchemy import Delete, Insert, Select, Table, Update, bindparam, insert, update
from sqlalchemy.engine import Dialect

from sbp_core.errors import StatusError
from sbp_core.pd.metadata.history import CommitId

Statement = Select[Any] | Insert | Update | Delete
Value = int | str | bytes | None


class Put:
    """Sets the row of a key, whether there is one or not."""

    def __init__(self, table: Table) -> None:
        self.insert: Final = insert(table)
        self.update: Final = (
            update(table)
            .where(*(key == bindparam(key.name, type_=key.type) for key in table.primary_key))
            .values(
                {
                    column: bindparam(column.name, type_=column.type)
                    for column in table.columns
                    if not column.primary_key
                }
            )
        )


class Database(ABC):
    """A home of the metadata. Must be used by the thread that opened it."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._compiled: dict[Statement, tuple[str, dict[str, Value]]] = {}
        self.failure: StatusError | None = None
        """Why it can be neither read nor written any longer; None while it can."""
        self.commits_tried = 0
        """Commits of changes that may have been made."""

    def query(self, statement: Statement, **values: Value) -> list[Any]:
        """Return the rows of a statement with these values.

        Raises StatusError when the database fails. After an I/O error nothing more is run.
        """
        return self._run(statement, values)[0]

    def change(self, statement: Statement, **values: Value) -> int:
        """Change rows, within a transaction; return how many. Raises StatusError as `query`."""
        return self._run(statement, values)[1]

    def put(self, row: Put, **values: Value) -> None:
        """Set a row, within a transaction. Raises StatusError as `query`."""
        if not self.change(row.update, **values):
            self.change(row.insert, **values)

    @abstractmethod
    def transaction(self) -> AbstractContextManager[None]:
        """Make one commit of what is changed within, on disk at the end; all or nothing."""

    def reading_blobs(self) -> AbstractContextManager[None]:
        """Read values that are longer than a page of the database."""
        return nullcontext()

    @abstractmethod
    def lead(self, term: int) -> None:
        """Write in a term from now on, which `Leadership` gave; 0: no longer.

        Raises NotLeaderError if the term has ended already.
        """

    @abstractmethod
    def confirm(self) -> None:
        """Raise NotLeaderError unless what was read since the last call was the newest there is."""

    @property
    @abstractmethod
    def last_commit(self) -> CommitId:
        """The last commit."""

    @abstractmethod
    def count(self, table: str) -> int:
        """Return the number of rows of a table, with what is changed right now."""

    @abstractmethod
    def has_commit(self, claimed: CommitId) -> bool:
        """Whether the store has had a commit, or one of an epoch that was closed."""

    @abstractmethod
    def check_history(self, claimed: CommitId) -> None:
        """Raise StatusError, now and for everything else, if a commit is missing here.

        A peer has proof of it: then this store is older than it was, or another one.
        """

    @abstractmethod
    def close(self) -> None:
        """Close it."""

    @abstractmethod
    def _execute(
        self, sql: str, values: dict[str, Value] | tuple[()] = ()
    ) -> tuple[list[Any], int]:
        """Run one statement; return its rows, and how many it changed. Raises StatusError."""

    def _run(self, statement: Statement, values: dict[str, Value]) -> tuple[list[Any], int]:
        compiled = self._compiled.get(statement)
        if compiled is None:
            text = statement.compile(dialect=self._dialect)
            constants = {name: each for name, each in text.params.items() if each is not None}
            compiled = self._compiled[statement] = str(text), constants
        sql, constants = compiled
        return self._execute(sql, constants | values if constants else values)
