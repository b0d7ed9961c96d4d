"""The placement driver's directory: made when missing, used by one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

from sbp_core.errors import ConfigurationError

_LOCK_NAME: Final = "pd.lock"
DATABASE_NAME: Final = "metadata.sqlite"


class DataDir:
    """A data directory that this process owns until `release` (or its end)."""

    def __init__(self, path: Path) -> None:
        """Make and lock the directory. Raises ConfigurationError when that cannot be."""
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _open_private(path / _LOCK_NAME)
        except OSError as error:
            raise ConfigurationError(
                f"data_dir: {path} cannot be used: {error.strerror};"
                " choose a directory that this user can write"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.close(_open_private(self.database))
        except OSError as error:
            os.close(self._lock)
            if not isinstance(error, BlockingIOError):
                raise ConfigurationError(
                    f"data_dir: {self.database} cannot be used: {error.strerror};"
                    " make it a file that this user can write"
                ) from error
            raise ConfigurationError(
                f"data_dir: {path} is in use by another placement driver;"
                " stop that one, or give this one a directory of its own"
            ) from error

    @property
    def database(self) -> Path:
        """The metadata file; exists, readable and writable by its owner only."""
        return self._path / DATABASE_NAME

    def release(self) -> None:
        """Let other processes have the directory."""
        os.close(self._lock)


def _open_private(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
