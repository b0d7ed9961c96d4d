"""The objects that backups are made of: manifests, and the chunks that they refer to.

    backups/ID/manifest                        one for each backup, written last
    chunks/STREAM-CREATED/START-END-DIGEST     records of a stream, never changed

A manifest is a line of JSON (format, version, SHA-256 of the rest) and JSON. A chunk, big-endian:

    bytes  field
    8      magic "SBPCHNK1"
    ...    batches: the length (u32) and the bytes of each, with its base offset, as FETCH gives it
    32     SHA-256 of everything before

The digest in the name of a chunk, and in the manifest, is that SHA-256. Batches follow each other
without a gap: the first one begins at START, the last one ends at END.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final

import msgspec

from sbp_core.errors import RecordBatchError, SbpError
from sbp_core.records import decode_envelope

FORMAT: Final = "sbp-backup"
VERSION: Final = 1
CHUNK_BYTES: Final = 32 << 20
"""A chunk is closed when it has as many bytes; one larger batch is a chunk of its own."""

_MAGIC: Final = b"SBPCHNK1"
_LENGTH: Final = struct.Struct(">I")
_DIGEST_BYTES: Final = 32
_MANIFESTS: Final = "backups/"
_CHUNKS: Final = "chunks/"
_BEGUN: Final = "%Y%m%dT%H%M%S.%f"
"""The begin of an id; milliseconds are written."""


class BackupError(SbpError):
    """A backup is damaged, incomplete, or cannot be read or written where it is."""


class ChunkRef(msgspec.Struct, frozen=True):
    """A chunk: the offsets [start, end) that it has, its size in bytes, and its digest in hex."""

    start: int
    end: int
    size: int
    digest: str


class StreamEntry(msgspec.Struct, frozen=True):
    """A stream, [start_offset, end_offset) at the cut; the first chunk may begin before that.

    Records below `trimmed_to` were trimmed while they were copied: the chunks begin there.
    """

    stream_id: int
    name: str | None
    created_at_ms: int
    replica_count: int
    ack_count: int
    retention_period_ms: int
    retention_bytes: int
    start_offset: int
    end_offset: int
    last_range_index: int
    chunks: tuple[ChunkRef, ...] = ()
    trimmed_to: int = 0
    properties: dict[str, str] = {}

    @property
    def first_offset(self) -> int:
        """The first offset of which the backup has the record, or the end."""
        return min(max(self.start_offset, self.trimmed_to), self.end_offset)

    def path_of(self, chunk: ChunkRef) -> str:
        """Return where a chunk of the stream is."""
        return chunk_path(self.stream_id, self.created_at_ms, chunk)

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(each.size for each in self.chunks)


class SchemaEntry(msgspec.Struct, frozen=True):
    """A version of the schema of a stream."""

    stream_id: int
    version: int
    fingerprint: str
    schema: bytes
    registered_at_ms: int


class CursorEntry(msgspec.Struct, frozen=True):
    """The position of a consumer group in a stream."""

    group: str
    stream_id: int
    next_offset: int
    committed_at_ms: int


class GrantEntry(msgspec.Struct, frozen=True):
    """A right of a subject."""

    subject: str
    right: str
    pattern: str


class DecisionEntry(msgspec.Struct, frozen=True):
    """A batch of a producer that was committed and published."""

    producer: str
    batch_number: int
    record_count: int
    digest: bytes
    decided_at_ms: int
    subject: str | None


class Manifest(msgspec.Struct, frozen=True):
    """Everything that a backup has, but for the records. Times in ms since 1970 UTC.

    `deleted` are the labels of streams that were deleted while their records were copied.
    """

    backup_id: str
    taken_at_ms: int
    finished_at_ms: int
    held_us: int
    cluster_id: str
    store_commit: int
    store_life: str
    last_stream_id: int
    revision: int
    streams: tuple[StreamEntry, ...]
    schemas: tuple[SchemaEntry, ...] = ()
    cursors: tuple[CursorEntry, ...] = ()
    grants: tuple[GrantEntry, ...] = ()
    decisions: tuple[DecisionEntry, ...] = ()
    deleted: tuple[str, ...] = ()

    @property
    def record_count(self) -> int:
        """Records in the backup."""
        return sum(each.end_offset - each.first_offset for each in self.streams)

    @property
    def size(self) -> int:
        """Bytes of all chunks."""
        return sum(each.size for each in self.streams)


class _Head(msgspec.Struct, frozen=True):
    format: str
    version: int
    sha256: str


def manifest_path(backup_id: str) -> str:
    """Return where the manifest of a backup is."""
    return f"{_MANIFESTS}{backup_id}/manifest"


def new_backup_id(begun_at: datetime) -> str:
    """Return an id for a backup that begins at a time in UTC; ids sort by that time."""
    return f"{begun_at.strftime(_BEGUN)[:-3]}-{secrets.token_hex(2)}"


def maybe_begun_at(backup_id: str) -> datetime | None:
    """Return when a backup began, by its id, in UTC; None for another text."""
    try:
        return datetime.strptime(backup_id.partition("-")[0], _BEGUN).replace(tzinfo=UTC)
    except ValueError:
        return None


def maybe_backup_id(path: str) -> str | None:
    """Return the id of the backup that a path is the manifest of, None for other paths."""
    parts = path.removeprefix(_MANIFESTS).split("/")
    if not path.startswith(_MANIFESTS) or len(parts) != 2 or parts[1] != "manifest":
        return None
    return parts[0]


def chunk_path(stream_id: int, created_at_ms: int, chunk: ChunkRef) -> str:
    """Return where a chunk of a stream is."""
    offsets = f"{chunk.start:020d}-{chunk.end:020d}"
    return f"{_CHUNKS}{stream_id}-{created_at_ms}/{offsets}-{chunk.digest[:16]}"


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the bytes of a manifest."""
    body = msgspec.json.encode(manifest)
    head = _Head(FORMAT, VERSION, sha256(body).hexdigest())
    return msgspec.json.encode(head) + b"\n" + body


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Return a manifest. Raises BackupError if it is damaged, or of a later version."""
    line, _, body = data.partition(b"\n")
    try:
        head = msgspec.json.decode(line, type=_Head)
        if head.format != FORMAT:
            raise BackupError(f"{where} is no manifest of a backup")
        if head.version != VERSION:
            raise BackupError(
                f"{where} has version {head.version} of the format, and this release reads"
                f" {VERSION}: use the release that wrote it, or a later one"
            )
        if head.sha256 != sha256(body).hexdigest():
            raise BackupError(f"{where} is damaged: its checksum does not match. {USE_OTHER}")
        return msgspec.json.decode(body, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BackupError(f"{where} is damaged: {error}. {USE_OTHER}") from error


USE_OTHER: Final = "Use another backup, or another copy of this one"


@dataclass(slots=True)
class ChunkWriter:
    """A chunk that is being filled with batches, which have to follow each other."""

    start: int | None = None
    end: int = 0
    size: int = 0
    _parts: list[bytes] = field(default_factory=lambda: [_MAGIC])

    def add(self, batch: bytes, base_offset: int, end_offset: int) -> None:
        """Add a batch."""
        if self.start is None:
            self.start = base_offset
        elif base_offset != self.end:
            raise BackupError(
                f"a batch begins at offset {base_offset}, and the one before ends at {self.end}:"
                " records are missing in between. See `sbp log check`"
            )
        self._parts += [_LENGTH.pack(len(batch)), batch]
        self.end = end_offset
        self.size += len(batch)

    def finish(self) -> tuple[ChunkRef, bytes]:
        """Return the chunk, which has a batch at least, and its bytes."""
        assert self.start is not None
        content = b"".join(self._parts)
        digest = sha256(content)
        data = content + digest.digest()
        return ChunkRef(self.start, self.end, len(data), digest.hexdigest()), data


def batches_of(data: bytes, chunk: ChunkRef, where: str) -> Sequence[tuple[int, int, bytes]]:
    """Return the base offset, the end offset and the bytes of each batch of a chunk.

    Raises BackupError if it is damaged, or another one.
    """
    content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    is_whole = len(data) == chunk.size and sha256(content).digest() == digest
    if not is_whole or digest.hex() != chunk.digest or not content.startswith(_MAGIC):
        raise BackupError(
            f"{where} is damaged: records {chunk.start} to {chunk.end - 1} of its stream cannot be"
            f" restored. {USE_OTHER}"
        )
    found = list(_batches_in(memoryview(content), where))
    starts = [start for start, _, _ in found] + [chunk.end]
    ends = [chunk.start] + [end for _, end, _ in found]
    if starts != ends:
        raise BackupError(f"{where} is damaged: its records have gaps. {USE_OTHER}")
    return found


def _batches_in(content: memoryview, where: str) -> Iterator[tuple[int, int, bytes]]:
    position = len(_MAGIC)
    try:
        while position < len(content):
            (length,) = _LENGTH.unpack_from(content, position)
            position += _LENGTH.size
            batch = bytes(content[position : position + length])
            position += length
            envelope = decode_envelope(batch)
            if envelope.length_bytes != len(batch):
                raise BackupError(f"{where} is damaged: a batch has another length. {USE_OTHER}")
            yield envelope.base_offset, envelope.end_offset, batch
    except (struct.error, RecordBatchError) as error:
        raise BackupError(f"{where} is damaged: {error}. {USE_OTHER}") from error
