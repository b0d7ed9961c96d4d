"""Admission: how far a micro-batch may go in each stream when its records are limited."""

from __future__ import annotations

from collections.abc import Iterable, Mapping


def admit(
    starts: Mapping[int, int],
    tails: Mapping[int, int],
    *,
    records_max: int | None,
    turn: int = 0,
) -> dict[int, int]:
    """Return the end offset of each stream of `starts` (stream id -> next offset to read).

    At most `records_max` records are admitted in all (None: everything up to the tails), shared
    max-min fairly: a stream with little to read gets all of it, the others get the same number,
    give or take one. `turn`, a number that the caller counts up from batch to batch, rotates who
    gets the odd records: with n streams, one that has something to read is served at least once
    in any ceil(n / records_max) consecutive turns. An end is never below its start nor above its
    tail; a stream whose tail is missing, or below its start (metadata may lag), stays where it is.
    """
    assert records_max is None or records_max >= 0
    backlogs = {
        stream_id: max(0, tails.get(stream_id, start) - start)
        for stream_id, start in sorted(starts.items())
    }
    if records_max is None or sum(backlogs.values()) <= records_max:
        return {stream_id: starts[stream_id] + backlog for stream_id, backlog in backlogs.items()}
    level = _fair_level(backlogs.values(), records_max)
    grants = {stream_id: min(backlog, level) for stream_id, backlog in backlogs.items()}
    spare = records_max - sum(grants.values())
    stream_ids = list(backlogs)
    # With fewer records than streams, consecutive turns begin where the one before left off.
    stride = records_max if records_max < len(stream_ids) else 1
    first = turn * stride % len(stream_ids)
    for stream_id in stream_ids[first:] + stream_ids[:first]:
        if spare and backlogs[stream_id] > level:
            grants[stream_id] += 1
            spare -= 1
    return {stream_id: starts[stream_id] + grant for stream_id, grant in grants.items()}


def _fair_level(backlogs: Iterable[int], records_max: int) -> int:
    """Return the highest level for which sum(min(backlog, level)) is at most `records_max`.

    The backlogs together exceed `records_max`.
    """
    remaining = sorted(backlogs)
    spare = records_max
    for index, backlog in enumerate(remaining):
        level = spare // (len(remaining) - index)
        if backlog > level:
            return level
        spare -= backlog
    raise AssertionError("the backlogs do not exceed the limit")
