"""The states of writers that number their batches: fold entries into states.

A writer numbers its batches of a stream 0, 1, 2, ... Its state has the last sequence, and the
offsets of its last WRITER_BATCHES_KEPT batches, also of trimmed ones. A stream keeps the
WRITERS_PER_STREAM_MAX writers that appended last, all streams together WRITERS_MAX. Other writers
are unknown. The states follow from the entries alone.

Bytes, big-endian. A WRITER_MARK has the body

    0-7   sequence   i64
    8     form       u8     0x82; without a digest this byte and the digest are missing
    9-24  digest            of the batch; a repeat must have the same, see below
    25-   writer id         ASCII, to the end

The writers of a stream, in the body of RANGE_WRITERS and between servers, begin with a byte: 2, or
1 if no digest is known. Then, for each writer, the least recent one first:

    0     id length    u8
    1     batch count  u8    with 0x80 added if its batches have digests
    2-9   last sequence  i64
    10-   writer id, then for each batch, oldest first:
          base_offset i64, record count u32, time_ms u64, and the digest if there are any

A digest covers all bytes of a batch, so that a repeat with other content is noticed. Versions
before there were digests wrote none; beside batches with a digest, such a batch has 16 zero bytes.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from threading import Lock
from typing import Final, NamedTuple

from sbp_core import limits
from sbp_core.errors import LogCorruptionError
from sbp_core.log.entry import Entry, Location, unpack_at
from sbp_core.log.states.replicated_entries import decode_settled
from sbp_core.segment_format import EntryKind
from sbp_core.wire.checksum import Buffer

_SEQUENCE: Final = struct.Struct(">q")
_WRITER: Final = struct.Struct(">BBq")
_BATCH: Final = struct.Struct(">qIQ")
_BATCH_WITH_DIGEST: Final = struct.Struct(">qIQ16s")
_VERSION: Final = b"\x01"
_VERSION_WITH_DIGESTS: Final = b"\x02"
_HAS_DIGESTS: Final = 0x80
_MARK_FORM: Final = b"\x82"
"""No id begins with this byte: a version without digests refuses such a mark."""
_UNKNOWN_DIGEST: Final = bytes(16)

DIGEST_BYTES: Final = len(_UNKNOWN_DIGEST)
NO_WRITERS: Final = _VERSION
"""The bytes of a stream without numbered batches."""


class NumberedBatch(NamedTuple):
    """The offsets and the time of a writer's batch, in ms since the epoch, UTC.

    `digest` covers its content, empty if unknown.
    """

    base_offset: int
    record_count: int
    time_ms: int
    digest: bytes = b""

    @property
    def end_offset(self) -> int:
        """Offset after the last record."""
        return self.base_offset + self.record_count


@dataclass(frozen=True, slots=True)
class WriterState:
    """A writer: its last sequence, and its last batches up to that one, the oldest first."""

    writer_id: str
    last_sequence: int
    batches: tuple[NumberedBatch, ...]

    def maybe_batch(self, sequence: int) -> NumberedBatch | None:
        """Return a batch by its sequence, None if it was not appended, or too long ago."""
        at = sequence - self.last_sequence - 1
        return self.batches[at] if -len(self.batches) <= at < 0 else None

    def after(self, sequence: int, batch: NumberedBatch) -> WriterState:
        """Return the state after one more batch."""
        kept = self.batches if sequence == self.last_sequence + 1 else ()
        kept = kept[1 - limits.WRITER_BATCHES_KEPT :]
        return WriterState(self.writer_id, sequence, (*kept, batch))


class WriterStates:
    """The writers of all streams at one position of the log.

    One thread changes it, any thread may read it.
    """

    def __init__(self) -> None:
        self._streams: dict[int, OrderedDict[str, WriterState]] = {}
        self._order: OrderedDict[tuple[int, str], None] = OrderedDict()
        """Writers of all streams, the least recent first."""
        self._known_from: dict[int, int] = {}
        self._unknown: set[int] = set()
        """Streams whose writers before range `_known_from` are unknown, and still to come."""
        self._lock = Lock()

    def __len__(self) -> int:
        """Return the number of known writers."""
        return len(self._order)

    def maybe_writer(self, stream_id: int, writer_id: str) -> WriterState | None:
        """Return a writer of a stream."""
        with self._lock:
            return self._streams.get(stream_id, _NO_WRITERS).get(writer_id)

    def writers_of(self, stream_id: int) -> list[WriterState]:
        """Return the writers of a stream, the least recent first."""
        with self._lock:
            return list(self._streams.get(stream_id, _NO_WRITERS).values())

    def known_from(self, stream_id: int) -> int:
        """Return the index of the range from whose start on the writers of a stream are known.

        They are known up to now if all later ranges of the stream are here.
        """
        return self._known_from.get(stream_id, 0)

    def is_known(self, stream_id: int) -> bool:
        """Whether the writers of a stream at the start of range `known_from` are known."""
        return stream_id not in self._unknown

    def apply(self, entry: Entry, time_ms: int) -> None:
        """Apply an entry; a WRITER_MARK only when its batch was found right behind it.

        If several entries are about the writers before a range, the first counts, because appends
        may follow it. Marks of earlier ranges, which a copy may get later, are known already.
        `known_from` is set after the writers: a thread that reads it first finds the writers.
        Raises LogCorruptionError, and changes nothing, for an invalid body.
        """
        match entry.kind:
            case EntryKind.WRITER_MARK if entry.range_index >= self.known_from(entry.stream_id):
                writer_id, sequence, digest = _split_mark(entry)
                batch = NumberedBatch(entry.base_offset, entry.count, time_ms, digest)
                known = self.maybe_writer(entry.stream_id, writer_id)
                writer = known or WriterState(writer_id, sequence - 1, ())
                self._put(entry.stream_id, writer.after(sequence, batch))
            case EntryKind.RANGE_WRITERS if self._is_news(entry):
                known_before = decode_writers(entry.body)
                self._forget(entry.stream_id)
                for writer in known_before:
                    self._put(entry.stream_id, writer)
                self._known_from[entry.stream_id] = entry.range_index
                self._unknown.discard(entry.stream_id)
            case EntryKind.SETTLED if entry.range_index >= self.known_from(entry.stream_id):
                truncation = decode_settled(entry).truncation
                if truncation is not None:
                    at_end = decode_writers(truncation.writers) if truncation.writers else ()
                    self._forget(entry.stream_id)
                    for writer in at_end:
                        self._put(entry.stream_id, writer)
                    if not truncation.writers:
                        self._known_from[entry.stream_id] = entry.range_index + 1
                        self._unknown.add(entry.stream_id)
            case EntryKind.STREAM_DELETED:
                self._forget(entry.stream_id)
                self._known_from.pop(entry.stream_id, None)
                self._unknown.discard(entry.stream_id)

    def _is_news(self, entry: Entry) -> bool:
        """Whether the writers before a range were unknown."""
        known_from = self.known_from(entry.stream_id)
        is_unknown = entry.stream_id in self._unknown and entry.range_index == known_from
        return entry.range_index > known_from or is_unknown

    def forget_before(self, stream_id: int, range_index: int) -> None:
        """Forget a stream's writers, because batches up to a range may be missing.

        Writers that another server sends for this range or an earlier one are ignored afterwards.
        """
        self._forget(stream_id)
        if range_index > self.known_from(stream_id):
            self._known_from[stream_id] = range_index

    def forget_all(self, last_ranges: Mapping[int, int]) -> None:
        """Forget all writers; `last_ranges` has the index of each stream's last range."""
        for stream_id in {*self._streams, *last_ranges}:
            self.forget_before(stream_id, last_ranges.get(stream_id, 0))

    def snapshot(self) -> Iterator[tuple[int, WriterState]]:
        """Yield all states as (stream id, writer) for `restore`.

        Only the thread that changes the states may call this.
        """
        for stream_id, range_index in self._known_from.items():
            is_unknown = stream_id in self._unknown
            yield stream_id, WriterState("", ~range_index if is_unknown else range_index, ())
        for stream_id, writer_id in self._order:
            yield stream_id, self._streams[stream_id][writer_id]

    def restore(self, stream_id: int, writer: WriterState) -> None:
        """Add one item of a `snapshot`."""
        if writer.writer_id:
            self._put(stream_id, writer)
        elif writer.last_sequence >= 0:
            self._known_from[stream_id] = writer.last_sequence
        else:
            self._known_from[stream_id] = ~writer.last_sequence
            self._unknown.add(stream_id)

    def _put(self, stream_id: int, writer: WriterState) -> None:
        """Remember a writer as the most recent one; forget writers over a limit."""
        with self._lock:
            writers = self._streams.setdefault(stream_id, OrderedDict())
            writers[writer.writer_id] = writer
            writers.move_to_end(writer.writer_id)
            self._order[stream_id, writer.writer_id] = None
            self._order.move_to_end((stream_id, writer.writer_id))
            if len(writers) > limits.WRITERS_PER_STREAM_MAX:
                self._drop(stream_id, next(iter(writers)))
            elif len(self._order) > limits.WRITERS_MAX:
                self._drop(*next(iter(self._order)))

    def _drop(self, stream_id: int, writer_id: str) -> None:
        writers = self._streams[stream_id]
        del writers[writer_id], self._order[stream_id, writer_id]
        if not writers:
            del self._streams[stream_id]

    def _forget(self, stream_id: int) -> None:
        with self._lock:
            for writer_id in self._streams.pop(stream_id, _NO_WRITERS):
                del self._order[stream_id, writer_id]


_NO_WRITERS: Final[OrderedDict[str, WriterState]] = OrderedDict()


class MarkReader:
    """Applies the entries of a segment to writers.

    A mark counts only if its batch is right behind it, because a crash may have lost the batch. The
    batch is never there without its mark: a crash leaves the beginning of a group.
    """

    def __init__(self) -> None:
        self._mark: Entry | None = None
        self._mark_end = 0

    def add(self, entry: Entry, location: Location, time_ms: int, writers: WriterStates) -> None:
        """Apply the next entry. Raises LogCorruptionError for an invalid entry."""
        if entry.kind is EntryKind.BATCH:
            if self._mark is not None and self._mark_end == location.position:
                writers.apply(self._mark, time_ms)
            self._mark = None
        elif entry.kind is EntryKind.WRITER_MARK:
            # Copied, so that it does not keep the window of the scanner in memory.
            self._mark = replace(entry, body=bytes(entry.body))
            self._mark_end = location.end
        else:
            writers.apply(entry, time_ms)


def mark_of(batch: Entry, writer_id: str, sequence: int, digest: bytes = b"") -> Entry:
    """Return the WRITER_MARK to append right in front of a BATCH entry.

    `digest` has DIGEST_BYTES, or is empty.
    """
    form = _MARK_FORM + digest if digest else b""
    body = _SEQUENCE.pack(sequence) + form + writer_id.encode("ascii")
    return Entry(
        EntryKind.WRITER_MARK,
        batch.stream_id,
        batch.range_index,
        batch.base_offset,
        batch.count,
        body,
    )


def decode_mark(mark: Entry) -> tuple[str, int]:
    """Return the writer id and the sequence of a WRITER_MARK. Raises LogCorruptionError."""
    writer_id, sequence, _ = _split_mark(mark)
    return writer_id, sequence


def check_writers(entry: Entry) -> None:
    """Raise LogCorruptionError for an invalid body of a WRITER_MARK or RANGE_WRITERS."""
    if entry.kind is EntryKind.WRITER_MARK:
        _split_mark(entry)
    else:
        decode_writers(entry.body)


def _split_mark(mark: Entry) -> tuple[str, int, bytes]:
    """Return the writer id, the sequence and the digest of a WRITER_MARK; it may be empty."""
    body = bytes(mark.body)
    start, digest = _SEQUENCE.size, b""
    if body[start : start + 1] == _MARK_FORM:
        start += 1 + DIGEST_BYTES
        digest = body[start - DIGEST_BYTES : start]
    if len(body) <= start:
        raise LogCorruptionError(f"the mark of a writer has {len(body)} bytes")
    (sequence,) = _SEQUENCE.unpack_from(body)
    return _decode_id(body[start:]), sequence, digest


def encode_writers(writers: Iterable[WriterState]) -> bytes:
    """Return the bytes of the writers of a stream."""
    listed = list(writers)
    version = _VERSION_WITH_DIGESTS if any(map(_has_digests, listed)) else _VERSION
    return version + b"".join(map(encode_writer, listed))


def decode_writers(encoded: Buffer) -> list[WriterState]:
    """Return the writers of a stream from their bytes. Raises LogCorruptionError."""
    data = bytes(encoded)
    if data[:1] not in {_VERSION, _VERSION_WITH_DIGESTS}:
        raise LogCorruptionError("a list of writers has an unknown version")
    writers, position = [], 1
    while position < len(data):
        writer, position = decode_writer(data, position)
        writers.append(writer)
    return writers


def encode_writer(writer: WriterState) -> bytes:
    """Return the bytes of a writer."""
    writer_id = writer.writer_id.encode("ascii")
    fields: list[tuple[object, ...]]
    if _has_digests(writer):
        flag, form = _HAS_DIGESTS, _BATCH_WITH_DIGEST
        fields = [(*each[:3], each.digest or _UNKNOWN_DIGEST) for each in writer.batches]
    else:
        flag, form, fields = 0, _BATCH, [each[:3] for each in writer.batches]
    head = _WRITER.pack(len(writer_id), len(fields) | flag, writer.last_sequence)
    return head + writer_id + b"".join([form.pack(*each) for each in fields])


def _has_digests(writer: WriterState) -> bool:
    return any(each.digest for each in writer.batches)


def decode_writer(data: bytes, position: int) -> tuple[WriterState, int]:
    """Return the writer at `position`, and the position behind it. Raises LogCorruptionError."""
    id_length, batch_count, last_sequence = unpack_at(_WRITER, data, position)
    form = _BATCH_WITH_DIGEST if batch_count & _HAS_DIGESTS else _BATCH
    start = position + _WRITER.size + id_length
    end = start + (batch_count & ~_HAS_DIGESTS) * form.size
    if end > len(data):
        raise LogCorruptionError("a list of writers is cut off")
    writer_id = _decode_id(data[start - id_length : start])
    batches = [NumberedBatch(*each) for each in form.iter_unpack(data[start:end])]
    known = [
        each._replace(digest=b"") if each.digest == _UNKNOWN_DIGEST else each for each in batches
    ]
    return WriterState(writer_id, last_sequence, tuple(known)), end


def _decode_id(encoded: bytes) -> str:
    try:
        return encoded.decode("ascii")
    except UnicodeDecodeError as error:
        raise LogCorruptionError("the id of a writer is not ASCII") from error
