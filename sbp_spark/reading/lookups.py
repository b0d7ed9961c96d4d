"""Positions that servers have to find: the first record of a time, the cursor of a group."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from sbp_core.client import Client, StreamBounds, StreamInfo
from sbp_core.errors import ConfigurationError
from sbp_spark.log import LOG
from sbp_spark.options import Ago, AtCursor, AtTime, Earliest, Position, Positions
from sbp_spark.reading.positions import display_name, locate, positions_of
from sbp_spark.wording import listed

NOTHING_READ: Final[Mapping[int, int]] = MappingProxyType({})


def wall_ms() -> int:
    """Return the time (Unix time) before which relative times are."""
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
    read_offsets: Mapping[int, int] = NOTHING_READ,
    timeout_ms: int | None = None,
) -> dict[int, int | None]:
    """Return the first record, in the order of offsets, that was appended at a time or later.

    By stream id; None where there is none within `bounds`: these were looked at before, so no
    record of the time lies in between. What was read, up to `read_offsets`, does not count. With a
    `timeout_ms` those whose servers do not answer in it are left out. One call for all streams.
    Raises SbpError.
    """
    if not times_ms:
        return {}
    found = client.lookup_offsets(
        {each: time_ms * 1000 for each, time_ms in times_ms.items()},
        start_offsets=read_offsets,
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

    Only an offset that is named, and a cursor, may lie outside of them. A stream of `bounds` that
    the positions do not name came later: it is read from its first record. `late_since_ms`
    is since when, by stream id, a query that runs has waited for the streams: relative times are
    before that. With a `timeout_ms` those whose servers do not answer in it are left out. Raises
    ConfigurationError for times that have to have a record and have none; for streams that are late
    that is a warning in the log.
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
    cursors = _find_cursors(client, asked)
    missing = [
        f"{display_name(streams[stream_id])}, whose last record is before {times_ms[stream_id]}"
        for stream_id, at in asked.items()
        if isinstance(at, AtTime | Ago) and at.must_exist and since.get(stream_id, 0) is None
    ]
    if missing and late_since_ms is not None:
        LOG.warning(
            "option %s is past the end of %s (ms since 1970); read from the tail on, as the query"
            " has begun without that",
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
