"""The backlog of a query: the records between what it has read and where it may read to.

The backlog follows from the checkpoint's offset, the options, and a snapshot of the streams. Range
servers are asked for times that options name, and the placement driver for cursors of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sbp_core.client import Client
from sbp_core.wording import listed
from sbp_spark.options.read_positions import Ago, AtCursor, AtTime, Position, Positions
from sbp_spark.options.source import SourceOptions
from sbp_spark.options.stream_selection import StreamPattern
from sbp_spark.reading.locating import (
    check_ends,
    find_times,
    is_moving,
    locate,
    positions_of,
    starting_offsets,
    time_of,
    wall_ms,
)
from sbp_spark.reading.losses import Loss
from sbp_spark.reading.offsets import SourceOffset, StreamPosition
from sbp_spark.reporting import LOG
from sbp_spark.streaming.stalls import answer_ms
from sbp_spark.streaming.stream_watch import Snapshot


@dataclass(frozen=True, slots=True)
class Ending:
    """Where reading ends in a stream. `offset` None: no record of the time `time_ms` exists yet.

    `kept_offset` was resolved from the tail or from `time_ms`, and does not change any more. With
    `is_hidden` a server that is down may have the end, so reading stops until the server answers.
    """

    offset: int | None = None
    kept_offset: int | None = None
    time_ms: int | None = None
    is_hidden: bool = False


NO_ENDING: Final = Ending()


def find_endings(
    client: Client,
    ending: Positions | None,
    begin: SourceOffset,
    snapshot: Snapshot,
    timeout_ms: int | None = None,
) -> dict[int, Ending]:
    """Return where reading ends, by stream id. A stream without an entry has no end.

    An end by time is the first record that was appended at the time or later. Servers are asked
    for the record until it exists, in streams with unread records only: the records that were read
    are from before the end. Each server has to answer, within `timeout_ms` if that is given. Raises
    SbpError.
    """
    if ending is None:
        return {}
    named = positions_of(ending, snapshot.streams.values())
    asked = {each: position for each, position in named.items() if each in snapshot.bounds}
    times_ms = _times(asked, begin)
    kept = {
        stream_id: at.end_offset
        for stream_id, at in begin.streams.items()
        if at.end_offset is not None and at.end_time_ms == times_ms.get(stream_id)
    }
    unknown = {each: time_ms for each, time_ms in times_ms.items() if each not in kept}
    found = _find_end_times(client, unknown, begin.next_offsets(), snapshot, timeout_ms)
    endings = {}
    for stream_id, position in asked.items():
        if isinstance(position, AtTime | Ago):
            end = kept.get(stream_id, found.get(stream_id))
            is_hidden = stream_id in unknown and stream_id not in found
            endings[stream_id] = Ending(end, end, times_ms[stream_id], is_hidden)
            continue
        assert not isinstance(position, AtCursor), "no option ends at a cursor"
        end = locate(position, snapshot.bounds[stream_id])
        if not is_moving(position):
            endings[stream_id] = Ending(end)
        elif stream_id in kept or snapshot.is_tail_known(stream_id):
            end = kept.get(stream_id, end)
            endings[stream_id] = Ending(end, end)
    return endings


def _find_end_times(
    client: Client,
    times_ms: Mapping[int, int],
    read_offsets: Mapping[int, int],
    snapshot: Snapshot,
    timeout_ms: int | None,
) -> dict[int, int | None]:
    """Return the first records of their times; None: no such record exists yet.

    Streams with a server that does not answer are left out, if the server may have the record.
    """
    reachable = {
        stream_id: time_ms
        for stream_id, time_ms in times_ms.items()
        if snapshot.maybe_upto(stream_id, read_offsets.get(stream_id, 0)) is None
    }
    unread = {
        stream_id: time_ms
        for stream_id, time_ms in reachable.items()
        if read_offsets.get(stream_id, -1) < snapshot.tails[stream_id]
    }
    found = find_times(
        client, unread, snapshot.bounds, read_offsets=read_offsets, timeout_ms=timeout_ms
    )
    return {each: None for each in reachable if each not in unread} | found


def _times(asked: Mapping[int, Position], begin: SourceOffset) -> dict[int, int]:
    """Return the times at which streams end, by id.

    Relative times are resolved once per query, so a stream that is added later ends at the same
    time as the others.
    """
    known = {
        stream_id: at.end_time_ms
        for stream_id, at in begin.streams.items()
        if at.end_time_ms is not None and stream_id in asked
    }
    resolved = {asked[stream_id]: time_ms for stream_id, time_ms in known.items()}
    now_ms = wall_ms()
    times_ms = {}
    for stream_id, position in asked.items():
        if isinstance(position, AtTime):
            times_ms[stream_id] = position.time_ms
        elif isinstance(position, Ago):
            new_ms = resolved.get(position, time_of(position, now_ms))
            times_ms[stream_id] = known.get(stream_id, new_ms)
    return times_ms


@dataclass(frozen=True, slots=True)
class Backlog:
    """The records ahead of a query: from `starts` to `tails` in each stream, by id.

    `bases` has the starts of streams that are new to the query. `tails` are no further than where
    reading ends, and `endings` has the ends that the next offset keeps. `losses` are trimmed
    records before `starts` that the query had to read. `stalled` maps streams that wait for a
    server to the time (ms, UTC) since when; a stream whose start is not known yet has no other
    entry here.
    """

    snapshot: Snapshot
    bases: Mapping[int, int]
    starts: Mapping[int, int]
    tails: Mapping[int, int]
    endings: Mapping[int, Ending]
    losses: tuple[Loss, ...] = ()
    stalled: Mapping[int, int] = field(default_factory=dict)

    @property
    def record_count(self) -> int:
        """How many records may be read."""
        return sum(max(0, self.tails[each] - start) for each, start in self.starts.items())

    @property
    def is_settled(self) -> bool:
        """Whether it is empty, and neither time nor a server that returns can change that."""
        is_whole = not (self.snapshot.away or self.endings or self.losses or self.bases)
        return is_whole and self.record_count == 0

    def all_ends(self) -> dict[int, int]:
        """Return the ends of a micro-batch that takes everything."""
        return {each: max(start, self.tails[each]) for each, start in self.starts.items()}

    def until(self, targets: Mapping[int, int]) -> Backlog:
        """Return the backlog up to these offsets only; a stream without one has none."""
        tails = {
            each: min(tail, targets.get(each, self.starts[each]))
            for each, tail in self.tails.items()
        }
        return replace(self, tails=tails)

    def positions(self, next_offsets: Mapping[int, int]) -> list[StreamPosition]:
        """Return these offsets as positions in the streams of the snapshot."""
        return [
            StreamPosition(
                stream_id,
                self.snapshot.streams[stream_id].created_at_ms,
                next_offset,
                base_offset=self.bases.get(stream_id),
                end_offset=self.endings.get(stream_id, NO_ENDING).kept_offset,
                end_time_ms=self.endings.get(stream_id, NO_ENDING).time_ms,
            )
            for stream_id, next_offset in next_offsets.items()
        ]


def added_streams(
    options: SourceOptions, begin: SourceOffset, snapshot: Snapshot
) -> Collection[int]:
    """Return the streams that options name and that the checkpoint does not know yet.

    Streams of a pattern are not returned, because they may have been created since the last run.
    """
    if begin.is_initial or isinstance(options.selection, StreamPattern):
        return ()
    known = begin.streams.keys() | begin.left_out.keys() | begin.stalled.keys()
    added = snapshot.streams.keys() - known
    if added:
        LOG.info(
            "streams added to the checkpoint: %s; they start as option %s says",
            listed([snapshot.streams[each].label for each in sorted(added)]),
            options.starting.option,
        )
    return added


def find_backlog(
    client: Client,
    options: SourceOptions,
    begin: SourceOffset,
    snapshot: Snapshot,
    added: Collection[int] = (),
) -> Backlog:
    """Return the backlog behind `begin`, all of whose streams exist.

    A fresh query starts where its options say; a stream whose server is down starts when the server
    is back. Streams that a restart has `added` start in the same way. Any other stream that is
    not in `begin` was created since, and is read from offset 0: records that were trimmed from it
    are lost. Raises SbpError, and ConfigurationError for positions outside of a stream.
    """
    asked = snapshot.streams.keys() if begin.is_initial else begin.pending | {*added}
    pending = (asked & snapshot.streams.keys()) - begin.streams.keys()
    chosen = _chosen_starts(client, options, begin, snapshot, pending)
    joined = dict.fromkeys(snapshot.bounds.keys() - begin.streams.keys() - pending, 0)
    bases = chosen | joined
    resumed = {
        stream_id: at.next_offset
        for stream_id, at in begin.streams.items()
        if stream_id in snapshot.bounds
    }
    wanted = bases | resumed
    endings = find_endings(client, options.ending, begin, snapshot, _maybe_timeout_ms(options))
    tails = _tails(options.ending, endings, chosen, snapshot)
    starts = {
        stream_id: max(start, min(snapshot.bounds[stream_id].start_offset, tails[stream_id]))
        for stream_id, start in wanted.items()
    }
    losses = tuple(
        Loss(stream_id, start, starts[stream_id])
        for stream_id, start in wanted.items()
        if start < starts[stream_id]
    )
    uptos = {
        stream_id: upto
        for stream_id, start in starts.items()
        if (upto := _maybe_upto(snapshot, endings, stream_id, start)) is not None
    }
    readable = {each: min(tails[each], uptos.get(each, tails[each])) for each in starts}
    stalled = _stalled_since(begin, snapshot, uptos.keys() | (pending - chosen.keys()))
    return Backlog(snapshot, bases, starts, readable, endings, losses, stalled)


def _chosen_starts(
    client: Client,
    options: SourceOptions,
    begin: SourceOffset,
    snapshot: Snapshot,
    pending: Collection[int],
) -> dict[int, int]:
    """Return where pending streams start. Streams whose start is not known yet are left out."""
    asked = positions_of(options.starting, snapshot.streams.values())
    dated = {each for each, position in asked.items() if isinstance(position, AtTime | Ago)}
    bounds = {  # a stream that starts at a time needs the answers of all of its servers
        stream_id: bound
        for stream_id, bound in snapshot.bounds.items()
        if stream_id in pending and not (stream_id in dated and stream_id in snapshot.away)
    }
    return starting_offsets(
        client,
        options,
        bounds,
        snapshot.streams,
        late_since_ms=None if begin.is_initial else begin.stalled,
        timeout_ms=_maybe_timeout_ms(options),
    )


def _maybe_timeout_ms(options: SourceOptions) -> int | None:
    """Return the timeout of requests for times; None: wait until the servers answer."""
    stall_ms_max = options.limits.stall_ms_max
    return None if stall_ms_max is None else answer_ms(stall_ms_max)


def _tails(
    ending: Positions | None,
    endings: Mapping[int, Ending],
    chosen: Mapping[int, int],
    snapshot: Snapshot,
) -> dict[int, int]:
    """Return the tails, no further than where reading ends. Raises if an end is before a start."""
    ends = {
        stream_id: each.offset for stream_id, each in endings.items() if each.offset is not None
    }
    if ending is not None:
        check_ends(ending.option, chosen, ends, snapshot.streams)
    return {
        stream_id: min(tail, ends.get(stream_id, tail))
        for stream_id, tail in snapshot.tails.items()
    }


def _stalled_since(
    begin: SourceOffset, snapshot: Snapshot, held_up: Collection[int]
) -> dict[int, int]:
    """Return since when streams are held up. Pending streams keep the time of the first offset."""
    now_ms = wall_ms()
    kept = {stream_id: begin.stalled[stream_id] for stream_id in begin.pending}
    since_ms = {**snapshot.stalled, **kept}
    return {stream_id: since_ms.get(stream_id, now_ms) for stream_id in held_up}


def _maybe_upto(
    snapshot: Snapshot, endings: Mapping[int, Ending], stream_id: int, start: int
) -> int | None:
    """Return up to where a stream can be read while servers are down; None: no server is needed."""
    if endings.get(stream_id, NO_ENDING).is_hidden:
        return start
    return snapshot.maybe_upto(stream_id, start)


NO_BACKLOG: Final = Backlog(Snapshot(), {}, {}, {}, {})
