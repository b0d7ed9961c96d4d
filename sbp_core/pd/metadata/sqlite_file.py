"""The home of the metadata that is a file: checked when it is opened, with its mark beside it.

One connection (SQLite's rare corruption of a write-ahead log needs two), which also locks the file
against others; write-ahead log with synchronous=FULL: what a transaction changed is on disk when it
ends. Must be used by the thread that opened it.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import ClassVar, Final

from sqlalchemy import create_engine, insert, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import StaticPool

from sbp_core.errors import ConfigurationError, DiskFullError, StatusCode, StatusError
from sbp_core.limits import KIB, MIB
from sbp_core.log.disk import OsDisk, describe_os_error
from sbp_core.log.full_disk import SpaceReserve
from sbp_core.pd.metadata.data_dir import DataDir
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.history import (
    UNKNOWN_CONTENT,
    CommitId,
    CommitMark,
    History,
    new_life_id,
)
from sbp_core.pd.metadata.sqlite_content import (
    UNREADABLE,
    Content,
    add_life,
    commit_number_of,
    current_epoch,
    lives_of,
    take_stock,
)
from sbp_core.pd.metadata.sqlite_inspection import (
    Inspection,
    connect,
    inspect_store,
    remedy_of_lost_metadata,
)
from sbp_core.pd.metadata.tables import (
    SCHEMA_VERSION,
    SQLITE,
    create_tables,
    migrate_tables,
    schema_version,
)

_LOG: Final = logging.getLogger(__name__)

_RESERVE_BYTES: Final = 512 * KIB
"""Disk space that is kept for the commits of deletions on a full disk."""
_LOW_BYTES: Final = 128 * KIB
_ROOM_BYTES: Final = 16 * MIB
"""Free disk space with which that is given back, and kept again."""
_FATAL_CODES: Final = frozenset(
    {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
)


class SqliteFile(Database):
    """The file `metadata.sqlite` of a data directory, and `metadata.mark` beside it."""

    _BEGIN: ClassVar = text("BEGIN IMMEDIATE")

    def __init__(self, data_dir: Path) -> None:
        """Open and check the file, or make it.

        Raises ConfigurationError when the directory or the file cannot be used, or must not be.
        """
        self._dir = DataDir(data_dir)
        self._reserve = SpaceReserve(OsDisk(), data_dir, _RESERVE_BYTES)
        if self._free_bytes() < _LOW_BYTES:
            self._reserve.release()  # the start makes a commit
        self._is_mark_writable = True
        try:
            self._mark = CommitMark.maybe_open(data_dir)
            self._file = connect(self._dir.database)
            try:
                self._prepare(data_dir)
            except BaseException:
                self._dir.close_untouched(self._file)
                raise
        except UNREADABLE as error:
            self._dir.release()
            raise ConfigurationError(
                f"data_dir: {self._dir.database} cannot be opened: {error}."
                f" {remedy_of_lost_metadata(data_dir)}"
            ) from error
        except BaseException:
            self._dir.release()
            raise
        self._keep_reserve()

    @property
    def last_commit(self) -> CommitId:
        """The last commit."""
        return self._content.commit

    def count(self, table: str) -> int:
        """Return the number of rows of a table."""
        return self._content.count(table)

    @contextmanager
    def reading_blobs(self) -> Iterator[None]:
        """Read what is longer than a page from memory, too, where it was checked.

        Outside of writing transactions some versions of SQLite read the rest of it from the file.
        """
        with self._begun():
            yield

    def lead(self, term: int) -> None:
        """Do nothing: the one process that has the file leads."""

    def confirm(self) -> None:
        """Do nothing: what was read is the newest there is."""

    def has_commit(self, claimed: CommitId) -> bool:
        """Whether the store has had a commit, or one of an epoch that was closed."""
        if self.failure is not None:
            raise self.failure
        history = History(lives_of(self._file), self._content.commit.number)
        return history.has(claimed)

    def check_history(self, claimed: CommitId) -> None:
        """Raise StatusError, now and for everything else, if a commit is missing here.

        A peer has proof of it: then this store is older than it was, or another one.
        """
        if self.has_commit(claimed):
            return
        message = (
            "the placement driver's metadata are an older copy, or of another cluster: a range"
            f" server knows {claimed}, and they end at {self.last_commit}. Nothing is read or"
            " changed from now on. Stop the placement driver and restore the newest copy of its"
            " data directory, or, without a copy, accept that commits are missing: `sbp pd accept"
            f" {quote(str(self._dir.database.parent))}`"
        )
        _LOG.critical("metadata refused file=%s: %s", self._dir.database, message)
        # Noted as a commit that there was: the next start refuses it, too.
        self._write_mark(claimed, UNKNOWN_CONTENT, is_durable=True)
        self.failure = StatusError(StatusCode.PD_INTERNAL, message)
        raise self.failure

    def close(self) -> None:
        """Close the file, all of it in one place, and release the directory."""
        self._connection.close()
        if self.failure is None:
            try:
                self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as error:
                _LOG.warning("metadata not checkpointed file=%s: %s", self._dir.database, error)
        self._file.close()
        if self._mark is not None:
            self._mark.close()
        self._dir.release()

    # Inside

    def _prepare(self, data_dir: Path) -> None:
        found = inspect_store(self._file, self._dir.database, self._mark)
        self._refuse_faults(found)
        super().__init__(
            create_engine(
                "sqlite://",
                creator=lambda: self._file,
                poolclass=StaticPool,
                isolation_level="AUTOCOMMIT",
                hide_parameters=True,
            ).connect()
        )
        if found.version < SCHEMA_VERSION:
            if self._mark is None:
                # Before the file is of a version that has one: without it, it would be refused.
                self._mark = CommitMark.create(data_dir)
            self._make_tables(found.version)
            # A file without tables would be taken for a new one, should the log be lost.
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if self._mark is not None and self._mark.maybe_fault is not None:
            _LOG.warning("metadata mark damaged folder=%s: %s", data_dir, self._mark.maybe_fault)
        self._content = Content(self._file)
        with self.transaction():
            self._content.begin_life(current_epoch(self._file))

    def _refuse_faults(self, found: Inspection) -> None:
        database = self._dir.database
        if found.page_faults:
            raise sqlite3.DatabaseError("; ".join(found.page_faults))
        if found.content_faults:
            raise ConfigurationError(
                f"data_dir: {database} is damaged: {'; '.join(found.content_faults)}."
                f" {found.remedy(database.parent)}"
            )
        if found.history_faults:
            raise ConfigurationError(
                f"data_dir: commits may be missing from {database}. By {self._dir.mark}:"
                f" {'; '.join(found.history_faults)}. {found.remedy(database.parent)}"
            )

    def _make_tables(self, version: int) -> None:
        """Make the tables, or bring those of a version up to date; all or nothing."""
        own, connection = self._file, self._connection
        try:
            connection.execute(self._BEGIN)
            number = 0
            if version == 0:
                create_tables(connection, SQLITE)
                connection.execute(insert(schema_version).values(version=SCHEMA_VERSION))
            else:
                migrate_tables(connection)
                # A commit in a life of its own: the mark knows the content of the one before.
                number = commit_number_of(own) + 1
                add_life(own, new_life_id(current_epoch(own)), number)
            take_stock(own, number)
            connection.commit()
        except DBAPIError as error:
            raise sqlite3.DatabaseError(str(error.orig)) from error

    def _begin_changes(self) -> None:
        if self._reserve.is_whole and self._free_bytes() < _LOW_BYTES:
            self._reserve.release()
        self._content.begin()

    def _end_changes(self) -> bool:
        try:
            return self._content.seal()
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _error_of(self, error: DBAPIError) -> StatusError:
        return self._failed(error.orig or error)

    def _failed(self, error: BaseException) -> StatusError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            _LOG.error(
                "metadata not changed file=%s reserved=%s: the disk is full",
                *(self._dir.database, self._reserve.is_whole),
            )
            self._reserve.release()
            return DiskFullError.of(
                f"the disk of {self._dir.database.parent} is full: make room on it, or trim and"
                " delete streams; the placement driver has a reserve for that",
            )
        _LOG.error("metadata failed file=%s: %s", self._dir.database, error, exc_info=error)
        failure = StatusError(
            StatusCode.PD_INTERNAL, f"the placement driver's metadata store failed: {error}"
        )
        if code in _FATAL_CODES:
            self.failure = failure
        return failure

    def _note_commit(self) -> None:
        self._content.adopt()
        self._write_mark(self._content.commit, self._content.checksum)
        self._keep_reserve()

    def _keep_reserve(self) -> None:
        if not self._reserve.is_whole and self._free_bytes() >= _ROOM_BYTES:
            self._reserve.keep()

    def _free_bytes(self) -> int:
        try:
            return shutil.disk_usage(self._dir.database.parent).free
        except OSError:
            return 0

    def _write_mark(self, commit: CommitId, content: bytes, *, is_durable: bool = False) -> None:
        assert self._mark is not None
        try:
            self._mark.write(commit, content)
            if is_durable:
                self._mark.sync()
            self._is_mark_writable = True
        except OSError as error:
            if self._is_mark_writable:
                _LOG.warning(
                    "metadata mark not written file=%s: %s; a loss of commits from now on would"
                    " not be noticed",
                    self._mark.path,
                    describe_os_error(error),
                )
            self._is_mark_writable = False
