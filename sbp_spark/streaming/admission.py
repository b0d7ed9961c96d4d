"""Admission: how far a micro-batch may go in each stream when its records or octets are limited."""

from __future__ import annotations

from collections.abc import Mapping


def admit(
    starts: Mapping[int, int],
    tails: Mapping[int, int],
    *,
    records_max: int | None = None,
    bytes_max: int | None = None,
    record_bytes: Mapping[int, int] | None = None,
    turn: int = 0,
) -> dict[int, int]:
    """Return the end offset of each stream of `starts` (stream id -> next offset to read).

    At most `records_max` records and, by what `record_bytes` says of one record of each stream,
    `bytes_max` octets are admitted in all (None: no limit), in proportion to the backlogs. One
    record is always admitted, however long it is. `turn` is counted up by the caller: of n streams
    each that has something to read is served at least once in n consecutive turns. An end is never
    below its start nor above its tail; a stream whose tail is missing, or below its start (metadata
    may lag), stays where it is.
    """
    assert records_max is None or records_max > 0
    assert bytes_max is None or bytes_max > 0
    backlogs = {
        stream_id: max(0, tails.get(stream_id, start) - start)
        for stream_id, start in sorted(starts.items())
    }
    sizes = {stream_id: (record_bytes or {}).get(stream_id, 1) for stream_id in backlogs}
    room = _Room(records_max, bytes_max, backlogs, sizes)
    grants = backlogs if room.is_enough else _share(backlogs, sizes, room, turn)
    return {stream_id: starts[stream_id] + grant for stream_id, grant in grants.items()}


class _Room:
    """What is left of both limits."""

    def __init__(
        self,
        records_max: int | None,
        bytes_max: int | None,
        backlogs: Mapping[int, int],
        sizes: Mapping[int, int],
    ) -> None:
        records = sum(backlogs.values())
        octets = sum(backlog * sizes[stream_id] for stream_id, backlog in backlogs.items())
        self._records = records if records_max is None else records_max
        self._bytes = octets if bytes_max is None else bytes_max
        self.is_enough = records <= self._records and octets <= self._bytes

    def count(self, size_bytes: int) -> int:
        """Return how many records of that size fit."""
        return max(0, min(self._records, self._bytes // size_bytes))

    def take(self, count: int, size_bytes: int) -> None:
        """Use room for so many records of that size, even if there is none."""
        self._records -= count
        self._bytes -= count * size_bytes

    def share(self, records: int, octets: int) -> tuple[int, int]:
        """Return the part of so many records and octets that fits, as a fraction below 1."""
        if self._records <= 0 or self._bytes <= 0:
            return 0, 1
        if self._records * octets <= self._bytes * records:
            return self._records, records
        return self._bytes, octets


def _share(
    backlogs: Mapping[int, int], sizes: Mapping[int, int], room: _Room, turn: int
) -> dict[int, int]:
    """Return how many records each stream gets, where not all of them fit."""
    stream_ids = list(backlogs)
    first = turn % len(stream_ids)
    hungry = [each for each in stream_ids[first:] + stream_ids[:first] if backlogs[each]]
    grants = dict.fromkeys(stream_ids, 0)
    grants[hungry[0]] = 1
    room.take(1, sizes[hungry[0]])
    rest = {each: backlogs[each] - grants[each] for each in hungry}
    octets = sum(rest[each] * sizes[each] for each in hungry)
    part, whole = room.share(sum(rest.values()), octets)
    for each in hungry:
        count = rest[each] * part // whole
        grants[each] += count
        room.take(count, sizes[each])
    later = hungry[1:] + hungry[:1]
    for each in later:  # what was rounded off
        count = min(1, backlogs[each] - grants[each], room.count(sizes[each]))
        grants[each] += count
        room.take(count, sizes[each])
    for each in later:  # what is too little for one record of a stream with long ones
        count = min(backlogs[each] - grants[each], room.count(sizes[each]))
        grants[each] += count
        room.take(count, sizes[each])
    return grants
