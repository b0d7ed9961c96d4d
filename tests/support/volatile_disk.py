"""A disk whose unsynced bytes and names die with the process: kill -9 is a power cut to it.

The files that the log sees are beside its directory, in `<directory>.cache`, and are deleted when
the log is opened. The directory itself is the platter: it gets the content of a file when that is
synced, and names when the directory is. `<directory>.synced` holds what is synced of each file by
the number of its inode; a name of the platter is a link to it.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path
from typing import Any

from sbp_core.log.disk import OsDirectoryLock, OsDisk, OsFile


class VolatileFile:
    """A file in the cache."""

    def __init__(self, file: OsFile, synced: Path) -> None:
        self._file = file
        self._synced = synced

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def fdatasync(self) -> None:
        self.fsync()

    def fsync(self) -> None:
        """Write the content to the platter in place: a kill during it leaves a torn write."""
        content = self._file.pread(self._file.size(), 0)
        with self._synced.open("r+b") as platter:
            platter.write(content)
            platter.truncate()


class VolatileDisk:
    """A disk in which the directory that is locked, the log's, is volatile, and no other.

    Its threads change names one at a time, so that a sync of the directory is one consistent state.
    """

    def __init__(self) -> None:
        self._disk = OsDisk()
        self._directory: Path | None = None
        self._names = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._disk, name)

        def on_cache(*arguments: Any, **options: Any) -> Any:
            with self._names:
                return method(*map(self._cached, arguments), **options)

        return on_cache

    def lock_directory(self, directory: Path) -> OsDirectoryLock:
        """Lock the directory and begin with what is on the platter."""
        lock = self._disk.lock_directory(directory)
        self._directory = directory
        for folder in (self._cache, self._synced):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        for path in directory.iterdir():
            copy = self._cache / path.name
            shutil.copyfile(path, copy)
            os.link(path, self._synced_of(copy))
        return lock

    def create(self, path: Path) -> Any:
        with self._names:
            file = self._file(self._disk.create(self._cached(path)))
            if isinstance(file, VolatileFile):
                synced = self._synced_of(self._cached(path))
                synced.unlink(missing_ok=True)  # left by a deleted file
                synced.touch()
            return file

    def open(self, path: Path, *, is_writable: bool) -> Any:
        with self._names:
            return self._file(self._disk.open(self._cached(path), is_writable=is_writable))

    def fsync_dir(self, directory: Path) -> None:
        """Let the platter have the names that the cache has, one after the other."""
        if directory != self._directory:
            self._disk.fsync_dir(directory)
            return
        with self._names:
            names = {path.name for path in self._cache.iterdir()}
            for name in names:
                self._publish(name)
            for path in directory.iterdir():
                if path.name not in names:
                    path.unlink()

    def _publish(self, name: str) -> None:
        assert self._directory is not None
        synced = self._synced_of(self._cache / name)
        target = self._directory / name
        if not target.exists() or not target.samefile(synced):
            fresh = self._synced / "fresh"
            fresh.unlink(missing_ok=True)
            os.link(synced, fresh)
            fresh.replace(target)

    @property
    def _cache(self) -> Path:
        return Path(f"{self._directory}.cache")

    @property
    def _synced(self) -> Path:
        return Path(f"{self._directory}.synced")

    def _synced_of(self, cached: Path) -> Path:
        return self._synced / str(cached.stat().st_ino)

    def _cached(self, argument: Any) -> Any:
        """Where the log's files are really."""
        if isinstance(argument, Path) and self._directory in {argument, argument.parent}:
            return self._cache / argument.relative_to(self._directory)
        return argument

    def _file(self, file: OsFile) -> Any:
        is_volatile = file.path.parent == self._cache
        return VolatileFile(file, self._synced_of(file.path)) if is_volatile else file
