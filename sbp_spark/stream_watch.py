"""Looking at the streams of a running query, again and again, for as little as it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sbp_core.client import Client, StreamBounds, StreamInfo
from sbp_core.errors import NotFoundError
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.offsets import StreamPosition
from sbp_spark.options import Selection, SourceOptions, StreamPattern
from sbp_spark.source_streams import select_streams, wanted


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The streams of a query as they were at one moment, by id."""

    streams: Mapping[int, StreamInfo] = field(default_factory=dict)
    bounds: Mapping[int, StreamBounds] = field(default_factory=dict)

    @property
    def tails(self) -> dict[int, int]:
        """The next offset to be written of each stream."""
        return {stream_id: bound.next_offset for stream_id, bound in self.bounds.items()}

    def positions(self) -> dict[int, StreamPosition]:
        """Return where a query would be that has read everything."""
        return {
            stream_id: StreamPosition(stream_id, self.streams[stream_id].created_at_ms, tail)
            for stream_id, tail in self.tails.items()
        }


class StreamWatch:
    """The streams that a query selects, with those that were created since it began.

    They are listed again only when the placement driver's metadata have another revision than
    they had the last time, or when it counts none.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._streams: dict[int, StreamInfo] | None = None
        self._revision: int | None = None

    @property
    def client(self) -> Client:
        """A client that waits out a restart of the servers."""
        return client_for(self._options.servers, Patience.RUNNING)

    def streams(self) -> Mapping[int, StreamInfo]:
        """Return the streams by id, as they are now; one that is no more is left out.

        Raises SbpError, the first time also when a stream that is named does not exist.
        """
        if self._streams is None:
            self._revision = None
            self._streams = select_streams(self._options)
            return self._streams
        revision = self.client.maybe_revision()
        if revision is None or revision != self._revision:
            self._streams = self._select_again(self._options.selection)
            self._revision = revision
        return self._streams

    def look(self) -> Snapshot:
        """Return the streams and their bounds as they are now. Raises SbpError."""
        streams = self.streams()
        try:
            bounds = self.client.stream_bounds(list(streams))
        except NotFoundError:  # deleted a moment ago
            self._revision = None
            streams = self.streams()
            bounds = self.client.stream_bounds(list(streams))
        return Snapshot(streams, {bound.stream_id: bound for bound in bounds})

    def _select_again(self, selection: Selection) -> dict[int, StreamInfo]:
        if isinstance(selection, StreamPattern):
            found = self.client.list_streams()
            return {info.stream_id: info for info in found if selection.matches(info.name)}
        try:
            infos = self.client.describe_streams(wanted(selection.refs))
        except NotFoundError:
            asked = set(wanted(selection.refs))
            infos = [
                each for each in self.client.list_streams() if asked & {each.stream_id, each.name}
            ]
        return {info.stream_id: info for info in infos}
