"""From offset intervals to input partitions.

`cover` cuts the intervals by the ranges of their streams. `plan_partitions` splits long spans and
packs short spans, by records and by bytes, which `RecordSizeEstimates` estimates. Partitions
are numbered in the order of each stream's records, and a sink keeps that order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Final, NamedTuple

from sbp_core.client import Client, RangeInfo
from sbp_spark.options.source import PARTITIONS_MAX
from sbp_spark.reading.losses import Loss
from sbp_spark.reading.offsets import Interval
from sbp_spark.reporting import LOG


@dataclass(frozen=True, slots=True)
class StreamSpan:
    """Offsets [start_offset, end_offset) of one range of a stream; `servers` primary first."""

    stream_id: int
    stream_name: str
    range_index: int
    start_offset: int
    end_offset: int
    servers: tuple[str, ...]

    @property
    def record_count(self) -> int:
        """Number of offsets in the span."""
        return self.end_offset - self.start_offset

    @property
    def primary(self) -> str:
        """The primary server, "" if none is known."""
        return self.servers[0] if self.servers else ""


class Cover(NamedTuple):
    """Spans that are stored, and the parts of the intervals that are not; together they are all."""

    spans: tuple[StreamSpan, ...]
    losses: tuple[Loss, ...]


def cover(
    intervals: Iterable[Interval], ranges: Iterable[RangeInfo], *, names: Mapping[int, str]
) -> Cover:
    """Cut each interval by the ranges of its stream; spans come in the order of the intervals.

    Spans and losses cover the intervals exactly and are not empty. Where ranges overlap, the later
    one counts: a range that looks open although the stream went on elsewhere is out of date.
    `names` gives `stream_name`.
    """
    ranges_by_stream: defaultdict[int, list[RangeInfo]] = defaultdict(list)
    for placed in ranges:
        ranges_by_stream[placed.stream_id].append(placed)
    spans: list[StreamSpan] = []
    losses: list[Loss] = []
    for interval in intervals:
        stream_id, position, end = interval
        for placed, upto in _effective_ends(ranges_by_stream[stream_id]):
            cut_start = max(position, placed.start_offset)
            cut_end = end if upto is None else min(end, upto)
            if cut_start >= cut_end:
                continue
            if position < cut_start:
                losses.append(Loss(stream_id, position, cut_start))
            name = names.get(stream_id, "")
            index, servers = placed.range_index, tuple(placed.servers)
            spans.append(StreamSpan(stream_id, name, index, cut_start, cut_end, servers))
            position = cut_end
        if position < end:
            losses.append(Loss(stream_id, position, end))
    return Cover(tuple(spans), tuple(losses))


def _effective_ends(ranges: list[RangeInfo]) -> Iterator[tuple[RangeInfo, int | None]]:
    """Yield the ranges in offset order, each with where it ends or the next one begins."""
    ranges.sort(key=lambda placed: (placed.start_offset, placed.range_index))
    for placed, following in pairwise(ranges):
        if placed.end_offset is None:
            yield placed, following.start_offset
        else:
            yield placed, min(placed.end_offset, following.start_offset)
    if ranges:
        yield ranges[-1], ranges[-1].end_offset


def plan_partitions(
    spans: Sequence[StreamSpan],
    *,
    records_per_partition_max: int,
    spans_per_partition_max: int,
    bytes_per_partition_max: int | None = None,
    record_bytes: Mapping[int, int] | None = None,
    partitions_min: int = 1,
) -> tuple[tuple[StreamSpan, ...], ...]:
    """Return input partitions that read exactly `spans`, none of them over any maximum.

    If that takes more than PARTITIONS_MAX partitions, the partitions are larger; a few more come
    from ends of ranges and different servers. Time and memory depend on the number of partitions
    and spans, not on the offsets.

    Partitions are balanced. The records of each stream are in the order of their offsets, first by
    partition and then by span, whichever servers have its ranges. Streams whose first span has the
    same primary server share partitions, so that one FETCH serves many. `record_bytes` says how
    long a record of each stream is; a record that is over the maximum is alone. There are at least
    `partitions_min` partitions, if there are as many records. None is empty, and empty spans
    vanish.
    """
    assert min(records_per_partition_max, spans_per_partition_max, partitions_min) > 0
    assert partitions_min <= PARTITIONS_MAX
    count = sum(span.record_count for span in spans)
    maxima = [records_per_partition_max]
    maxima += [-(-count // partitions_min), max(1, count // partitions_min)]
    planned: tuple[tuple[StreamSpan, ...], ...] = ()
    scale = bounded = _scale(records_per_partition_max, None, {})
    for records_max in (min(each, records_per_partition_max) for each in maxima if each):
        scale = _scale(records_max, bytes_per_partition_max, record_bytes or {})
        bounded = _bounded(scale, spans)
        planned = _plan(spans, bounded, spans_per_partition_max)
        if len(planned) >= partitions_min:
            break
    if bounded is not scale:
        LOG.warning(
            "input partitions exceed the limits of the options records=%d tasks=%d: a plan has"
            " about %d partitions at most",
            count,
            len(planned),
            PARTITIONS_MAX,
        )
    return planned


@dataclass(frozen=True, slots=True)
class _Scale:
    """The weight of records, and how much a partition holds.

    Two maxima become one: a record weighs the larger part of either maximum that it uses up, at
    most all of it.
    """

    capacity: int
    weights: Mapping[int, int]
    default_weight: int

    def weight(self, span: StreamSpan) -> int:
        return span.record_count * self.record_weight(span)

    def record_weight(self, span: StreamSpan) -> int:
        return self.weights.get(span.stream_id, self.default_weight)


def _bounded(scale: _Scale, spans: Sequence[StreamSpan]) -> _Scale:
    """Return the same scale, or one by which PARTITIONS_MAX partitions hold all the spans."""
    least = -(-sum(scale.weight(span) for span in spans) // PARTITIONS_MAX)
    return scale if least <= scale.capacity else replace(scale, capacity=least)


def _scale(records_max: int, bytes_max: int | None, record_bytes: Mapping[int, int]) -> _Scale:
    if bytes_max is None:
        return _Scale(records_max, {}, 1)
    capacity = records_max * bytes_max
    weights = {
        stream_id: min(max(bytes_max, size_bytes * records_max), capacity)
        for stream_id, size_bytes in record_bytes.items()
    }
    return _Scale(capacity, weights, max(bytes_max, records_max))


def _plan(
    spans: Sequence[StreamSpan], scale: _Scale, spans_max: int
) -> tuple[tuple[StreamSpan, ...], ...]:
    """Lay the spans end to end, with the spans of a stream together, and cut the line."""
    lines: defaultdict[str, list[StreamSpan]] = defaultdict(list)
    first_primary: dict[int, str] = {}
    for span in sorted(spans, key=lambda each: (each.stream_id, each.start_offset)):
        if span.record_count:
            lines[first_primary.setdefault(span.stream_id, span.primary)].append(span)
    cut = (_cut(lines[primary], scale, spans_max) for primary in sorted(lines))
    return tuple(chain.from_iterable(cut))


def _cut(
    line: Sequence[StreamSpan], scale: _Scale, spans_max: int
) -> Iterator[tuple[StreamSpan, ...]]:
    """Yield partitions of about the same weight, about as few as the maxima allow."""
    total = sum(map(scale.weight, line))
    count = max(-(-total // scale.capacity), -(-len(line) // spans_max))
    index = 1
    members: list[StreamSpan] = []
    load = before = 0
    for span in line:
        weight, rest = scale.record_weight(span), span
        while rest.record_count:
            room = min(total * index // count - before, scale.capacity) - load
            taken = room // weight if members else max(1, room // weight)
            if taken <= 0 or len(members) == spans_max:
                yield tuple(members)
                members, load, before, index = [], 0, before + load, index + 1
                continue
            cut_at = min(rest.start_offset + taken, rest.end_offset)
            members.append(replace(rest, end_offset=cut_at))
            load += weight * members[-1].record_count
            rest = replace(rest, start_offset=cut_at)
    if members:
        yield tuple(members)


RECORD_BYTES_UNKNOWN: Final = 1024
"""The assumed size of a record before any server has answered."""
_ANSWER_MS: Final = 3_000
"""How long range servers are waited for, without which the last known sizes count."""
_RECORDS_MIN: Final = 10_000
"""The least number of new records after which the size of a stream is asked for again."""


class _Measured(NamedTuple):
    """The bytes of a record as they were when a stream had `record_count` records up to a tail."""

    record_bytes: int | None
    record_count: int
    tail: int


class RecordSizeEstimates:
    """Bytes per record of each stream, envelope included: the average of all that it stores.

    A stream is measured again when it has twice as many records.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[int, _Measured] = {}

    def estimate(self, starts: Mapping[int, int], tails: Mapping[int, int]) -> dict[int, int]:
        """Return the bytes of one record of each stream of `starts` (SPEC "DESCRIBE_RANGE").

        A stream whose servers do not answer counts with the size known before, or else with the
        largest size that is known of any stream.
        """
        self._measure(
            {each: tails[each] for each, start in starts.items() if start < tails.get(each, start)}
        )
        sizes = {each: at.record_bytes for each, at in self._known.items()}
        default = max((each for each in sizes.values() if each), default=RECORD_BYTES_UNKNOWN)
        return {each: sizes.get(each) or default for each in starts}

    def _measure(self, tails: Mapping[int, int]) -> None:
        stale = [
            each
            for each, tail in tails.items()
            if (at := self._known.get(each)) is None
            or tail - at.tail > max(at.record_count, _RECORDS_MIN)
        ]
        if not stale:
            return
        positions: dict[int, int | None] = dict.fromkeys(stale)
        reaches = self._client.reach(positions, timeout_ms=_ANSWER_MS, spared={})
        stored = self._client.stored_bytes(stale, timeout_ms=_ANSWER_MS)
        for stream_id in stale:
            before, reach = self._known.get(stream_id), reaches.get(stream_id)
            record_bytes, count = None if before is None else before.record_bytes, 0
            if reach is not None and reach.next_offset is not None:
                count = reach.next_offset - reach.start_offset
                if count and stream_id in stored:
                    record_bytes = -(-stored[stream_id] // count)
            self._known[stream_id] = _Measured(record_bytes, count, tails[stream_id])
