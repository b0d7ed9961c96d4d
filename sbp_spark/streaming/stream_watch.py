"""The streams of a query and their bounds, looked at for each micro-batch at little cost.

`StreamWatch.look` returns a `Snapshot`. With the option maxRangeStall, `Stalls` decides how long a
look waits for range servers that are down, and when they are asked again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from sbp_core.client import (
    BoundsView,
    Client,
    FetchItem,
    RangeInfo,
    Reach,
    StreamBounds,
    StreamInfo,
    UnavailableRange,
)
from sbp_core.errors import NotFoundError, SbpError
from sbp_spark.client_pool import Patience, client_for
from sbp_spark.options.source import SourceOptions
from sbp_spark.options.stream_selection import FoundStream, StreamList, StreamPattern, find_ids
from sbp_spark.reading.losses import DOUBT_WAITS_S
from sbp_spark.reading.offsets import StreamPosition
from sbp_spark.reading.source_streams import StreamKinds, find_matching, maybe_kinds, select_streams
from sbp_spark.streaming.stalls import Stalls

IDLE_WAIT_MS: Final = 500
"""How long range servers are asked to wait for the next record of any stream: other sources of the
query are looked at after that."""
_IDLE_PAUSE_S: Final = 0.1
"""The pause between looks where they cannot be asked to wait."""
_AWAITED_MAX: Final = 1_000
"""More streams are not waited for: the servers would have to look at all of them."""


@dataclass(frozen=True)
class Snapshot:
    """The streams of a query as they were at one moment, by id.

    If range servers were down, `away` has their ranges, in order, and `stalled` the time since
    when, in ms (UTC). The bounds of a stream whose tail is not known end where reading can go. A
    stream whose tail is not known and that was never read has no bounds.
    """

    streams: Mapping[int, StreamInfo] = field(default_factory=dict)
    bounds: Mapping[int, StreamBounds] = field(default_factory=dict)
    away: Mapping[int, tuple[UnavailableRange, ...]] = field(default_factory=dict)
    stalled: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def tails(self) -> dict[int, int]:
        """The next offset to be written of each stream."""
        return {stream_id: bound.next_offset for stream_id, bound in self.bounds.items()}

    def positions(self) -> dict[int, StreamPosition]:
        """Return the position of a query that has read everything."""
        return {
            stream_id: StreamPosition(stream_id, self.streams[stream_id].created_at_ms, tail)
            for stream_id, tail in self.tails.items()
        }

    def only(self, stream_ids: Collection[int]) -> Snapshot:
        """Return the snapshot without other streams; itself if there are no others."""
        if all(each in stream_ids for each in self.streams):
            return self
        return Snapshot(
            {each: info for each, info in self.streams.items() if each in stream_ids},
            {each: bound for each, bound in self.bounds.items() if each in stream_ids},
            {each: away for each, away in self.away.items() if each in stream_ids},
            {each: since_ms for each, since_ms in self.stalled.items() if each in stream_ids},
        )

    def is_tail_known(self, stream_id: int) -> bool:
        """Whether the server of the stream's open range has reported the end of the stream."""
        away = self.away.get(stream_id, ())
        return not away or away[-1].end_offset is not None

    def maybe_upto(self, stream_id: int, start_offset: int) -> int | None:
        """Return how far one can read from `start_offset`; None if all servers needed are up."""
        for piece in self.away.get(stream_id, ()):
            if piece.end_offset is None or piece.end_offset > start_offset:
                return max(piece.start_offset, start_offset)
        return None


def is_plausible(snapshot: Snapshot, known: Mapping[int, int]) -> bool:
    """Whether each stream exists and reaches the offset up to which it was read."""
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
        """Return the snapshot of the plain streams and of `known`, which were read before.

        The result is the same object as long as `seen` is. Raises SbpError.
        """
        if seen is self._seen and known.keys() <= self._shown.streams.keys():
            return self._shown
        empty = {each for each, tail in seen.tails.items() if tail == 0}
        unsure = [each for each in seen.streams if each not in known and each not in empty]
        typed = self._kinds.find_typed(client, unsure)
        plain = {each for each in unsure if each not in typed}
        self._seen, self._shown = seen, seen.only(known.keys() | plain)
        return self._shown


class StreamWatch:
    """The streams that a query selects, including streams that were created since it began.

    Streams are listed again only when the placement driver's metadata have another revision than
    last time, or when it counts no revisions. A stream that options name is found by its name
    once, and stays selected when it is renamed. Only when it is gone, the name is looked up again.
    """

    def __init__(
        self, options: SourceOptions, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._options = options
        self._sleep = sleep
        stall_ms_max = options.limits.stall_ms_max
        self._stalls = None if stall_ms_max is None else Stalls(stall_ms_max, sleep=sleep)
        self._kinds = kinds = maybe_kinds(options)
        is_held_back = kinds is not None and not kinds.is_typed_wanted
        self._plain = PlainStreams(kinds) if kinds is not None and is_held_back else None
        self._streams: Mapping[int, StreamInfo] | None = None
        self._found: dict[str, FoundStream] = {}
        self._matching: Mapping[int, StreamInfo] = {}
        self._revision: int | None = None
        self._view: BoundsView | None = None
        self._last = Snapshot()

    @property
    def client(self) -> Client:
        """A client that waits out an outage of the servers."""
        return client_for(self._options.servers, Patience.RUNNING)

    @property
    def looking(self) -> Client:
        """A client that waits out a restart of the servers: without an answer, others are read."""
        return client_for(self._options.servers, Patience.LOOKING)

    @property
    def revision(self) -> int | None:
        """The revision of the metadata in which the streams were found last, if there is one."""
        return self._revision

    def streams(self) -> Mapping[int, StreamInfo]:
        """Return the streams by id, as they are now. Deleted streams are left out.

        Raises SbpError, the first time also if a named stream does not exist.
        """
        if self._streams is None:
            self._streams = select_streams(self._options)
            if isinstance(self._options.selection, StreamList):
                refs = zip(self._options.selection.refs, self._streams.values(), strict=True)
                self._found = {ref.text: FoundStream.of(info) for ref, info in refs}
            return self._streams
        since = -1 if self._revision is None else self._revision
        changes = self.client.metadata_changes(since)
        if changes is None or changes.revision != since:
            self._streams = self._select_again(self._streams, changes and changes.stream_ids)
            self._revision = changes and changes.revision
        elif self._kinds is not None and self._kinds.is_open:
            self._streams = self._kinds.select_again(self.client)
        return self._streams

    def maybe_ranges(self, stream_ids: Sequence[int]) -> Mapping[int, Sequence[RangeInfo]] | None:
        """Return the ranges as the last look has seen them; None if they have to be asked for.

        The placement driver is asked only for streams whose ranges have moved since.
        """
        try:
            return self.looking.list_ranges(stream_ids, as_of=self._revision)
        except SbpError as error:
            if not error.retriable:
                raise
            return None  # the caller asks with more patience

    def wait_for_news(self, snapshot: Snapshot) -> None:
        """Wait until a stream has records behind its tail in a snapshot, but not for long.

        While a server is down, no server is asked to wait: that would delay news of the others.
        """
        items = [FetchItem(each, tail, None, 1) for each, tail in snapshot.tails.items()]
        if 0 < len(items) <= _AWAITED_MAX and not snapshot.away:
            client = client_for(self._options.servers, Patience.STARTING)
            with closing(client.fetch(items, max_wait_ms=IDLE_WAIT_MS)) as outcomes:
                first = next((each for each in outcomes if each.error or each.size_bytes), None)
            if first is None or first.error is None:
                return
        self._sleep(_IDLE_PAUSE_S)

    def look(
        self, known: Mapping[int, int] | None = None, *, believed: Snapshot | None = None
    ) -> Snapshot:
        """Return the streams and their bounds as they are now.

        `known` maps streams to the offsets up to which they were read. Metadata may lag, so a
        snapshot without one of these streams, or with an earlier tail, counts only if several looks
        show the same. `believed` is a snapshot that was plausible for `known`; if nothing has
        changed since, the same object is returned. Raises SbpError.
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
        return seen if self._plain is None else self._plain.show(self.client, seen, known)

    def _see(self, known: Mapping[int, int]) -> Snapshot:
        if self._stalls is None:
            try:
                streams, view = self._watch_bounds()
            except SbpError as error:
                if not error.retriable or not self._last.streams:
                    raise
                self._stalls = Stalls(0, sleep=self._sleep)  # it was waited for already
            else:
                if streams is not self._last.streams or view.bounds is not self._last.bounds:
                    self._last = Snapshot(streams, view.bounds)
                return self._last
        streams, stalls = self.streams(), self._stalls
        found = stalls.reach(self.looking, streams, known)
        away = {each: at.unavailable for each, at in found.items() if at.unavailable}
        if not away and self._options.limits.stall_ms_max is None:
            self._stalls = None
        return Snapshot(
            streams,
            {each: bound for each, at in found.items() if (bound := _maybe_bound(at, known))},
            away,
            {each: stalls.since_ms(found[each]) for each in away},
        )

    def _watch_bounds(self) -> tuple[Mapping[int, StreamInfo], BoundsView]:
        """Return the streams and their bounds.

        The placement driver is asked once. Only if its metadata have another revision than when
        the streams were found, it is asked which streams have changed.
        """
        known, view = self._streams, None
        may_become_typed = self._kinds is not None and self._kinds.is_open
        if known is not None and self._is_current(self._view) and not may_become_typed:
            view = self._view = self.looking.watch_bounds(tuple(known), self._view)
            if self._is_current(view):
                return known, view
        streams = self.streams()
        if view is None or streams is not known or not self._is_current(view):
            view = self._view = self.looking.watch_bounds(tuple(streams), self._view)
        return streams, view

    def _is_current(self, view: BoundsView | None) -> bool:
        """Whether bounds are of the metadata in which the streams were found last."""
        return view is not None and view.revision is not None and view.revision == self._revision

    def _select_again(
        self, known: Mapping[int, StreamInfo], changed: Collection[int] | None
    ) -> Mapping[int, StreamInfo]:
        """Return the streams that are selected now, the same object if they are equal to `known`.

        Only streams in `changed` have changed; None: any stream may have changed.
        """
        selection = self._options.selection
        if isinstance(selection, StreamPattern):
            self._matching = self._match_again(selection, changed)
            if self._kinds is not None:
                return self._kinds.select(self.client, self._matching)
            return known if self._matching == known else self._matching
        found = {each.stream_id: each for each in self._found.values()}
        if changed is None or found.keys() != known.keys():  # one may be created again
            asked = set(found)
        else:
            asked = found.keys() & changed
        news = {info.stream_id: info for info in self._find(asked)}
        if any(each not in news or FoundStream.of(news[each]) != found[each] for each in asked):
            there = {each.stream_id: each for each in self.client.list_streams()}
            ids = find_ids(there.values(), self._found)
            again = {text: there[ids[text]] for text in self._found if text in ids}
            self._found |= {text: FoundStream.of(info) for text, info in again.items()}
            return {info.stream_id: info for info in again.values()}
        infos = {**known, **news}
        return known if infos == known else infos

    def _match_again(
        self, pattern: StreamPattern, changed: Collection[int] | None
    ) -> Mapping[int, StreamInfo]:
        """Return the streams that match now, by id."""
        if changed is None:
            return find_matching(self.client, pattern)
        kept = {each: info for each, info in self._matching.items() if each not in changed}
        news = self._find(changed)
        kept |= {info.stream_id: info for info in news if pattern.matches(info.name)}
        return dict(sorted(kept.items()))

    def _find(self, stream_ids: Collection[int]) -> list[StreamInfo]:
        """Return the streams that exist."""
        return self.client.find_streams(sorted(stream_ids)) if stream_ids else []


def _maybe_bound(at: Reach, known: Mapping[int, int]) -> StreamBounds | None:
    if at.next_offset is not None:
        return StreamBounds(at.stream_id, at.start_offset, at.next_offset)
    if at.stream_id not in known:
        return None
    upto = max(known[at.stream_id], at.unavailable[-1].start_offset)
    return StreamBounds(at.stream_id, at.start_offset, upto)
