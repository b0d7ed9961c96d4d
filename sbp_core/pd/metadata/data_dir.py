"""The placement driver's directory: made when missing, used by one process at a time."""

from __future__ import annotations

import fcntl
import os
import sqlite3
from pathlib import Path
from typing import Final

from sbp_core.errors import ConfigurationError
from sbp_core.log.disk import OsDisk
from sbp_core.pd.metadata.history import MARK_NAME
from sbp_core.regular_files import open_private

_LOCK_NAME: Final = "pd.lock"
DATABASE_NAME: Final = "metadata.sqlite"
WRITE_AHEAD_LOG_NAME: Final = f"{DATABASE_NAME}-wal"


def has_metadata(directory: Path) -> bool:
    """Whether a placement driver has ever written to its file in a directory."""
    path = directory / DATABASE_NAME
    return path.exists() and path.stat().st_size > 0


class DataDir:
    """A data directory that this process owns until `release` (or its end)."""

    def __init__(self, path: Path, *, is_made: bool = True) -> None:
        """Lock the directory; make it and its file if they are missing and `is_made` says so.

        Raises ConfigurationError when that cannot be.
        """
        self._path = path
        try:
            OsDisk().make_directory(path)
            self._lock = open_private(path / _LOCK_NAME, os.O_RDWR)
        except OSError as error:
            raise ConfigurationError(
                f"data_dir: {path} cannot be used: {error.strerror};"
                " choose a directory that this user can write"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if is_made:
                os.close(open_private(self.database, os.O_RDWR))
            self._settle()
        except OSError as error:
            os.close(self._lock)
            if not isinstance(error, BlockingIOError):
                raise ConfigurationError(
                    f"data_dir: {self.database} cannot be used: {error.strerror};"
                    " make it a file that this user can write"
                ) from error
            raise ConfigurationError(
                f"data_dir: {path} is in use by another placement driver;"
                " stop that one, or choose another directory"
            ) from error

    @property
    def database(self) -> Path:
        """The metadata file; exists, readable and writable by its owner only."""
        return self._path / DATABASE_NAME

    @property
    def mark(self) -> Path:
        """The note of the last commit, beside the metadata file."""
        return self._path / MARK_NAME

    def close_untouched(self, connection: sqlite3.Connection) -> None:
        """Close a metadata file that is refused, and keep its write-ahead log.

        SQLite removes it on closing, with all that stands behind the damage.
        """
        write_ahead_log = self._path / WRITE_AHEAD_LOG_NAME
        kept = write_ahead_log.read_bytes() if write_ahead_log.exists() else b""
        connection.close()
        if kept and not write_ahead_log.exists():
            with os.fdopen(open_private(write_ahead_log, os.O_WRONLY), "wb") as file:
                file.write(kept)

    def _settle(self) -> None:
        """Drop the page cache of the files, so that reads see the disk.

        When a sync of the previous process failed, the page cache may still show what never reached
        the disk, and what is then written over it may be lost too.
        """
        for name in (DATABASE_NAME, WRITE_AHEAD_LOG_NAME):
            path = self._path / name
            if path.exists():
                file = OsDisk().open(path, is_writable=True)
                file.fdatasync()
                file.drop_cache()
                file.close()

    def release(self) -> None:
        """Let other processes have the directory."""
        os.close(self._lock)
