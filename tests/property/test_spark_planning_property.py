from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sbp_spark.reading.offsets import Interval
from sbp_spark.reading.partition_planning import StreamSpan, cover, plan_partitions


@dataclass(frozen=True)
class Placed:
    stream_id: int
    range_index: int
    start_offset: int
    end_offset: int | None
    servers: tuple[str, ...]


servers = st.lists(st.sampled_from(["a:1", "b:1", "c:1"]), max_size=3, unique=True).map(tuple)


@st.composite
def placed_ranges(draw):
    """Ranges of one stream: ascending, with gaps, empty ranges, and perhaps an open last one."""
    bounds = sorted(draw(st.lists(st.integers(0, 60), min_size=2, max_size=10)))
    stream_id = draw(st.integers(0, 2))
    placed = [
        Placed(stream_id, index, start, end, draw(servers))
        for index, (start, end) in enumerate(zip(bounds[::2], bounds[1::2], strict=False))
    ]
    if draw(st.booleans()):
        placed.append(Placed(stream_id, len(placed), bounds[-1], None, draw(servers)))
    return placed


def offsets_of(pieces):
    return sorted(
        (piece.stream_id, offset)
        for piece in pieces
        for offset in range(piece.start_offset, piece.end_offset)
    )


@st.composite
def disjoint_intervals(draw):
    result = []
    for stream_id in range(3):
        start = draw(st.integers(0, 70))
        result.append(Interval(stream_id, start, start + draw(st.integers(0, 30))))
    return result


def stream_of(group):
    return group[0].stream_id


@given(
    disjoint_intervals(), st.lists(placed_ranges(), max_size=3, unique_by=stream_of), st.randoms()
)
def test_cover_is_exact_and_the_loss_is_exact(intervals, groups, random):
    ranges = [placed for group in groups for placed in group]
    random.shuffle(ranges)
    held = {
        (interval.stream_id, offset)
        for interval in intervals
        for offset in range(interval.start_offset, interval.end_offset)
        for placed in ranges
        if placed.stream_id == interval.stream_id
        and placed.start_offset <= offset
        and (placed.end_offset is None or offset < placed.end_offset)
    }
    missing = sorted(set(offsets_of(intervals)) - held)
    spans, losses = cover(intervals, ranges, names={})
    assert offsets_of(losses) == missing
    assert sorted(offsets_of(spans) + missing) == offsets_of(intervals)
    by_index = {(placed.stream_id, placed.range_index): placed for placed in ranges}
    for span in spans:
        placed = by_index[span.stream_id, span.range_index]
        assert placed.start_offset <= span.start_offset < span.end_offset
        assert placed.end_offset is None or span.end_offset <= placed.end_offset
        assert span.servers == placed.servers


@st.composite
def span_lists(draw):
    spans = []
    for stream_id in range(draw(st.integers(0, 12))):
        position = draw(st.integers(0, 5))
        for index in range(draw(st.integers(1, 3))):
            end = position + draw(st.integers(0, 40))
            spans.append(StreamSpan(stream_id, "", index, position, end, draw(servers)))
            position = end
    return draw(st.permutations(spans))


maxima = st.integers(1, 50) | st.integers(50, 1000)


def plan(spans, records_max, spans_max):
    return plan_partitions(
        spans, records_per_partition_max=records_max, spans_per_partition_max=spans_max
    )


def load(partition):
    return sum(span.record_count for span in partition)


@given(span_lists(), maxima, st.integers(1, 10))
def test_partitions_cover_the_spans_exactly_within_the_limits(spans, records_max, spans_max):
    partitions = plan(spans, records_max, spans_max)
    pieces = [piece for partition in partitions for piece in partition]
    assert offsets_of(pieces) == offsets_of(spans)
    parents = {(span.stream_id, span.range_index): span for span in spans}
    for piece in pieces:
        parent = parents[piece.stream_id, piece.range_index]
        assert parent.start_offset <= piece.start_offset < piece.end_offset <= parent.end_offset
        assert piece.servers == parent.servers
    for partition in partitions:
        assert 0 < load(partition) <= records_max
        assert 0 < len(partition) <= spans_max
        order = [(span.stream_id, span.start_offset) for span in partition]
        assert order == sorted(order)


@given(span_lists(), maxima, st.integers(1, 10))
def test_each_stream_is_read_in_order_beside_streams_of_one_server(spans, records_max, spans_max):
    partitions = plan(spans, records_max, spans_max)
    homes = {}
    for span in sorted(spans, key=lambda span: span.start_offset):
        if span.record_count:
            homes.setdefault(span.stream_id, span.primary)
    for partition in partitions:
        assert len({homes[span.stream_id] for span in partition}) == 1
    for stream_id in homes:
        pieces = [
            piece for partition in partitions for piece in partition if piece.stream_id == stream_id
        ]
        assert all(a.end_offset <= b.start_offset for a, b in pairwise(pieces))


@given(span_lists(), maxima, st.integers(1, 10))
def test_partitions_are_balanced_and_few(spans, records_max, spans_max):
    partitions = plan(spans, records_max, spans_max)
    lines = len({span.primary for span in spans})
    total = load(spans)
    assert len(partitions) <= total / records_max + len(spans) / spans_max + 2 * lines
    if lines == 1 and spans_max >= len(spans):
        loads = [load(partition) for partition in partitions]
        assert len(loads) == -(-total // records_max)
        assert not loads or max(loads) - min(loads) <= 1


@given(span_lists(), maxima, st.integers(1, 10), st.randoms())
def test_a_plan_does_not_depend_on_the_order_of_the_spans(spans, records_max, spans_max, random):
    shuffled = list(spans)
    random.shuffle(shuffled)
    assert plan(shuffled, records_max, spans_max) == plan(spans, records_max, spans_max)


byte_limits = st.integers(1, 3000)


@given(
    span_lists(),
    maxima,
    st.none() | byte_limits,
    st.dictionaries(st.integers(0, 11), st.integers(1, 300)),
    st.integers(1, 40),
)
def test_all_bounds_together_cover_exactly(spans, records_max, bytes_max, sizes, count_min):
    partitions = plan_partitions(
        spans,
        records_per_partition_max=records_max,
        spans_per_partition_max=10,
        bytes_per_partition_max=bytes_max,
        record_bytes=sizes,
        partitions_min=count_min,
    )
    pieces = [piece for partition in partitions for piece in partition]
    assert offsets_of(pieces) == offsets_of(spans)
    assert len(partitions) >= min(count_min, load(spans))
    for partition in partitions:
        assert 0 < load(partition) <= records_max
        size_bytes = sum(piece.record_count * sizes.get(piece.stream_id, 1) for piece in partition)
        assert bytes_max is None or size_bytes <= bytes_max or load(partition) == 1


@given(st.integers(1, 500), st.integers(1, 40))
def test_one_span_is_cut_into_as_many_even_parts_as_are_asked_for(count, count_min):
    spans = [StreamSpan(1, "", 0, 0, count, ("a:1",))]
    partitions = plan_partitions(
        spans,
        records_per_partition_max=1000,
        spans_per_partition_max=10,
        partitions_min=count_min,
    )
    loads = [load(partition) for partition in partitions]
    assert max(loads) - min(loads) <= 1
    assert len(loads) >= min(count, count_min)
    assert max(loads) >= count // count_min
