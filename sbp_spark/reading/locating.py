"""From the positions that a user names to offsets of the streams as they are.

Callers use `starting_offsets` and `ending_offsets`. Times and cursors are looked up at servers,
with one call for all streams. Other positions follow from the bounds of a stream (`locate`).
"""

from __future__ import annotations

import difflib
import time
from collections import defaultdict
from collections.abc import Collection, Mapping

from sbp_core.client import Client, StreamBounds, StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_core.wording import listed
from sbp_spark.options.read_positions import (
    Ago,
    AtCursor,
    AtOffset,
    AtTime,
    BeforeTail,
    Earliest,
    InsidePosition,
    Latest,
    Position,
    Positions,
)
from sbp_spark.options.source import OnDataLoss, SourceOptions
from sbp_spark.options.stream_selection import find_ids
from sbp_spark.reporting import LOG


def positions_of(positions: Positions, infos: Collection[StreamInfo]) -> dict[int, Position]:
    """Return the position of each stream, by id. Streams that JSON does not name are left out."""
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
    faults += [f"leaves out {info.label}" for info in infos if info.stream_id not in found]
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
    """Whether appends to a stream move the position."""
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
        f"{streams[stream_id].label} at {offset}, which has offsets"
        f" [{bounds[stream_id].start_offset}, {bounds[stream_id].next_offset})"
        for stream_id, offset in offsets.items()
        if offset > bounds[stream_id].next_offset
        or (offset < bounds[stream_id].start_offset and stream_id not in trimmed_allowed)
    ]
    if faults:
        raise ConfigurationError(
            f"option {option} is outside of the stream: {listed(faults, '; ')}; expected an offset"
            " from the first record to the end: correct it, or use a word such as earliest"
        )


def check_ends(
    option: str,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    streams: Mapping[int, StreamInfo],
) -> None:
    """Raise ConfigurationError naming every stream that would end before it starts."""
    faults = [
        f"{streams[stream_id].label} starts at {starts[stream_id]} and ends at {end}"
        for stream_id, end in ends.items()
        if stream_id in starts and end < starts[stream_id]
    ]
    if faults:
        raise ConfigurationError(
            f"option {option} lies before the start: {listed(faults, '; ')}; end later, or start"
            " earlier"
        )


def wall_ms() -> int:
    """Return the current time in ms (Unix time), which relative times refer to."""
    return time.time_ns() // 1_000_000


def time_of(position: AtTime | Ago, now_ms: int) -> int:
    """Return a time in ms (Unix time); what would be before 1970 is 0."""
    if isinstance(position, AtTime):
        return position.time_ms
    return max(0, now_ms - position.duration_ms)


def find_times(
    client: Client,
    times_ms: Mapping[int, int],
    bounds: Mapping[int, StreamBounds],
    *,
    read_offsets: Mapping[int, int] | None = None,
    timeout_ms: int | None = None,
) -> dict[int, int | None]:
    """Return the first record, in the order of offsets, that was appended at a time or later.

    Maps stream ids to offsets; None if no record within `bounds` is so late. The bounds were taken
    before, so no record of the time lies between them and the answer. Records up to `read_offsets`
    do not count, because they were read. With a `timeout_ms` streams whose servers do not answer in
    time are left out. One call for all streams. Raises SbpError.
    """
    if not times_ms:
        return {}
    found = client.lookup_offsets(
        {each: time_ms * 1000 for each, time_ms in times_ms.items()},
        start_offsets=read_offsets or {},
        timeout_ms=timeout_ms,
    )
    return {
        each: offset if offset < bounds[each].next_offset else None
        for each, offset in found.items()
    }


def find_offsets(
    client: Client,
    positions: Positions,
    bounds: Mapping[int, StreamBounds],
    streams: Mapping[int, StreamInfo],
    *,
    late_since_ms: Mapping[int, int] | None = None,
    timeout_ms: int | None = None,
) -> dict[int, int]:
    """Return the offset of each stream's position, by id, within its bounds as they were seen.

    Only an offset that is named, and a cursor, may lie outside of the bounds. A stream of `bounds`
    that the positions do not name was created later: it is read from its first record.
    `late_since_ms` maps streams to the time since when a running query has waited for them, which
    relative times count from. With a `timeout_ms` streams whose servers do not answer in time are
    left out. Raises ConfigurationError for times that need a record and have none; for late streams
    the log gets a warning instead.
    """
    named = positions_of(positions, streams.values())
    asked = {stream_id: named.get(stream_id, Earliest()) for stream_id in bounds}
    now_ms = wall_ms()
    times_ms = {
        each: time_of(at, (late_since_ms or {}).get(each, now_ms))
        for each, at in asked.items()
        if isinstance(at, AtTime | Ago)
    }
    since = find_times(client, times_ms, bounds, timeout_ms=timeout_ms)
    # All that an empty stream will have is later than a time that has passed.
    empty = {each for each, bound in bounds.items() if bound.start_offset == bound.next_offset}
    fresh = {each for each, time_ms in times_ms.items() if each in empty and time_ms <= now_ms}
    cursors = _find_cursors(client, asked)
    missing = [
        f"{streams[stream_id].label}, whose last record is before {times_ms[stream_id]}"
        for stream_id, at in asked.items()
        if isinstance(at, AtTime | Ago)
        and at.must_exist
        and since.get(stream_id, 0) is None
        and stream_id not in fresh
    ]
    if missing and late_since_ms is not None:
        LOG.warning(
            "option %s is past the end of %s (ms since 1970); read from the tail on, as the query"
            " started without it",
            positions.option,
            listed(missing),
        )
    elif missing:
        raise ConfigurationError(
            f"option {positions.option} is past the end of {listed(missing, '; ')} (ms since 1970);"
            " expected a record of that time or later; start earlier, or set"
            " startingOffsetsByTimestampStrategy to latest"
        )
    offsets = {}
    for stream_id, bound in bounds.items():
        match asked[stream_id]:
            case AtTime() | Ago():
                if stream_id in since:
                    offset = since[stream_id]
                    offsets[stream_id] = bound.next_offset if offset is None else offset
            case AtCursor():
                offsets[stream_id] = cursors.get(stream_id, bound.start_offset)
            case position:
                offsets[stream_id] = locate(position, bound)
    return offsets


def _find_cursors(client: Client, asked: Mapping[int, Position]) -> dict[int, int]:
    """Return the cursors of the groups that are asked for, one call for each group."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for stream_id, position in asked.items():
        if isinstance(position, AtCursor):
            members[position.group].append(stream_id)
    return {
        cursor.stream_id: cursor.next_offset
        for group, stream_ids in members.items()
        for cursor in client.describe_cursors(group, stream_ids)
    }


def check_option_positions(options: SourceOptions, infos: Collection[StreamInfo]) -> None:
    """Raise ConfigurationError where JSON in the options does not name exactly the streams."""
    check_positions(options.starting, infos)
    if options.ending is not None:
        check_positions(options.ending, infos)


def starting_offsets(
    client: Client,
    options: SourceOptions,
    bounds: Mapping[int, StreamBounds],
    streams: Mapping[int, StreamInfo],
    *,
    late_since_ms: Mapping[int, int] | None = None,
    timeout_ms: int | None = None,
) -> dict[int, int]:
    """Return the first offset to read of each stream of `bounds`, which are some of `streams`.

    A trimmed offset is returned if losses do not fail, and a trimmed cursor in any case, because
    failOnDataLoss handles the loss before it. `late_since_ms` and `timeout_ms` are as in
    `find_offsets`; with `late_since_ms` the options may name other streams. Raises SbpError.
    """
    if late_since_ms is None:
        check_option_positions(options, streams.values())
    starts = find_offsets(
        client,
        options.starting,
        bounds,
        streams,
        late_since_ms=late_since_ms,
        timeout_ms=timeout_ms,
    )
    is_loss_allowed = options.on_data_loss is not OnDataLoss.FAIL
    trimmed_allowed = [
        stream_id
        for stream_id, position in positions_of(options.starting, streams.values()).items()
        if is_loss_allowed or isinstance(position, AtCursor)
    ]
    check_inside(options.starting.option, starts, bounds, streams, trimmed_allowed=trimmed_allowed)
    return starts


def ending_offsets(
    client: Client,
    options: SourceOptions,
    bounds: Mapping[int, StreamBounds],
    streams: Mapping[int, StreamInfo],
) -> dict[int, int]:
    """Return where a batch ends in each stream. Raises SbpError."""
    if options.ending is None:
        return {stream_id: bound.next_offset for stream_id, bound in bounds.items()}
    ends = find_offsets(client, options.ending, bounds, streams)
    check_inside(options.ending.option, ends, bounds, streams)
    return ends
