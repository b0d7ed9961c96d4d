"""Files of a warehouse folder that are on the disk before the catalog refers to them.

PyArrow does not sync local files. After a power cut the catalog, which SQLite syncs, would name
files without their content, of records that the log may no longer have.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Final

from pyiceberg.io import OutputStream
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

from sbp_core.log.disk import OsDisk

_DISK: Final = OsDisk()


class SyncedFileIO(PyArrowFileIO):
    """Reads local files as PyIceberg does, and writes synced ones. The catalog names this class."""

    def new_output(self, location: str) -> PyArrowFile:
        """Return a file to write."""
        scheme, host, path = self.parse_location(location, self.properties)
        return _SyncedOutput(location, path, self.fs_by_scheme(scheme, host))


class _SyncedOutput(PyArrowFile):
    def create(self, overwrite: bool = False) -> OutputStream:  # noqa: FBT001, FBT002
        path = Path(self._path)
        missing = [each for each in path.parents if not each.exists()]
        path.parent.mkdir(parents=True, exist_ok=True)
        for each in missing:
            _DISK.fsync_dir(each.parent)
        return _SyncedStream(path, "w" if overwrite else "x")


class _SyncedStream(io.BufferedWriter):
    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._folder = path.parent

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            _DISK.fsync_dir(self._folder)
        super().close()
