"""Record batches out of the log of a range server on this machine, past the server.

A server that is asked by a reader on its own machine says where large batches are. What is read
there is what the server would have read: each batch has a checksum, which covers its stream and
its place as well, and the log is that server's, as its folder holds the instance that the answer
names.

A server could name the log of somebody else. So a folder is opened only if the connection goes to
this machine, if the file `instance` in it names the cluster whose placement driver the client
asks, and if it is the first folder that this server named. No link is followed on the way, and
nothing but regular files is opened. Where any of that fails the server sends the batches.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from sbp_core import limits
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
_LOG: Final = logging.getLogger(__name__)
_PREFIX_BYTES_MAX: Final = 255
"""Of what was staged, the id in front of the batch."""
_FILE_OF: Final = attrgetter("segment", "generation")


@dataclass(frozen=True, slots=True)
class PlacedBatches:
    """Batches of one range, in the order of their offsets, in the log in `directory`.

    The server at `endpoint` told of them.
    """

    endpoint: str
    directory: str
    instance: str
    stream_id: int
    range_index: int
    places: tuple[BatchPlace, ...]
    cluster_id: str = ""
    """What the log must be of: the client's cluster, "" before that is known."""

    @property
    def length_bytes(self) -> int:
        """Octets of the batches."""
        return sum(map(_batch_bytes, self.places))

    @property
    def start_offset(self) -> int:
        """Offset of the first record."""
        return self.places[0].base_offset

    @property
    def end_offset(self) -> int:
        """Offset behind the last record."""
        return _end_offset(self.places[-1])

    def up_to(self, bytes_max: int) -> PlacedBatches:
        """Return as many of the first batches as have `bytes_max` octets together, at least one."""
        return replace(self, places=next(_pieces(self.places, bytes_max)))


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What the client knows of a server by itself, not by what that says of itself.

    `is_on_this_machine`: by the address that the connection goes to. `maybe_cluster_id`: that of
    the placement driver which named the server.
    """

    is_on_this_machine: bool
    maybe_cluster_id: str | None


class LocalReads:
    """Which servers are asked for places, and which places are read.

    Asked are those whose files could be read so far. Threads may share it.
    """

    def __init__(self, pause_ms: float) -> None:
        self._pause_ms = pause_ms
        self._off_until_ms: dict[str, float] = {}
        self._directories: dict[tuple[str, str], str] = {}
        """By server and cluster: the folder that it named first."""

    def maybe_admitted(
        self, placed: PlacedBatches, whereabouts: Whereabouts
    ) -> PlacedBatches | None:
        """Return the batches with the cluster that their log must be of, None to open nothing."""
        cluster_id = whereabouts.maybe_cluster_id
        reason = None
        if not whereabouts.is_on_this_machine:
            reason = "it is not on this machine, by the address of the connection"
        elif not cluster_id:
            reason = "its placement driver names no cluster"
        else:
            key = placed.endpoint, cluster_id
            known = self._directories.setdefault(key, placed.directory)
            if known != placed.directory:
                reason = f"it named {known!r:.200} before"
        if reason is None:
            return replace(placed, cluster_id=cluster_id or "")
        _LOG.debug(
            "the log %.200r that the server at %s names is not opened: %s",
            placed.directory,
            placed.endpoint,
            reason,
        )
        return None

    def takes_places(self, endpoint: str, now_ms: float) -> bool:
        """Whether places will do in the answer of a server."""
        return now_ms >= self._off_until_ms.get(endpoint, now_ms)

    def on_failure(self, endpoint: str, now_ms: float) -> None:
        """Take what a server itself reads, for a while."""
        self._off_until_ms[endpoint] = now_ms + self._pause_ms


READ_ERRORS: Final = (OSError, LogError, RecordBatchError, ValueError, OverflowError, MemoryError)
"""What reading raises: of the system, of what is found, and for places that there cannot be."""


class PlacedPiece(NamedTuple):
    """Batches that were read, one behind the other, and the offset behind the last of them."""

    payload: memoryview
    end_offset: int


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
            for piece in _pieces(places, piece_bytes):
                payload = _read_piece(descriptor, range_key, piece)
                yield PlacedPiece(payload, _end_offset(piece[-1]))


def _pieces(places: Iterable[BatchPlace], bytes_max: int) -> Iterator[tuple[BatchPlace, ...]]:
    """Yield the places of as many batches at a time as have so many octets, at least one."""
    piece: list[BatchPlace] = []
    piece_bytes = 0
    for place in places:
        piece_bytes += _batch_bytes(place)
        if piece and piece_bytes > bytes_max:
            yield tuple(piece)
            piece, piece_bytes = [], _batch_bytes(place)
        piece.append(place)
    if piece:
        yield tuple(piece)


def _end_offset(place: BatchPlace) -> int:
    return place.base_offset + place.record_count


def _is_possible(place: BatchPlace) -> bool:
    is_inside = 0 <= place.segment <= place.position - SEGMENT_HEADER_BYTES
    has_length = place.length <= limits.ENTRY_BYTES_MAX and _batch_bytes(place) > 0
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


def _batch_bytes(place: BatchPlace) -> int:
    return place.length - ENTRY_HEADER_BYTES - place.prefix_length


def _check_segment(descriptor: int, segment: int, generation: int) -> None:
    """Raise LogError unless a file is this generation of the segment that starts there."""
    header = decode_segment_header(os.pread(descriptor, SEGMENT_HEADER_BYTES, 0), segment)
    if header.generation != generation:
        raise LogError(f"the segment at position {segment} was rewritten meanwhile")


def _read_piece(
    descriptor: int, range_key: tuple[int, int], places: Sequence[BatchPlace]
) -> memoryview:
    """Read batches of a range one behind the other. Raises OSError, LogError."""
    payload = np.empty(sum(map(_batch_bytes, places)), np.uint8).data
    end = 0
    for place in places:
        start, end = end, end + _batch_bytes(place)
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
