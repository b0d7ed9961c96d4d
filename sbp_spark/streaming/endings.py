"""Where a streaming query ends in each stream, and what of that the checkpoint has to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sbp_core.client import Client
from sbp_spark.options import Ago, AtCursor, AtTime, Position, Positions
from sbp_spark.reading.locating import find_times, is_moving, locate, positions_of, time_of, wall_ms
from sbp_spark.reading.offsets import SourceOffset
from sbp_spark.reading.stream_position import StreamPosition
from sbp_spark.streaming.stream_watch import Snapshot


@dataclass(frozen=True, slots=True)
class Ending:
    """Where reading ends in a stream; `offset` None: nobody knows yet, the time has not come.

    `kept_offset` was resolved, from the tail or from `time_ms`, and is to stay as it is. Where
    `is_hidden`, a server that is away may have it: reading does not go on before that is known.
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
    """Return where reading ends, by stream id; a stream that is left out is read for ever.

    An end by time is the first record that was appended at the time or later. It is looked for as
    long as there is none, in the streams that have new records, behind those that were read. The
    servers of all these have to be there, and answer in `timeout_ms` if it is given. Raises
    SbpError.
    """
    if ending is None:
        return {}
    named = positions_of(ending, snapshot.streams.values())
    asked = {each: position for each, position in named.items() if each in snapshot.bounds}
    times_ms = _times(asked, begin)
    known_ends = {
        stream_id: at.end_offset
        for stream_id, at in begin.streams.items()
        if at.end_offset is not None and at.end_time_ms == times_ms.get(stream_id)
    }
    read_offsets = {stream_id: at.next_offset for stream_id, at in begin.streams.items()}
    hidden = {
        stream_id
        for stream_id in times_ms
        if snapshot.maybe_upto(stream_id, read_offsets.get(stream_id, 0)) is not None
    }
    sought = {
        stream_id: time_ms
        for stream_id, time_ms in times_ms.items()
        if stream_id not in known_ends
        and stream_id not in hidden
        and _has_new(begin.streams.get(stream_id), snapshot.tails[stream_id])
    }
    found = find_times(
        client, sought, snapshot.bounds, read_offsets=read_offsets, timeout_ms=timeout_ms
    )
    hidden |= sought.keys() - found.keys()
    endings = {}
    for stream_id, position in asked.items():
        if isinstance(position, AtTime | Ago):
            kept = known_ends.get(stream_id, found.get(stream_id))
            is_hidden = kept is None and stream_id in hidden
            endings[stream_id] = Ending(kept, kept, times_ms[stream_id], is_hidden)
            continue
        assert not isinstance(position, AtCursor), "no option ends at a cursor"
        end = locate(position, snapshot.bounds[stream_id])
        if is_moving(position):
            end = known_ends.get(stream_id, end)
            if stream_id in known_ends or snapshot.is_tail_known(stream_id):
                endings[stream_id] = Ending(end, end)
        else:
            endings[stream_id] = Ending(end)
    return endings


def _times(asked: Mapping[int, Position], begin: SourceOffset) -> dict[int, int]:
    """Return the times at which streams end, by id.

    One that is relative is resolved only once: a stream that joins later ends when others do.
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
            anew = resolved.get(position, time_of(position, now_ms))
            times_ms[stream_id] = known.get(stream_id, anew)
    return times_ms


def _has_new(known: StreamPosition | None, tail: int) -> bool:
    """Whether there are records that were not read: all that were are from before the end."""
    return known is None or known.next_offset < tail
