"""Taking a backup: a cut through the cluster, the records up to it, and then the manifest.

A new manifest refers to chunks of an earlier backup of the same cluster, if these are of the same
history. Histories are the same if the metadata still have the commit of that backup: a cluster that
was restored gives the same offsets to other records.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from msgspec.structs import replace

from sbp_core.backup.cluster_cut import Cut, take_cut
from sbp_core.backup.format import (
    CHUNK_BYTES,
    BackupError,
    ChunkRef,
    ChunkWriter,
    Manifest,
    StreamEntry,
    encode_manifest,
    manifest_path,
    new_backup_id,
)
from sbp_core.backup.marks import taking
from sbp_core.backup.storage import BackupStorage
from sbp_core.backup.upkeep import backup_ids, chunk_sizes, read_manifest
from sbp_core.client import AsyncClient, FetchItem, StoreCommit
from sbp_core.client.types import FetchOutcome
from sbp_core.errors import NotFoundError, OffsetOutOfRangeError
from sbp_core.records import slice_plain, split_envelopes

T = TypeVar("T")

SMALL_CHUNK_BYTES: Final = 4 << 20
"""A smaller chunk at the end of a stream is written again with what follows it."""
_FETCH_BYTES: Final = 4 << 20
_FETCH_WAIT_MS: Final = 1_000
_SIZES_MS: Final = 3_000
_EMPTY_MAX: Final = 30
"""Answers without a record in a row, for records that are there."""
_AT_A_TIME: Final = 4
"""Streams that are copied at the same time; each has one chunk in memory."""

ChunksByStream = Mapping[tuple[int, int], Sequence[ChunkRef]]
"""By stream id and time of creation."""


@dataclass(slots=True)
class Progress:
    """How far a backup or a restore is, in bytes of chunks.

    `bytes_done` of about `byte_count` bytes of records are read; `byte_count` is None if unknown.
    """

    stream_count: int = 0
    streams_done: int = 0
    byte_count: int | None = None
    bytes_done: int = 0
    bytes_copied: int = 0
    bytes_reused: int = 0


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup that is complete, and how much of it was copied now."""

    manifest: Manifest
    progress: Progress


class Pace:
    """Bounds the bytes per second of several tasks together; 0 is no bound."""

    def __init__(self, bytes_per_second: int) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0

    async def spend(self, size: int) -> None:
        """Wait until bytes that were copied are paid for."""
        if self._rate:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            await asyncio.sleep(self._free_at - now)


async def take_backup(
    client: AsyncClient,
    storage: BackupStorage,
    *,
    bytes_per_second: int = 0,
    on_progress: OnProgress = lambda _: None,
) -> Taken:
    """Take a backup. Raises SbpError; the earlier backups stay intact then.

    Streams that are deleted while it is taken are left out, and so are records that are trimmed;
    the manifest names both.
    """
    backup_id = new_backup_id(datetime.now(UTC))
    cut = await take_cut(client)  # a refusal leaves nothing in the storage
    async with taking(storage, backup_id):
        copier = _Copier(
            client,
            storage,
            await _reusable(client, storage, cut),
            pace=Pace(bytes_per_second),
            progress=Progress(len(cut.streams), byte_count=await _maybe_size(client, cut)),
            on_progress=on_progress,
        )
        copied = await copier.copy_all(cut.streams)
        head = cut.head
        manifest = Manifest(
            backup_id=backup_id,
            taken_at_ms=head.taken_at_ms,
            finished_at_ms=time.time_ns() // 1_000_000,
            held_us=head.held_us,
            cluster_id=head.cluster_id or "",
            store_commit=head.store_commit,
            store_life=head.store_life or "",
            last_stream_id=head.last_stream_id,
            revision=head.revision,
            streams=tuple(each for each in copied if each is not None),
            schemas=tuple(cut.schemas),
            cursors=tuple(cut.cursors),
            grants=tuple(cut.grants),
            decisions=tuple(cut.decisions),
            deleted=tuple(
                f"{entry.name or '(unnamed)'} (id {entry.stream_id})"
                for entry, each in zip(cut.streams, copied, strict=True)
                if each is None
            ),
        )
        await storage.put(manifest_path(backup_id), encode_manifest(manifest))
    return Taken(manifest, copier.progress)


async def _maybe_size(client: AsyncClient, cut: Cut) -> int | None:
    """Return about how many bytes the records have, None if not all servers say so soon."""
    ids = [each.stream_id for each in cut.streams]
    try:
        sizes = await client.stored_bytes(ids, timeout_ms=_SIZES_MS)
    except NotFoundError:  # a stream was deleted since the cut
        return None
    return sum(sizes.values()) if len(sizes) == len(ids) else None


async def _reusable(client: AsyncClient, storage: BackupStorage, cut: Cut) -> ChunksByStream:
    """Return the chunks of the newest backup of the same history that are there, by stream."""
    sizes = await chunk_sizes(storage)
    for backup_id in reversed(await backup_ids(storage)):
        try:
            manifest = await read_manifest(storage, backup_id)
        except BackupError:
            continue  # `sbp backup check` reports it
        if await _is_same_history(client, manifest, cut):
            return {
                (each.stream_id, each.created_at_ms): [
                    chunk for chunk in each.chunks if sizes.get(each.path_of(chunk)) == chunk.size
                ]
                for each in manifest.streams
            }
    return {}


async def _is_same_history(client: AsyncClient, manifest: Manifest, cut: Cut) -> bool:
    """Whether offsets of a backup stand for the same records now."""
    life = cut.head.store_life or ""
    if manifest.cluster_id != cut.head.cluster_id or not life or not manifest.store_life:
        return False
    if manifest.store_life.partition("-")[0] != life.partition("-")[0]:
        return False  # commits were given up in between
    commit = StoreCommit(manifest.store_commit, manifest.store_life)
    return await client.has_commit(commit) is True


class _Copier:
    """Copies the records of streams into chunks, some streams at a time."""

    def __init__(
        self,
        client: AsyncClient,
        storage: BackupStorage,
        reusable: ChunksByStream,
        *,
        pace: Pace,
        progress: Progress,
        on_progress: OnProgress,
    ) -> None:
        self._client = client
        self._storage = storage
        self._reusable = reusable
        self._pace = pace
        self.progress = progress
        self._on_progress = on_progress

    async def copy_all(self, streams: Sequence[StreamEntry]) -> list[StreamEntry | None]:
        """Return the streams with their chunks, None for deleted streams."""
        results: list[StreamEntry | None] = [None] * len(streams)

        async def copy(at: int) -> None:
            results[at] = await self._copy(streams[at])
            self.progress.streams_done += 1
            self._on_progress(self.progress)

        await some_at_a_time(copy, range(len(streams)))
        return results

    async def _copy(self, stream: StreamEntry) -> StreamEntry | None:
        chunks = self._kept(stream)
        reused = sum(each.size for each in chunks)
        self.progress.bytes_reused += reused
        self.progress.bytes_done += reused
        position = chunks[-1].end if chunks else stream.start_offset
        writer, trimmed_to, empty_count = ChunkWriter(), 0, 0
        while position < stream.end_offset:
            outcome = await self._fetch(stream, position)
            error = outcome.error
            if isinstance(error, NotFoundError):
                return None
            if isinstance(error, OffsetOutOfRangeError) and _first(error) > position:
                trimmed_to = position = min(_first(error), stream.end_offset)
                chunks, writer = [], ChunkWriter()
                continue
            if error is not None:
                raise error
            before = position
            is_first = not chunks and not writer.size
            for start, end, batch in _batches(
                outcome.payload, position, stream.end_offset, is_first=is_first
            ):
                writer.add(batch, start, end)
                position = end
            self.progress.bytes_done += len(outcome.payload)
            self._on_progress(self.progress)
            await self._pace.spend(len(outcome.payload))
            empty_count = empty_count + 1 if position == before else 0
            if empty_count > _EMPTY_MAX:
                raise BackupError(
                    f"records of stream {stream.stream_id} from offset {position} on cannot be"
                    f" read, and it ends at {stream.end_offset}: see `sbp streams describe`"
                )
            if writer.size >= CHUNK_BYTES:
                chunks.append(await self._store(stream, writer))
                writer = ChunkWriter()
        if writer.size:
            chunks.append(await self._store(stream, writer))
        return replace(stream, chunks=tuple(chunks), trimmed_to=trimmed_to)

    def _kept(self, stream: StreamEntry) -> list[ChunkRef]:
        """Return the chunks that need not be written again: a run that begins where it must."""
        found = self._reusable.get((stream.stream_id, stream.created_at_ms), ())
        kept: list[ChunkRef] = []
        for chunk in found:
            if chunk.end <= stream.start_offset or chunk.end > stream.end_offset:
                continue
            follows = chunk.start == kept[-1].end if kept else chunk.start <= stream.start_offset
            if not follows:
                break
            kept.append(chunk)
        if kept and kept[-1].size < SMALL_CHUNK_BYTES and kept[-1].end < stream.end_offset:
            kept.pop()
        return kept

    async def _fetch(self, stream: StreamEntry, position: int) -> FetchOutcome:
        item = FetchItem(stream.stream_id, position, stream.end_offset, _FETCH_BYTES)
        (outcome,) = [each async for each in self._client.fetch([item], max_wait_ms=_FETCH_WAIT_MS)]
        return outcome

    async def _store(self, stream: StreamEntry, writer: ChunkWriter) -> ChunkRef:
        chunk, data = writer.finish()
        await self._storage.put(stream.path_of(chunk), data)
        self.progress.bytes_copied += chunk.size
        return chunk


def _batches(
    payload: memoryview, position: int, end_offset: int, *, is_first: bool
) -> Iterator[tuple[int, int, bytes]]:
    """Yield the first offset, the end offset and the bytes of batches from `position` on.

    A server may have merged small batches since the cut, or since earlier batches were copied. So a
    batch is cut if it begins before `position`, or ends behind `end_offset`. Only the first batch
    of a stream may begin before: it is restored whole, and then trimmed.

    Raises BackupError for a gap, DamagedBatchError for a batch that is to be cut and cannot be.
    """
    read_bytes = 0
    for envelope in split_envelopes(payload):
        if position >= end_offset:
            return
        if not envelope.base_offset <= position < envelope.end_offset:
            raise BackupError(
                f"stream {envelope.stream_id} has records {envelope.base_offset} to"
                f" {envelope.end_offset - 1} where offset {position} was expected: run `sbp log"
                " check` on the range server"
            )
        batch = bytes(payload[read_bytes : read_bytes + envelope.length_bytes])
        read_bytes += envelope.length_bytes
        start = envelope.base_offset if is_first else position
        is_first = False
        position = min(envelope.end_offset, end_offset)
        first, count = start - envelope.base_offset, position - start
        if count < envelope.record_count:
            batch = slice_plain(
                envelope, first, count, stream_id=envelope.stream_id, base_offset=start
            )
        yield start, position, batch


async def some_at_a_time(work: Callable[[T], Awaitable[None]], items: Iterable[T]) -> None:
    """Do the work on all items, a few at a time. Raises the first error, and does no more then."""
    left = iter(items)

    async def take() -> None:
        for each in left:
            await work(each)

    tasks = [asyncio.create_task(take()) for _ in range(_AT_A_TIME)]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _first(error: OffsetOutOfRangeError) -> int:
    """Return the first offset of a stream that is shorter than expected at its begin."""
    bounds = error.bounds
    return -1 if bounds is None else bounds[0]
