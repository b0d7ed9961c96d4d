"""Where the next micro-batch starts and may end, from what a query has read and what is there.

Everything here is a function of the checkpoint's offset, the options and one look at the streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from sbp_spark.data_loss import Loss
from sbp_spark.offsets import SourceOffset, StreamPosition
from sbp_spark.options import SourceOptions
from sbp_spark.positions import check_ends, is_moving, locate, positions_of
from sbp_spark.source_streams import starting_offsets
from sbp_spark.stream_watch import Snapshot


@dataclass(frozen=True, slots=True)
class Way:
    """What lies ahead of a query in each stream, by id.

    `bases` has the streams that are new to the query. `kept_ends` are ends that were resolved from
    a tail and are to stay as they are; `tails` are cut to where reading ends. `losses`
    lie before `starts`: they were to be read, and are trimmed. `stalled` are streams of which more
    could be read if no server were away, with the time since when; those whose start is not
    known because of that have no other entry here. `targets` are where a run with
    Trigger.AvailableNow ends.
    """

    snapshot: Snapshot
    bases: Mapping[int, int]
    starts: Mapping[int, int]
    tails: Mapping[int, int]
    kept_ends: Mapping[int, int]
    losses: tuple[Loss, ...] = ()
    stalled: Mapping[int, int] = field(default_factory=dict)
    targets: Mapping[int, int] = field(default_factory=dict)

    @property
    def record_count(self) -> int:
        """How many records may be read."""
        return sum(max(0, self.tails[each] - start) for each, start in self.starts.items())

    def farthest(self) -> dict[int, int]:
        """Return the end of a micro-batch that takes everything."""
        return {each: max(start, self.tails[each]) for each, start in self.starts.items()}

    def until(self, targets: Mapping[int, int]) -> Way:
        """Return the way to these offsets only; a stream without one stays where it is."""
        tails = {
            each: min(tail, targets.get(each, self.starts[each]))
            for each, tail in self.tails.items()
        }
        return replace(self, tails=tails, targets=targets)

    def positions(self, next_offsets: Mapping[int, int]) -> list[StreamPosition]:
        """Return these offsets with the identity that each stream has now."""
        return [
            StreamPosition(
                stream_id,
                self.snapshot.streams[stream_id].created_at_ms,
                next_offset,
                base_offset=self.bases.get(stream_id),
                end_offset=self.kept_ends.get(stream_id),
                target_offset=self._maybe_target(stream_id, next_offset),
            )
            for stream_id, next_offset in next_offsets.items()
        ]

    def _maybe_target(self, stream_id: int, next_offset: int) -> int | None:
        target = self.targets.get(stream_id, 0)
        return target if target > next_offset else None


def frozen_targets(begin: SourceOffset, way: Way) -> dict[int, int]:
    """Return where a run with Trigger.AvailableNow ends: at the tails, which are frozen by that.

    A run that was cut short has left its targets in `begin`. It is carried on: to them, where they
    can still be reached, and no further.
    """
    left = {
        stream_id: min(at.target_offset, way.tails.get(stream_id, 0))
        for stream_id, at in begin.streams.items()
        if at.target_offset is not None
    }
    left = {each: target for each, target in left.items() if target > way.starts.get(each, target)}
    return left or dict(way.tails)


def way_ahead(options: SourceOptions, begin: SourceOffset, snapshot: Snapshot) -> Way:
    """Return what lies ahead of `begin`, all of whose streams are there.

    A fresh query starts where its options say, in a stream whose server is away as soon as it is
    back. A stream that joins a running query's checkpoint is read from its first record, whatever
    they say. Raises ConfigurationError for positions that cannot be.
    """
    is_fresh = begin.is_initial
    pending = snapshot.streams.keys() if is_fresh else begin.pending & snapshot.streams.keys()
    found = {each: bound for each, bound in snapshot.bounds.items() if each in pending}
    chosen = starting_offsets(options, found, snapshot.streams, is_late=not is_fresh)
    joined = {
        stream_id: bound.start_offset
        for stream_id, bound in snapshot.bounds.items()
        if stream_id not in begin.streams and stream_id not in found
    }
    bases = chosen | joined
    resumed = {
        stream_id: at.next_offset
        for stream_id, at in begin.streams.items()
        if stream_id in snapshot.bounds
    }
    wanted = bases | resumed
    ends, kept_ends = _ends(options, begin, snapshot)
    check_ends(chosen, ends, snapshot.streams)
    tails = {
        stream_id: min(tail, ends.get(stream_id, tail))
        for stream_id, tail in snapshot.tails.items()
    }
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
        stream_id: snapshot.maybe_upto(stream_id, start) for stream_id, start in starts.items()
    }
    readable = {
        stream_id: tail if (upto := uptos[stream_id]) is None else min(tail, upto)
        for stream_id, tail in tails.items()
    }
    held_up = {each for each, upto in uptos.items() if upto is not None}
    stalled = {
        stream_id: since_ms
        for stream_id, since_ms in snapshot.stalled.items()
        if stream_id in held_up or stream_id in pending - found.keys()
    }
    return Way(snapshot, bases, starts, readable, kept_ends, losses, stalled)


def _ends(
    options: SourceOptions, begin: SourceOffset, snapshot: Snapshot
) -> tuple[dict[int, int], dict[int, int]]:
    """Return where reading ends, and which of these ends were resolved from a tail."""
    if options.ending is None:
        return {}, {}
    asked = positions_of(options.ending, snapshot.streams.values())
    ends: dict[int, int] = {}
    kept: dict[int, int] = {}
    for stream_id, bound in snapshot.bounds.items():
        if stream_id not in asked:
            continue
        position, known = asked[stream_id], begin.streams.get(stream_id)
        end = locate(position, bound)
        if is_moving(position):
            if known is not None and known.end_offset is not None:
                end = known.end_offset
            elif not snapshot.is_tail_known(stream_id):
                continue
            kept[stream_id] = end
        ends[stream_id] = end
    return ends, kept
