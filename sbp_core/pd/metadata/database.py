"""An open home of the metadata: runs statements, in one transaction at a time.

The statements are SQLAlchemy's, on one connection in AUTOCOMMIT mode: a read outside of a
transaction begins none, and `transaction` begins and commits by statements of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Final

from sqlalchemy import (
    Connection,
    Executable,
    Table,
    bindparam,
    insert,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError

from sbp_core.errors import StatusCode, StatusError
from sbp_core.failpoints import failpoint
from sbp_core.pd.metadata.history import CommitId

Value = int | str | bytes | None

_COMMIT: Final = text("COMMIT")


class Put:
    """Sets the row of a key, whether there is one or not.

    An UPDATE takes each parameter that has the name of a column for its new value, so the
    parameters of a WHERE begin with `of_` there.
    """

    def __init__(self, table: Table) -> None:
        self.keys: Final = [key.name for key in table.primary_key]
        self.insert: Final = insert(table)
        self.update: Final = update(table).where(
            *(key == bindparam(f"of_{key.name}", type_=key.type) for key in table.primary_key)
        )


class Database(ABC):
    """A home of the metadata. Must be used by the thread that opened it."""

    _BEGIN: ClassVar = text("BEGIN")

    def __init__(self, connection: Connection) -> None:
        """Run statements on a connection in AUTOCOMMIT mode."""
        # The drivers know no count of inserted rows once SQLAlchemy has closed the cursor.
        self._connection = connection.execution_options(preserve_rowcount=True)
        self._is_in_transaction = False
        self._has_failed = False
        self.failure: StatusError | None = None
        """Why it can be neither read nor written any longer; None while it can."""
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

    def put(self, row: Put, **values: Value) -> None:
        """Set a row, within a transaction. Raises StatusError as `query`."""
        found = {
            f"of_{name}" if name in row.keys else name: value for name, value in values.items()
        }
        if not self.change(row.update, **found):
            self.change(row.insert, **values)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make one commit of what is changed within, on disk at the end; all or nothing."""
        with self._begun():
            self._begin_changes()
            yield
            is_changed = self._end_changes()
            failpoint("pd.before_commit")
            self.commits_tried += is_changed
            self._execute(_COMMIT, {})
            self._is_in_transaction = False
            if is_changed:
                self._note_commit()
            failpoint("pd.after_commit")

    @contextmanager
    def _begun(self) -> Iterator[None]:
        """Begin a transaction; roll it back unless `_COMMIT` has ended it."""
        self._execute(self._BEGIN, {})
        self._is_in_transaction = True
        try:
            yield
        finally:
            if self._is_in_transaction:
                self._is_in_transaction = self._has_failed = False
                self._roll_back()

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
    def _begin_changes(self) -> None:
        """Prepare a transaction that has begun. Raises NotLeaderError, StatusError."""

    @abstractmethod
    def _end_changes(self) -> bool:
        """Number a commit before it is made; return whether it changes anything."""

    @abstractmethod
    def _note_commit(self) -> None:
        """Note that a commit was made."""

    @abstractmethod
    def _error_of(self, error: DBAPIError) -> StatusError:
        """Return what an error means; the store may be of no use from now on."""

    def _execute(
        self, statement: Executable, values: Mapping[str, Value]
    ) -> tuple[Sequence[Any], int]:
        """Run one statement; return its rows, and how many it changed. Raises StatusError."""
        if self.failure is not None:
            raise self.failure
        if self._has_failed:
            raise StatusError(StatusCode.PD_INTERNAL, "a statement of this transaction failed")
        try:
            result = self._connection.execute(statement, values)
            return result.all() if result.returns_rows else (), result.rowcount
        except DBAPIError as error:
            if self._is_in_transaction:
                self._has_failed = True
            else:
                self._roll_back()
            raise self._error_of(error) from error

    def _roll_back(self) -> None:
        """End a transaction of the connection; if that fails the connection is of no use."""
        try:
            self._connection.rollback()
        except DBAPIError:
            self._connection.invalidate()
