"""The streams of a query as they were at one moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sbp_core.client import AwayRange, StreamBounds, StreamInfo
from sbp_spark.reading.stream_position import StreamPosition


@dataclass(frozen=True)
class Snapshot:
    """The streams of a query as they were at one moment, by id.

    Where range servers were away, `away` has their ranges, in order, and `stalled` the time since
    when, in ms (UTC). The bound of a stream whose tail is not known for that ends where reading
    can go; one that was not read yet has none.
    """

    streams: Mapping[int, StreamInfo] = field(default_factory=dict)
    bounds: Mapping[int, StreamBounds] = field(default_factory=dict)
    away: Mapping[int, tuple[AwayRange, ...]] = field(default_factory=dict)
    stalled: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def tails(self) -> dict[int, int]:
        """The next offset to be written of each stream."""
        return {stream_id: bound.next_offset for stream_id, bound in self.bounds.items()}

    def positions(self) -> dict[int, StreamPosition]:
        """Return where a query would be that has read everything."""
        return {
            stream_id: StreamPosition(stream_id, self.streams[stream_id].created_at_ms, tail)
            for stream_id, tail in self.tails.items()
        }

    def only(self, stream_ids: Collection[int]) -> Snapshot:
        """Return it without other streams; itself if there are none."""
        if all(each in stream_ids for each in self.streams):
            return self
        return Snapshot(
            {each: info for each, info in self.streams.items() if each in stream_ids},
            {each: bound for each, bound in self.bounds.items() if each in stream_ids},
            {each: away for each, away in self.away.items() if each in stream_ids},
            {each: since_ms for each, since_ms in self.stalled.items() if each in stream_ids},
        )

    def is_tail_known(self, stream_id: int) -> bool:
        """Whether the server of the stream's open range has said where the stream ends."""
        away = self.away.get(stream_id, ())
        return not away or away[-1].end_offset is not None

    def maybe_upto(self, stream_id: int, start_offset: int) -> int | None:
        """Return how far one can read from `start_offset`; None if no server away is in the way."""
        for piece in self.away.get(stream_id, ()):
            if piece.end_offset is None or piece.end_offset > start_offset:
                return max(piece.start_offset, start_offset)
        return None


def is_plausible(snapshot: Snapshot, known: Mapping[int, int]) -> bool:
    """Whether all streams are there, as far as they were read."""
    return all(snapshot.tails.get(each, -1) >= offset for each, offset in known.items())
