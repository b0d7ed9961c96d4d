"""One batch after the other from an open segment file of a range server on this machine.

Read local_log.py first. A batch is read whole and compared with its checksum. Or, if only some
columns are wanted, the bytes of these alone are read, and only the head if no row is. The checksum
is that of the whole batch, so it cannot be compared then; those of headers and statistics are, the
front is compared with the place, and what was read is validated when it is decoded. Other bits that
rot are found by the server, which reads all of its log from time to time
(rangeserver/replicating/scrubbing.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np

from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.record_sizes import LARGEST
from sbp_core.records import (
    FRONT_BYTES,
    NO_SELECTION,
    BatchExtent,
    Selection,
    known_front,
    write_base_offset,
)
from sbp_core.segment_format import (
    ENTRY_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    EntryHeader,
    EntryKind,
    decode_entry_header,
    decode_segment_header,
)
from sbp_core.wire.headers import BatchPlace

_PREFIX_BYTES_MAX: Final = 255
"""A staged batch has its transaction id in front."""


def checked_place(place: BatchPlace) -> BatchPlace:
    """Return a place when it is its turn. Raises LogError if no batch can be there."""
    is_inside = 0 <= place.segment <= place.position - SEGMENT_HEADER_BYTES
    has_length = place.length <= LARGEST.frame_bytes and batch_bytes(place) > 0
    if is_inside and has_length and 0 <= place.prefix_length <= _PREFIX_BYTES_MAX:
        return place
    raise LogError("the server named places that no batches can be at")


def check_segment(descriptor: int, segment: int, generation: int) -> None:
    """Raise LogError unless a file is this generation of the segment that starts there."""
    header = decode_segment_header(os.pread(descriptor, SEGMENT_HEADER_BYTES, 0), segment)
    if header.generation != generation:
        raise LogError(f"the segment at position {segment} was rewritten since the answer")


def read_piece(
    descriptor: int,
    range_key: tuple[int, int],
    places: Sequence[BatchPlace],
    selection: Selection,
) -> memoryview:
    """Read batches of a range one behind the other.

    Raises OSError, LogError, RecordBatchError.
    """
    if selection != NO_SELECTION:
        reads = [_read_selected(descriptor, range_key, each, selection) for each in places]
        return reads[0] if len(reads) == 1 else memoryview(b"".join(reads))
    payload = np.empty(sum(map(batch_bytes, places)), np.uint8).data
    end = 0
    for place in places:
        start, end = end, end + batch_bytes(place)
        _read_batch(descriptor, range_key, place, payload[start:end])
    return payload


def _read_batch(
    descriptor: int, range_key: tuple[int, int], place: BatchPlace, batch: memoryview
) -> None:
    """Read one batch into `batch`. Raises OSError, LogError."""
    front = bytearray(ENTRY_HEADER_BYTES + place.prefix_length)
    _fill(descriptor, place, 0, front, batch)
    header = _checked_header(front[:ENTRY_HEADER_BYTES], range_key, place)
    header.check_body(front[ENTRY_HEADER_BYTES:], batch)
    if place.prefix_length:
        write_base_offset(batch, place.base_offset)


def _read_selected(
    descriptor: int,
    range_key: tuple[int, int],
    place: BatchPlace,
    selection: Selection,
) -> memoryview:
    """Return a batch with the columns that are wanted, or its head if it is skipped; else whole.

    Raises OSError, LogError, RecordBatchError.
    """
    size_bytes = batch_bytes(place)
    before_bytes = place.length - size_bytes
    known = memoryview(bytearray(min(place.length, before_bytes + FRONT_BYTES)))
    _fill(descriptor, place, 0, known)
    _checked_header(known[:ENTRY_HEADER_BYTES], range_key, place)

    def read(start: int, end: int) -> memoryview:
        part = memoryview(bytearray(end - start))
        _fill(descriptor, place, before_bytes + start, part)
        return part

    front = known_front(known[before_bytes:], size_bytes, read)
    extent = BatchExtent(place.base_offset, place.record_count, size_bytes)
    cut = selection.maybe_cut(front, extent)
    if cut is None:
        whole = np.empty(size_bytes, np.uint8).data
        _read_batch(descriptor, range_key, place, whole)
        return whole
    batch = np.empty(cut.size_bytes, np.uint8).data
    at = len(cut.head)
    batch[:at] = cut.head
    for start, end in cut.runs:
        _fill(descriptor, place, before_bytes + start, batch[at : at + end - start])
        at += end - start
    return batch


def _fill(
    descriptor: int, place: BatchPlace, skipped_bytes: int, *parts: bytearray | memoryview
) -> None:
    """Fill buffers with an entry from its byte `skipped_bytes` on. Raises OSError, LogError."""
    position = place.position - place.segment + skipped_bytes
    if os.preadv(descriptor, parts, position) != sum(map(len, parts)):
        raise LogCorruptionError(f"the file ends within the batch at position {place.position}")


def _checked_header(
    data: bytes | bytearray | memoryview, range_key: tuple[int, int], place: BatchPlace
) -> EntryHeader:
    """Return the header of an entry. Raises LogError if another entry is there."""
    header = decode_entry_header(bytes(data), place.position)
    kind = EntryKind.STAGED if place.prefix_length else EntryKind.BATCH
    found = header.kind, header.stream_id, header.range_index, header.record_count, header.length
    if found != (kind, *range_key, place.record_count, place.length):
        raise LogCorruptionError(f"another entry is at position {place.position}")
    if not place.prefix_length and header.base_offset != place.base_offset:
        raise LogCorruptionError(f"a batch of other offsets is at position {place.position}")
    return header


def in_pieces(places: Iterable[BatchPlace], bytes_max: int) -> Iterator[tuple[BatchPlace, ...]]:
    """Yield the places of as many batches at a time as have `bytes_max` bytes, at least one."""
    piece: list[BatchPlace] = []
    piece_bytes = 0
    for place in places:
        piece_bytes += batch_bytes(place)
        if piece and piece_bytes > bytes_max:
            yield tuple(piece)
            piece, piece_bytes = [], batch_bytes(place)
        piece.append(place)
    if piece:
        yield tuple(piece)


def batch_bytes(place: BatchPlace) -> int:
    """Return the bytes of a batch, without what the log writes in front."""
    return place.length - ENTRY_HEADER_BYTES - place.prefix_length
