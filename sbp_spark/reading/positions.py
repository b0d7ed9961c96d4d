"""From the positions that a user names to offsets of the streams as they are."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from sbp_core.client import StreamBounds, StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_spark.options import (
    AtOffset,
    BeforeTail,
    Earliest,
    InsidePosition,
    Latest,
    Position,
    Positions,
    find_ids,
)
from sbp_spark.wording import listed


def display_name(info: StreamInfo) -> str:
    """Return what the column `stream` shows, and what the sink takes back: the name, or the id."""
    return info.name or str(info.stream_id)


def positions_of(positions: Positions, infos: Collection[StreamInfo]) -> dict[int, Position]:
    """Return the position of each stream, by id; those that JSON does not name are left out."""
    if positions.everywhere is not None:
        return {info.stream_id: positions.everywhere for info in infos}
    ids = find_ids(infos, positions.found)
    return {ids[name]: at for name, at in positions.by_stream.items() if name in ids}


def check_positions(positions: Positions, infos: Collection[StreamInfo]) -> None:
    """Raise ConfigurationError unless JSON names exactly these streams, by name or id, once."""
    if positions.everywhere is not None:
        return
    ids = find_ids(infos, positions.found)
    faults = []
    found: set[int] = set()
    for name in positions.by_stream:
        stream_id = ids.get(name)
        if stream_id is None:
            near = difflib.get_close_matches(name, ids, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            faults.append(f"names {name}, which is not read{hint}")
        elif stream_id in found:
            faults.append(f"names stream {stream_id} twice, by its name and by its id")
        else:
            found.add(stream_id)
    faults += [f"leaves out {display_name(info)}" for info in infos if info.stream_id not in found]
    if faults:
        raise ConfigurationError(
            f"option {positions.option} {listed(faults, '; ')}; expected exactly the streams that"
            " are read, by name or id"
        )


def locate(position: InsidePosition, bound: StreamBounds) -> int:
    """Return the offset of a position in a stream."""
    match position:
        case Earliest():
            return bound.start_offset
        case Latest():
            return bound.next_offset
        case BeforeTail(record_count):
            return max(bound.start_offset, bound.next_offset - record_count)
        case AtOffset(offset):
            return offset


def is_moving(position: Position) -> bool:
    """Whether what is appended to a stream moves the position."""
    return isinstance(position, Latest | BeforeTail)


def check_inside(
    option: str,
    offsets: Mapping[int, int],
    bounds: Mapping[int, StreamBounds],
    streams: Mapping[int, StreamInfo],
    *,
    trimmed_allowed: Collection[int] = (),
) -> None:
    """Raise ConfigurationError naming every offset that lies outside its stream.

    Streams of `trimmed_allowed` may have trimmed theirs.
    """
    faults = [
        f"{display_name(streams[stream_id])} at {offset}, but it holds"
        f" [{bounds[stream_id].start_offset}, {bounds[stream_id].next_offset})"
        for stream_id, offset in offsets.items()
        if offset > bounds[stream_id].next_offset
        or (offset < bounds[stream_id].start_offset and stream_id not in trimmed_allowed)
    ]
    if faults:
        raise ConfigurationError(
            f"option {option} lies outside of: {listed(faults, '; ')}; expected an offset from the"
            " first one to the next one to be written, or a word such as latest"
        )


def check_ends(
    option: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    streams: Mapping[int, StreamInfo],
) -> None:
    """Raise ConfigurationError naming every stream that would end before it starts."""
    faults = [
        f"{display_name(streams[stream_id])} starts at {starts[stream_id]} and ends at {end}"
        for stream_id, end in ends.items()
        if stream_id in starts and end < starts[stream_id]
    ]
    if faults:
        raise ConfigurationError(
            f"option {option} lies before the start: {listed(faults, '; ')}; expected no end before"
            " its start: end later, or start earlier"
        )
