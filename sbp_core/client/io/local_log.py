"""Record batches out of the log of a range server on this machine, past the server.

What is read is what the server would have read: each batch has a checksum, which covers its stream
and its place as well, and the log is that server's, as its folder holds the instance that the
answer names. No link is followed on the way, and nothing but regular files is opened. Whose places
are read at all: see fetches/places.py.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np

from sbp_core import limits
from sbp_core.client.fetches.places import (
    PlacedBatches,
    PlacedPiece,
    batch_bytes,
    end_offset_of,
    in_pieces,
)
from sbp_core.errors import LogCorruptionError, LogError, RecordBatchError
from sbp_core.records import write_base_offset
from sbp_core.segment_format import (
    ENTRY_HEADER_BYTES,
    INSTANCE_BYTES_MAX,
    INSTANCE_NAME,
    SEGMENT_HEADER_BYTES,
    EntryKind,
    decode_entry_header,
    decode_segment_header,
    encode_instance,
    segment_name,
)
from sbp_core.wire.headers import BatchPlace

CAN_READ: Final = hasattr(os, "preadv")
"""Whether this system has what it takes."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if CAN_READ else 0
"""A FIFO does not keep the client waiting that opens it, and finds out what it is."""
_SEARCH: Final = getattr(os, "O_PATH", os.O_RDONLY)
"""Folders need not be readable for their files to be, where the system can tell."""
_FOLDER_FLAGS: Final = _SEARCH | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_DIRECTORY if CAN_READ else 0
_PREFIX_BYTES_MAX: Final = 255
"""Of what was staged, the id in front of the batch."""
_FILE_OF: Final = attrgetter("segment", "generation")
READ_ERRORS: Final = (OSError, LogError, RecordBatchError, ValueError, OverflowError, MemoryError)
"""What reading raises: of the system, of what is found, and for places that there cannot be."""


def read_placed(placed: PlacedBatches) -> memoryview:
    """Return the batches, one behind the other, checked, with the offsets that they have.

    Raises OSError where the files cannot be opened, and LogError where they are another server's,
    or the batches are not there: both may have changed since the answer.
    """
    if placed.length_bytes > limits.FRAME_BYTES_MAX:
        raise LogError("the server told of more places than were asked for")
    payloads = [piece.payload for piece in read_pieces(placed, placed.length_bytes)]
    return payloads[0] if len(payloads) == 1 else np.concatenate(payloads).data


def read_pieces(placed: PlacedBatches, piece_bytes: int) -> Iterator[PlacedPiece]:
    """Yield the batches as `read_placed` returns them, about `piece_bytes` at a time.

    A segment is open while those in it are drawn. Raises as `read_placed` does, behind what is
    well.
    """
    if not placed.instance.isalnum() or not placed.instance.isascii():
        raise LogError(f"the server told of {placed.instance!r:.100} as what its log is")
    if not Path(placed.directory).is_absolute() or "\0" in placed.directory:
        raise LogError(f"the server told of a log in {placed.directory!r:.100}")
    if not all(map(_is_possible, placed.places)):
        raise LogError("the server told of places that no batches can be at")
    with _opened_folder(Path(placed.directory)) as folder:
        yield from _read_in_folder(folder, placed, piece_bytes)


def _read_in_folder(folder: int, placed: PlacedBatches, piece_bytes: int) -> Iterator[PlacedPiece]:
    with _opened(INSTANCE_NAME, folder) as descriptor:
        found = os.read(descriptor, INSTANCE_BYTES_MAX)
    if found != encode_instance(placed.instance, placed.cluster_id):
        raise LogError(
            f"{placed.directory} is the log of another server or cluster, or of another start of"
            " the server"
        )
    range_key = placed.stream_id, placed.range_index
    for (segment, generation), places in groupby(placed.places, _FILE_OF):
        with _opened(segment_name(segment), folder) as descriptor:
            _check_segment(descriptor, segment, generation)
            for piece in in_pieces(places, piece_bytes):
                payload = _read_piece(descriptor, range_key, piece)
                yield PlacedPiece(payload, end_offset_of(piece[-1]))


def _is_possible(place: BatchPlace) -> bool:
    is_inside = 0 <= place.segment <= place.position - SEGMENT_HEADER_BYTES
    has_length = place.length <= limits.ENTRY_BYTES_MAX and batch_bytes(place) > 0
    return is_inside and has_length and 0 <= place.prefix_length <= _PREFIX_BYTES_MAX


@contextmanager
def _opened_folder(path: Path) -> Iterator[int]:
    """Open a folder while the body runs, without following a link. Raises OSError."""
    descriptor = os.open(path.anchor, _FOLDER_FLAGS)
    try:
        for name in path.parts[1:]:
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened(name: str, folder: int) -> Iterator[int]:
    """Open a regular file in a folder while the body runs. Raises OSError, LogError."""
    descriptor = os.open(name, _FLAGS, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise LogError(f"{name} in the folder that the server told of is no regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _check_segment(descriptor: int, segment: int, generation: int) -> None:
    """Raise LogError unless a file is this generation of the segment that starts there."""
    header = decode_segment_header(os.pread(descriptor, SEGMENT_HEADER_BYTES, 0), segment)
    if header.generation != generation:
        raise LogError(f"the segment at position {segment} was rewritten meanwhile")


def _read_piece(
    descriptor: int, range_key: tuple[int, int], places: Sequence[BatchPlace]
) -> memoryview:
    """Read batches of a range one behind the other. Raises OSError, LogError."""
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
    read_bytes = os.preadv(descriptor, [front, batch], place.position - place.segment)
    if read_bytes != place.length:
        raise LogCorruptionError(f"the file ends within the batch at position {place.position}")
    header = decode_entry_header(front[:ENTRY_HEADER_BYTES], place.position)
    kind = EntryKind.STAGED if place.prefix_length else EntryKind.BATCH
    found = header.kind, header.stream_id, header.range_index, header.record_count, header.length
    if found != (kind, *range_key, place.record_count, place.length):
        raise LogCorruptionError(f"another entry is at position {place.position}")
    header.check_body(front[ENTRY_HEADER_BYTES:], batch)
    if place.prefix_length:
        write_base_offset(batch, place.base_offset)
    elif header.base_offset != place.base_offset:
        raise LogCorruptionError(f"a batch of other offsets is at position {place.position}")
