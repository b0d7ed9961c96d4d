"""Restoring a backup onto an empty cluster: metadata first, then the records, then it is opened.

The client has to request the feature `RequestedFeatures(restoring=ID)`: the placement driver
refuses all others from the first request to the last. Records are appended at their offsets, which
each answer is compared with. A restore that was interrupted goes on where the streams end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from sbp_core import limits
from sbp_core.backup.cluster_cut import other_parts, stream_parts
from sbp_core.backup.format import BackupError, Manifest, StreamEntry, batches_of
from sbp_core.backup.storage import BackupStorage
from sbp_core.backup.taking import OnProgress, Progress, some_at_a_time
from sbp_core.backup.upkeep import check_present
from sbp_core.client import AppendItem, AsyncClient, Writer
from sbp_core.wire.headers import ClusterMetadata, RestoreMetadataRequest, RestoreMetadataResponse
from sbp_core.wire.opcodes import Opcode

_APPEND_BYTES: Final = 4 << 20
"""Bytes of batches that are appended at a time, unless one is larger."""


@dataclass(frozen=True, slots=True)
class Restored:
    """A restore that is complete; `was_complete` if an earlier one had completed it."""

    manifest: Manifest
    progress: Progress
    was_complete: bool = False


async def restore_backup(
    client: AsyncClient,
    storage: BackupStorage,
    manifest: Manifest,
    *,
    on_progress: OnProgress = lambda _: None,
) -> Restored:
    """Restore a backup. The call may be repeated until the cluster is complete.

    Raises BackupError if the backup is damaged, InvalidRequestError if the cluster is not empty,
    and other SbpError; the cluster serves nobody then until a restore is complete.
    """
    progress = Progress(len(manifest.streams), byte_count=manifest.size)
    await check_present(storage, manifest)
    for part in stream_parts(manifest):
        if await _send(client, manifest, part):
            return Restored(manifest, progress, was_complete=True)

    async def fill(stream: StreamEntry) -> None:
        await _Filler(client, storage, progress, on_progress).fill(stream)

    await some_at_a_time(fill, manifest.streams)
    await client.trim_streams(
        {
            each.stream_id: each.first_offset
            for each in manifest.streams
            if each.chunks and each.chunks[0].start < each.first_offset
        }
    )
    for part in other_parts(manifest):
        await _send(client, manifest, part)
    await _send(client, manifest, None, is_complete=True)
    return Restored(manifest, progress)


async def _send(
    client: AsyncClient,
    manifest: Manifest,
    part: ClusterMetadata | None,
    *,
    is_complete: bool = False,
) -> bool:
    """Send a part of the metadata (SPEC "RESTORE_METADATA"); return whether all is complete."""
    request = RestoreMetadataRequest(
        limits.REQUEST_TIMEOUT_MS,
        manifest.backup_id,
        part,
        manifest.last_stream_id,
        manifest.revision,
        is_complete,
    )
    answers = await client.ask(Opcode.RESTORE_METADATA, request, RestoreMetadataResponse)
    return answers[-1].is_complete


class _Filler:
    """Appends the records of a stream."""

    def __init__(
        self,
        client: AsyncClient,
        storage: BackupStorage,
        progress: Progress,
        on_progress: OnProgress,
    ) -> None:
        self._client = client
        self._storage = storage
        self._progress = progress
        self._on_progress = on_progress
        self._writer = Writer()

    async def fill(self, stream: StreamEntry) -> None:
        """Append what is not there yet. Raises BackupError where offsets differ."""
        (bounds,) = await self._client.stream_bounds([stream.stream_id])
        position = bounds.next_offset
        for chunk in stream.chunks:
            if chunk.end > position:
                path = stream.path_of(chunk)
                data = await self._storage.get(path)
                found = batches_of(data, chunk, f"{path} in {self._storage.name}")
                left = [each for each in found if each[0] >= position]
                for some in _cut(left):
                    await self._append(stream, some)
                position = chunk.end
                self._progress.bytes_copied += chunk.size
            else:
                self._progress.bytes_reused += chunk.size
            self._progress.bytes_done += chunk.size
            self._on_progress(self._progress)
        if position != stream.end_offset:
            raise _foreign(stream, stream.end_offset, position)
        self._progress.streams_done += 1
        self._on_progress(self._progress)

    async def _append(self, stream: StreamEntry, batches: Sequence[tuple[int, int, bytes]]) -> None:
        outcomes = await self._client.append(
            [AppendItem(stream.stream_id, batch) for _, _, batch in batches], writer=self._writer
        )
        for (start, _, _), outcome in zip(batches, outcomes, strict=True):
            if outcome.base_offset != start:
                raise _foreign(stream, start, outcome.base_offset)


def _cut(batches: Iterable[tuple[int, int, bytes]]) -> Iterable[list[tuple[int, int, bytes]]]:
    """Cut into parts of about _APPEND_BYTES."""
    some: list[tuple[int, int, bytes]] = []
    size = 0
    for each in batches:
        if some and size + len(each[2]) > _APPEND_BYTES:
            yield some
            some, size = [], 0
        some.append(each)
        size += len(each[2])
    if some:
        yield some


def _foreign(stream: StreamEntry, expected: int, found: int) -> BackupError:
    return BackupError(
        f"stream {stream.stream_id} is at offset {found} where {expected} was expected: something"
        " else wrote to it during the restore. Begin again with a new cluster, with empty data"
        " directories"
    )
