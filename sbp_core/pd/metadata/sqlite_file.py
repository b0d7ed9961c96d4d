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
from typing import ClassVar, Final

from sqlalchemy.exc import DBAPIError

from sbp_core.errors import ConfigurationError, DiskFullError, StatusCode, StatusError
from sbp_core.limits import KIB, MIB
from sbp_core.log.disk import OsDisk, describe_os_error
from sbp_core.log.full_disk import SpaceReserve
from sbp_core.pd.metadata.checksums import UNREADABLE, content_of, schema_hash
from sbp_core.pd.metadata.data_dir import DataDir
from sbp_core.pd.metadata.database import Database
from sbp_core.pd.metadata.history import CommitId, CommitMark
from sbp_core.pd.metadata.sqlite_inspection import (
    StoreReport,
    inspect_store,
    remedy_of_lost_metadata,
)
from sbp_core.pd.metadata.sqlite_tables import BEGIN, connect, connection_on, update_tables
from sbp_core.pd.metadata.tables import COMMON, SCHEMA_VERSION

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

    _BEGIN: ClassVar = BEGIN

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

    @contextmanager
    def reading_blobs(self) -> Iterator[None]:
        """Read values that are longer than a page from memory, where they were checked.

        Outside of writing transactions some versions of SQLite read a part of them from the file.
        """
        with self._begun():
            yield

    def lead(self, term: int) -> None:
        """Do nothing: the one process that has the file leads."""

    def confirm(self) -> None:
        """Do nothing: every read sees the newest commit."""

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
        if found.version < SCHEMA_VERSION:
            if self._mark is None:
                # Before the file has tables: without a mark, it would be refused then.
                self._mark = CommitMark.create(data_dir)
            update_tables(self._file, found.version)
            # A file without tables would be taken for a new one, should the log be lost.
            self._file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if self._mark is not None and self._mark.maybe_fault is not None:
            _LOG.warning("metadata mark damaged folder=%s: %s", data_dir, self._mark.maybe_fault)
        super().__init__(connection_on(self._file), str(data_dir))
        self._schema = schema_hash(self._file)
        self._begin_life()

    def _refuse_faults(self, found: StoreReport) -> None:
        database = self._dir.database
        if found.page_faults:
            raise sqlite3.DatabaseError("; ".join(found.page_faults))
        if found.content_faults:
            raise ConfigurationError(
                f"data_dir: {database} is damaged: {'; '.join(found.content_faults)}."
                f" {found.remedy}"
            )
        if found.history_faults:
            raise ConfigurationError(
                f"data_dir: commits may be missing from {database}. By {self._dir.mark}:"
                f" {'; '.join(found.history_faults)}. {found.remedy}"
            )

    def _begin_changes(self) -> None:
        if self._reserve.is_whole and self._free_bytes() < _LOW_BYTES:
            self._reserve.release()

    def _content(self) -> str:
        return content_of(self._schema, {name: self.count(name) for name in COMMON.tables})

    def _note_outside(self, commit: CommitId, *, is_missing: bool = False) -> None:
        """Note a commit in the mark; if it is missing here, the next start refuses the file."""
        assert self._mark is not None
        try:
            self._mark.write(commit)
            if is_missing:
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
        self._keep_reserve()

    def _error_of(self, error: DBAPIError) -> StatusError:
        cause = error.orig
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            _LOG.error(
                "metadata not changed file=%s reserved=%s: the disk is full",
                *(self._dir.database, self._reserve.is_whole),
            )
            self._reserve.release()
            return DiskFullError.of(
                f"the disk of {self._dir.database.parent} is full: make room on it, or trim and"
                " delete streams; the placement driver has a reserve for that"
            )
        _LOG.error("metadata failed file=%s: %s", self._dir.database, cause, exc_info=error)
        failure = StatusError(
            StatusCode.PD_INTERNAL, f"the placement driver's metadata store failed: {cause}"
        )
        if code in _FATAL_CODES:
            self.failure = failure
        return failure

    def _keep_reserve(self) -> None:
        if not self._reserve.is_whole and self._free_bytes() >= _ROOM_BYTES:
            self._reserve.keep()

    def _free_bytes(self) -> int:
        try:
            return shutil.disk_usage(self._dir.database.parent).free
        except OSError:
            return 0
