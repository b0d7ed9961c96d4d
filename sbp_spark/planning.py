"""From offset intervals to input partitions: cut by the streams' ranges, split long, pack short."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

from sbp_core.errors import SbpError
from sbp_spark.offsets import Interval

_LISTED_MAX = 20


class PlacedRange(Protocol):
    """A range of a stream, [start_offset, end_offset), and who hosts it."""

    @property
    def stream_id(self) -> int:
        """The stream that the range is part of."""
        ...

    @property
    def range_index(self) -> int:
        """The range's place in the stream; later ranges have higher ones."""
        ...

    @property
    def start_offset(self) -> int:
        """First offset that the range holds, or may hold."""
        ...

    @property
    def end_offset(self) -> int | None:
        """First offset behind the range; None while it is open: it covers whatever comes."""
        ...

    @property
    def servers(self) -> tuple[str, ...]:
        """Addresses of the range's servers, the primary first; may be empty."""
        ...


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


class DataLossError(SbpError):
    """Offsets that were to be read are stored nowhere any more.

    `intervals` lists all of them exactly; `names` has stream names by id, where known.
    """

    def __init__(self, intervals: tuple[Interval, ...], names: Mapping[int, str]) -> None:
        super().__init__(intervals, names)
        self.intervals = intervals
        self.names = names

    def __str__(self) -> str:
        count = sum(lost.end_offset - lost.start_offset for lost in self.intervals)
        lines = [
            f"stream {lost.stream_id} ({self.names.get(lost.stream_id) or 'unnamed'}):"
            f" [{lost.start_offset}, {lost.end_offset})"
            for lost in self.intervals[:_LISTED_MAX]
        ]
        more = len(self.intervals) - len(lines)
        return (
            f"{count} offsets are lost, no range holds them: {'; '.join(lines)}"
            f"{f' and {more} more intervals' if more else ''}. They were to be read, but were"
            " trimmed before, or their range is gone. Lengthen the retention or read more often;"
            " to go on behind the loss, start the query with a new checkpointLocation and"
            " startingOffsets"
        )


def cover(
    intervals: Iterable[Interval], ranges: Iterable[PlacedRange], *, names: Mapping[int, str]
) -> tuple[StreamSpan, ...]:
    """Cut each interval by the ranges of its stream; spans come in the order of the intervals.

    The spans cover the intervals exactly and are not empty. Where ranges overlap, the later one
    counts: a range that looks open although the stream went on elsewhere is out of date.
    `names` gives `stream_name`. Raises DataLossError with every part that no range covers.
    """
    ranges_by_stream: defaultdict[int, list[PlacedRange]] = defaultdict(list)
    for placed in ranges:
        ranges_by_stream[placed.stream_id].append(placed)
    spans: list[StreamSpan] = []
    lost: list[Interval] = []
    for interval in intervals:
        stream_id, position, end = interval
        for placed, upto in _effective_ends(ranges_by_stream[stream_id]):
            cut_start = max(position, placed.start_offset)
            cut_end = end if upto is None else min(end, upto)
            if cut_start >= cut_end:
                continue
            if position < cut_start:
                lost.append(Interval(stream_id, position, cut_start))
            name = names.get(stream_id, "")
            index, servers = placed.range_index, tuple(placed.servers)
            spans.append(StreamSpan(stream_id, name, index, cut_start, cut_end, servers))
            position = cut_end
        if position < end:
            lost.append(Interval(stream_id, position, end))
    if lost:
        lost_names = {stream_id: names.get(stream_id, "") for stream_id, _, _ in lost}
        raise DataLossError(tuple(lost), lost_names)
    return tuple(spans)


def _effective_ends(ranges: list[PlacedRange]) -> Iterator[tuple[PlacedRange, int | None]]:
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
    spans: Sequence[StreamSpan], *, records_per_partition_max: int, spans_per_partition_max: int
) -> tuple[tuple[StreamSpan, ...], ...]:
    """Return input partitions that read exactly `spans`, none of them over either maximum.

    A span over `records_per_partition_max` is split evenly by offset. Spans with the same primary
    server share partitions of about equal record counts, so that one FETCH serves many streams.
    No partition is empty, spans inside one ascend by stream and offset, partitions of one server
    by their first span; empty spans vanish.
    """
    assert records_per_partition_max > 0
    assert spans_per_partition_max > 0
    by_primary: defaultdict[str, list[StreamSpan]] = defaultdict(list)
    for span in spans:
        by_primary[span.primary].extend(_split(span, records_per_partition_max))
    partitions: list[tuple[StreamSpan, ...]] = []
    for primary in sorted(by_primary):
        packed = _pack(by_primary[primary], records_per_partition_max, spans_per_partition_max)
        ordered = (tuple(sorted(members, key=_reading_order)) for members in packed)
        partitions.extend(sorted(ordered, key=lambda members: _reading_order(members[0])))
    return tuple(partitions)


def _reading_order(span: StreamSpan) -> tuple[int, int]:
    return span.stream_id, span.start_offset


def _split(span: StreamSpan, records_max: int) -> Iterator[StreamSpan]:
    """Yield the fewest pieces of at most `records_max` offsets; their sizes differ by one."""
    start, count = span.start_offset, span.record_count
    piece_count = -(-count // records_max)
    for index in range(piece_count):
        yield replace(
            span,
            start_offset=start + count * index // piece_count,
            end_offset=start + count * (index + 1) // piece_count,
        )


def _pack(pieces: list[StreamSpan], records_max: int, spans_max: int) -> list[list[StreamSpan]]:
    """Put the pieces, longest first, each into the emptiest partition; add one if none has room."""
    total = sum(piece.record_count for piece in pieces)
    partition_count = max(-(-total // records_max), -(-len(pieces) // spans_max))
    partitions: list[list[StreamSpan]] = [[] for _ in range(partition_count)]
    emptiest = [(0, index) for index in range(partition_count)]
    for piece in sorted(pieces, key=lambda piece: (-piece.record_count, *_reading_order(piece))):
        if not emptiest or emptiest[0][0] + piece.record_count > records_max:
            heapq.heappush(emptiest, (0, len(partitions)))
            partitions.append([])
        load, index = heapq.heappop(emptiest)
        partitions[index].append(piece)
        if len(partitions[index]) < spans_max:
            heapq.heappush(emptiest, (load + piece.record_count, index))
    return partitions
