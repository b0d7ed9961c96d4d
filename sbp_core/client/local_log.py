"""Record batches out of the log of a range server on this machine, past the server.

A server that is asked by a reader on its own machine says where large batches are. What is read
there is what the server would have read: each batch has a checksum, which covers its stream and
its place as well, and the log is that server's, as its folder holds the instance that the answer
names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final

import numpy as np

from sbp_core import limits
from sbp_core.errors import LogCorruptionError, LogError
from sbp_core.log.entry import ENTRY_HEADER_BYTES, EntryKind, decode_entry_header
from sbp_core.log.files import (
    INSTANCE_NAME,
    SEGMENT_HEADER_BYTES,
    decode_segment_header,
    segment_path,
)
from sbp_core.records import write_base_offset
from sbp_core.wire.headers import BatchPlace

CAN_READ: Final = hasattr(os, "preadv")
"""Whether this system has what it takes."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK if CAN_READ else 0
"""No file that is none keeps who opens it waiting."""
_INSTANCE_BYTES_MAX: Final = 64
_FILE_OF: Final = attrgetter("segment", "generation")


@dataclass(frozen=True, slots=True)
class PlacedBatches:
    """Batches of one stream, in the order of their offsets, in the log in `directory`."""

    directory: str
    instance: str
    stream_id: int
    places: tuple[BatchPlace, ...]

    @property
    def length_bytes(self) -> int:
        """Octets of the batches."""
        return sum(map(_batch_bytes, self.places))


class LocalReads:
    """Which servers are asked for places: those whose files could be read, as far as is known."""

    def __init__(self, pause_ms: float) -> None:
        self._pause_ms = pause_ms
        self._off_until_ms: dict[str, float] = {}

    def takes_places(self, endpoint: str, now_ms: float) -> bool:
        """Whether places will do in the answer of a server."""
        return now_ms >= self._off_until_ms.get(endpoint, now_ms)

    def on_failure(self, endpoint: str, now_ms: float) -> None:
        """Take what a server itself reads, for a while."""
        self._off_until_ms[endpoint] = now_ms + self._pause_ms


def read_placed(placed: PlacedBatches) -> memoryview:
    """Return the batches, one behind the other, checked, with the offsets that they have.

    Raises OSError where the files cannot be opened, and LogError where they are another server's,
    or the batches are not there: both may have changed since the answer.
    """
    directory = Path(placed.directory)
    if not directory.is_absolute() or "\0" in placed.directory:
        raise LogError(f"the server told of a log in {placed.directory!r:.100}")
    if not all(map(_is_possible, placed.places)) or placed.length_bytes > limits.FRAME_BYTES_MAX:
        raise LogError("the server told of places that no batches can be at")
    with _opened(directory / INSTANCE_NAME) as descriptor:
        instance = os.read(descriptor, _INSTANCE_BYTES_MAX)
    if instance != placed.instance.encode("ascii", "replace"):
        raise LogError(f"{directory} is the log of another server, or of an earlier start of it")
    payload = np.empty(placed.length_bytes, np.uint8).data
    end = 0
    for (segment, generation), places in groupby(placed.places, _FILE_OF):
        with _opened(segment_path(directory, segment)) as descriptor:
            _check_segment(descriptor, segment, generation)
            for place in places:
                start, end = end, end + _batch_bytes(place)
                _read_batch(descriptor, placed.stream_id, place, payload[start:end])
    return payload


def _is_possible(place: BatchPlace) -> bool:
    return place.prefix_length >= 0 and _batch_bytes(place) > 0


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """Open a file while the body runs. Raises OSError."""
    descriptor = os.open(path, _FLAGS)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _batch_bytes(place: BatchPlace) -> int:
    return place.length - ENTRY_HEADER_BYTES - place.prefix_length


def _check_segment(descriptor: int, segment: int, generation: int) -> None:
    """Raise LogError unless a file is this generation of the segment that starts there."""
    header = decode_segment_header(os.pread(descriptor, SEGMENT_HEADER_BYTES, 0), segment)
    if header.generation != generation:
        raise LogError(f"the segment at position {segment} was rewritten meanwhile")


def _read_batch(descriptor: int, stream_id: int, place: BatchPlace, batch: memoryview) -> None:
    """Read one batch into `batch`. Raises OSError, LogError."""
    front = bytearray(ENTRY_HEADER_BYTES + place.prefix_length)
    read_bytes = os.preadv(descriptor, [front, batch], place.position - place.segment)
    if read_bytes != place.length:
        raise LogCorruptionError(f"the file ends within the batch at position {place.position}")
    header = decode_entry_header(front[:ENTRY_HEADER_BYTES], place.position)
    kind = EntryKind.STAGED if place.prefix_length else EntryKind.BATCH
    found = header.kind, header.stream_id, header.record_count, header.length
    if found != (kind, stream_id, place.record_count, place.length):
        raise LogCorruptionError(f"another entry is at position {place.position}")
    header.check_body(front[ENTRY_HEADER_BYTES:], batch)
    if place.prefix_length:
        write_base_offset(batch, place.base_offset)
    elif header.base_offset != place.base_offset:
        raise LogCorruptionError(f"a batch of other offsets is at position {place.position}")
