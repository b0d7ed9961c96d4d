"""Where backups are kept: a directory, or a bucket with a prefix, through object_store.

Objects are written whole or not at all. Requests block threads: if object_store called an event
loop, it could do so while the process ends, which aborts it. Credentials of object storage come
from the environment, as its own tools read it (AWS_ACCESS_KEY_ID, AWS_ENDPOINT, ...); they are
never logged.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from sbp_core.backup.format import BackupError
from sbp_core.errors import ConfigurationError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore

_TIMEOUT: Final = "10m"
"""Time for one request to object storage: a chunk is one."""
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*://")


class BackupStorage:
    """Objects by path, which has no leading slash. Raises BackupError if it cannot be used."""

    def __init__(self, name: str, store: ObjectStore, folder: Path | None = None) -> None:
        self.name: Final = name
        self._store = store
        self._folder = folder

    @classmethod
    def open(cls, name: str, *, is_new: bool = False) -> BackupStorage:
        """Open the storage of this name: a directory, or s3://BUCKET/PREFIX.

        A directory is made if it `is_new`. Raises ConfigurationError.
        """
        from obstore.exceptions import BaseError
        from obstore.store import LocalStore, S3Store

        try:
            if not _SCHEME.match(name):
                path = Path(name).absolute()
                if is_new:
                    path.mkdir(mode=0o700, parents=True, exist_ok=True)
                elif not path.is_dir():
                    raise ConfigurationError(f"{name} is no directory: give one with backups")
                return cls(name, LocalStore(path), path)
            parts = urlsplit(name)
            if parts.scheme != "s3" or not parts.netloc or parts.query or "@" in parts.netloc:
                raise ConfigurationError(
                    f"{name!a} cannot hold backups; give a directory, or s3://BUCKET/PREFIX"
                )
            prefix = parts.path.strip("/")
            is_plain = os.environ.get("AWS_ALLOW_HTTP", "").lower() in {"1", "true"}
            options: ClientConfig = {"timeout": _TIMEOUT, "allow_http": is_plain}
            return cls(name, S3Store(parts.netloc, prefix=prefix or None, client_options=options))
        except (BaseError, OSError) as error:
            raise ConfigurationError(
                f"{name} cannot be used for backups: {_cause(error)}; name a directory that this"
                " user can use, or s3://BUCKET/PREFIX with its credentials in the environment"
            ) from error

    async def put(self, path: str, data: bytes) -> None:
        """Write an object durably, in place of an object with this path."""
        from obstore.exceptions import BaseError

        try:
            await asyncio.to_thread(self._put, path, data)
        except (BaseError, OSError) as error:
            raise self._error("written", path, error) from error

    async def get(self, path: str) -> bytes:
        """Return an object."""
        from obstore.exceptions import BaseError

        try:
            return await asyncio.to_thread(lambda: bytes(self._store.get(path).bytes()))
        except (BaseError, OSError) as error:
            raise self._error("read", path, error) from error

    async def delete(self, paths: list[str]) -> None:
        """Remove objects."""
        from obstore.exceptions import BaseError

        try:
            if paths:
                await asyncio.to_thread(self._store.delete, paths)
        except (BaseError, OSError) as error:
            raise self._error("removed", paths[0], error) from error

    async def sizes(self, prefix: str) -> dict[str, int]:
        """Return the size in bytes of each object below a prefix, by path."""
        from obstore.exceptions import BaseError

        try:
            return await asyncio.to_thread(self._sizes, prefix)
        except (BaseError, OSError) as error:
            raise self._error("listed", prefix, error) from error

    def _put(self, path: str, data: bytes) -> None:
        if self._folder is None:
            self._store.put(path, data, use_multipart=False)
            return
        file = self._folder / path
        for parent in reversed(file.relative_to(self._folder).parents):
            (self._folder / parent).mkdir(mode=0o700, exist_ok=True)
        self._store.put(path, data, use_multipart=False)
        file.chmod(0o600)  # records are as secret here as at a range server
        _sync(self._folder, file)

    def _sizes(self, prefix: str) -> dict[str, int]:
        return {each["path"]: each["size"] for batch in self._store.list(prefix) for each in batch}

    def _error(self, verb: str, path: str, error: Exception) -> BackupError:
        return BackupError(f"{path} in {self.name} cannot be {verb}: {_cause(error)}")


def _sync(folder: Path, path: Path) -> None:
    """Make a file durable, with the folders that it is in. Raises OSError."""
    for each in (path, *path.parents):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if each == folder:
            break


def _cause(error: Exception) -> str:
    """Return the first line of an error: the others are a dump of the same."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0].rstrip(".:")
