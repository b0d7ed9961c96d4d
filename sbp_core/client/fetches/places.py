"""Large batches in the files of a range server on the client's machine: where, and who may read.

A server that is asked by a reader on its own machine says where large batches are. A server could
name the log of somebody else. So a folder is opened only if the connection goes to this machine,
if the file `instance` in it names the cluster whose placement driver the client asks, and if it is
the first folder that this server named. Where any of that fails the server sends the batches.

Nothing here opens a file: that is io/local_log.py.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sbp_core.segment_format import ENTRY_HEADER_BYTES
from sbp_core.wire.headers import BatchPlace

_LOG: Final = logging.getLogger(__name__)


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
        """Bytes of the batches."""
        return sum(map(batch_bytes, self.places))

    @property
    def start_offset(self) -> int:
        """Offset of the first record."""
        return self.places[0].base_offset

    @property
    def end_offset(self) -> int:
        """Offset behind the last record."""
        return end_offset_of(self.places[-1])

    def up_to(self, bytes_max: int) -> PlacedBatches:
        """Return as many of the first batches as have `bytes_max` bytes together, at least one."""
        return replace(self, places=next(in_pieces(self.places, bytes_max)))


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


class PlacedPiece(NamedTuple):
    """Batches that were read, one behind the other, and the offset behind the last of them."""

    payload: memoryview
    end_offset: int


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


def end_offset_of(place: BatchPlace) -> int:
    """Return the offset behind the last record of a batch."""
    return place.base_offset + place.record_count


def batch_bytes(place: BatchPlace) -> int:
    """Return the bytes of a batch, without what the log writes in front."""
    return place.length - ENTRY_HEADER_BYTES - place.prefix_length
