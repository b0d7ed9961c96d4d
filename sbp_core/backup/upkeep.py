"""Listing, checking and removing backups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sbp_core.backup.format import (
    USE_OTHER,
    BackupError,
    Manifest,
    batches_of,
    decode_manifest,
    manifest_path,
    maybe_backup_id,
)
from sbp_core.backup.marks import removing
from sbp_core.backup.storage import BackupStorage
from sbp_core.errors import NotFoundError

_CHUNKS: Final = "chunks/"


@dataclass(frozen=True, slots=True)
class Pruned:
    """Objects to remove: ids of backups, and sizes by path of chunks that no other one needs."""

    backup_ids: tuple[str, ...]
    chunks: Mapping[str, int]

    @property
    def chunk_count(self) -> int:
        """The number of the chunks."""
        return len(self.chunks)

    @property
    def size(self) -> int:
        """The size of the chunks in bytes."""
        return sum(self.chunks.values())


async def backup_ids(storage: BackupStorage) -> list[str]:
    """Return the ids of the backups that are complete, the oldest first."""
    found = (maybe_backup_id(path) for path in await storage.sizes("backups/"))
    return sorted(each for each in found if each is not None)


async def chunk_sizes(storage: BackupStorage) -> dict[str, int]:
    """Return the size in bytes of each chunk, by path."""
    return await storage.sizes(_CHUNKS)


async def read_manifest(storage: BackupStorage, backup_id: str) -> Manifest:
    """Return the manifest of a backup. Raises BackupError if it is damaged or cannot be read."""
    path = manifest_path(backup_id)
    return decode_manifest(await storage.get(path), f"{path} in {storage.name}")


async def newest_or(storage: BackupStorage, backup_id: str | None) -> str:
    """Return the id of a backup, the newest one if it is None. Raises NotFoundError."""
    known = await backup_ids(storage)
    if not known:
        raise NotFoundError.of(f"no backup is complete in {storage.name}")
    if backup_id is not None and backup_id not in known:
        raise NotFoundError.of(
            f"backup {backup_id!a} is not in {storage.name}; see `sbp backup list {storage.name}`"
        )
    return backup_id or known[-1]


async def check_present(storage: BackupStorage, manifest: Manifest) -> None:
    """Raise BackupError if a chunk is missing, or has another size."""
    sizes = await chunk_sizes(storage)
    lacking = [
        path
        for stream in manifest.streams
        for chunk in stream.chunks
        if sizes.get(path := stream.path_of(chunk)) != chunk.size
    ]
    if lacking:
        raise BackupError(
            f"{len(lacking)} chunks of backup {manifest.backup_id} are missing in {storage.name},"
            f" or cut off; the first one is {lacking[0]}. {USE_OTHER}"
        )


async def check_backup(
    storage: BackupStorage, manifest: Manifest, on_checked: Callable[[int], None] = lambda _: None
) -> list[BackupError]:
    """Read all of a backup; return what is wrong. `on_checked` is called with bytes read so far."""
    faults: list[BackupError] = []
    size = 0
    for stream in manifest.streams:
        position = stream.first_offset
        for at, chunk in enumerate(stream.chunks):
            path = stream.path_of(chunk)
            if chunk.start != position and not (at == 0 and chunk.start < position):
                faults.append(BackupError(f"{path} does not begin at offset {position}"))
            position = chunk.end
            try:
                batches_of(await storage.get(path), chunk, f"{path} in {storage.name}")
            except BackupError as error:
                faults.append(error)
            size += chunk.size
            on_checked(size)
        if position != stream.end_offset:
            faults.append(
                BackupError(
                    f"backup {manifest.backup_id} ends at offset {position} of stream"
                    f" {stream.stream_id}, not at {stream.end_offset}"
                )
            )
    return faults


async def prune(storage: BackupStorage, keep_count: int) -> Pruned:
    """Remove all backups but the newest ones, and the chunks that only those referred to.

    Raises BackupError while a backup is being taken, and if a manifest that is kept is damaged:
    its chunks are not known then.
    """
    async with removing(storage):
        found = await find_prunable(storage, keep_count)
        await storage.delete([manifest_path(each) for each in found.backup_ids])
        await storage.delete(list(found.chunks))
    return found


async def find_prunable(storage: BackupStorage, keep_count: int) -> Pruned:
    """Return what `prune` would remove. Raises BackupError as `prune` does for a manifest."""
    known = await backup_ids(storage)
    needed = {
        stream.path_of(chunk)
        for backup_id in known[-keep_count:]
        for stream in (await read_manifest(storage, backup_id)).streams
        for chunk in stream.chunks
    }
    sizes = await chunk_sizes(storage)
    spare = {path: size for path, size in sizes.items() if path not in needed}
    return Pruned(tuple(known[:-keep_count]), spare)
