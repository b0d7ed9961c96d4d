"""Marks of commands that run: a new backup refers to chunks that exist, so none may be removed.

Taking and removing exclude each other: each puts its mark first, and then looks for marks of the
other. Listing finds every object that was put before, so of two commands that begin at the same
time one at least sees the mark of the other, and gives up.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from sbp_core.backup.format import BackupError, maybe_begun_at, new_backup_id
from sbp_core.backup.storage import BackupStorage

_TAKING: Final = "running/"
_REMOVING: Final = "pruning/"


@asynccontextmanager
async def taking(storage: BackupStorage, backup_id: str) -> AsyncIterator[None]:
    """Mark a backup that is being taken. Raises BackupError while backups are being removed."""
    async with _marked(storage, taking_mark(backup_id)):
        found = sorted(await storage.sizes(_REMOVING))
        if found:
            problem = f"no backup was taken, as backups are being removed from {storage.name}"
            raise _error(storage, problem, found, "sbp backup prune")
        yield


@asynccontextmanager
async def removing(storage: BackupStorage) -> AsyncIterator[None]:
    """Mark that chunks are being removed. Raises BackupError while a backup is being taken."""
    async with _marked(storage, f"{_REMOVING}{new_backup_id(datetime.now(UTC))}"):
        found = sorted(await storage.sizes(_TAKING))
        if found:
            problem = f"nothing was removed, as a backup is being taken to {storage.name}"
            raise _error(storage, problem, found, "sbp backup create")
        yield


def taking_mark(backup_id: str) -> str:
    """Return the object that exists while a backup is being taken."""
    return f"{_TAKING}{backup_id}"


@asynccontextmanager
async def _marked(storage: BackupStorage, path: str) -> AsyncIterator[None]:
    await storage.put(path, b"")
    try:
        yield
    finally:
        await storage.delete([path])


def _error(storage: BackupStorage, problem: str, paths: Sequence[str], command: str) -> BackupError:
    """Return an error that names marks with their age: a killed command leaves its mark."""
    now = datetime.now(UTC)
    shown = "; ".join(_aged(path.rpartition("/")[2], now) for path in paths)
    objects = " and ".join(f"{storage.name.rstrip('/')}/{path}" for path in paths)
    return BackupError(
        f"{problem}: {shown}. Wait for its end. If its `{command}` does not run any more, as after"
        f" a kill, remove {objects}, and try again"
    )


def _aged(mark_id: str, now: datetime) -> str:
    begun_at = maybe_begun_at(mark_id)
    if begun_at is None:
        return mark_id
    minutes = max(int((now - begun_at).total_seconds()), 0) // 60
    return f"{mark_id}, begun {minutes // 60} h {minutes % 60} min ago"
