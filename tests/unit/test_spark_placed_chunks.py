"""Batches that were left in files are read there as far as that goes, and else fetched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_streams import numbered, rows_of

from sbp_core.client import FetchOutcome, PlacedBatches, PlacedPiece
from sbp_core.errors import OffsetOutOfRangeError, StatusCode
from sbp_core.records import encode_rows
from sbp_core.wire.headers import BatchPlace
from sbp_spark.reading.input_partitions import decode_chunks
from sbp_spark.reading.layout import RowsLayout
from sbp_spark.reading.losses import DataLossError
from sbp_spark.reading.planning import StreamSpan
from sbp_spark.reading.prefetch import Chunk, Prefetcher, fetch_chunks, read_placed_chunks
from sbp_spark.row_schema import source_arrow_schema, source_schema

ROWS = RowsLayout(source_arrow_schema(source_schema(include_headers=False)))
BATCH_RECORDS = 10
PLACED_BATCHES = 5
EMPTY = memoryview(b"")


def span(start, end, stream_id=7):
    return StreamSpan(stream_id, f"s{stream_id}", 0, start, end, ("host:1",))


def batch(start, stream_id):
    rows = rows_of(numbered(start, start + BATCH_RECORDS))
    return encode_rows(rows, stream_id=stream_id, timestamp_ms=0, base_offset=start)


class PlacingServer:
    """Tells of five batches at a time, of which `readable` can be read; else sends one of them.

    Records below `trimmed_to` cannot be fetched any more.
    """

    def __init__(self, readable=10**6, trimmed_to=0):
        self.readable = readable
        self.trimmed_to = trimmed_to
        self.fetched = []

    def fetch(self, items, *, max_wait_ms=0, min_bytes=1, leaves_placed=False):
        for index, item in enumerate(items):
            first = item.fetch_offset - item.fetch_offset % BATCH_RECORDS
            if leaves_placed:
                ends = range(first, min(item.end_offset, first + 50), BATCH_RECORDS)
                places = tuple(BatchPlace(0, 0, 0, 200_000, 0, at, BATCH_RECORDS) for at in ends)
                placed = PlacedBatches("host:1", "/log", "it", item.stream_id, 0, places)
                end = placed.end_offset
                yield FetchOutcome(index, item.stream_id, EMPTY, end, None, placed)
                continue
            self.fetched.append(item.fetch_offset)
            if item.fetch_offset < self.trimmed_to:
                bounds = OffsetOutOfRangeError.encode_bounds(self.trimmed_to, 10**6)
                gone = OffsetOutOfRangeError(StatusCode.OFFSET_OUT_OF_RANGE, "gone", bounds)
                yield FetchOutcome(index, item.stream_id, EMPTY, item.fetch_offset, gone)
                continue
            payload = memoryview(batch(first, item.stream_id))
            yield FetchOutcome(index, item.stream_id, payload, first + BATCH_RECORDS, None)

    def read_places(self, placed):
        for place in placed.places:
            if not self.readable:
                return
            self.readable -= 1
            payload = memoryview(batch(place.base_offset, placed.stream_id))
            yield PlacedPiece(payload, place.base_offset + place.record_count)


def offsets(server, spans, *, is_loss_fatal=True):
    """Offsets by stream, as a task reads them."""
    fetched = fetch_chunks(server, spans, is_loss_fatal=is_loss_fatal, leaves_placed=True)
    ahead = Prefetcher(fetched, bytes_max=1)
    chunks = read_placed_chunks(
        server, ahead, spans, round_bytes=1_000, is_loss_fatal=is_loss_fatal
    )
    found = {}
    for rows in decode_chunks(chunks, spans, ROWS):
        for row in rows.to_pylist():
            assert row["value"] == b"%d" % row["offset"]
            found.setdefault(row["stream_id"], []).append(row["offset"])
    return found


spans_of_streams = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 150)), min_size=1, max_size=20
).map(lambda cuts: [span(at, at + n, stream_id=i) for i, (at, n) in enumerate(cuts)])


@given(spans_of_streams, st.integers(0, 60))
def test_exactly_the_spans_come_out_however_much_can_be_read(spans, readable):
    server = PlacingServer(readable)
    expected = {each.stream_id: list(range(each.start_offset, each.end_offset)) for each in spans}
    assert offsets(server, spans) == expected
    assert (server.readable > 0) <= (server.fetched == [])


def test_what_is_gone_when_it_cannot_be_read_is_lost():
    with pytest.raises(DataLossError, match=r"\[20, 50\)"):
        offsets(PlacingServer(2, trimmed_to=70), [span(3, 100)])


def test_reading_goes_on_behind_what_is_lost():
    found = offsets(PlacingServer(2, trimmed_to=35), [span(3, 100)], is_loss_fatal=False)
    assert found == {7: [*range(3, 20), *range(35, 100)]}


def test_a_chunk_counts_for_what_is_to_be_read():
    (chunk,) = fetch_chunks(PlacingServer(), [span(0, 50)], leaves_placed=True)
    assert chunk.maybe_placed is not None
    assert chunk.size_bytes == chunk.maybe_placed.length_bytes > 5 * 190_000
    assert Chunk(0, memoryview(b"1234")).size_bytes == 4
