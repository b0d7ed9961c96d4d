"""What a query sees of its streams: looking at them again and again, for as little as it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sbp_core.client import AwayRange, BoundsView, Client, Reach, StreamBounds, StreamInfo
from sbp_core.errors import NotFoundError
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options import (
    FoundStream,
    Selection,
    SourceOptions,
    StreamList,
    StreamPattern,
    find_ids,
)
from sbp_spark.reading.losses import DOUBT_WAITS_S
from sbp_spark.reading.source_streams import (
    StreamKinds,
    maybe_kinds,
    select_matching,
    select_streams,
)
from sbp_spark.reading.stream_position import StreamPosition
from sbp_spark.streaming.stalls import Stalls


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


class PlainStreams:
    """Holds streams back until they have records and no schema, so that these are plain.

    A query has nothing to read in a stream that is held back, and reads it from its first record.
    """

    def __init__(self, kinds: StreamKinds) -> None:
        self._kinds = kinds
        self._seen = Snapshot()
        self._shown = Snapshot()

    def show(self, client: Client, seen: Snapshot, known: Mapping[int, int]) -> Snapshot:
        """Return what is seen of plain streams, and of those that were read before, `known`.

        It is the same object as long as `seen` is. Raises SbpError.
        """
        if seen is self._seen and known.keys() <= self._shown.streams.keys():
            return self._shown
        unsure = [each for each in seen.streams if each not in known and _may_have(seen, each)]
        typed = self._kinds.find_typed(client, unsure)
        plain = {each for each in unsure if each not in typed}
        self._seen, self._shown = seen, seen.only(known.keys() | plain)
        return self._shown


def _may_have(seen: Snapshot, stream_id: int) -> bool:
    """Whether a stream has, or had, records; of one whose server is away nobody knows."""
    bound = seen.bounds.get(stream_id)
    return bound is None or bound.next_offset > 0


class StreamWatch:
    """The streams that a query selects, with those that were created since it began.

    They are listed again only when the placement driver's metadata have another revision than
    they had the last time, or when it counts none. A stream that options name is found by its name
    once: it stays selected when it is renamed. Only when it is gone its name is looked up again.
    """

    def __init__(
        self, options: SourceOptions, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._options = options
        self._sleep = sleep
        stall_ms_max = options.limits.stall_ms_max
        self._maybe_stalls = None if stall_ms_max is None else Stalls(stall_ms_max, sleep=sleep)
        self._maybe_kinds = kinds = maybe_kinds(options)
        is_held_back = kinds is not None and not kinds.is_typed_wanted
        self._maybe_plain = PlainStreams(kinds) if kinds is not None and is_held_back else None
        self._streams: Mapping[int, StreamInfo] | None = None
        self._found: dict[str, FoundStream] = {}
        self._revision: int | None = None
        self._view: BoundsView | None = None
        self._last = Snapshot()

    @property
    def client(self) -> Client:
        """A client that waits out a restart of the servers."""
        return client_for(self._options.servers, Patience.RUNNING)

    @property
    def maybe_revision(self) -> int | None:
        """The revision of the metadata in which the streams were found last, if there is one."""
        return self._revision

    def streams(self) -> Mapping[int, StreamInfo]:
        """Return the streams by id, as they are now; one that is no more is left out.

        Raises SbpError, the first time also when a stream that is named does not exist.
        """
        if self._streams is None:
            self._streams = select_streams(self._options)
            if isinstance(self._options.selection, StreamList):
                refs = zip(self._options.selection.refs, self._streams.values(), strict=True)
                self._found = {ref.text: FoundStream.of(info) for ref, info in refs}
            return self._streams
        revision = self.client.maybe_revision()
        if revision is None or revision != self._revision:
            self._streams = self._select_again(self._options.selection)
            self._revision = revision
        elif self._maybe_kinds is not None and self._maybe_kinds.is_open:
            self._streams = self._maybe_kinds.select_again(self.client)
        return self._streams

    def look(
        self, known: Mapping[int, int] | None = None, *, believed: Snapshot | None = None
    ) -> Snapshot:
        """Return the streams and their bounds as they are now.

        `known` is how far streams were read, by id. A look that lacks one of them, or shows an end
        below that, may come of metadata that lag: it is not believed before it was repeated for
        a while. `believed` was plausible for `known`; where nothing has changed since, that very
        snapshot is returned. Raises SbpError.
        """
        for wait_s in DOUBT_WAITS_S:
            try:
                snapshot = self._look_once(known or {})
            except NotFoundError:  # deleted between the questions
                snapshot = None
            if snapshot is not None and (
                snapshot is believed or is_plausible(snapshot, known or {})
            ):
                return snapshot
            self._revision = None
            self._sleep(wait_s)
        return self._look_once(known or {})

    def _look_once(self, known: Mapping[int, int]) -> Snapshot:
        seen = self._see(known)
        return (
            seen if self._maybe_plain is None else self._maybe_plain.show(self.client, seen, known)
        )

    def _see(self, known: Mapping[int, int]) -> Snapshot:
        if self._maybe_stalls is None:
            streams, view = self._watch_bounds()
            if streams is not self._last.streams or view.bounds is not self._last.bounds:
                self._last = Snapshot(streams, view.bounds)
            return self._last
        streams = self.streams()
        found = self._maybe_stalls.reach(self.client, streams, known)
        return Snapshot(
            streams,
            {each: bound for each, at in found.items() if (bound := _maybe_bound(at, known))},
            {each: at.away for each, at in found.items() if at.away},
            {each: self._maybe_stalls.since_ms(at) for each, at in found.items() if at.away},
        )

    def _watch_bounds(self) -> tuple[Mapping[int, StreamInfo], BoundsView]:
        """Return the streams and their bounds.

        As long as the metadata have the revision as of which the streams were found, so are they.
        """
        view = self._view
        if self._streams is not None and view is not None and self._is_current(view):
            view = self._view = self.client.watch_bounds(tuple(self._streams), view)
            if self._is_current(view):
                return self._streams, view
        streams = self.streams()
        self._view = self.client.watch_bounds(tuple(streams), view)
        return streams, self._view

    def _is_current(self, view: BoundsView) -> bool:
        """Whether bounds are of the metadata in which the streams were found, and they suffice.

        That a stream gets a schema does not change the revision.
        """
        if self._maybe_kinds is not None and self._maybe_kinds.is_open:
            return False
        return self._revision is not None and view.maybe_revision == self._revision

    def _select_again(self, selection: Selection) -> Mapping[int, StreamInfo]:
        if isinstance(selection, StreamPattern):
            return select_matching(self.client, selection, self._maybe_kinds)
        found = set(self._found.values())
        try:
            infos = self.client.describe_streams(sorted(each.stream_id for each in found))
        except NotFoundError:
            infos = []
        if set(map(FoundStream.of, infos)) != found:
            there = {each.stream_id: each for each in self.client.list_streams()}
            ids = find_ids(there.values(), self._found)
            again = {text: there[ids[text]] for text in self._found if text in ids}
            self._found |= {text: FoundStream.of(info) for text, info in again.items()}
            infos = list(again.values())
        return {info.stream_id: info for info in infos}


def _maybe_bound(at: Reach, known: Mapping[int, int]) -> StreamBounds | None:
    if at.next_offset is not None:
        return StreamBounds(at.stream_id, at.start_offset, at.next_offset)
    if at.stream_id not in known:
        return None
    upto = max(known[at.stream_id], at.away[-1].start_offset)
    return StreamBounds(at.stream_id, at.start_offset, upto)
